//! Other processes for tests: the test program itself, started again with a role.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::thread;
use std::time::Duration;

use apus::net::conformance::in_child;
use apus::{Address, Bytes, Config, EngineAccess, Flush, Node, Port, Request, SharedEngine};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::pair::engine::attached;
use crate::pair::skipped::skipped;
use crate::pair::{FAULT_AFTER, PORT, wait_until};

/// Variable with the role of the process that reads it.
const ROLE: &str = "APUS_TEST_ROLE";

/// Start of the lines that are meant for the process at the other end of the pipe.
const MARK: &str = "apus-test ";

/// Longer than any test, so that it ends nothing.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);

/// Held for reading while a process is started, and for writing by tests with descriptors whose `close` sleeps. A new process has copies
/// of all descriptors, and exec closes them: it would sleep as well, for ever if the process has a copy of the other end too.
static STARTS: RwLock<()> = RwLock::new(());

/// Keeps all tests of this process from starting others, and from holding this lock, until the guard is dropped.
pub(crate) fn forbid_starts() -> RwLockWriteGuard<'static, ()> {
    STARTS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work of a process that was started with a role. The hidden test `role` of each test file calls it.
pub(crate) fn play_role() {
    let Ok(role) = env::var(ROLE) else { return }; // All ignored tests were requested.
    match role.split_once(' ') {
        Some(("server", place)) => serve(place),
        Some(("member", path)) => be_member(Path::new(path)),
        Some((kind @ ("client" | "udp-client"), rest)) => {
            let (server, place) = rest.split_once(' ').unwrap_or((rest, "127.0.0.1:0"));
            call(server.parse().unwrap(), place, kind == "client");
        }
        Some(("crowd", rest)) => {
            let (server, calls) = rest.split_once(' ').unwrap();
            crowd(server.parse().unwrap(), calls.parse().unwrap());
        }
        Some(("engine", rest)) => {
            let (listen, path) = rest.split_once(' ').unwrap();
            be_engine(listen.parse().unwrap(), Path::new(path));
        }
        _ => panic!("no role {role:?}"),
    }
}

/// A process with a role.
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(role: &str) -> Self {
        Self::start_with(Command::new(env::current_exe().unwrap()), role).unwrap()
    }

    /// Starts it as another user; `None`, with a message, where the kernel does not permit it.
    pub(crate) fn start_as(user: u32, role: &str) -> Option<Self> {
        let mut command = Command::new(env::current_exe().unwrap());
        command.uid(user).gid(user);
        match Self::start_with(command, role) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                skipped(format_args!("no process of another user: {error}"));
                None
            }
            started => Some(started.unwrap()),
        }
    }

    /// Starts it from a shell that runs a script before.
    pub(crate) fn start_after(script: &str, role: &str) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script} && exec \"$@\""), "sh"]).arg(env::current_exe()?);
        Self::start_with(command, role)
    }

    /// Starts it in a network namespace of its own; `None`, with a message, where none can be made.
    pub(crate) fn start_apart(role: &str) -> Option<Self> {
        let script = "ip link set lo up && exec \"$@\"";
        let apart = || {
            let mut command = Command::new("unshare");
            command.args(["--net", "--", "sh", "-c", script, "sh"]);
            command
        };
        let probed = {
            let _starts = STARTS.read().unwrap_or_else(PoisonError::into_inner);
            apart().arg("true").output()
        };
        if !probed.is_ok_and(|probed| probed.status.success()) {
            skipped("no unshare or no iproute2, or network namespaces cannot be made");
            return None;
        }
        let mut command = apart();
        command.arg(env::current_exe().unwrap());
        Some(Self::start_with(command, role).unwrap())
    }

    /// Starts it in the network namespace of another process, and with the process ids of its children if those differ. Such a
    /// program ends with its input.
    pub(crate) fn start_in(holder: u32, has_pids: bool, role: &str) -> io::Result<Self> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{holder}/ns/net"));
        if has_pids {
            command.arg(format!("--pid=/proc/{holder}/ns/pid_for_children"));
        }
        command.arg("--").arg(env::current_exe()?);
        Self::start_with(command, role)
    }

    pub(crate) fn start_with(mut command: Command, role: &str) -> io::Result<Self> {
        command
            .args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = {
            let _starts = STARTS.read().unwrap_or_else(PoisonError::into_inner);
            command.spawn()?
        };
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || forward(output, |line| sender.send(line).is_ok()));
        Ok(Self { child, input, lines })
    }

    /// The next line of the process; `None` if it ends before.
    pub(crate) fn try_line(&self) -> Option<String> {
        self.lines.recv_timeout(FAULT_AFTER).ok()
    }

    pub(crate) fn line(&self) -> String {
        let line = self.lines.recv_timeout(FAULT_AFTER);
        line.unwrap_or_else(|error| panic!("no line: {error}; its threads: {}", self.threads()))
    }

    /// The names of its threads, each with the kernel function in which the thread sleeps.
    fn threads(&self) -> String {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let described = tasks.into_iter().flatten().map_while(Result::ok).map(|task| {
            let [name, sleeps_in] = ["comm", "wchan"].map(|file| read(task.path().join(file)));
            format!("{} in {sleeps_in}", name.trim_end())
        });
        described.collect::<Vec<_>>().join(", ")
    }

    /// Sends a command to the process, and returns its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.id();
        kill(Pid::from_raw(id.cast_signed()), signal).unwrap();
        if signal == Signal::SIGSTOP {
            let stopped = |task: fs::DirEntry| {
                let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
                status.lines().any(|line| line.starts_with("State:\tT"))
            };
            wait_until("all threads have stopped", || {
                fs::read_dir(format!("/proc/{id}/task")).unwrap().map_while(Result::ok).all(stopped)
            });
        }
    }

    /// Kills the process. The pipe to it stays open, for children that it has left behind.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn report(&mut self) -> Report {
        let line = self.ask("report");
        let numbers: Vec<_> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [descriptors, mappings, pairs_met, pairs_ended, meetings_failed, held] =
            numbers.try_into().unwrap();
        Report { descriptors, mappings, pairs_met, pairs_ended, meetings_failed, held }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(output: ChildStdout, mut take: impl FnMut(String) -> bool) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // The test harness writes the name of the test before the first line, without a line end.
        if let Some((_, line)) = line.split_once(MARK)
            && !take(line.to_owned())
        {
            return;
        }
    }
}

