//! The roles of the other process of a measurement.

use std::io::Write;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::sockets::program;
use crate::{delivery, scale, server};

/// Runs a role, with options in JSON, until standard input closes. The program calls this for the hidden command
/// [`COMMAND`](crate::peer::COMMAND). `output` is its standard output.
///
/// # Errors
/// If the role is unknown, or the server cannot start or continue.
pub fn serve(role: &str, options: &str, output: &mut dyn Write) -> Result<()> {
    match role {
        server::ROLE => server::run(&parse(options)?, output),
        delivery::server::ROLE => delivery::server::run(parse(options)?, output),
        program::ROLE => program::run(&parse(options)?, output),
        scale::holder::ROLE => scale::holder::run(parse(options)?, output),
        other => bail!("unknown role `{other}`"),
    }
}

fn parse<T: DeserializeOwned>(options: &str) -> Result<T> {
    serde_json::from_str(options).context("the options of a role")
}
