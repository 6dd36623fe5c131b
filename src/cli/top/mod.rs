//! `ublkd top`: a live table of devices.
//!
//! ```text
//!   thread: daemon ─ Sample … ─┐
//!   terminal: keys, size ──────┴─> State ─ view ─> screen
//! ```
//!
//! Invariants: the terminal is as before when this has ended, by a key, a signal, an error or a
//! panic; a daemon that is slow or gone delays no key, and is told on the screen.

mod sample;
mod state;
mod view;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::client::{Client, Failure};
use super::verbs::args::Top;
use super::verbs::devices;
use crate::daemon::ExitStatus;
use crate::model::Error;
use crate::sys;
use sample::{Sample, rows};
use state::State;

/// How long a signal or a look may take to be noticed, in milliseconds.
const TICK: u16 = 100;

/// Least time between two looks.
const OFTENEST: Duration = Duration::from_millis(100);

type Look = Result<Sample, Failure>;

pub(super) fn top(args: &Top) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let text = "top needs a terminal; programs take `ublkd list -o json`";
        return Err(Failure::new(ExitStatus::Usage, text));
    }
    let client = Client::new(&args.at.socket)?;
    let within = args.at.question();
    // Without a daemon there is nothing to show; one that goes later may come back.
    let first = look(&client, within)?;
    let (sender, looks) = sync_channel(1);
    let every = args.every.max(OFTENEST);
    sys::thread::spawn("ublkd-top", move || watch(&client, within, every, &sender))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|e| Error::from_io(&e, "cannot watch for signals"))?;
    }
    let state = State::new(args.at.socket.display().to_string());
    let shown = Screen::open().and_then(|mut screen| screen.show(state, first, &looks, &ended));
    Ok(shown.map_err(|e| Error::from_io(&e, "the terminal failed"))?)
}

/// Looks again and again until nobody takes what was seen.
fn watch(client: &Client, within: Duration, every: Duration, looks: &SyncSender<Look>) {
    loop {
        std::thread::sleep(every);
        if looks.send(look(client, within)).is_err() {
            return;
        }
    }
}

fn look(client: &Client, within: Duration) -> Look {
    let devices = devices::all(client, &devices::Filter::default(), within)?;
    // The counters are about as old as the answer.
    Ok(Sample { at: Instant::now(), devices: devices::viewed(client, &devices)? })
}

/// The terminal while it is ours. A panic gives it back, too: ratatui's hook sees to that.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self)
    }

    /// Shows looks until a key or a signal says quit.
    fn show(
        &mut self,
        mut state: State,
        first: Sample,
        looks: &Receiver<Look>,
        ended: &AtomicBool,
    ) -> io::Result<()> {
        state.rows = rows(None, &first);
        let mut before = first;
        while !ended.load(Ordering::Relaxed) {
            self.0.draw(|frame| view::draw(frame, &mut state))?;
            let mut quit = false;
            if !waits() {
                break;
            }
            if event::poll(Duration::ZERO)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                quit = state.key(key);
            }
            if quit {
                break;
            }
            match looks.try_recv() {
                Ok(Ok(now)) if !state.paused => {
                    state.rows = rows(Some(&before), &now);
                    (state.trouble, before) = (None, now);
                }
                Ok(Err(failure)) => state.trouble = Some(failure.to_string()),
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Waits for a key, a signal (as of a new size) or the next look; `false` when nobody is at the
/// terminal any more. Who is not of its session gets no signal then, and the library would read the
/// end of it again and again, without end.
fn waits() -> bool {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let waited = poll(&mut terminal, TICK);
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    !(waited.is_ok() && terminal[0].revents().is_some_and(|events| events.intersects(gone)))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs it no more, and there is nobody to be told.
        let _ = ratatui::try_restore();
    }
}