/// The resources of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub(crate) descriptors: u64,
    /// Number of mappings of shared memory.
    pub(crate) mappings: u64,
    pub(crate) pairs_met: u64,
    pub(crate) pairs_ended: u64,
    pub(crate) meetings_failed: u64,
    /// Number of requests in service whose client still waits.
    pub(crate) held: u64,
}

fn report(node: &Node, held: &mut Vec<Request>) -> String {
    let memory = node.stats().memory;
    held.retain(|request| !request.is_cancelled());
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
    // A thread that sleeps for the first time makes an event for itself.
    let is_event = |target: PathBuf| target.to_string_lossy().ends_with("[eventfd]");
    let descriptors =
        descriptors.filter(|it| !fs::read_link(it.path()).is_ok_and(is_event)).count();
    let mappings = shared_memory().count();
    let (met, ended, failed) = (memory.pairs_met, memory.pairs_ended, memory.meetings_failed);
    format!("{descriptors} {mappings} {met} {ended} {failed} {}", held.len())
}

/// The addresses of mapped memory that is shared with other processes.
fn shared_memory() -> impl Iterator<Item = std::ops::Range<usize>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let lines: Vec<_> = maps.lines().filter(|line| line.contains("/memfd:apus")).collect();
    let ranges: Vec<_> = lines
        .into_iter()
        .map(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            number(start)..number(end)
        })
        .collect();
    ranges.into_iter()
}

/// Whether a body is still where its sender has written it.
pub(crate) fn is_in_place(body: &Bytes) -> bool {
    shared_memory().any(|range| range.contains(&(body.as_ptr() as usize)))
}

fn say(line: &str) {
    println!("{MARK}{line}");
}

/// A configuration in which nothing ends because of a silence.
pub(crate) fn patient(listen: SocketAddr) -> Config {
    let mut config = Config::new();
    config.listen(listen).peer_timeout(NEVER);
    config
}

/// The configuration of a node at an address, with a directory that it shares with other network namespaces if one follows; or of a
/// node that uses the engine at a path.
fn config_at(place: &str) -> Config {
    if let Some((listen, directory)) = place.split_once(' ') {
        let mut config = patient(listen.parse().unwrap());
        config.shm_dir(Some(directory.into())).insecure(true);
        return config;
    }
    match place.parse() {
        Ok(listen) => patient(listen),
        Err(_) => attached(Path::new(place)),
    }
}

/// Body of a request that is answered only when the server is commanded to.
pub(crate) const HOLD: &str = "hold";

/// Start of a request whose answer reports whether its body is in place.
pub(crate) const PLACE: &str = "place";

