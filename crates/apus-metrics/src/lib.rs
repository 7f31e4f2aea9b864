//! Every counter of Apus, and the format of the file in which a process publishes its counters.
//!
//! | part | |
//! |---|---|
//! | [`table`](mod@table) | the counters: name, unit, meaning |
//! | [`metric`] | the counters as values |
//! | [`layout`] | the layout of a file, for the process that writes it |
//! | [`reading`] | the parser of a file, for its readers; it trusts nothing in a file |
//!
//! A file names its counters, so that a program can show the counters of a process with a newer or older version of Apus.

#![forbid(unsafe_code)]

pub mod layout;
pub mod metric;
pub mod reading;
pub mod table;

pub use layout::{SectionType, Start};
pub use metric::{GaugeFold, Metric, engine_metrics, metrics, process_metrics};
pub use reading::{AttachedCounters, Counter, Reading, Unreadable, last_written};
