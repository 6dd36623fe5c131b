//! Fleets: one entry with `count` makes many devices, by a number in its name and path.
//!
//! ```text
//!   "vol-{n:04}" ─ parse ─> [Text "vol-", Number 4] ─ fill(7) ─> "vol-0007"
//! ```
//!
//! `{n}` is the number, `{n:04}` the same with at least four digits. Other braces are refused in
//! an entry with `count`, so that a slip does not become part of 4,000 names.

/// A text with numbers to be filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template<'a>(Vec<Piece<'a>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// The number with at least this many digits.
    Number(usize),
}

impl<'a> Template<'a> {
    /// Takes a text apart.
    ///
    /// # Errors
    /// Names the braces that are no number.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(brace);
            let end = from.find('}').map_or(from.len(), |i| i + 1);
            let (placeholder, after) = from.split_at(end);
            let digits = digits(placeholder).ok_or_else(|| {
                format!(
                    "{text:?} holds {placeholder:?}: expected {{n}}, or {{n:04}} for four digits"
                )
            })?;
            pieces.extend([Piece::Text(before), Piece::Number(digits)]);
            rest = after;
        }
        pieces.push(Piece::Text(rest));
        Ok(Self(pieces))
    }

    /// A text that is taken as it is.
    pub(super) fn literal(text: &'a str) -> Self {
        Self(vec![Piece::Text(text)])
    }

    /// A legal name for an entry that has none.
    pub(super) fn stand_in() -> Self {
        Self(vec![Piece::Text("unnamed-"), Piece::Number(1)])
    }

    /// Whether the number is in it.
    pub(super) fn has_number(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Number(_)))
    }

    /// The text with the number in it.
    pub(super) fn fill(&self, number: u64) -> String {
        let fill = |piece: &Piece<'_>| match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::Number(digits) => format!("{number:0digits$}"),
        };
        self.0.iter().map(fill).collect()
    }
}

/// Least number of digits that a placeholder asks for; `None` when it is none.
fn digits(placeholder: &str) -> Option<usize> {
    let inner = placeholder.strip_prefix("{n")?.strip_suffix('}')?;
    match inner.strip_prefix(":0") {
        Some(digits) if digits.len() == 1 => digits.parse().ok(),
        _ => inner.is_empty().then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_filled_in() {
        let fill = |text, n| Template::parse(text).map(|t| t.fill(n));
        assert_eq!(fill("vol-{n}", 7), Ok("vol-7".to_owned()));
        assert_eq!(fill("{n:04}/{n}.img", 42), Ok("0042/42.img".to_owned()));
        assert_eq!(fill("{n:02}", 12345), Ok("12345".to_owned()));
        assert_eq!(fill("plain", 1), Ok("plain".to_owned()));
        assert_eq!(Template::literal("{n}").fill(1), "{n}");
    }

    #[test]
    fn other_braces_are_refused() {
        for text in ["{m}", "{n:4}", "{n:0}", "{n:004}", "{n", "n}", "{}", "{{n}}", "{n:0x}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
