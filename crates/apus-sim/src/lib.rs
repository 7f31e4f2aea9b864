//! A datacenter in one process: the production protocol on hundreds of hosts, deterministic.
//!
//! Every host runs [`apus_proto::Endpoint`], unchanged; links, switches, clocks and chance are
//! simulated. A [`Plan`] says what, [`run()`] does it, an [`Outcome`] says what came of it. The same
//! plan gives the same events in the same order on every machine ([`Outcome::hash`]).
//!
//! # Map
//!
//! | module | what |
//! |---|---|
//! | `plan`, `sizes`, `size_table`, `topology`, `framing` | what is simulated: TOML, message lengths, networks, bytes on the wire |
//! | `queue`, `fabric`, `chance` | the engine: events in order, packets at ports, random numbers |
//! | `transport` | what hosts speak: the production core, and rivals |
//! | `trace` | load from a file |
//! | `run`, `slowdown` | load, measuring, one simulation |
//! | [`paper`] | what the Homa paper measured |
//! | [`results`] | outcomes as rows and curves, beside the paper's |
//! | [`sweep`] | grids of plans |
//! | [`check`] | the fault campaign |
//!
//! Time is counted in picoseconds, so that every link's rate is exact.

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
pub use plan::{Arrivals, Exchange, HomaPlan, Pattern, Plan, PlanError, Profile, Protocol};
pub use run::{LayerOutcome, Outcome, Progress, run, run_traced};
pub use size_table::SizeTable;
pub use sizes::Sizes;
pub use slowdown::{BATCHES, Decile, SizeClass};
pub use topology::{Links, Topology};
