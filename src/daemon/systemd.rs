//! systemd's notify protocol; silent where there is no notify socket.

use sd_notify::NotifyState;

/// Everything is up.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What is going on, for `systemctl status`.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// The shutdown has begun.
pub(super) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

fn tell(states: &[NotifyState<'_>]) {
    // A service manager that does not listen is no reason to stop serving blocks.
    let _ = sd_notify::notify(states);
}
