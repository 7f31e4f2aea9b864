//! What a process shows of itself: counters, traces, events.
//!
//! | file | contents |
//! |---|---|
//! | [`stats`] | counters of a node, as programs read them |
//! | [`publication`] | counters in a mapped file, as other processes read them |
//! | [`time_trace`] | the time trace: a ring of records for each thread |
//! | [`spans`] | spans of calls and requests for distributed traces (feature `tracing`) |
//! | [`events`] | events for `tracing` about nodes and failures (feature `tracing`) |
//! | [`missing_files`] | files that the process does without, because it may not make them |

pub(crate) mod events;
pub(crate) mod missing_files;
pub(crate) mod publication;
pub(crate) mod spans;
pub(crate) mod stats;
pub(crate) mod time_trace;
