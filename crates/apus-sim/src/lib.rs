//! A datacenter in one process: the production protocol on hundreds of hosts, deterministic.
//!
//! Every host runs [`apus_proto::Endpoint`], unchanged. Links, switches, clocks and random numbers are simulated. A [`Plan`]
//! describes the simulation, [`run()`] runs it, and an [`SimulationResult`] has the results. The same plan gives the same events in the same
//! order on every machine ([`SimulationResult::hash`]).
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | `plan`, `sizes`, `size_table`, `topology`, `framing` | plans: TOML, message lengths, networks, bytes on the wire |
//! | `queue`, `fabric`, `chance` | the engine: events in order, packets at ports, random numbers |
//! | `transport` | the protocols of hosts: the production core, and rivals |
//! | `trace` | load from a file |
//! | `run`, `slowdown` | one simulation: load and measurement |
//! | [`paper`] | the Homa paper's measurements |
//! | [`results`] | outcomes as rows and curves, beside the paper's |
//! | [`sweep`] | grids of plans |
//! | [`check`] | the fault campaign |
//! | `services` (feature `services`) | clients and servers of apus-rpc over a simulated network |
//!
//! Times are in picoseconds, so that the rate of every link is exact.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod chance;
pub mod check;
mod fabric;
mod framing;
mod layout;
pub mod paper;
mod plan;
mod queue;
pub mod results;
mod run;
#[cfg(feature = "services")]
pub mod services;
mod size_table;
mod sizes;
mod slowdown;
pub mod sweep;
mod time_trace;
mod topology;
mod trace;
mod transport;

pub use fabric::Buffers;
pub use framing::Framing;
pub use layout::{Layout, Link, Switch};
pub use plan::{
    Arrivals, Exchange, HomaPlan, Pattern, Plan, PlanError, Profile, Protocol, TcpPlan,
};
pub use run::{LayerOutcome, Progress, SimulationResult, run, run_traced};
pub use size_table::SizeTable;
pub use sizes::Sizes;
pub use slowdown::{BATCHES, Decile, SizeClass};
pub use topology::{Links, Topology};
