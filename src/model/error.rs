//! The one error type of the crate: a small stable kind, the context it happened in, a cause.
//!
//! Rooms add what they know on the way up ([`Error::device`], [`Error::at`], [`Error::hint`]);
//! nobody wraps an error only to rename it. The text always says which device, which step, what
//! the kernel answered, and what to do about it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{DeviceId, DeviceName, Stage};

/// Result with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure it is: stable, for programs to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request or the config is wrong; trying again will not help.
    Invalid,
    /// Admission is full; try again later.
    Overloaded,
    /// The supervisor is shutting down, or has.
    Stopping,
    /// A device of that name, or a holder of that backing, is there already.
    Exists,
    /// No such device.
    NotFound,
    /// Somebody holds the device (`EBUSY`).
    Busy,
    /// Rights are missing (`EPERM`, `EACCES`).
    Permission,
    /// A host limit is reached (open files, threads, memory, `ublks_max`).
    Limit,
    /// The kernel or the target cannot do this.
    Unsupported,
    /// Something took longer than its bound.
    Timeout,
    /// A control command was abandoned: the kernel never answered it.
    Wedged,
    /// Code panicked.
    Panicked,
    /// The operating system or a backing file failed.
    Io,
    /// A fault of ublkd itself.
    Internal,
}

