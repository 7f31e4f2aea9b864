//! What a report is told about the transports and benchmarks in its results.

use crate::row::Row;

use super::table::Table;

/// What the names in results mean; the program that wrote the results knows.
#[derive(Clone, Copy, Debug)]
pub struct Conventions {
    /// How names of rivals begin: the best of them is the reference that the other transports are compared with.
    pub rivals: &'static [&'static str],
    /// How names of floors begin: they do less than a transport must, so they are never marked as best.
    pub floors: &'static [&'static str],
    /// The main figure of a benchmark: `bench` and the figure's key. Elsewhere it is the first with a better side.
    pub main_figures: &'static [(&'static str, &'static str)],
    /// Benchmarks, by how their names begin, whose lines are something else than transports, and what the first column is
    /// called there. Nothing is compared in them.
    pub first_heads: &'static [(&'static str, &'static str)],
    /// How names of transports begin, and what they are called in sentences: `tcp` is "kernel TCP".
    pub names: &'static [(&'static str, &'static str)],
    /// The colour of a name in all reports: below 8 one of the palette, from 8 on the same again, dashed. Others take
    /// colours that are free.
    pub colours: &'static [(&'static str, usize)],
    /// How names of benchmarks or loads begin that are measured only to choose a set-up. They stand last on a page.
    pub set_up: &'static [&'static str],
    /// Terms that a page which uses them explains, a line each: the term, a colon, its meaning.
    pub terms: &'static str,
    /// Benchmarks whose rows are shown by `own_tables` alone.
    pub own_forms: &'static [&'static str],
    /// Makes tables of a form of their own from all rows; they stand behind the others.
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

    /// What a transport is called in a sentence.
    pub(crate) fn name_of<'a>(&self, transport: &'a str) -> &'a str {
        let known = self.names.iter().find(|(begin, _)| transport.starts_with(begin));
        known.map_or(transport, |(_, name)| *name)
    }

    /// The colour that `name` always has.
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
