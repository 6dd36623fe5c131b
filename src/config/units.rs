//! Sizes and durations as people write them, and back.
//!
//! A size is a whole number of bytes, alone or with a unit. One letter and `KiB` mean powers of
//! 1024, as in `truncate`, `qemu-img` and LVM; `KB` means powers of 1000, as on a disk's label.
//! So `1G` is `1GiB`, 1,073,741,824 bytes. A duration is one or more numbers with a unit.
//!
//! Invariant: what [`size_text`] and `duration::text` write, the parsers read back unchanged.

use std::time::Duration;

use bytesize::{EB, EIB, GB, GIB, KB, KIB, MB, MIB, PB, PIB, TB, TIB};

/// Units of size, the ones that [`size_text`] prefers first.
const UNITS: [(&str, u64); 20] = [
    ("EiB", EIB),
    ("PiB", PIB),
    ("TiB", TIB),
    ("GiB", GIB),
    ("MiB", MIB),
    ("KiB", KIB),
    ("B", 1),
    ("", 1),
    ("E", EIB),
    ("P", PIB),
    ("T", TIB),
    ("G", GIB),
    ("M", MIB),
    ("K", KIB),
    ("EB", EB),
    ("PB", PB),
    ("TB", TB),
    ("GB", GB),
    ("MB", MB),
    ("KB", KB),
];

/// Reads a size in bytes: `4096`, `64M`, `1 GiB`, `10GB`. The unit's case does not matter.
///
/// # Errors
/// Says what a size looks like, or that it does not fit 64 bits.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (Some((_, factor)), false) = (known, number.is_empty()) else {
        return Err(format!(
            "{text:?} is no size: write a whole number of bytes, or one with K, M, G, T or KiB, \
             MiB, GiB, TiB (powers of 1024), or KB, MB, GB, TB (powers of 1000)"
        ));
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*factor));
    bytes.ok_or_else(|| format!("{text:?} is too large: a size must fit 64 bits"))
}

/// Writes a size with the largest unit (powers of 1024) that keeps it exact: `64 MiB`, `1000 B`.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let exact = |(_, factor): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*factor);
    let (unit, factor) = UNITS.iter().find(exact).unwrap_or(&("B", 1));
    format!("{} {unit}", bytes / factor)
}

/// Reads a duration: `10s`, `500ms`, `1m 30s`.
///
/// # Errors
/// Says what a duration looks like.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| {
        format!("{text:?} is no duration: write numbers with a unit, as \"500ms\", \"10s\", \"2m\"")
    })
}

/// Reads permissions: `0660`, `660`.
pub(super) fn parse_mode(text: &str) -> Option<u32> {
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o777)
}

/// Permissions as text in serde, for `#[serde(with = "…")]`.
pub(super) mod mode {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::config) fn serialize<S: Serializer>(
        mode: &u32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{mode:04o}"))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_mode(&text).ok_or_else(|| D::Error::custom("no mode"))
    }
}

/// Durations as text in serde, for `#[serde(with = "…")]`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// As [`super::parse_duration`] reads it.
    pub(in crate::config) fn text(time: Duration) -> String {
        humantime::format_duration(time).to_string()
    }

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*time))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_duration(&text).map_err(D::Error::custom)
    }

    pub(in crate::config) fn optional<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_letter_means_powers_of_1024() {
        let gib = Ok(1 << 30);
        for text in ["1G", "1g", "1GiB", "1 GiB", "1024M", "1073741824", "1073741824 B"] {
            assert_eq!(parse_size(text), gib, "{text}");
        }
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn f81_what_is_no_size_is_refused() {
        for text in
            ["", "12Q", "M", "-1", "+1", "1.5G", "0x10", "1G 1M", "1_000", " 1", "1\u{a0}G "]
        {
            let said = parse_size(text).expect_err(text);
            assert!(said.contains("is no size"), "{text}: {said}");
        }
        for text in ["16E", "18446744073709551616", "99999999999999999999T"] {
            let said = parse_size(text).expect_err(text);
            assert!(said.contains("too large"), "{text}: {said}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "10", "-1s", "soon", "99999999999999999999s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn sizes_and_durations_read_back_what_was_written(bytes: u64, millis in 0..1u64 << 50) {
            prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
            let time = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&duration::text(time)), Ok(time));
        }
    }
}
