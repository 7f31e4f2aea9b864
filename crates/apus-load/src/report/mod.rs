//! Tables and pages made from result files.
//!
//! # What the keys of a row mean here
//!
//! * Rows that agree in all *conditions* (`bench`, `workload`, `size_bytes`, `outstanding`, `load`, `pin`,
//!   `loss_pct`) are comparable and form one table; the conditions are its title.
//! * `run` numbers the repetitions. Rows that differ only in it and in what was measured are one line of the
//!   table: medians, with the spread of the main figure.
//! * `transport`, further texts (`delivery`) and the settings (`connections`, `threads`, `receivers`, `ports`)
//!   say which line it is.
//! * Everything else was measured. The unit at the end of the key goes into the heading and says whether less
//!   is better (times) or more (`_gbps`, `_per_s`).
//! * The main figure is that of the benchmark in the [`Conventions`], otherwise the first with a better side. It is
//!   compared with that of the best rival: the ratio is that of the figures shown, and where the runs one by one say the
//!   opposite, no direction is stated. A line whose `verdict` is [`REFUSED`](crate::REFUSED) is neither compared nor best. The page says how
//!   the subject of a table stands: the first transport that is neither a rival nor a floor, in the best of its settings.
//! * Which transports are rivals and floors, and which benchmarks have tables of their own form, is in the
//!   [`Conventions`], which the caller gives.

mod axis;
mod column;
mod comparison;
mod conventions;
mod csv;
mod glossary;
mod group;
mod html;
mod markdown;
mod plot;
#[cfg(test)]
mod sample;
mod svg;
mod table;
mod terminal;
mod warnings;
mod wrap;

pub use column::figure;
pub use conventions::Conventions;
pub use csv::csv;
pub use html::html;
pub use markdown::markdown;
pub use svg::{SvgFile, svg};
pub use table::Table;
pub use terminal::{Style, WIDTH, short_warnings, text};
pub use wrap::wrap;

use crate::stats;

use self::column::Column;
use self::comparison::Comparison;

/// The figure under `key` for people, with its unit: "4.92 µs", "22.0 ms".
#[must_use]
pub fn with_unit(key: &str, value: f64) -> String {
    Column::of(key).with_unit(value)
}

/// How the figures under `key` of one transport compare with those of another, both in the order of their runs, in the
/// words of the tables: "15× faster", "same", "runs disagree"; "—" when one has no figure.
#[must_use]
pub fn comparison(key: &str, ours: &[f64], reference: &[f64]) -> String {
    let (Some(median), Some(other)) = (stats::median(ours), stats::median(reference)) else {
        return Comparison::Missing.in_words(&Column::of(key));
    };
    let (column, by_run) = (Column::of(key), stats::paired_ratio(ours, reference));
    Comparison::of(&column, median, other, by_run).in_words(&column)
}
