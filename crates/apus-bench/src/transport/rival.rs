//! Transports that another program adds to this crate's, so that one run measures both.

use std::net::SocketAddr;
use std::sync::OnceLock;

use anyhow::Result;
use clap::builder::PossibleValue;

use apus_node::transport::interface::{Client, Server};

/// A transport that a program adds.
#[derive(Debug)]
pub struct Rival {
    /// The name in tables, results and arguments; unique among all transports.
    pub name: &'static str,
    /// The line of `--help`.
    pub about: &'static str,
    /// The version of the measured library, for results.
    pub version: &'static str,
    /// Whether both sides spin and so need a core each.
    pub spins: bool,
    /// Connects a client to the server at an address.
    pub connect: fn(SocketAddr) -> Result<Box<dyn Client>>,
    /// Opens a server at an address of its choice.
    pub bind: fn() -> Result<Box<dyn Server>>,
}

impl Rival {
    pub(super) fn possible_value(&self) -> PossibleValue {
        PossibleValue::new(self.name).help(self.about)
    }
}

impl PartialEq for Rival {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Rival {}

static ADDED: OnceLock<&'static [Rival]> = OnceLock::new();

/// Adds transports to the benchmarks of this process. Must be called once, before arguments are parsed and
/// [roles](crate::roles::serve) are served.
///
/// # Panics
/// If it is called a second time.
pub fn add(rivals: &'static [Rival]) {
    ADDED.set(rivals).expect("rivals are added once");
}

pub(super) fn added() -> &'static [Rival] {
    ADDED.get().copied().unwrap_or_default()
}
