//! A table, as every form of report draws it.

use super::column::Column;

/// A table ready to be drawn; texts are as in the data, not escaped.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The conditions.
    pub(crate) title: String,
    /// What is the same for all lines, and how the figures were taken. May be empty.
    pub(crate) note: String,
    /// Headings.
    pub(crate) heads: Vec<Head>,
    /// Lines, each with as many entries as there are heads.
    pub(crate) lines: Vec<Vec<Entry>>,
    /// The main figure of each line, for bars and for the summary; `None` when nothing has a better side.
    pub(crate) headline: Option<Headline>,
    /// Measured only to choose a set-up.
    pub(crate) is_set_up: bool,
}

impl Table {
    /// A table of texts, with numbers to the right in columns whose heading says so; each line has as many texts as there
    /// are headings. `note` may be empty.
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
        let entry = |text| Entry { text, best: false };
        Self {
            title: title.to_owned(),
            note: note.to_owned(),
            heads: heads.iter().enumerate().map(head).collect(),
            lines: lines.into_iter().map(|line| line.into_iter().map(entry).collect()).collect(),
            headline: None,
            is_set_up: false,
        }
    }

    /// What it is about.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What is the same for all lines, and how the figures were taken.
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
    /// With its unit.
    pub(crate) text: String,
    /// Numbers stand to the right.
    pub(crate) right: bool,
    /// Shown however narrow the screen is; other columns may be left out and are then named.
    pub(crate) kept: bool,
}

/// One entry of a table.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Entry {
    /// As shown.
    pub(crate) text: String,
    /// The best of its column among the contenders.
    pub(crate) best: bool,
}

/// The main figure of a table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Headline {
    /// Which figure.
    pub(crate) column: Column,
    /// One per line that has it, in order: label, transport, value.
    pub(crate) values: Vec<(String, String, f64)>,
    /// How the table's subject stands against the best of each kind of rival; the best of all is the first.
    pub(crate) verdicts: Vec<Verdict>,
}

/// The sentence a reader should take home from a table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Verdict {
    /// "Apus is 15× faster than kernel TCP".
    pub(crate) headline: String,
    /// Transport of the line.
    pub(crate) subject: String,
    /// Transport of the reference.
    pub(crate) rival: String,
    /// Label and value of the line: "apus-udp 4.92 µs".
    pub(crate) ours: String,
    /// The same of the reference.
    pub(crate) reference: String,
    /// Where the line stands, in the same words.
    pub(crate) side: Side,
}

/// Which side of its reference a figure is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The better one.
    Ahead,
    /// The worse one.
    Behind,
    /// No difference worth a word.
    Level,
    /// Refused, or the runs disagree.
    Unclear,
}
