//! `ublkd` on a terminal: what `top` shows, that the terminal is as before when it has ended, and bars.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{SOON, Scene, bare, eventually, nulls};

/// A command on a terminal of 80 by 24 that `script` makes; what it writes goes to `screen`.
struct Terminal<'a> {
    scene: &'a Scene,
    script: Child,
}

impl<'a> Terminal<'a> {
    fn start(scene: &'a Scene, args: &str) -> Self {
        let command = format!("stty rows 24 cols 80; echo $$ > pid; exec \"$UBLKD\" {args}");
        let mut script = bare(Path::new("script"));
        script.args(["--quiet", "--return", "--flush", "--command", &command, "screen"]);
        script.current_dir(scene.path("")).stdin(Stdio::piped()).stdout(Stdio::null());
        script
            .env("UBLKD", env!("CARGO_BIN_EXE_ublkd"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh");
        script.env("UBLKD_SOCKET", scene.path("run/ublkd.sock"));
        let script = script.spawn().unwrap();
        Self { scene, script }
    }

    fn top(scene: &'a Scene) -> Self {
        Self::start(scene, "top --every 100ms")
    }

    /// All that was written to the terminal.
    fn written(&self) -> String {
        let written = std::fs::read(self.scene.path("screen")).unwrap_or_default();
        let written = String::from_utf8_lossy(&written).into_owned();
        // The first line is `script`'s own.
        written.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
    }

    /// Waits until `text` is on the screen.
    #[track_caller]
    fn shows(&self, text: &str) {
        let end = Instant::now() + SOON;
        while !screen(&self.written()).contains(text) {
            assert!(Instant::now() < end, "no {text:?} on:\n{}", screen(&self.written()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = std::fs::read_to_string(self.scene.path("pid")).unwrap();
        kill(Pid::from_raw(pid.trim().parse().unwrap()), signal).unwrap();
    }

    /// Waits for its end; gives its status and whether the terminal was given back.
    fn ends(mut self) -> (Option<i32>, bool) {
        eventually("the command ends", || self.script.try_wait().unwrap().is_some());
        let written = self.written();
        let back = |on: &str, off: &str| written.rfind(off) > written.rfind(on);
        let restored = back("\x1b[?1049h", "\x1b[?1049l") && back("\x1b[?25l", "\x1b[?25h");
        (self.script.wait().unwrap().code(), restored)
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        if matches!(self.script.try_wait(), Ok(None)) {
            // A daemon does not mind that its terminal goes.
            let pid = std::fs::read_to_string(self.scene.path("pid")).unwrap_or_default();
            if let Ok(pid) = pid.trim().parse() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// What a terminal shows after `written`, as far as is made use of one here: text with line ends
/// that wraps and scrolls, moves of the cursor, and clearing.
fn screen(written: &str) -> String {
    const BLANK: [char; 80] = [' '; 80];
    let mut cells = [BLANK; 24];
    let (mut row, mut column) = (0, 0);
    let mut left = written.chars();
    while let Some(char) = left.next() {
        let mut pending = None;
        match char {
            '\r' => column = 0,
            '\n' => row += 1,
            '\x1b' => {
                let mut sequence = String::new();
                while !sequence.ends_with(|c: char| c.is_ascii_alphabetic()) {
                    let Some(char) = left.next() else { break };
                    sequence.push(char);
                }
                let kind = sequence.pop();
                let numbers = sequence.trim_start_matches('[').split(';');
                let numbers: Vec<usize> = numbers.map(|n| n.parse().unwrap_or(1)).collect();
                match kind {
                    Some('H') => {
                        (row, column) = (numbers[0] - 1, numbers.get(1).unwrap_or(&1) - 1);
                    }
                    Some('A') => row = row.saturating_sub(numbers[0]),
                    Some('B') => row += numbers[0],
                    Some('J') => cells = [BLANK; 24],
                    Some('K') => cells[row.min(23)] = BLANK,
                    _ => {}
                }
            }
            // The last column is left when something is printed behind it, not before.
            char if column == 80 => (row, column, pending) = (row + 1, 0, Some(char)),
            char => pending = Some(char),
        }
        while row > 23 {
            cells.rotate_left(1);
            (cells[23], row) = (BLANK, row - 1);
        }
        if let Some(char) = pending {
            cells[row][column] = char;
            column += 1;
        }
    }
    cells.map(|row| row.iter().collect::<String>()).join("\n")
}

#[test]
fn keys_sort_filter_and_quit_and_the_terminal_is_given_back() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&[]);
    let mut top = Terminal::top(&scene);
    top.shows("3 devices: 3 live");
    top.shows("d2");
    top.press("e");
    top.shows("by errors");
    top.press("/d1\r");
    top.shows("1 with \"d1\"");
    top.press("q");
    assert_eq!(top.ends(), (Some(0), true));
    daemon.terminate().with_status(0);
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let top = Terminal::top(&scene);
        top.shows("1 device: 1 live");
        top.signal(signal);
        assert_eq!(top.ends(), (Some(0), true), "{signal}");
        std::fs::remove_file(scene.path("screen")).unwrap();
    }
    daemon.terminate().with_status(0);
}

#[test]
fn top_ends_when_its_terminal_goes() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let mut top = Terminal::top(&scene);
    top.shows("d0");
    let pid = std::fs::read_to_string(scene.path("pid")).unwrap();
    // As a terminal's window that is killed: nobody tells `top`.
    top.script.kill().unwrap();
    let state = format!("/proc/{}/stat", pid.trim());
    eventually("top ends", || {
        let stat = std::fs::read_to_string(&state).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    drop(top);
    daemon.terminate().with_status(0);
}

#[test]
fn a_daemon_that_goes_away_is_told_and_one_that_comes_back_is_shown() {
    let scene = Scene::nulls(2);
    let first = scene.up(&[]);
    let mut top = Terminal::top(&scene);
    top.shows("2 devices: 2 live");
    first.terminate().with_status(0);
    top.shows("no daemon runs here");
    scene.write("ublkd.toml", &crate::support::nulls(5));
    let second = scene.up(&[]);
    top.shows("5 devices: 5 live");
    top.press("q");
    assert_eq!(top.ends(), (Some(0), true));
    second.terminate().with_status(0);
}

#[test]
fn bars_are_drawn_where_somebody_looks_and_nothing_of_them_stays() {
    let scene = Scene::nulls(20);
    let args = scene.sim().join(" ");
    let delay = "start: delay 1s; stop: delay 1s";
    let mut daemon =
        Terminal::start(&scene, &format!("run -c ublkd.toml {args} --fault '{delay}'"));
    daemon.shows("starting  [");
    daemon.shows("20 of 20 devices in service");
    assert!(!screen(&daemon.written()).contains("starting  ["), "{}", screen(&daemon.written()));
    std::fs::rename(scene.path("screen"), scene.path("daemon")).unwrap();

    scene.write("more.toml", &nulls(20).replace("d{n}", "e{n}"));
    let client = |args: &str, bar: &str, said: &str| {
        let client = Terminal::start(&scene, args);
        client.shows(bar);
        client.shows(said);
        assert!(!screen(&client.written()).contains(bar), "{}", screen(&client.written()));
        assert_eq!(client.ends().0, Some(0));
        std::fs::remove_file(scene.path("screen")).unwrap();
    };
    client("create -f more.toml --group g", "creating  [", "device/e19 created");
    client("delete --group g", "deleting g  [", "device/e9 deleted");
    client("shutdown", "stopping  [", "shut down 20 devices");
    eventually("the daemon ends", || daemon.script.try_wait().unwrap().is_some());
}
