//! The screen, from the state.
//!
//! ```text
//!   devices by state, sums           two lines
//!   the table, one line a device     whatever there is room for
//!   keys, or the filter              one line
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row as Cells, Table};

use super::sample::{Rates, Row};
use super::state::{Sort, State};
use crate::cli::render::devices_text;

/// A column of the table.
struct Column {
    title: &'static str,
    width: Constraint,
    align: Alignment,
    /// The screen is at least as wide.
    from: u16,
    cell: fn(&Row) -> String,
}

impl Column {
    const fn left(
        title: &'static str,
        width: Constraint,
        from: u16,
        cell: fn(&Row) -> String,
    ) -> Self {
        Self { title, width, align: Alignment::Left, from, cell }
    }

    const fn right(title: &'static str, width: u16, from: u16, cell: fn(&Row) -> String) -> Self {
        Self { title, width: Constraint::Length(width), align: Alignment::Right, from, cell }
    }
}

/// Screens from these widths on have room for the usual columns, and for all.
const USUAL: u16 = 78;
const WIDE: u16 = 110;

const COLUMNS: [Column; 11] = [
    Column::left("NAME", Constraint::Min(12), 0, |row| row.name.clone()),
    Column::left("STATE", Constraint::Length(10), 0, |row| row.state.clone()),
    Column::right("IOPS", 7, 0, |row| rate(row, |rates| count(rates.requests))),
    Column::right("READ/s", 8, USUAL, |row| rate(row, |rates| bytes(rates.read))),
    Column::right("WRITE/s", 8, USUAL, |row| rate(row, |rates| bytes(rates.written))),
    Column::right("P50", 7, USUAL, |row| rate(row, |rates| time(rates.p50))),
    Column::right("P99", 7, 40, |row| rate(row, |rates| time(rates.p99))),
    Column::right("QUEUE", 9, 50, |row| format!("{}/{}", row.in_flight, row.room)),
    Column::right("ERRORS", 6, 60, |row| row.errors.to_string()),
    Column::left("NODE", Constraint::Length(16), WIDE, |row| row.node.clone()),
    Column::left("GROUP", Constraint::Min(10), WIDE, |row| row.group.clone()),
];

fn rate(row: &Row, text: fn(&Rates) -> String) -> String {
    row.rates.as_ref().map_or_else(|| "-".to_owned(), text)
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let areas =
        Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)]);
    let [top, middle, bottom] = areas.areas(frame.area());
    let shown = state.shown().len();
    // One line is the head.
    state.fit(shown, usize::from(middle.height).saturating_sub(1));
    frame.render_widget(head(state, shown), top);
    frame.render_widget(table(state, middle.width), middle);
    frame.render_widget(foot(state), bottom);
}

fn head(state: &State, shown: usize) -> Text<'static> {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut requests, mut read, mut written) = (0.0, 0.0, 0.0);
    for row in &state.rows {
        *states.entry(&row.state).or_default() += 1;
        let rates = row.rates.unwrap_or_default();
        requests += rates.requests;
        read += rates.read;
        written += rates.written;
    }
    let counts: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let first = format!("{}: {}", devices_text(state.rows.len()), counts.join(", "));
    let mut second = format!(
        "{} IOPS, {}/s read, {}/s written; by {}{}",
        count(requests),
        bytes(read),
        bytes(written),
        state.sort.word(),
        if state.reversed { ", reversed" } else { "" },
    );
    if !state.filter.is_empty() {
        second += &format!("; {shown} with \"{}\"", state.filter);
    }
    if state.paused {
        second += "; paused";
    }
    let second = match &state.trouble {
        None => Line::from(second),
        Some(trouble) => Line::styled(trouble.clone(), Style::new().fg(Color::Red)),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Text::from(vec![Line::styled(format!("ublkd {}  {first}", state.socket), bold), second])
}

