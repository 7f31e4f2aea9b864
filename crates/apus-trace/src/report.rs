//! The result of an analysis: sentences, numbers and tables. Programs show it as text or JSON.

/// The result of an analysis.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Striking results, one sentence each. May be empty.
    pub findings: Vec<String>,
    /// Numbers about the whole trace, by name.
    pub facts: Vec<(&'static str, Cell)>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A table of a [`Report`].
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// Its name: lower case, words joined by `_`.
    pub name: &'static str,
    /// Names of its columns, in the same form, with the unit at the end.
    pub columns: Vec<&'static str>,
    /// Its rows, with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// A value in a table.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// The traces do not have the value.
    Missing,
    /// A name.
    Text(String),
    /// A count, or a number of bytes.
    Count(u64),
    /// Any other number.
    Number(f64),
}

impl Report {
    /// Adds a table, which the caller fills.
    pub(crate) fn table(&mut self, name: &'static str, columns: &[&'static str]) -> &mut Table {
        self.tables.push(Table { name, columns: columns.to_vec(), rows: Vec::new() });
        self.tables.last_mut().expect("a table was added")
    }

    pub(crate) fn fact(&mut self, name: &'static str, value: impl Into<Cell>) {
        self.facts.push((name, value.into()));
    }

    pub(crate) fn find(&mut self, sentence: String) {
        self.findings.push(sentence);
    }

    /// The value in a column of a table's row, if both exist.
    #[must_use]
    pub fn cell(&self, table: &str, row: usize, column: &str) -> Option<&Cell> {
        let table = self.tables.iter().find(|it| it.name == table)?;
        let at = table.columns.iter().position(|it| *it == column)?;
        table.rows.get(row)?.get(at)
    }
}

impl Table {
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let row: Vec<_> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len(), "{}", self.name);
        self.rows.push(row);
    }
}

impl Cell {
    /// Nanoseconds, in µs.
    #[must_use]
    pub fn nanos(nanos: u64) -> Self {
        Self::Number(nanos as f64 / 1e3)
    }

    /// A number in hexadecimal.
    #[must_use]
    pub fn hex(number: u32) -> Self {
        Self::Text(format!("{number:08x}"))
    }

    /// The rate of bytes over nanoseconds, in Gbit/s; missing if the time is 0.
    pub(crate) fn gbps(bytes: u64, nanos: u64) -> Self {
        if nanos == 0 { Self::Missing } else { Self::Number(bytes as f64 * 8.0 / nanos as f64) }
    }

    /// A share of a whole; missing if the whole is 0.
    pub(crate) fn share(part: usize, whole: usize) -> Self {
        if whole == 0 { Self::Missing } else { Self::Number(part as f64 / whole as f64) }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

/// "1 call", "2 calls".
pub(crate) fn counted(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}
