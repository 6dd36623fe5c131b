//! What a host wants to be done with a device besides serving it: whom it belongs to, and what a
//! delete does while somebody has it open.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Words of the host's own about a device, for finding it: `tenant = "blue"`.
pub type Labels = BTreeMap<String, String>;

/// How long a delete waits for holders unless told otherwise ([`BusyPolicy::Wait`]).
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// What a delete does with a device that somebody holds: a mount, a process that has it open, a
/// device on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyPolicy {
    /// Stops it all the same; I/O of the holders fails.
    #[default]
    Stop,
    /// Refuses at once and names the holders.
    Refuse,
    /// Waits until nobody holds it; then as [`BusyPolicy::Refuse`].
    Wait,
}

impl BusyPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Refuse, Self::Wait];

    /// The policy as one word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Refuse => "refuse",
            Self::Wait => "wait",
        }
    }
}

impl fmt::Display for BusyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that is no [`BusyPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy for busy devices: use stop, refuse or wait")]
pub struct NoBusyPolicy(pub String);

impl FromStr for BusyPolicy {
    type Err = NoBusyPolicy;
    fn from_str(text: &str) -> Result<Self, NoBusyPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        found.ok_or_else(|| NoBusyPolicy(text.to_owned()))
    }
}

/// Who wanted a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A config file; a reload may take it away again.
    Config,
    /// A client of the API.
    Api,
    /// The program that embeds the supervisor.
    #[default]
    Embedded,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Config => "config",
            Self::Api => "api",
            Self::Embedded => "embedded",
        })
    }
}

/// Most labels a device.
const LABELS: usize = 32;
/// Longest key of a label, in bytes.
const LABEL_KEY: usize = 63;
/// Longest value of a label, in bytes.
const LABEL_VALUE: usize = 256;

/// What is wrong with `labels`, if anything is.
pub(super) fn problem_of(labels: &Labels) -> Option<String> {
    if labels.len() > LABELS {
        return Some(format!("{} labels are too many: {LABELS} at most", labels.len()));
    }
    labels.iter().find_map(|(key, value)| {
        let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let legal = |c: char| first(c) || matches!(c, '.' | '_' | '/' | '-');
        let ok = (1..=LABEL_KEY).contains(&key.len())
            && key.starts_with(first)
            && key.chars().all(legal);
        if !ok {
            return Some(format!(
                "{key:?} is no key: use 1 to {LABEL_KEY} characters of a-z 0-9 . _ / -, the first \
                 one a letter or digit"
            ));
        }
        (value.len() > LABEL_VALUE).then(|| {
            format!("the value of {key} is {} bytes long: {LABEL_VALUE} at most", value.len())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_are_bounded_in_number_and_length() {
        let long = "v".repeat(256);
        let (key, longer) = ("k".repeat(63), "k".repeat(64));
        for good in [labels(&[]), labels(&[("app.example/role-1", "Änything"), (&key, &long)])] {
            assert_eq!(problem_of(&good), None);
        }
        let many = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(problem_of(&many).is_some_and(|told| told.contains("33")));
        for bad in ["", "Upper", "-first", "a b", "ü", &longer] {
            assert!(problem_of(&labels(&[(bad, "")])).is_some(), "{bad:?} was taken");
        }
        assert!(problem_of(&labels(&[("a", &"v".repeat(257))])).is_some());
    }

    #[test]
    fn policies_are_read_and_written_alike() {
        for policy in BusyPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("Stop".parse::<BusyPolicy>().is_err());
    }
}
