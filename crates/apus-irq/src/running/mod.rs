//! The session that holds set values, and the processes that restore or keep them.
//!
//! | file | |
//! |---|---|
//! | `session` | the values that a process sets while it runs, on devices, epoll sets and listeners, and restores when it ends |
//! | `guardian` | the process that restores the values when the first one is killed |
//! | `keeper` | the process that sets lost values of a device again |
//! | `restoring` | the restoration of everything that a state directory records |
//! | `tuning` | the steps by which parameters are chosen for a program under load |
//! | `steering` | the steered listeners of a program, while listeners come and go |
//! | `process_tree` | the processes of a started program, including those in the background |
//! | `user` | the user as whom a program runs |
//! | `notice` | the notices of a session while it runs |
//! | `ready` | the start of a process that reports when it is ready |
//! | `privileges` | the rights of the processes that stay behind |

pub mod guardian;
pub mod keeper;
mod notice;
mod privileges;
mod process_tree;
mod ready;
mod restoring;
mod session;
mod steering;
mod tuning;
mod user;

pub use notice::Notice;
pub use process_tree::{ProcessTree, adopt_orphans};
pub use restoring::{Restored, restore};
pub use session::{Done, Session};
pub use steering::Steering;
pub use tuning::{Period, Tuning, TuningStep, receiving_slots};
pub use user::ProgramUser;

use std::time::Duration;

/// Interval between two searches for new epoll sets and listeners.
pub(crate) const RESCAN: Duration = Duration::from_millis(200);
