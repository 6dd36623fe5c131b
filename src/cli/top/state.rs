//! What is looked at: order, filter, place in the list; and what the keys do to it.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Rates, Row};

/// What rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Name,
    State,
    Requests,
    Bandwidth,
    Latency,
    Queue,
    Errors,
}

impl Sort {
    /// Each with its key, in the order of the help.
    pub(super) const ALL: [(char, Self, &'static str); 7] = [
        ('n', Self::Name, "name"),
        ('s', Self::State, "state"),
        ('i', Self::Requests, "IOPS"),
        ('b', Self::Bandwidth, "bytes"),
        ('l', Self::Latency, "latency"),
        ('o', Self::Queue, "queue"),
        ('e', Self::Errors, "errors"),
    ];

    pub(super) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, sort, _)| *sort == self).map_or("", |(_, _, word)| word)
    }

    /// Names go up; of numbers the largest is of interest.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let rates = |row: &Row| row.rates.unwrap_or_default();
        let by = |value: fn(&Rates) -> f64| value(&rates(b)).total_cmp(&value(&rates(a)));
        match self {
            Self::Name => Ordering::Equal,
            Self::State => a.state.cmp(&b.state),
            Self::Requests => by(|rates| rates.requests),
            Self::Bandwidth => by(|rates| rates.read + rates.written),
            Self::Latency => rates(b).p99.cmp(&rates(a).p99),
            Self::Queue => share(b).total_cmp(&share(a)),
            Self::Errors => b.errors.cmp(&a.errors),
        }
    }
}

/// How full a device's queues are.
fn share(row: &Row) -> f64 {
    if row.room == 0 { 0.0 } else { row.in_flight as f64 / row.room as f64 }
}

/// Everything that is on the screen.
#[derive(Debug)]
pub(super) struct State {
    /// Where the daemon is.
    pub(super) socket: String,
    /// All devices.
    pub(super) rows: Vec<Row>,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) typing: bool,
    pub(super) paused: bool,
    /// Row at the top of the screen.
    pub(super) first: usize,
    /// Rows that the screen had room for.
    pub(super) page: usize,
    /// Why there is nothing newer.
    pub(super) trouble: Option<String>,
}

impl State {
    pub(super) fn new(socket: String) -> Self {
        Self {
            socket,
            rows: Vec::new(),
            sort: Sort::Requests,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            first: 0,
            page: 1,
            trouble: None,
        }
    }

    /// The rows that pass the filter, sorted; equal ones by name.
    pub(super) fn shown(&self) -> Vec<&Row> {
        let passes = |row: &&Row| {
            let has = |text: &String| text.contains(&self.filter);
            [&row.name, &row.group, &row.state, &row.node].into_iter().any(has)
        };
        let mut rows: Vec<_> = self.rows.iter().filter(passes).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b).then_with(|| a.name.cmp(&b.name)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Does what a key says; true when it says quit.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c'));
        }
        if self.typing {
            self.typed(key.code);
            return false;
        }
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::Down => self.first += 1,
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.page),
            KeyCode::PageDown => self.first += self.page,
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            KeyCode::Char(key) => {
                if let Some((_, sort, _)) = Sort::ALL.iter().find(|(known, _, _)| *known == key) {
                    self.sort = *sort;
                }
            }
            _ => {}
        }
        false
    }

    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.first = 0;
    }

    /// Shows `rows` of the list at once: no page begins behind the last full one.
    pub(super) fn fit(&mut self, rows: usize, room: usize) {
        self.page = room.max(1);
        self.first = self.first.min(rows.saturating_sub(self.page));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in crate::cli::top) fn row(name: &str, state: &str, requests: f64) -> Row {
        Row {
            name: name.to_owned(),
            node: format!("/dev/ublkb{}", name.len()),
            group: if name.starts_with("vm") { "vm-7".to_owned() } else { String::new() },
            state: state.to_owned(),
            rates: Some(Rates {
                requests,
                read: requests * 4096.0,
                written: requests * 1000.0,
                p50: (requests > 0.0).then_some(Duration::from_nanos(1 << 17)),
                p99: (requests > 0.0).then_some(Duration::from_nanos(1 << 21)),
            }),
            in_flight: requests as u64 % 64,
            room: 128,
            errors: 0,
        }
    }

    pub(in crate::cli::top) fn state() -> State {
        let mut state = State::new("/run/ublkd/ublkd.sock".to_owned());
        state.rows = vec![
            row("vm-disk", "live", 12_345.0),
            row("scratch-10", "live", 1_700_000.0),
            row("scratch-2", "failed", 0.0),
            row("a", "starting", 99.9),
        ];
        (state.rows[2].errors, state.rows[2].rates) = (17, None);
        state
    }

    fn press(state: &mut State, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                key => KeyCode::Char(key),
            };
            assert!(!state.key(KeyEvent::new(code, KeyModifiers::NONE)), "{key:?} quits");
        }
    }

    fn names(state: &State) -> String {
        state.shown().iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn keys_sort() {
        let mut state = state();
        assert_eq!(names(&state), "scratch-10 vm-disk a scratch-2");
        for (keys, order) in [
            ("n", "a scratch-10 scratch-2 vm-disk"),
            ("r", "vm-disk scratch-2 scratch-10 a"),
            ("rs", "scratch-2 scratch-10 vm-disk a"),
            ("e", "scratch-2 a scratch-10 vm-disk"),
            ("b", "scratch-10 vm-disk a scratch-2"),
            ("o", "vm-disk a scratch-10 scratch-2"),
            ("l", "a scratch-10 vm-disk scratch-2"),
            ("i", "scratch-10 vm-disk a scratch-2"),
        ] {
            press(&mut state, keys);
            if keys == "o" {
                state.rows[0].in_flight = 60;
            }
            assert_eq!(names(&state), order, "{keys}");
        }
    }

    #[test]
    fn keys_filter_and_letters_of_the_filter_sort_nothing() {
        let mut state = state();
        press(&mut state, "/scrax");
        assert_eq!((names(&state).as_str(), state.typing), ("", true));
        press(&mut state, "\x08\x08t");
        assert_eq!(names(&state), "");
        press(&mut state, "\x08a\n");
        assert_eq!(state.filter, "scra");
        assert_eq!(names(&state), "scratch-10 scratch-2");
        assert_eq!((state.sort, state.typing), (Sort::Requests, false));
        press(&mut state, "\x1b/vm-7\n");
        assert_eq!(names(&state), "vm-disk");
        press(&mut state, "/\x1b");
        assert_eq!(state.shown().len(), 4);
    }

    #[test]
    fn q_and_control_c_quit() {
        let mut state = state();
        assert!(state.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
        press(&mut state, "/q");
        assert_eq!(state.filter, "q");
        assert!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn the_list_does_not_scroll_past_its_end() {
        let mut state = state();
        for (key, first) in [
            (KeyCode::Down, 1),
            (KeyCode::End, 2),
            (KeyCode::PageDown, 2),
            (KeyCode::PageUp, 0),
            (KeyCode::Up, 0),
            (KeyCode::PageDown, 2),
            (KeyCode::Home, 0),
        ] {
            assert!(!state.key(KeyEvent::new(key, KeyModifiers::NONE)));
            state.fit(4, 2);
            assert_eq!(state.first, first, "{key:?}");
        }
        state.fit(4, 0);
    }
}
