//! At-most-once execution as a model. `spec/README.md` is the way to read it.

mod contact;
mod explore;
mod memory;
mod model;
mod packet;
mod request;
mod revert;
mod scenario;
mod state;

pub use explore::{Explored, counterexample, explore, listed};
pub use memory::{Memory, Message};
pub use model::{ALWAYS, Action, Condition, World};
pub use packet::{ATTACKER, Body, Packet, Place, Proof, Run, Token, Unknown};
pub use revert::Revert;
pub use scenario::{SCENARIOS, Scenario, WIDER};
pub use state::{Call, Contact, End, Faults, Node, Peer, Phase, Request, Service, State};
