//! The time trace: what happened when, at the cost of some nanoseconds a record.
//!
//! Each thread has a [ring](LiveRing) of its own, so that a record needs no lock: a time stamp, the number of an event and four
//! arguments of 32 bits. A ring that is full overwrites its oldest record. All rings of a process lie in one mapped file, which
//! other processes read while it is written, and which stays if the process is killed.
//!
//! | file | what |
//! |---|---|
//! | `event` | what the number of an event means |
//! | `stamp` | time stamps: the cycle counter where it can be trusted, else the monotonic clock |
//! | `layout` | where things are in a file |
//! | `controls` | what is recorded and until when, also set from outside |
//! | `ring` | the ring of a thread, as its thread writes it |
//! | `live` | the rings of this process; [`start`] and [`record`] |
//! | `file` | [`Trace`]: a file that is read, of a process that runs or of one that has ended, or made by a simulator |
//! | `merged` | [`Merged`]: several traces on one clock |
//! | `calls` | calls in a trace, and the time that they take to each stage |
//! | `nodes`, `packets` | whose rings are whose; packets with their transmission and their arrival |
//! | `flights` | [`story`]: all that the traces have of one call |
//! | `analysis` | analyses; each makes a [`Report`] |
//! | `taken` | [`taken_time`]: what is taken from the CPUs now |
//! | `report` | [`Report`]: sentences, numbers and tables |
//! | `distribution`, `level` | percentiles; numbers over time |
//!
//! The crate does not know any event: a program gives the table of its events to [`start`], and the table is part of the file, so
//! that a later version reads it as it was meant.

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
pub use live::{Place, controls, freeze, freeze_for, record, restore_if_due, start, thaw_if_due};
pub use merged::{ClockOffset, Merged, Moment, Source};
pub use report::{Cell, Report, Table};
pub use ring::{LiveRing, RECORDS};
pub use stamp::{Clock, ticks};
pub use taken::taken_time;
