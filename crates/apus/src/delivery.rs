//! The waits of threads for messages, and the choice of the thread that turns the engine
//! ([docs/delivery.md](https://github.com/apus-rpc/apus/blob/main/docs/delivery.md)).
//!
//! | file | contents |
//! |---|---|
//! | [`mode`] | the delivery modes and their parameters, as values and as text |
//! | [`leadership`] | the state machine that decides which thread turns the engine; `leadership/table.txt` has every answer |
//! | [`waiting`] | the loop of a waiting thread: look for the message, lead or follow, poll, sleep |
//! | [`spin`] | the time for which a thread polls before it sleeps |
//! | [`parker`] | the sleep of one thread, and its end by other threads |
//! | [`event_source`] | the turns of the engine by an event loop of the application |
//! | [`task_waits`] | the waits of the tasks of an event loop |
//! | [`cross_shard`] | threads that wait at a socket with an end in each of several shards |
//! | [`serving`] | the threads of each service, so that a handler that waits for its own thread gets an error |

mod leadership;
mod mode;

pub(crate) mod cross_shard;
pub(crate) mod event_source;
pub(crate) mod parker;
pub(crate) mod serving;
pub(crate) mod spin;
pub(crate) mod task_waits;
pub(crate) mod waiting;

pub(crate) use leadership::{BackgroundAction, Leadership, Leaving};
pub(crate) use mode::Regime;
pub use mode::{Delivery, DeliveryError};
