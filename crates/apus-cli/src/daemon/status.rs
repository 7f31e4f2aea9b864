//! `apus daemon status`, and the daemon's answer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use apus::{AttachedProcess, SharedEngine};
use apus_load::misuse::Misuse;
use apus_load::report::{Style, Table};
use listenfd::ListenFd;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::reload::Reload;
use super::socket::{RELOAD, REQUEST_TIMEOUT, SOCKET, ask, beside, no_answer};
use crate::output::{self, OutputFile};

/// Show the processes that use the engine of this host
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus daemon status
  apus daemon status --socket /tmp/engine.sock --json -

Only root and the user of the daemon may use this command. Counters of a process count from its attachment, those of the engine \
from its start.")]
pub(super) struct Args {
    /// Unix socket to which processes connect
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Write the status as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The status of a daemon.
#[derive(Debug, Serialize, Deserialize)]
struct DaemonStatus {
    version: String,
    pid: u32,
    listen: String,
    uptime_s: u64,
    packets_sent: u64,
    packets_received: u64,
    messages_through_memory: u64,
    unread_bytes: u64,
    unread_bytes_max: u64,
    pool_bytes: u64,
    pool_bytes_max: u64,
    refused_users: u64,
    refused_too_many: u64,
    #[serde(default)]
    identities: Vec<IdentityStatus>,
    users: Vec<User>,
    processes: Vec<ProcessStatus>,
}

/// A certificate of the daemon: its own, which comes first, or that of users.
#[derive(Debug, Serialize, Deserialize)]
struct IdentityStatus {
    name: String,
    /// Time until it expires.
    expires_s: u64,
}

/// The resources of all processes of a user together.
#[derive(Debug, Serialize, Deserialize)]
struct User {
    uid: u32,
    processes: usize,
    held_bytes: u64,
    unread_bytes_max: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct ProcessStatus {
    pid: i32,
    uid: u32,
    /// The name under which it speaks.
    #[serde(default)]
    identity: Option<String>,
    ports: Vec<u16>,
    calls_under_way: usize,
    held_bytes: u64,
    calls: u64,
    requests: u64,
    over_budget: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

impl From<AttachedProcess> for ProcessStatus {
    fn from(process: AttachedProcess) -> Self {
        let counters = process.counters;
        Self {
            pid: process.pid,
            uid: process.uid,
            identity: process.identity,
            ports: process.ports,
            calls_under_way: process.calls,
            held_bytes: process.held_bytes,
            calls: counters.calls,
            requests: counters.requests,
            over_budget: counters.over_budget,
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
        }
    }
}

/// Asks the daemon and shows the answer.
///
/// # Errors
/// When no daemon answers, or the answer cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let text = ask(&args.socket, "")?;
    let status: DaemonStatus =
        serde_json::from_str(&text).with_context(|| no_answer(&args.socket))?;
    if args.json.as_deref() != Some(Path::new("-")) {
        output::print(&status.table(Style::for_stdout()))?;
    }
    if let Some(file) = file {
        file.write(&text)?;
    }
    Ok(())
}

impl DaemonStatus {
    fn of(engine: &SharedEngine, since: Instant) -> Self {
        let stats = engine.stats();
        let (unread_bytes, unread_bytes_max) = engine.unread_bytes();
        let (pool_bytes, pool_bytes_max) = engine.pool_bytes();
        let [refused_users, refused_too_many] = engine.refused_processes();
        let processes: Vec<_> = engine.processes().into_iter().map(ProcessStatus::from).collect();
        let mut users: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
        for process in &processes {
            let (count, held) = users.entry(process.uid).or_default();
            *count += 1;
            *held = held.saturating_add(process.held_bytes);
        }
        let users = users.into_iter().map(|(uid, (processes, held_bytes))| User {
            uid,
            processes,
            held_bytes,
            unread_bytes_max: unread_bytes_max / 2,
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            listen: engine.local_addr().to_string(),
            uptime_s: since.elapsed().as_secs(),
            packets_sent: stats.link.packets_sent,
            packets_received: stats.link.packets_received,
            messages_through_memory: stats.memory.messages_received + stats.memory.messages_sent,
            unread_bytes,
            unread_bytes_max,
            pool_bytes,
            pool_bytes_max,
            refused_users,
            refused_too_many,
            identities: engine.identities().iter().map(IdentityStatus::of).collect(),
            users: users.collect(),
            processes,
        }
    }

    fn table(&self, style: Style) -> String {
        let note = format!(
            "Engine {} (pid {}) at {}, up {}. Packets: {} sent, {} received. Unread by processes: {} of at most {} bytes, half of \
             them for one user. Memory for long messages: {} of {} bytes. Refused processes: {} of users without access, {} beyond \
             the limit.{}{}",
            self.version,
            self.pid,
            self.listen,
            humantime::format_duration(Duration::from_secs(self.uptime_s)),
            self.packets_sent,
            self.packets_received,
            self.unread_bytes,
            self.unread_bytes_max,
            self.pool_bytes,
            self.pool_bytes_max,
            self.refused_users,
            self.refused_too_many,
            self.identities.iter().map(IdentityStatus::sentence).collect::<String>(),
            self.users.iter().map(User::sentence).collect::<String>()
        );
        let heads = [
            ("pid", true),
            ("uid", true),
            ("name", false),
            ("serves", false),
            ("under way", true),
            ("held bytes", true),
            ("calls", true),
            ("requests", true),
            ("over budget", true),
            ("bytes sent", true),
            ("bytes received", true),
        ];
        let lines = self.processes.iter().map(ProcessStatus::line);
        if self.processes.is_empty() {
            return format!("{note}\nNo process is attached.\n");
        }
        Table::of_texts("Processes of the engine", &note, &heads, lines).text(style)
    }
}

impl IdentityStatus {
    fn of(peer: &apus::Peer) -> Self {
        let left = peer.expires().duration_since(SystemTime::now()).unwrap_or_default();
        Self { name: peer.name().to_owned(), expires_s: left.as_secs() }
    }

