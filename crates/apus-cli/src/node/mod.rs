//! `apus node`: the load generator and the server of [`apus_node`], and a probe.
//!
//! | file | contents |
//! |---|---|
//! | `client`, `server`, `probe` | the subcommand of that name |

mod client;
mod probe;
mod server;

use anyhow::Result;

/// Generate and serve load between hosts; probe a host
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum NodeCommand {
    Server(server::Args),
    Client(client::Args),
    Probe(probe::Args),
}

/// Runs the side chosen.
///
/// # Errors
/// As that side does.
pub(crate) fn run(node: &NodeCommand) -> Result<()> {
    match node {
        NodeCommand::Server(args) => server::run(args),
        NodeCommand::Client(args) => client::run(args),
        NodeCommand::Probe(args) => probe::run(args),
    }
}
