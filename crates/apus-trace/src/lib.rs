//! The time trace: records of events, each at the cost of a few nanoseconds.
//!
//! Each thread has its own [ring](LiveRing), so that a record needs no lock. A record is a time stamp, the number of an event and
//! four arguments of 32 bits. A full ring overwrites its oldest record. All rings of a process lie in one mapped file, which other
//! processes read while it is written. The file outlives a killed process.
//!
//! | file | contents |
//! |---|---|
//! | `event` | descriptions of events |
//! | `stamp` | time stamps: the cycle counter if the host can trust it, else the monotonic clock |
//! | `layout` | the layout of a file |
//! | `controls` | settings of a recording and its end, which other processes may set |
//! | `ring` | the ring of a thread |
//! | `live` | the rings of this process; [`start`] and [`record`] |
//! | `file` | [`Trace`]: a file of a running or an ended process, or of a simulator |
//! | `merged` | [`Merged`]: several traces on one clock |
//! | `calls` | calls in a trace, and the times of their stages |
//! | `nodes`, `packets` | the nodes that rings belong to; packets with their transmission and arrival |
//! | `flights` | [`story`]: all records of one call |
//! | `analysis` | analyses; each makes a [`Report`] |
//! | `taken` | [`taken_time`]: time that CPUs lose now |
//! | `report` | [`Report`]: sentences, numbers and tables |
//! | `distribution`, `level` | percentiles; numbers over time |
//!
//! The crate knows no event: a program passes the table of its events to [`start`]. The table is part of the file, so that later
//! versions can read the file.

pub mod analysis;
mod calls;
mod controls;
mod distribution;
mod event;
mod file;
mod flights;
mod layout;
mod level;
mod live;
mod merged;
mod nodes;
mod packets;
mod report;
mod ring;
#[cfg(test)]
mod script;
mod stamp;
mod taken;

pub use calls::{STAGES, Stage, Timeline, TimelineStage, TracedCall, calls};
pub use controls::{Controls, Remote, Settings};
pub use event::EventInfo;
pub use file::{Anchor, EventNames, Record, RingTrace, Trace, TraceError, machine};
pub use flights::{Flight, story};
pub use live::{
    RingStorage, controls, freeze, freeze_for, record, restore_if_due, start, thaw_if_due,
};
pub use merged::{ClockOffset, Merged, Moment, Source};
pub use report::{Cell, Report, Table};
pub use ring::{LiveRing, RECORDS};
pub use stamp::{Clock, ticks};
pub use taken::taken_time;
