//! Load and measurement for request/response transports: what to send and when, how long it took, and how to
//! tell people.
//!
//! Nothing here opens a socket or knows a protocol; a benchmark brings its own transport and uses these parts,
//! in this order:
//!
//! 1. [`Workload`] says how long each message is ([`etc`] for a key-value store), [`Poisson`] or [`Pareto`] when it is due, [`Lateness`] whether the
//!    generator kept up.
//! 2. [`Latency`] and [`BySize`] record how long calls took; [`Watch`] sees whether others used the machine
//!    meanwhile.
//! 3. [`ResultFile`] is the one record of a run: command, [`Machine`], warnings, flat [`Row`]s, and [`Series`]
//!    for plots. It is JSON first; everything people look at is made from it.
//! 4. [`report`] makes tables for a terminal and a self-contained HTML page from result files; [`stats`] has
//!    the medians and ratios they use.
//!
//! Random numbers come from a seed the caller gives, so a load can be repeated. The clock is read in two places
//! only: [`ResultFile::new`] notes when the run began, and [`Watch`] how long it took.

#![forbid(unsafe_code)]

pub mod arrival;
mod background_load;
pub mod etc;
mod latency;
mod machine;
pub mod misuse;
pub mod progress;
mod quantile_table;
mod random;
pub mod record;
pub mod report;
mod result;
mod row;
mod series;
mod size;
pub mod stats;
pub mod stop;
mod workload;

pub use arrival::{Lateness, Pareto, Poisson, RateError};
pub use background_load::{BackgroundLoad, Watch};
pub use latency::{BySize, Latency, SizeClass};
pub use machine::Machine;
pub use random::{Random, seeded};
pub use result::{ResultFile, SCHEMA};
pub use row::{REFUSED, REFUSED_LATE, Row};
pub use series::{Scale, Series};
pub use size::{Size, SizeError};
pub use workload::{Mix, Share, Workload, WorkloadError};
