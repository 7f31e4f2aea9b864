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
//! * The main figure is `p50_us` of `rtt`, `calls_per_s` of `rate`, `goodput_gbps` of `stream`, `p99_us` of
//!   `mix`, otherwise the first with a better side. It is compared with that of the best `tcp…` line: the ratio
//!   is that of the figures shown, and where the runs one by one say the opposite, no direction is stated. A line whose
//!   `verdict` is [`REFUSED`] is neither compared nor best. The subject of a table, about which the page says how it stands, is the first transport that is
//!   neither TCP nor a floor, in the best of its settings.
//! * Rows of `delivery` have tables of their own form, see [`delivery`].
//! * Transports called `raw-…` are floors, not contenders: never marked as best.

mod axis;
mod checks;
mod column;
mod comparison;
pub mod delivery;
mod html;
mod markdown;
mod plot;
#[cfg(test)]
mod sample;
mod svg;
mod table;
mod terminal;

pub use column::figure;
pub use html::html;
pub use markdown::markdown;
pub use plot::PlotError;
pub use svg::{SvgFile, svg};
pub use terminal::{Style, text};

use crate::stats;

/// The `verdict` of a row that measured the machine instead of the network.
pub const REFUSED: &str = "the machine, not the network";

/// The `verdict` of a row that measured a late generator instead of the server.
pub const REFUSED_LATE: &str = "the generator, not the server";

/// How the figures under `key` of one transport compare with those of another, both in the order of their runs, in the
/// words of the tables: "15× faster", "same", "runs disagree"; "—" when one has no figure.
#[must_use]
pub fn comparison(key: &str, ours: &[f64], reference: &[f64]) -> String {
    let (Some(median), Some(other)) = (stats::median(ours), stats::median(reference)) else {
        return comparison::Comparison::Missing.in_words(&column::Column::of(key));
    };
    let by_run = stats::paired_ratio(ours, reference);
    comparison::Comparison::of(median, other, by_run).in_words(&column::Column::of(key))
}
