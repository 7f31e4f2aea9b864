//! `apus daemon`: one engine for the processes of a host.
//!
//! | file | contents |
//! |---|---|
//! | `status`, `reload` | the subcommand of that name |
//! | `settings` | the file of the daemon |
//! | `socket` | the socket for the questions of `status` and `reload` |
//! | `revocable` | a value that several threads use and one thread ends |

mod reload;
mod revocable;
mod settings;
mod socket;
mod status;

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use apus::SharedEngine;
use apus_load::misuse::Misuse;
use apus_node::capture::CaptureOptions;
use apus_node::link::warn_if_insecure;
use listenfd::ListenFd;
use nix::sys::socket::{AddressFamily, SockType};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;
use reload::Reload;
use revocable::Revocable;
use settings::Settings;
pub(crate) use socket::SOCKET;

/// Run one engine for all processes of this host, or show its state
#[derive(Clone, Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  apus daemon --socket /tmp/engine.sock
  APUS_ENGINE=unix:/tmp/engine.sock apus node server
  apus daemon --config /etc/apus/daemon.toml
  apus daemon --socket /tmp/engine.sock --capture packets.pcapng
  apus daemon status --socket /tmp/engine.sock
  apus daemon reload --socket /tmp/engine.sock

A program with APUS_ENGINE=unix:PATH, or the setting `engine`, attaches to the engine, which schedules the messages of all \
attached programs together. The links, the address and the privileges are those of the daemon. The settings of its node come from \
the table [node] of the file, the environment (APUS_…) and the arguments; later ones take precedence. `apus settings` lists them.

A file:
  [node]
  listen = \"10.0.0.1:20146\"
  [access]
  mode = \"0660\"             # of the socket; default 0666
  users = [\"alice\", 33]     # may attach; default: all users who can connect
  process_budget = \"128 MiB\" # for the outstanding calls of each process
  total_budget = \"1 GiB\"     # for messages that processes have not read; half of it for one user
  processes_max = 1000
  [[access.ports]]           # other ports are open to all users
  ports = \"1-999\"
  users = [\"root\", 33]
  [[access.identity]]        # other users have no name, and stay within the engine
  users = [\"www\"]
  cert = \"/etc/apus/www.pem\" # without cert and key: the certificate of the daemon
  key = \"/etc/apus/www.key\"

The daemon uses the socket that systemd passes to it, and notifies systemd when it is ready (deploy/apus-daemon.service). SIGTERM \
and Ctrl-C end it: outstanding calls fail, and programs attach again to its successor. SIGHUP and 'apus daemon reload' make it \
read the table [access] of the file again, and detach programs whose users may no longer attach."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    Status(status::Args),
    Reload(reload::Args),
}

#[derive(Clone, Debug, clap::Args)]
struct RunArgs {
    /// Unix socket to which processes connect
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// File with the settings of the engine and of the access to it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// IP address and UDP port of the engine's node [default: 0.0.0.0:20146]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Speak plain with everybody, as the setting insecure: the engine otherwise speaks with its own machine only
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    capture: CaptureOptions,
}

/// Runs the engine until a signal, or shows its status.
///
/// # Errors
/// When a setting is wrong, the socket or the address cannot be used, or no engine answers.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        None => serve(&args.run),
        Some(Command::Status(args)) => status::run(args),
        Some(Command::Reload(args)) => reload::run(args),
    }
}

fn serve(args: &RunArgs) -> Result<()> {
    let socket = std::path::absolute(&args.socket).context("cannot find the path of --socket")?;
    let settings = Settings::read(args.config.as_deref())?;
    let mut config = settings.node(args.listen)?;
    args.capture.apply(&mut config)?;
    if args.insecure {
        config.insecure(true);
    }
    apus_spiffe::apply(&mut config)?;
    warn_if_insecure(&config);
    let access = settings.access(&socket)?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let mut inherited = ListenFd::from_env();
    let engine = match listener(&mut inherited)? {
        Some(listener) => SharedEngine::start_at(listener, &config, &access),
        None => SharedEngine::start(&config, &access),
    };
    let engine = engine.context("cannot start the engine")?;
    let started = started(&engine, &socket);
    let engine = Revocable::new(engine);
    let reload = Reload { engine: engine.clone(), config: args.config.clone(), socket };
    let _status = status::StatusListener::start(&mut inherited, reload.clone())?;
    obey(signals, reload);
    output::print(&started)?;
    // A no-op without a service manager.
    sd_notify::notify(&[NotifyState::Ready]).context("cannot notify the service manager")?;
    engine.with(SharedEngine::run);
    engine.end();
    Ok(())
}

/// The socket that the service manager has opened for processes.
fn listener(inherited: &mut ListenFd) -> Result<Option<OwnedFd>> {
    let (family, kind) = (AddressFamily::Unix as i32, SockType::SeqPacket as i32);
    let wrong = || Misuse("the service manager's socket needs ListenSequentialPacket=".to_owned());
    // A manager with several units for sockets passes these in no order.
    let mut error = None;
    for index in 0..inherited.len() {
        match inherited.take_custom(index, family, kind, "unix seqpacket socket") {
            Ok(listener) => return Ok(listener),
            Err(of_this) => error = Some(of_this),
        }
    }
    error.map_or(Ok(None), |error| Err(error).with_context(wrong))
}

fn obey(mut signals: Signals, reload: Reload) {
    thread::spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                // An error of standard error itself cannot be reported.
                let _ = writeln!(stderr(), "{}", reload.apply());
            } else {
                reload.engine.with(SharedEngine::stop);
            }
        }
    });
}

fn started(engine: &SharedEngine, socket: &Path) -> String {
    let mut line = format!("engine at {}: ", engine.local_addr());
    let _ = writeln!(line, "programs attach with APUS_ENGINE=unix:{}", socket.display());
    for file in apus::missing_files() {
        let _ = writeln!(line, "the daemon runs without {file}");
    }
    line
}
