//! `apus carrier status`, `off` and `on`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use apus_carrier::{CarriedConnection, Request, Status, ask};
use apus_load::misuse::Misuse;
use apus_load::report::{Style, Table};
use nix::unistd::{User, geteuid};

use super::environment::port;
use crate::output::{self, OutputFile};

/// Which carrier.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Which {
    /// UDP port, 1 to 32767 [default: 20147]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=32_767))]
    port: Option<u16>,
    /// User of the carrier, by name or number; only root may name another user [default: this user]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// Show the state of the carrier, and the connections that it carries
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  apus carrier status\n  apus carrier status --json - | jq .connections"
)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    which: Which,
    /// Write the status as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Have the carrier carry no new connections, and return those that it carries to TCP
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  apus carrier off")]
pub(super) struct OffArgs {
    #[command(flatten)]
    which: Which,
}

/// Have the carrier carry new connections again
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  apus carrier on")]
pub(super) struct OnArgs {
    #[command(flatten)]
    which: Which,
}

impl Which {
    fn ask(&self, request: Request) -> Result<Status> {
        let port = self.port.map_or_else(port, Ok)?;
        let uid = self.user.as_deref().map_or_else(|| Ok(geteuid().as_raw()), uid_of)?;
        ask(uid, port, request).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => anyhow::anyhow!("no carrier runs at port {port}"),
            _ => anyhow::Error::new(error)
                .context(format!("the carrier at port {port} does not answer")),
        })
    }
}

fn uid_of(user: &str) -> Result<u32> {
    if let Ok(uid) = user.parse() {
        return Ok(uid);
    }
    let found = User::from_name(user).context("cannot read the list of users")?;
    let found = found.ok_or_else(|| Misuse(format!("no user `{user}`")))?;
    Ok(found.uid.as_raw())
}

/// Asks for the status and shows it.
///
/// # Errors
/// When no carrier answers, or the status cannot be written.
pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let status = args.which.ask(Request::Status)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        output::print(&text(&status, Style::for_stdout()))?;
    }
    if let Some(file) = file {
        file.write(&(serde_json::to_string_pretty(&status)? + "\n"))?;
    }
    Ok(())
}

/// Switches the carrier off.
///
/// # Errors
/// When no carrier answers.
pub(super) fn off(args: &OffArgs) -> Result<()> {
    let status = args.which.ask(Request::Off)?;
    let left = status.connections.len();
    output::print(&format!("no new connections are carried; {left} return to TCP\n"))
}

/// Switches the carrier on.
///
/// # Errors
/// When no carrier answers.
pub(super) fn on(args: &OnArgs) -> Result<()> {
    args.which.ask(Request::On)?;
    output::print("new connections are carried\n")
}

fn text(status: &Status, style: Style) -> String {
    let mut note = format!(
        "Carrier {} (pid {}) at {}, up {}. {}. Hosts: {}. Log: {}.\n\
         Connections: {} carried now, {} in all, {} lost. Streams of other hosts that wait: {}. \
         Room for {} descriptors more.\n",
        status.version,
        status.pid,
        status.listen,
        humantime::format_duration(Duration::from_secs(status.uptime_s)),
        if status.carries { "It carries new connections" } else { "It is switched off" },
        if status.hosts.is_empty() { "all".to_owned() } else { status.hosts.join(", ") },
        status.log.as_deref().unwrap_or("none"),
        status.connections.len(),
        status.carried,
        status.lost,
        status.waiting_streams,
        status.descriptors_left,
    );
    let refused: Vec<String> = refusals(status)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    if !refused.is_empty() {
        note += &format!("Refused: {}.\n", refused.join(", "));
    }
    if status.connections.is_empty() {
        return note;
    }
    let heads = [("client", false), ("server", false)];
    let line = |it: &CarriedConnection| vec![it.client.clone(), it.server.clone()];
    let lines = status.connections.iter().map(line);
    Table::of_texts("Connections that are carried", note.trim_end(), &heads, lines).text(style)
}

fn refusals(status: &Status) -> [(&'static str, u64); 8] {
    let refused = &status.refused;
    [
        ("processes of other users", refused.foreign_user),
        (
            "connections that the introducing process does not have, or no longer has",
            refused.not_introduced,
        ),
        ("processes or connections without a descriptor for them", refused.no_descriptor),
        ("streams from other UDP ports", refused.foreign_port),
        ("streams from hosts that are not in the list", refused.foreign_host),
        ("streams for clients at other hosts", refused.foreign_client),
        ("streams of hosts with too many", refused.too_many),
        ("connections or streams while it was off", refused.off),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_was_refused() {
        let mut status = Status::default();
        assert!(text(&status, Style::PLAIN).contains("Hosts: all. Log: none."));
        assert!(!text(&status, Style::PLAIN).contains("Refused"));
        status.refused.foreign_port = 3;
        assert!(text(&status, Style::PLAIN).contains("Refused: 3 streams from other UDP ports."));
    }
}
