//! A cluster emulated on this machine, or a real one over ssh, and campaigns of measurements there.
//!
//! * [`plan`]: plans and settings; [`rival`]: set-ups of kernel TCP; [`emulated`], [`remote`]: the two testbeds, each with its `run`;
//! * [`agent`]: the process on each host, which is the same program under the hidden command
//!   [`AGENT_COMMAND`](emulated::AGENT_COMMAND); `agents`: the leader's control of all of them;
//! * `campaign`: all settings of a plan in turn; `trial`: one run on all hosts; `ideal`: ideal times;
//! * `figures`: rows and curves from the agents' measurements;
//! * [`network`]: namespaces and links, made with iproute2 (`iproute`); `switch`: their queues, which `queues` reads; `processor`:
//!   processors that are slowed down;
//! * [`up`]: a lab for manual use;
//! * `kernel`: the kernel's counters; [`privilege`]: the lab's privileges.
//!
//! Apus and TCP run as on real hosts: no part of the protocol is simulated. The lab needs root or user namespaces; it changes
//! nothing outside its own namespaces. This crate prints nothing and handles no signal.

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
pub mod rival;
mod switch;
mod trial;
pub mod up;
