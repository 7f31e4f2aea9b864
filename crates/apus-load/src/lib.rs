//! Load and measurement for request/response transports: messages and their schedule, latencies, and reports.
//!
//! The crate opens no socket and knows no protocol. A benchmark brings its own transport and uses these parts, in this order:
//!
//! 1. [`Workload`] gives the length of each message ([`etc`] for a key-value store), [`Poisson`] or [`Pareto`] the time at which it
//!    is due, and [`Lateness`] shows whether the generator kept up.
//! 2. [`Latency`] and [`BySize`] record latencies of calls. [`Watch`] measures the use of the machine by other processes.
//! 3. [`ResultFile`] is the record of a run: command, [`Machine`], warnings, flat [`Row`]s, and [`Series`] for plots. It is JSON,
//!    and all reports are made from it.
//! 4. [`report`] makes tables for a terminal and a self-contained HTML page from result files. [`stats`] has the medians and ratios
//!    that they use.
//!
//! Random numbers come from a seed of the caller, so a load can be repeated. The clock is read in two places only:
//! [`ResultFile::new`] notes the start of the run, and [`Watch`] its duration.
//!
//! | file | contents |
//! |---|---|
//! | `workload`, `etc`, `quantile_table`, `size` | lengths of messages |
//! | `arrival`, `random` | the times at which messages are due; random numbers |
//! | `latency`, `stats` | latencies and their statistics |
//! | `machine`, `background_load` | the machine, and its use by others |
//! | `record`, `result`, `row`, `series` | the record of a run |
//! | `report` | tables, pages and plots |
//! | `progress`, `stop`, `misuse` | progress, the request to stop, options that contradict each other |

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
pub use row::{FLOOR, FLOOR_SAME, REFUSED, REFUSED_LATE, Row};
pub use series::{Scale, Series};
pub use size::{Size, SizeError};
pub use workload::{Mix, Share, Workload, WorkloadError};
