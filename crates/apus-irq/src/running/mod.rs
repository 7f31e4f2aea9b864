//! What stands while values are set, and the processes that restore or keep them.
//!
//! | file | |
//! |---|---|
//! | `session` | what a process sets while it runs, on devices, epoll sets and listeners; all is restored when it ends |
//! | `guardian` | the process that restores it when the first one is killed |
//! | `keeper` | the process that sets a device again when its values are lost |
//! | `steering` | which listeners of a program are steered, while they come and go |
//! | `family` | the processes of a program that was started, also in the background |
//! | `notice` | what a session tells while it runs |
//! | `ready` | how a process is started that says when it is ready |
//! | `privileges` | the rights that a process which stays behind keeps |

mod family;
pub mod guardian;
pub mod keeper;
mod notice;
mod privileges;
mod ready;
mod session;
mod steering;

pub use family::{Family, adopt_orphans};
pub use notice::Notice;
pub use session::{Done, Session};
pub use steering::Steering;

use std::time::Duration;

/// How often new epoll sets and listeners are looked for.
pub(crate) const RESCAN: Duration = Duration::from_millis(200);
