//! Exit statuses: stable, documented in `docs/operations.md` and `docs/cli.md`.

/// How `ublkd` ended. The first five are those of a run; the client's commands know them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Done. Of a run: everything is gone.
    Clean = 0,
    /// It failed. Of a run: it could not run, or a device failed with `on_failure = "abort"`;
    /// nothing is left.
    RunFailed = 1,
    /// Bad usage, config or request; nothing was done.
    Usage = 2,
    /// Something was left behind; the report names it.
    Left = 3,
    /// A second signal forced the end; the report names what was abandoned.
    Forced = 4,
    /// No device or group of that name.
    NotFound = 5,
    /// Refused as things are: busy, there already and different, not possible on this kernel.
    Refused = 6,
    /// Not done in time; it may still be under way.
    Timeout = 7,
    /// No daemon answers at the socket, or it may not be used.
    NoDaemon = 8,
    /// Too much is asked for at once; nothing was done, try again.
    Overloaded = 9,
}

impl ExitStatus {
    /// The status as a number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}