/// Serves ports with the names of its callers, calls, and sets rules with an engine, as the process at the other end of the pipe commands.
fn be_member(engine: &Path) {
    let node = Node::start(&attached(engine)).unwrap();
    let client = node.client().unwrap();
    let mut services: Vec<Port> = Vec::new();
    say(&node.local_addr().to_string());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let port = |text: &str| text.parse::<u16>().unwrap();
        let answer = match words[..] {
            ["serve", at] => node.bind(port(at)).map_or_else(
                |error| error.to_string(),
                |service| {
                    let serving = service.clone();
                    thread::spawn(move || serving.serve(answer_with_name));
                    services.push(service);
                    "done".to_owned()
                },
            ),
            ["close", at] => {
                services.retain(|service| {
                    let is_it = service.number() == port(at);
                    if is_it {
                        service.shutdown();
                    }
                    !is_it
                });
                "done".to_owned()
            }
            ["allow", at, pattern] => {
                let service = services.iter().find(|service| service.number() == port(at)).unwrap();
                service.allow([pattern]).map_or_else(|it| it.to_string(), |()| "done".to_owned())
            }
            ["expect", pattern] => {
                client.expect([pattern]).map_or_else(|it| it.to_string(), |()| "done".to_owned())
            }
            ["call", to] => match client.call(to.parse::<Address>().unwrap(), "").wait() {
                Ok(name) => String::from_utf8_lossy(&name).into_owned(),
                Err(error) => format!("error: {error}"),
            },
            _ => panic!("no command {line:?}"),
        };
        say(&answer);
    }
}

fn answer_with_name(request: Request) {
    let name = request.peer().map_or_else(|| "nobody".to_owned(), |peer| peer.name().to_owned());
    let _ = request.reply(name);
}

/// Answers requests, and executes the commands of the process at the other end of the pipe.
fn serve(place: &str) {
    let node = match Node::start(&config_at(place)) {
        Ok(node) => node,
        Err(error) => return say(&error.to_string()),
    };
    let service = match node.bind(PORT) {
        Ok(service) => service,
        Err(error) => return say(&error.to_string()),
    };
    let (sender, holding) = mpsc::channel();
    let serving = service.clone();
    thread::spawn(move || {
        serving.serve(|mut request: Request| {
            let body = request.take_body();
            if body.starts_with(HOLD.as_bytes()) {
                let _ = sender.send(request);
            } else if body.starts_with(PLACE.as_bytes()) {
                let _ = request.reply(if is_in_place(&body) { "in place" } else { "copied" });
            } else {
                let _ = request.reply(body);
            }
        });
    });
    say(&node.local_addr().to_string());
    let mut held = Vec::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        held.extend(holding.try_iter());
        match &*line {
            "report" => say(&report(&node, &mut held)),
            "missing" => say(&apus::missing_files().len().to_string()),
            "fork" => {
                // The child has all descriptors, until the pipe is closed.
                thread::spawn(|| {
                    in_child(|| {
                        say("forked");
                        io::stdin().read_line(&mut String::new()).is_ok()
                    })
                });
            }
            _ => panic!("no command {line:?}"),
        }
    }
}

/// Starts calls by commands of the process at the other end of the pipe: "BODY TIMES". If memory is to be shared, waits for that
/// first.
fn call(server: SocketAddr, place: &str, shares_memory: bool) {
    let node = Node::start(&config_at(place)).unwrap();
    let client = node.client().unwrap();
    let address = Address::new(server, PORT);
    client.connect(address).wait().unwrap();
    wait_until("memory is shared", || !shares_memory || node.stats().memory.pairs_met > 0);
    say("connected");
    let mut calls = Vec::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some((body, times)) => {
                let times: usize = times.parse().unwrap();
                let body = Bytes::from(body.to_owned());
                calls.extend(
                    (0..times).map(|_| client.call(address, body.clone()).start().unwrap()),
                );
                say("started");
            }
            None => {
                let ended = calls.drain(..).map(|call| call.wait());
                say(&ended.filter(Result::is_ok).count().to_string());
            }
        }
    }
}

/// Keeps this number of calls outstanding, from the command of the process at the other end of the pipe until one fails.
fn crowd(server: SocketAddr, calls: usize) {
    let node = Node::start(&patient("127.0.0.1:0".parse().unwrap())).unwrap();
    let client = node.client().unwrap();
    let address = Address::new(server, PORT);
    client.connect(address).wait().unwrap();
    say("connected");
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let call = || client.send(address, "theirs", 0, Flush::Now);
    (0..calls).for_each(|_| call().unwrap());
    say("begun");
    // If the test succeeds, the server ends before this process is killed.
    while client.recv().is_ok_and(|response| response.result.is_ok()) && call().is_ok() {}
}

/// Runs the engine of other processes until it is killed.
fn be_engine(listen: SocketAddr, path: &Path) {
    let engine = SharedEngine::start(&patient(listen), &EngineAccess::new(path)).unwrap();
    say(&engine.local_addr().to_string());
    engine.run();
}
