//! The protocol of one node: every RPC, peer and socket, and nothing else.
//!
//! | file | what |
//! |---|---|
//! | `call`, `reply` | what the application begins |
//! | `receive`, `data`, `answer` | packets that arrive: by type; DATA; all others about an RPC |
//! | `contact` | packets about tokens: first contact, moves, restarts |
//! | `transmit` | what goes out |
//! | `expire`, `probe`, `sweep` | what happens when nothing arrives; probes; work over all RPCs |
//! | `local`, `unsent` | calls within the host; those of a path that ends before it has carried them |
//! | `meet` | the proof that the peer at an address is a process of this host |
//! | `charge` | room in the budgets |
//! | `state` | the endpoint itself |
//! | `step`, `parts` | one RPC with everything it may change |
//! | `sweeps`, `turns` | work over all RPCs that waits; peers whose probes wait |

mod answer;
mod call;
mod charge;
mod contact;
mod data;
mod event;
mod expire;
mod local;
mod meet;
mod parts;
mod probe;
mod receive;
mod reply;
mod state;
mod step;
mod sweep;
mod sweeps;
mod transmit;
mod turns;
mod unsent;

pub use event::{CallOptions, Event, SpentBodies};
pub use state::Endpoint;
pub use unsent::{Moved, UnsentCalls};