    fn sentence(&self) -> String {
        let Self { name, expires_s } = self;
        let left = humantime::format_duration(Duration::from_secs(expires_s / 60 * 60));
        format!(" The certificate of {name} expires in {left}.")
    }
}

impl User {
    fn sentence(&self) -> String {
        let Self { uid, processes, held_bytes, .. } = self;
        format!(" User {uid}: {processes} processes hold {held_bytes} bytes.")
    }
}

impl ProcessStatus {
    fn line(&self) -> Vec<String> {
        let served: Vec<String> = self
            .ports
            .iter()
            .filter(|port| **port < apus::FIRST_CLIENT_PORT)
            .map(ToString::to_string)
            .collect();
        let numbers = [
            self.calls_under_way as u64,
            self.held_bytes,
            self.calls,
            self.requests,
            self.over_budget,
            self.bytes_sent,
            self.bytes_received,
        ];
        let name = self.identity.clone().unwrap_or_else(|| "-".to_owned());
        [self.pid.to_string(), self.uid.to_string(), name, served.join(" ")]
            .into_iter()
            .chain(numbers.map(|number| number.to_string()))
            .collect()
    }
}

/// Answers those that ask for the status.
#[derive(Debug)]
pub(super) struct StatusListener {
    /// To be removed at the end.
    path: Option<PathBuf>,
}

impl StatusListener {
    /// Starts to answer: at the second socket that the service manager has opened, else beside the engine's socket.
    ///
    /// # Errors
    /// When the socket cannot be made, or has another type.
    pub(super) fn start(inherited: &mut ListenFd, reload: Reload) -> Result<Self> {
        let wrong = || Misuse("the service manager's second socket needs ListenStream=".to_owned());
        let second = (0..inherited.len()).find_map(|index| {
            inherited.take_unix_listener(index).transpose() // The first socket is the engine's, and was taken.
        });
        let (listener, path) = match second.transpose().with_context(wrong)? {
            Some(listener) => (listener, None),
            None => {
                let path = beside(&reload.socket);
                // The engine's socket belongs to this process, so no other daemon answers here.
                let _ = fs::remove_file(&path);
                let cannot = || format!("cannot listen at '{}'", path.display());
                let listener = UnixListener::bind(&path).with_context(cannot)?;
                // The user of a client that connects meanwhile is checked.
                let own = fs::Permissions::from_mode(0o600);
                fs::set_permissions(&path, own).with_context(cannot)?;
                (listener, Some(path))
            }
        };
        thread::spawn(move || answer(&listener, &reload));
        Ok(Self { path })
    }
}

/// Whether this one may ask.
fn is_entitled(stream: &UnixStream) -> bool {
    let asks = getsockopt(stream, PeerCredentials).map(|credentials| credentials.uid());
    asks.is_ok_and(|uid| uid == 0 || uid == geteuid().as_raw())
}

impl Drop for StatusListener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path); // It may have been removed already.
        }
    }
}

