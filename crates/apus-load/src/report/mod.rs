//! Tables and pages made from result files.
//!
//! # The meaning of a row's keys
//!
//! * Rows that agree in all *conditions* (`bench`, `workload`, `size_bytes`, `outstanding`, `load`, `pin`,
//!   `loss_pct`) are comparable and form one table; the conditions are its title.
//! * `run` numbers the repetitions. Rows that differ only in it and in measured values are one line of the table: medians, with the
//!   spread of the main figure.
//! * `transport`, other texts (`delivery`) and the settings (`connections`, `threads`, `receivers`, `ports`) identify the line.
//! * All other values were measured. The unit at the end of the key is part of the heading and gives the better direction: lower
//!   (times) or higher (`_gbps`, `_per_s`).
//! * The main figure is the benchmark's in the [`Conventions`], otherwise the first with a better direction. It is compared with
//!   the best rival's: the ratio is computed from the figures shown, and if single runs contradict it, no direction is stated. A
//!   line whose `verdict` is [`REFUSED`](crate::REFUSED) is neither compared nor best. The page reports on the subject of a table:
//!   the first transport that is neither a rival nor a floor, in its best setting.
//! * The caller's [`Conventions`] say which transports are rivals and floors, and which benchmarks have tables of their own form.

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

/// The figure under `key` with its unit: "4.92 µs", "22.0 ms".
#[must_use]
pub fn with_unit(key: &str, value: f64) -> String {
    Column::of(key).with_unit(value)
}

/// The comparison of one transport's figures under `key` with another's, both in the order of their runs, in the words of the
/// tables: "15× faster", "same", "runs disagree"; "—" if one has no figure.
#[must_use]
pub fn comparison(key: &str, ours: &[f64], reference: &[f64]) -> String {
    let (Some(median), Some(other)) = (stats::median(ours), stats::median(reference)) else {
        return Comparison::Missing.in_words(&Column::of(key));
    };
    let (column, by_run) = (Column::of(key), stats::paired_ratio(ours, reference));
    Comparison::of(&column, median, other, by_run).in_words(&column)
}
