//! The counters of processes, which [`stat`](crate::stat) and [`top`](crate::top) show.
//!
//! | file | |
//! |---|---|
//! | `snapshot` | the counters of all processes at a moment |
//! | `change` | their growth between two moments |
//! | `canaries` | warnings about counters that should not move, and states that should not be |

mod canaries;
mod change;
mod snapshot;

pub(crate) use canaries::{state_warnings, warnings};
pub(crate) use change::{Change, ProcessChange};
pub(crate) use snapshot::{Counters, Identity, Process, Snapshot, Unreadable};
