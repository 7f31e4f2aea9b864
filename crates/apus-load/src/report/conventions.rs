//! The conventions of transports and benchmarks in results.

use crate::row::Row;

use super::table::Table;

/// The meaning of names in results. The program that wrote the results knows it.
#[derive(Clone, Copy, Debug)]
pub struct Conventions {
    /// Prefixes of rivals' names. The best rival is the reference that the other transports are compared with.
    pub rivals: &'static [&'static str],
    /// Prefixes of floors' names. A floor does less than a transport must, so it is never marked as best.
    pub floors: &'static [&'static str],
    /// The main figures of benchmarks: `bench` and the figure's key. Other benchmarks use the first figure with a better direction.
    pub main_figures: &'static [(&'static str, &'static str)],
    /// Prefixes of benchmarks whose lines are not transports, and the heading of their first column. Their lines are not compared.
    pub first_heads: &'static [(&'static str, &'static str)],
    /// Prefixes of transports' names, with the name for sentences: `tcp` is "kernel TCP".
    pub names: &'static [(&'static str, &'static str)],
    /// The colour of a name in all reports: below 8 a colour of the palette, from 8 the same colours dashed. Other names take free
    /// colours.
    pub colours: &'static [(&'static str, usize)],
    /// Prefixes of benchmarks or loads that only serve to choose a set-up. They are last on a page.
    pub set_up: &'static [&'static str],
    /// Terms that a page explains if it uses them, one line each: the term, a colon, its meaning.
    pub terms: &'static str,
    /// Benchmarks whose rows only `own_tables` shows.
    pub own_forms: &'static [&'static str],
    /// Makes additional tables from all rows, which follow the others.
    pub own_tables: fn(&[Row]) -> Vec<Table>,
}

impl Conventions {
    pub(crate) fn is_rival(&self, transport: &str) -> bool {
        self.rivals.iter().any(|begin| transport.starts_with(begin))
    }

    pub(crate) fn is_floor(&self, transport: &str) -> bool {
        self.floors.iter().any(|begin| transport.starts_with(begin))
    }

    pub(crate) fn main_figure(&self, bench: &str) -> Option<&'static str> {
        self.main_figures.iter().find(|(name, _)| *name == bench).map(|(_, key)| *key)
    }

    /// The name of a transport in a sentence.
    pub(crate) fn name_of<'a>(&self, transport: &'a str) -> &'a str {
        let known = self.names.iter().find(|(begin, _)| transport.starts_with(begin));
        known.map_or(transport, |(_, name)| *name)
    }

    /// The fixed colour of `name`, if it has one.
    pub(crate) fn colour(&self, name: &str) -> Option<usize> {
        self.colours.iter().find(|(known, _)| *known == name).map(|(_, colour)| *colour)
    }

    pub(crate) fn is_set_up(&self, bench_or_load: &str) -> bool {
        self.set_up.iter().any(|begin| bench_or_load.starts_with(begin))
    }

    pub(crate) fn first_head(&self, bench: &str) -> Option<&'static str> {
        self.first_heads.iter().find(|(begin, _)| bench.starts_with(begin)).map(|(_, head)| *head)
    }

    pub(crate) fn has_own_form(&self, row: &Row) -> bool {
        row.text("bench").is_some_and(|bench| self.own_forms.contains(&bench))
    }
}
