//! A table, independent of the form of the report.

use super::column::Column;

/// A complete table. Texts are as in the data, not escaped.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The conditions.
    pub(crate) title: String,
    /// Values common to all lines, and the method of the figures. May be empty.
    pub(crate) note: String,
    /// Headings.
    pub(crate) heads: Vec<Head>,
    /// Lines, each with one entry per heading.
    pub(crate) lines: Vec<Vec<TableCell>>,
    /// The main figure of each line, for bars and for the summary; `None` if no figure has a better direction.
    pub(crate) headline: Option<Headline>,
    /// Whether it was measured only to choose a set-up.
    pub(crate) is_set_up: bool,
}

impl Table {
    /// A table of texts. The `bool` of a heading puts its column's texts to the right. Each line has one text per heading. `note`
    /// may be empty.
    #[must_use]
    pub fn of_texts(
        title: &str,
        note: &str,
        heads: &[(&str, bool)],
        lines: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        let head = |(place, (text, right)): (usize, &(&str, bool))| {
            let kept = !right || place == 0;
            Head { text: (*text).to_owned(), right: *right, kept }
        };
        let entry = |text| TableCell { text, best: false };
        Self {
            title: title.to_owned(),
            note: note.to_owned(),
            heads: heads.iter().enumerate().map(head).collect(),
            lines: lines.into_iter().map(|line| line.into_iter().map(entry).collect()).collect(),
            headline: None,
            is_set_up: false,
        }
    }

    /// Its title.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Values common to all lines, and the method of the figures.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The texts of its lines.
    pub fn lines(&self) -> impl Iterator<Item = Vec<&str>> {
        self.lines.iter().map(|line| line.iter().map(|entry| &entry.text[..]).collect())
    }
}

/// The heading of one column.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Head {
    /// Text with its unit.
    pub(crate) text: String,
    /// Whether the column's texts are on the right, as for numbers.
    pub(crate) right: bool,
    /// Whether every screen shows the column. Other columns may be left out and are then named.
    pub(crate) kept: bool,
}

/// A cell of a table.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct TableCell {
    /// Text as shown.
    pub(crate) text: String,
    /// Whether it is the best of its column among the contenders.
    pub(crate) best: bool,
}

/// The main figure of a table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Headline {
    /// The figure's column.
    pub(crate) column: Column,
    /// One entry per line with the figure, in order: label, transport, value.
    pub(crate) values: Vec<(String, String, f64)>,
    /// The subject's claims against the best of each kind of rival; the best of all rivals is the first.
    pub(crate) claims: Vec<Claim>,
}

/// The main statement of a table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Claim {
    /// "Apus is 15× faster than kernel TCP".
    pub(crate) headline: String,
    /// Transport of the line.
    pub(crate) subject: String,
    /// Transport of the reference.
    pub(crate) rival: String,
    /// Label and value of the line: "apus-udp 4.92 µs".
    pub(crate) ours: String,
    /// Label and value of the reference.
    pub(crate) reference: String,
    /// The standing of the line.
    pub(crate) standing: Standing,
}

/// Standing of a figure beside its reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// The better side.
    Ahead,
    /// The worse side.
    Behind,
    /// No significant difference.
    Level,
    /// Refused, or the runs disagree.
    Unclear,
}