impl ErrorKind {
    /// The kind as one snake_case word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Overloaded => "overloaded",
            Self::Stopping => "stopping",
            Self::Exists => "exists",
            Self::NotFound => "not_found",
            Self::Busy => "busy",
            Self::Permission => "permission",
            Self::Limit => "limit",
            Self::Unsupported => "unsupported",
            Self::Timeout => "timeout",
            Self::Wedged => "wedged",
            Self::Panicked => "panicked",
            Self::Io => "io",
            Self::Internal => "internal",
        }
    }

    /// The kind that an errno of the operating system belongs to.
    #[must_use]
    pub fn of_errno(errno: i32) -> Self {
        use nix::libc as c;
        match errno {
            c::EPERM | c::EACCES => Self::Permission,
            c::EBUSY | c::ETXTBSY => Self::Busy,
            c::ENOENT | c::ENODEV | c::ENXIO => Self::NotFound,
            c::EEXIST => Self::Exists,
            c::EMFILE | c::ENFILE | c::ENOMEM | c::EAGAIN | c::ENOSPC => Self::Limit,
            c::EOPNOTSUPP | c::ENOSYS => Self::Unsupported,
            c::EINVAL => Self::Invalid,
            c::ETIMEDOUT | c::ETIME => Self::Timeout,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, with whatever context is known.
///
/// `Display` gives one line: `device NAME (id N): STAGE: COMMAND: MESSAGE: ERRNO; HINT`.
#[derive(Debug, Clone, Serialize)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone, Serialize)]
struct Inner {
    kind: ErrorKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<DeviceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<Stage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    elapsed: Option<Duration>,
    /// The error of an unwinding that this error set off.
    #[serde(skip_serializing_if = "Option::is_none")]
    rollback: Option<Error>,
}

impl Error {
    /// An error of `kind` that says `message`.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            device: None,
            id: None,
            stage: None,
            command: None,
            errno: None,
            message: message.into(),
            hint: None,
            elapsed: None,
            rollback: None,
        }))
    }

    /// An error made from an errno; the kind follows from it.
    #[must_use]
    pub fn from_errno(errno: i32, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::of_errno(errno), message);
        error.0.errno = Some(errno);
        error
    }

    /// An error made from a failed system call.
    #[must_use]
    pub fn from_io(error: &std::io::Error, message: impl Into<String>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno, message),
            None => Self::new(ErrorKind::Io, format!("{}: {error}", message.into())),
        }
    }

    /// Changes the kind, where the context knows better than the errno.
    #[must_use]
    pub fn kind_of(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds the device's name, unless one is there.
    #[must_use]
    pub fn device(mut self, name: &DeviceName) -> Self {
        self.0.device.get_or_insert_with(|| name.clone());
        self
    }

    /// Adds the kernel's number, unless one is there.
    #[must_use]
    pub fn id(mut self, id: DeviceId) -> Self {
        self.0.id.get_or_insert(id);
        self
    }

    /// Adds the stage, unless one is there: the innermost one counts.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.0.stage.get_or_insert(stage);
        self
    }

    /// Adds the name of the control command or system call.
    #[must_use]
    pub fn command(mut self, command: &'static str) -> Self {
        self.0.command.get_or_insert(command);
        self
    }

    /// Adds what to do about it, unless a hint is there.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Adds how long it took until it failed.
    #[must_use]
    pub fn elapsed(mut self, elapsed: Duration) -> Self {
        self.0.elapsed.get_or_insert(elapsed);
        self
    }

    /// Adds the error that unwinding after this one met.
    #[must_use]
    pub fn rollback(mut self, error: Self) -> Self {
        self.0.rollback = Some(error);
        self
    }

    /// The stable kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The errno, where the operating system gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// The stage of the device's life it happened in.
    #[must_use]
    pub fn stage(&self) -> Option<Stage> {
        self.0.stage
    }

    /// The error that unwinding met, if it met one.
    #[must_use]
    pub fn rollback_error(&self) -> Option<&Self> {
        self.0.rollback.as_ref()
    }

    /// The device that it is about, where that is known.
    #[must_use]
    pub fn subject(&self) -> Option<&DeviceName> {
        self.0.device.as_ref()
    }

    /// What to do about it, where that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        match (&e.device, e.id) {
            (Some(name), Some(id)) => write!(f, "device {name} (id {id}): ")?,
            (Some(name), None) => write!(f, "device {name}: ")?,
            (None, Some(id)) => write!(f, "device id {id}: ")?,
            (None, None) => {}
        }
        if let Some(stage) = e.stage {
            write!(f, "{stage}: ")?;
        }
        if let Some(command) = e.command {
            write!(f, "{command}: ")?;
        }
        f.write_str(&e.message)?;
        if let Some(errno) = e.errno {
            write!(f, ": {} ({})", errno_name(errno), errno_text(errno))?;
        }
        if let Some(elapsed) = e.elapsed {
            write!(f, " after {:.3} s", elapsed.as_secs_f64())?;
        }
        if let Some(hint) = &e.hint {
            write!(f, "; {hint}")?;
        }
        if let Some(rollback) = &e.rollback {
            write!(f, " [and undoing it: {rollback}]")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// `EBUSY` for 16, and so on; `errno 4711` for one without a name.
#[must_use]
pub fn errno_name(errno: i32) -> String {
    match nix::errno::Errno::from_raw(errno) {
        nix::errno::Errno::UnknownErrno => format!("errno {errno}"),
        known => format!("{known:?}"),
    }
}

fn errno_text(errno: i32) -> &'static str {
    nix::errno::Errno::from_raw(errno).desc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f92_the_text_keeps_device_step_errno_and_hint() -> Result<(), Box<dyn std::error::Error>> {
        let error = Error::from_errno(nix::libc::EBUSY, "the kernel refused")
            .command("START_DEV")
            .at(Stage::Start)
            .device(&DeviceName::new("vol-1")?)
            .id(DeviceId(7))
            .hint("close it first");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(
            error.to_string(),
            "device vol-1 (id 7): start: START_DEV: the kernel refused: EBUSY (Device or resource busy); close it first"
        );
        Ok(())
    }

    #[test]
    fn both_errors_of_a_failed_unwinding_are_told() {
        let error =
            Error::new(ErrorKind::Timeout, "first").rollback(Error::new(ErrorKind::Io, "second"));
        assert_eq!(error.to_string(), "first [and undoing it: second]");
    }
}
