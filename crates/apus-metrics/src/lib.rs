//! Every counter of Apus, and the format of the file in which a process shows its counters.
//!
//! | part | |
//! |---|---|
//! | [`table`](mod@table) | the counters: name, unit, meaning |
//! | [`metric`] | the same as values |
//! | [`layout`] | where things lie in a file: for the process that writes it |
//! | [`reading`] | a file's bytes as values: for whoever reads it; nothing in a file is trusted |
//!
//! A file names its counters, so that a program can show the counters of a process whose version of Apus is newer or older.

#![forbid(unsafe_code)]

pub mod layout;
pub mod metric;
pub mod reading;
pub mod table;

pub use layout::{Kind, Start};
pub use metric::{Metric, engine_metrics, metrics, process_metrics};
pub use reading::{Attached, Counter, Reading, Unreadable, last_written};
