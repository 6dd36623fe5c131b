//! How many starts and teardowns run at once: a number, or `auto`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The limit on starts and teardowns that run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkerLimit {
    /// Found out while they run: what suits the machine and its kernel.
    #[default]
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

impl WorkerLimit {
    /// The word for [`WorkerLimit::Auto`].
    pub const AUTO: &'static str = "auto";

    /// The most that can ever run at once.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Self::Auto => 1024,
            Self::Fixed(workers) => workers,
        }
    }
}

impl From<usize> for WorkerLimit {
    fn from(workers: usize) -> Self {
        Self::Fixed(workers.max(1))
    }
}

impl fmt::Display for WorkerLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(Self::AUTO),
            Self::Fixed(workers) => workers.fmt(f),
        }
    }
}

impl FromStr for WorkerLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == Self::AUTO => Ok(Self::Auto),
            Ok(workers) if workers > 0 => Ok(Self::Fixed(workers)),
            _ => Err("expected a whole number from 1, or auto".to_owned()),
        }
    }
}

impl Serialize for WorkerLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(Self::AUTO),
            Self::Fixed(workers) => workers.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WorkerLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Limit;
        impl Visitor<'_> for Limit {
            type Value = WorkerLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from 1, or \"auto\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<WorkerLimit, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<WorkerLimit, E> {
                let workers = usize::try_from(number).ok().filter(|workers| *workers > 0);
                let unexpected = || E::invalid_value(Unexpected::Unsigned(number), &self);
                workers.map(WorkerLimit::Fixed).ok_or_else(unexpected)
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<WorkerLimit, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(Limit).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_what_it_writes_and_refuses_nonsense() {
        for limit in [WorkerLimit::Auto, WorkerLimit::Fixed(1), WorkerLimit::Fixed(300)] {
            assert_eq!(limit.to_string().parse(), Ok(limit));
            let json = serde_json::to_string(&limit).expect("JSON");
            assert_eq!(serde_json::from_str::<WorkerLimit>(&json).ok(), Some(limit), "{json}");
        }
        for text in ["0", "-1", "automatic", "", "1.5"] {
            assert!(text.parse::<WorkerLimit>().is_err(), "{text}");
            assert!(serde_json::from_str::<WorkerLimit>(text).is_err(), "{text}");
        }
        assert_eq!(WorkerLimit::from(0), WorkerLimit::Fixed(1));
    }
}
