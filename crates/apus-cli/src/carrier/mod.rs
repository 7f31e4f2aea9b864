//! `apus carrier`: carries connections of this user's programs to other hosts.
//!
//! | file | contents |
//! |---|---|
//! | `control` | `status`, `off` and `on` |
//! | `environment` | variables of the environment |
//! | `log` | the log |

mod control;
mod environment;
mod log;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{env, panic, path, process, thread};

use anyhow::{Context, Result, bail};
use apus_carrier::{Carrier, Hosts, Settings};
use apus_node::capture::CaptureOptions;
use ipnet::IpNet;
use nix::unistd::setsid;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;
pub(crate) use environment::port;
use environment::{hosts, network};

/// Carry connections between programs of this host and of others, for `apus run --net`
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "`apus run --net` starts a carrier in the background if none runs. A carrier belongs to a user and a network \
namespace. It ends after --idle without a program of `apus run --net`. deploy/apus-carrier@.service runs one permanently.

Carriers of all hosts use the same UDP port, which packet filters must pass. Any user who may bind the port at a host acts for \
that host; a port below 1024 needs a privilege. Carriers refuse carriers at other ports.

A carrier logs to standard error, which is the journal under systemd. In the background it logs to \
$XDG_STATE_HOME/apus/carrier-PORT.log, or below ~/.local/state; `apus carrier status` names the file.

Environment:
  APUS_CARRIER        the UDP port, as --port
  APUS_CARRIER_HOSTS  as --hosts
  APUS_...            settings of the carrier's node, such as APUS_LINK_MBPS; `apus settings` lists them

Examples:
  apus carrier
  apus carrier --port 700 --idle never --hosts 10.1.0.0/16,fd00::/8
  apus carrier --capture packets.pcapng
  apus carrier status --json -
  apus carrier off                             # connections return to TCP and stay there
  APUS_CARRIER=700 apus run --net redis-server"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Subcommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Subcommand {
    Status(control::StatusArgs),
    Off(control::OffArgs),
    On(control::OnArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct RunArgs {
    /// UDP port, 1 to 32767 [default: 20147]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=32_767))]
    port: Option<u16>,
    /// End after this time without a program; `never`: run until it is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = idle)]
    idle: Idle,
    /// Carry only connections to and from these hosts: addresses, or networks such as 10.1.0.0/16 [default: all]
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', value_parser = network)]
    hosts: Vec<IpNet>,
    /// Log to this file, which is renamed to FILE.old beyond 1 MiB
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Return when the carrier is ready, and leave it in the background
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    capture: CaptureOptions,
    /// Continue after the end of the session
    #[arg(long, hide = true)]
    detached: bool,
}

/// Time for which a carrier runs without a program; `None`: for ever.
#[derive(Clone, Copy, Debug)]
struct Idle(Option<Duration>);

fn idle(text: &str) -> Result<Idle, humantime::DurationError> {
    if text == "never" {
        return Ok(Idle(None));
    }
    humantime::parse_duration(text).map(|time| Idle(Some(time)))
}

/// Carries connections until no program is left, or sends a request to a carrier.
///
/// # Errors
/// When a setting is wrong, the port is in use, the user has a carrier at the port, or none answers.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        None => carry(&args.run),
        Some(Subcommand::Status(args)) => control::status(args),
        Some(Subcommand::Off(args)) => control::off(args),
        Some(Subcommand::On(args)) => control::on(args),
    }
}

fn carry(args: &RunArgs) -> Result<()> {
    let port = args.port.map_or_else(port, Ok)?;
    let hosts = if args.hosts.is_empty() { hosts()? } else { args.hosts.clone() };
    if args.background {
        return start(port, &hosts, args);
    }
    if args.detached {
        let _ = setsid(); // It may lead a session already.
    }
    let log = log::begin(args.log.as_deref())?;
    end_at_panics();
    let mut settings = Settings { port, idle: args.idle.0, ..Settings::new() };
    (settings.hosts, settings.log) = (Hosts::of(hosts), Some(log));
    settings.node.apply_environment()?;
    apus_spiffe::apply(&mut settings.node)?;
    args.capture.apply(&mut settings.node)?;
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    let carrier = Arc::new(Carrier::start(&settings)?);
    leave_at(signals, Arc::clone(&carrier));
    output::print(&format!("carrier at {}\n", carrier.local_addr()))?;
    // A no-op without a service manager.
    sd_notify::notify(&[NotifyState::Ready]).context("cannot notify the service manager")?;
    carrier.run();
    Ok(())
}

/// Upper bound on the time in which connections return to TCP at the end.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Has all connections return to TCP at the first signal, and ends then, or at the second one.
fn leave_at(mut signals: Signals, carrier: Arc<Carrier>) {
    thread::spawn(move || {
        let mut signals = signals.forever();
        signals.next();
        thread::spawn(move || {
            carrier.leave(LEAVE_MAX);
            process::exit(0);
        });
        signals.next();
        process::exit(0);
    });
}

/// Ends the process when a thread of the node panics: its connections would stand still for ever otherwise, and the connections of
/// a carrier that has ended are reset. A task that panics ends its own connection, and no other one.
fn end_at_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        if !apus_carrier::is_in_task() {
            process::abort();
        }
    }));
}

/// Starts a carrier in the background, and returns when it is ready.
///
/// # Errors
/// When it does not start.
fn start(port: u16, hosts: &[IpNet], args: &RunArgs) -> Result<()> {
    let program = env::current_exe().context("cannot find the path of this program")?;
    let idle = args.idle.0.map(|time| humantime::format_duration(time).to_string());
    let mut arguments: Vec<OsString> = ["carrier", "--detached", "--port"].map(Into::into).into();
    arguments.push(port.to_string().into());
    arguments.extend(["--idle".into(), idle.unwrap_or_else(|| "never".to_owned()).into()]);
    if !hosts.is_empty() {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        arguments.extend(["--hosts".into(), hosts.join(",").into()]);
    }
    let log = args.log.clone().or_else(|| log::default_file(port).filter(|it| log::may_have(it)));
    for (option, file) in [("--log", log.as_deref()), ("--capture", args.capture.file())] {
        if let Some(file) = file {
            let cannot = || format!("cannot find the path of {option}");
            arguments.extend([option.into(), path::absolute(file).with_context(cannot)?.into()]);
        }
    }
    let mut child = Command::new(program)
        .args(arguments)
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
    let program = env::current_exe().context("cannot find the path of this program")?;
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
