//! Exit statuses: stable, documented in `docs/operations.md`.

/// How a run of `ublkd` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Everything is gone.
    Clean = 0,
    /// It could not run, or a device failed with `on_failure = "abort"`; nothing is left.
    RunFailed = 1,
    /// Bad usage or config; nothing was started.
    Usage = 2,
    /// Something was left behind; the report names it.
    Left = 3,
    /// A second signal forced the end; the report names what was abandoned.
    Forced = 4,
}

impl ExitStatus {
    /// The status as a number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}
