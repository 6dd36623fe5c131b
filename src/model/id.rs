//! Names and numbers of devices, queues and tags, each a type of its own.
//!
//! The *name* is the host's identity for a device and never changes; the *id* is the kernel's
//! number (`/dev/ublkbN`), known once the device was added and reused by the kernel afterwards.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a type of names: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
macro_rules! names {
    ($(#[$doc:meta])* $name:ident $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String, pattern = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Longest name, in bytes.
            pub const MAX_LEN: usize = 64;

            /// Checks `name` and takes it.
            ///
            /// # Errors
            /// [`InvalidName`] when it is empty, too long, or holds other characters than allowed.
            pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
                let name = name.as_ref();
                let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
                let ok = (1..=Self::MAX_LEN).contains(&name.len())
                    && name.chars().all(legal)
                    && !name.starts_with(['.', '-']);
                if ok {
                    Ok(Self(name.into()))
                } else {
                    Err(InvalidName { name: name.to_owned(), what: $what })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(s: &str) -> Result<Self, InvalidName> {
                Self::new(s)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(s: String) -> Result<Self, InvalidName> {
                Self::new(s)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    };
}

names! {
    /// The host's name for a device: unique within a supervisor, cheap to clone.
    ///
    /// 1 to 64 characters of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`: it is a file name in
    /// `<run_dir>/by-name` and a word on command lines. Case is kept.
    DeviceName "device"
}

names! {
    /// The host's name for devices that come and go together: a sandbox, a virtual machine. Of the
    /// same letters as a [`DeviceName`].
    GroupName "group"
}

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is no {what} name: use 1 to 64 characters of A-Z a-z 0-9 . _ -, the first one not . or -"
)]
pub struct InvalidName {
    /// The text that was refused.
    pub name: String,
    /// Of what it was to be a name.
    pub what: &'static str,
}

/// The kernel's number of a device: the `N` of `/dev/ublkbN` and `/dev/ublkcN`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(transparent)]
#[schema(maximum = 1048575)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// Largest id the kernel hands out: minors are 20 bits wide (`UBLK_MINORS`, Linux 7.3).
    pub const MAX: u32 = (1 << 20) - 1;

    /// `/dev/ublkbN`, the block device that users open.
    #[must_use]
    pub fn block_path(self) -> String {
        format!("/dev/ublkb{}", self.0)
    }

    /// `/dev/ublkcN`, the char device that the server opens.
    #[must_use]
    pub fn char_path(self) -> String {
        format!("/dev/ublkc{}", self.0)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A queue of a device, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueId(pub u16);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slot of a queue: one request at a time, `0..depth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tag(pub u16);

impl Tag {
    /// The tag as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl From<Tag> for u32 {
    fn from(tag: Tag) -> Self {
        Self::from(tag.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_case_and_refuse_what_is_no_file_name() {
        assert_eq!(DeviceName::new("DB-Main").map(|n| n.to_string()), Ok("DB-Main".to_owned()));
        for bad in ["", ".hidden", "-flag", "a/b", "a b", "ü", "{n}", &"x".repeat(65)] {
            assert!(DeviceName::new(bad).is_err(), "{bad:?} was taken");
        }
        assert!(DeviceName::new("x".repeat(64)).is_ok());
    }
}
