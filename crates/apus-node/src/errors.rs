//! Failed calls, counted by kind.

use std::collections::BTreeMap;

use apus_load::{ResultFile, Row};

use crate::transport::interface::{Failed, WRONG_REPLY};

/// Number of failed calls by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Errors {
    kinds: BTreeMap<String, ErrorCount>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ErrorCount {
    count: u64,
    /// The first error's text, with its server.
    example: String,
}

impl Errors {
    /// Counts a failed call to `server`.
    pub(super) fn note(&mut self, server: &str, failed: &Failed) {
        let first = || ErrorCount { count: 0, example: format!("server {server}: {failed}") };
        self.kinds.entry(failed.kind.clone()).or_insert_with(first).count += 1;
    }

    /// Adds another thread's counts.
    pub(super) fn merge(&mut self, other: &Self) {
        for (kind, theirs) in &other.kinds {
            let first = || ErrorCount { count: 0, example: theirs.example.clone() };
            self.kinds.entry(kind.clone()).or_insert_with(first).count += theirs.count;
        }
    }

    /// Number of all failed calls.
    pub(super) fn total(&self) -> u64 {
        self.kinds.values().map(|kind| kind.count).sum()
    }

    /// Adds the total and the count of each kind to a row: `errors`, `errors_peer_timeout`, …
    pub(super) fn set(&self, row: Row) -> Row {
        let row = row.set("errors", self.total());
        self.kinds
            .iter()
            .fold(row, |row, (name, kind)| row.set(&format!("errors_{name}"), kind.count))
    }

    /// Adds a warning for each kind.
    pub(super) fn warn(&self, result: &mut ResultFile) {
        for (name, ErrorCount { count, example }) in &self.kinds {
            let name = name.replace('_', " ");
            result.warn(format!("{count} calls failed ({name}), the first with: {example}"));
        }
    }

    /// The first error of the most frequent kind; `None` without errors.
    pub(super) fn example(&self) -> Option<&str> {
        self.kinds.values().max_by_key(|kind| kind.count).map(|kind| kind.example.as_str())
    }

    /// The first wrong reply; `None` without wrong replies.
    pub(super) fn wrong_reply(&self) -> Option<&str> {
        self.kinds.get(WRONG_REPLY).map(|kind| kind.example.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus::CallError;

    #[test]
    fn errors_are_counted_by_kind_over_all_threads() {
        let (mut one, mut other) = (Errors::default(), Errors::default());
        one.note("a:1", &Failed::call(1, &CallError::NoSuchPort));
        other.note("b:1", &Failed::call(2, &CallError::NoSuchPort));
        other.note("b:1", &Failed::wrong(3, "a wrong byte"));
        one.merge(&other);
        let row = one.set(Row::new("x"));
        let count = |key: &str| row.number(key);
        assert_eq!((count("errors"), count("errors_no_such_port")), (Some(3.0), Some(2.0)));
        assert_eq!(count("errors_wrong_reply"), Some(1.0));
        assert!(
            one.example().unwrap().starts_with("server a:1: a call failed: no service listens")
        );
        assert_eq!(one.wrong_reply(), Some("server b:1: a wrong byte"));
        assert_eq!(Errors::default().example(), None);
    }
}
