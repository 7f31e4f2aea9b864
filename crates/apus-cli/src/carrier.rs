//! `apus carrier`: carries connections of this user's programs to other hosts.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, panic, path, process};

use anyhow::{Context, Result, bail};
use apus_bench::capture::CaptureOptions;
use apus_bench::misuse::Misuse;
use apus_carrier::{Carrier, Settings};
use apus_sockets::introduction;
use nix::unistd::setsid;

use crate::output;

/// Carry connections between programs of this host and of others, for `apus run --net`
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "`apus run --net` starts one in the background if none is there. A carrier belongs to a user and a network namespace. It \
ends when no program of `apus run --net` was there for --idle.

Carriers of all hosts use the same UDP port. A packet filter has to let it through. Whoever may use the port at a host speaks for \
that host; a port below 1024 needs a privilege.

Environment:
  APUS_CARRIER  the UDP port, as --port
  APUS_...      settings of the carrier's node, such as APUS_LINK_MBPS; `apus settings` lists them

Examples:
  apus carrier
  apus carrier --port 700 --idle 1h
  apus carrier --capture packets.pcapng
  APUS_CARRIER=700 apus run --net redis-server"
)]
pub(crate) struct Args {
    /// UDP port, 1 to 32767 [default: 20147]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=32_767))]
    port: Option<u16>,
    /// End when no program was there for so long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    idle: Duration,
    /// Return when the carrier is ready, and leave it in the background
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    capture: CaptureOptions,
    /// Do not end with the session that started it
    #[arg(long, hide = true)]
    detached: bool,
}

/// Carries until no program is there.
///
/// # Errors
/// When a setting is wrong, the port is in use, or the user has a carrier at the port.
pub(crate) fn run(args: &Args) -> Result<()> {
    let port = args.port.map_or_else(port, Ok)?;
    if args.background {
        return start(port, args.idle, args.capture.file());
    }
    if args.detached {
        let _ = setsid(); // It may lead a session already.
    }
    end_at_panics();
    let mut settings = Settings { port, idle: args.idle, ..Settings::new() };
    settings.node.apply_environment()?;
    args.capture.apply(&mut settings.node)?;
    let carrier = Carrier::start(&settings)?;
    output::print(&format!("carrier at {}\n", carrier.local_addr()))?;
    carrier.run();
    Ok(())
}

/// A thread of the node that panics would leave connections that stand still for ever. Those of a carrier that has ended are reset. A
/// task that panics ends its own connection, and no other one.
fn end_at_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        if !apus_carrier::is_in_task() {
            process::abort();
        }
    }));
}

/// UDP port of carriers, as the environment says.
///
/// # Errors
/// When the variable is no such port.
pub(crate) fn port() -> Result<u16> {
    let Some(text) = env::var_os("APUS_CARRIER").filter(|text| !text.is_empty()) else {
        return Ok(introduction::PORT);
    };
    let port = text.to_str().and_then(|text| text.parse().ok());
    let port = port.filter(|port| (1..=32_767).contains(port));
    port.ok_or_else(|| {
        let text = text.to_string_lossy();
        Misuse(format!("APUS_CARRIER is `{text}`, and has to be a port from 1 to 32767")).into()
    })
}

/// Starts a carrier in the background, and returns when it is ready.
///
/// # Errors
/// When it does not start.
fn start(port: u16, idle: Duration, capture: Option<&Path>) -> Result<()> {
    let program = env::current_exe().context("cannot tell where this program is")?;
    let mut command = Command::new(program);
    if let Some(file) = capture {
        let file = path::absolute(file).context("cannot tell where --capture is")?;
        command.args([OsStr::new("carrier"), OsStr::new("--capture"), file.as_os_str()]);
    } else {
        command.arg("carrier");
    }
    let mut child = command
        .args(["--detached", "--port", &port.to_string(), "--idle"])
        .arg(humantime::format_duration(idle).to_string())
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a carrier")?;
    let mut line = String::new();
    let mut ready = BufReader::new(child.stdout.take().expect("it is piped"));
    if ready.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        return Ok(());
    }
    let output = child.wait_with_output().context("cannot wait for the carrier")?;
    bail!("{}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("apus: "))
}

/// Starts a carrier as a process of its own, unless one runs. It is no child of this process, which may become another program.
///
/// # Errors
/// When it does not start.
pub(crate) fn ensure(port: u16) -> Result<()> {
    if apus_carrier::is_running(port) {
        return Ok(());
    }
    let program = env::current_exe().context("cannot tell where this program is")?;
    let output = Command::new(program)
        .args(["carrier", "--background", "--port", &port.to_string()])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .context("cannot start a carrier")?;
    if !output.status.success() && !apus_carrier::is_running(port) {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("apus: "));
    }
    Ok(())
}
