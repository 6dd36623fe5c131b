//! Text in columns.
//!
//! ```text
//!   NAME    ID  STATE
//!   vol-1    7  live
//! ```
//!
//! Invariants: every row has as many cells as the head; a cell is one line (control characters are
//! escaped); no trailing blanks, so that output can be compared and cut.

/// Where the text of a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows under a head.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    align: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with this head.
    pub(super) fn new(head: [(&str, Align); N]) -> Self {
        let rows = vec![head.map(|(title, _)| title.to_owned())];
        Self { align: head.map(|(_, align)| align), rows }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| one_line(&cell)));
    }

    /// The table as lines, each ended by a newline.
    pub(super) fn text(&self) -> String {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, cell) in row.iter().enumerate() {
                let (gap, width) = (if i == 0 { "" } else { "  " }, widths[i]);
                line += &match self.align[i] {
                    Align::Left => format!("{gap}{cell:width$}"),
                    Align::Right => format!("{gap}{cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// The text without control characters; they are written as escapes.
pub(super) fn one_line(text: &str) -> String {
    let escape = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table =
            Table::new([("A", Align::Left), ("LONG", Align::Right), ("Z", Align::Left)]);
        table.row(["\u{e4}\u{f6}\u{fc}".into(), "1".into(), "x\ny".into()]);
        table.row(["b".into(), "12345".into(), String::new()]);
        assert_eq!(table.text(), "A     LONG  Z\näöü      1  x\\ny\nb    12345\n");
    }
}
