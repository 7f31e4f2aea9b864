//! The protocol of one node: every RPC, peer and socket.
//!
//! | file | contents |
//! |---|---|
//! | `call`, `reply` | calls and responses of the application |
//! | `receive`, `data`, `answer` | arriving packets: by type; DATA; all others about an RPC |
//! | `entries`, `short` | short messages over the network that arrive together; that begin together |
//! | `contact` | packets about tokens: first contact, moves, restarts |
//! | `path_end` | ends of sealed paths: failed handshakes, peers that are over |
//! | `transmit` | outgoing packets |
//! | `expire`, `probe`, `sweep` | timeouts; probes; work over all RPCs |
//! | `local`, `batch` | calls within the host; messages that arrive or leave together |
//! | `rights` | rights of peers to call this node, and of this node to call them |
//! | `unsent` | unsent calls of a path within the host that ends |
//! | `meet` | the proof that the peer at an address is a process of this host |
//! | `charge` | room in the budgets |
//! | `state` | the endpoint itself |
//! | `step`, `parts` | one RPC with all state that it may change |
//! | `sweeps`, `probe_queue`, `questions` | pending work over all RPCs; peers with pending probes; questions of peers that wait |

mod answer;
mod batch;
mod call;
mod charge;
mod contact;
mod data;
mod entries;
mod event;
mod expire;
mod introduction;
mod local;
mod meet;
mod parts;
mod path_end;
mod probe;
mod probe_queue;
mod questions;
mod receive;
mod reply;
mod rights;
mod short;
mod state;
mod step;
mod sweep;
mod sweeps;
mod transmit;
mod unsent;

pub use batch::{Arrivals, ArrivedRequest, Departures, Inbox};
pub use event::{CallOptions, Event, SpentBodies};
pub use introduction::Greeting;
pub use short::ShortMessages;
pub use state::Endpoint;
pub use unsent::{Moved, UnsentCalls};
