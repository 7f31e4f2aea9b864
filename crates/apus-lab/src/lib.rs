//! A cluster emulated on this machine, or a real one over ssh, and campaigns of measurements there.
//!
//! * [`plan`]: what to measure; [`emulated`], [`remote`]: the two testbeds, each with its `run`;
//! * [`agent`]: the process on each host, the same program under the hidden command
//!   [`AGENT_COMMAND`](emulated::AGENT_COMMAND); `agents`: the leader's hold on all of them;
//! * `campaign`: all settings of a plan, one after the other; `trial`: one run on all hosts; `ideal`: the best possible times;
//! * `figures`: rows and curves from what the agents measured;
//! * [`network`]: namespaces and links, made with iproute2 (`iproute`); `switch`: their queues, which `queues`
//!   reads; `processor`: processors that are made slow;
//! * [`up`]: a lab to work in by hand;
//! * `kernel`: the kernel's counters; [`privilege`]: what an ordinary user can do.
//!
//! Apus and TCP run as they would on real hosts: nothing of the protocol is simulated. The lab needs root or user
//! namespaces; it changes nothing outside of the namespaces that it makes. This crate prints nothing and handles no signal.

#![forbid(unsafe_code)]

pub mod agent;
mod agents;
mod campaign;
pub mod emulated;
mod figures;
mod ideal;
mod iproute;
mod kernel;
pub mod network;
pub mod plan;
pub mod privilege;
mod processor;
mod queues;
pub mod remote;
mod switch;
mod trial;
pub mod up;