fn answer(listener: &UnixListener, reload: &Reload) {
    let since = Instant::now();
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            thread::sleep(PAUSE); // No descriptor is left.
            continue;
        };
        if !is_entitled(&stream) {
            continue; // The end of the stream shows the refusal.
        }
        let answered = question(&stream).and_then(|question| {
            let text = if question == RELOAD {
                format!("{}\n", reload.apply())
            } else {
                let status = reload.engine.with(|engine| DaemonStatus::of(engine, since));
                serde_json::to_string_pretty(&status)?
            };
            stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
            stream.write_all(text.as_bytes())?;
            stream.shutdown(Shutdown::Both)
        });
        drop(answered); // The client may have gone.
    }
}

/// Reads a request.
fn question(stream: &UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut text = String::new();
    stream.take(QUESTION_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Bytes of a question.
const QUESTION_MAX: u64 = 64;

/// Upper bound on the wait for a descriptor.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_process() {
        let process = ProcessStatus {
            pid: 7,
            uid: 1_000,
            identity: Some("spiffe://example.org/web".to_owned()),
            ports: vec![4_000, 40_000],
            calls_under_way: 3,
            held_bytes: 5_000,
            calls: 10,
            requests: 2,
            over_budget: 0,
            bytes_sent: 1,
            bytes_received: 2,
        };
        let status = DaemonStatus {
            version: "1.0.0".to_owned(),
            pid: 1,
            listen: "0.0.0.0:20146".to_owned(),
            uptime_s: 61,
            packets_sent: 9,
            packets_received: 8,
            messages_through_memory: 4,
            unread_bytes: 70,
            unread_bytes_max: 700,
            pool_bytes: 30,
            pool_bytes_max: 300,
            refused_users: 5,
            refused_too_many: 6,
            identities: vec![IdentityStatus {
                name: "spiffe://example.org/host".to_owned(),
                expires_s: 7_230,
            }],
            users: vec![User {
                uid: 1_000,
                processes: 1,
                held_bytes: 5_000,
                unread_bytes_max: 350,
            }],
            processes: vec![process],
        };
        let text = status.table(Style::PLAIN);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            text.contains("1m 1s")
                && text.contains("70 of at most 700")
                && text.contains("30 of 300 bytes")
                && text.contains("User 1000: 1 processes hold 5000 bytes")
                && text.contains("spiffe://example.org/host expires in 2h.")
                && text.contains("1000 spiffe://example.org/web 4000")
                && !text.contains("40000"),
            "{text}"
        );
        let none = DaemonStatus { processes: Vec::new(), ..status };
        assert!(none.table(Style::PLAIN).contains("No process is attached."));
    }
}