fn table(state: &State, width: u16) -> Table<'static> {
    let columns = || COLUMNS.iter().filter(|column| column.from <= width);
    let aligned = |column: &Column, text: String| Text::from(text).alignment(column.align);
    let shown = state.shown();
    let rows = shown.iter().skip(state.first).take(state.page).map(|row| {
        Cells::new(columns().map(|column| {
            let style = if column.title == "STATE" { colour(&row.state) } else { Style::new() };
            Cell::from(aligned(column, (column.cell)(row))).style(style)
        }))
    });
    let head = Cells::new(columns().map(|column| aligned(column, column.title.to_owned())));
    let style = Style::new().add_modifier(Modifier::REVERSED);
    Table::new(rows, columns().map(|column| column.width)).header(head.style(style))
}

fn colour(state: &str) -> Style {
    match state {
        "live" => Style::new(),
        "failed" | "left" | "wedged" | "failing" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    }
}

fn foot(state: &State) -> Line<'static> {
    if state.typing {
        return Line::from(format!("filter: {}\u{2588}  (Enter: keep, Esc: none)", state.filter));
    }
    let sorts: Vec<_> = Sort::ALL.iter().map(|(key, _, word)| format!("{key} {word}")).collect();
    Line::from(format!("{} | r turn / filter p q", sorts.join(" ")))
}

/// `999`, `12.3k`, `1.7M`.
fn count(number: f64) -> String {
    scaled(number, 1000.0, ["", "k", "M", "G", "T"])
}

/// `512 B`, `1.2 MiB`.
fn bytes(number: f64) -> String {
    scaled(number, 1024.0, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// At most three digits, so that columns stay as they are.
fn scaled(number: f64, step: f64, units: [&str; 5]) -> String {
    let (mut number, mut unit) = (number, 0);
    while number >= 999.5 && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && number < 99.95);
    format!("{number:.digits$}{}", units[unit])
}

fn time(time: Option<Duration>) -> String {
    match time.map(|time| time.as_secs_f64()) {
        None => "-".to_owned(),
        Some(s) if s < 0.000_999_5 => format!("{:.0}\u{b5}s", s * 1e6),
        Some(s) if s < 0.0995 => format!("{:.1}ms", s * 1e3),
        Some(s) if s < 0.9995 => format!("{:.0}ms", s * 1e3),
        Some(s) => format!("{s:.1}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{row, state};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(state: &mut State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("it draws");
        terminal.backend().to_string()
    }

    #[test]
    fn it_fits_80_by_24() {
        let mut state = state();
        insta::assert_snapshot!(drawn(&mut state, 80, 10));
        state.rows.extend((0..100).map(|n| row(&format!("more-{n}"), "live", 1.0)));
        state.first = usize::MAX;
        (state.filter, state.typing) = ("more".to_owned(), true);
        insta::assert_snapshot!(drawn(&mut state, 80, 24));
    }

    #[test]
    fn a_wide_screen_has_more_columns_a_narrow_one_fewer_and_a_tiny_one_does_no_harm() {
        let mut state = state();
        insta::assert_snapshot!(drawn(&mut state, 130, 8));
        insta::assert_snapshot!(drawn(&mut state, 50, 8));
        for (width, height) in [(1, 1), (10, 2), (80, 3), (300, 1)] {
            drawn(&mut state, width, height);
        }
    }

    #[test]
    fn trouble_is_told_and_the_last_numbers_stay() {
        let mut state = state();
        state.trouble = Some("no daemon runs here".to_owned());
        let text = drawn(&mut state, 80, 10);
        assert!(text.contains("no daemon runs here") && text.contains("12.3k"), "{text}");
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let numbers = [0.0, 999.4, 999.5, 12_345.0, 999_600.0, 1.7e6, 1e12, 1e15];
        let texts: Vec<_> = numbers.iter().map(|number| count(*number)).collect();
        assert_eq!(texts, ["0", "999", "1.0k", "12.3k", "1.0M", "1.7M", "1.0T", "1000T"]);
        assert_eq!(
            [bytes(512.0), bytes(1.5 * 1024.0), bytes(1000.0)],
            ["512 B", "1.5 KiB", "1.0 KiB"]
        );
        let times = [1u64 << 10, 1 << 17, 1 << 20, 1 << 27, 1 << 31];
        let texts: Vec<_> = times.map(|ns| time(Some(Duration::from_nanos(ns)))).into();
        assert_eq!(texts, ["1\u{b5}s", "131\u{b5}s", "1.0ms", "134ms", "2.1s"]);
    }
}
