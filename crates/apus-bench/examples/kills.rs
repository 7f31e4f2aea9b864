//! The time until a process detects the kill of a process that it shares memory with, and the resources that remain of the latter.
//!
//! A client process keeps a server process busy from several threads, with bodies of 1 B to 2 MB. One of them is killed at a random
//! moment and started again, repeatedly. After each kill, the other one reports the time until everything outstanding at that
//! moment had ended: calls at a client, requests in service at a server.
//!
//! With `--engine` both use the engine of a third process. If `engine` is killed, both of them report that time.
//!
//! ```sh
//! cargo run --release --example kills -- server 500
//! cargo run --release --example kills -- client 500
//! cargo run --release --example kills -- client 500 --engine
//! cargo run --release --example kills -- engine 500
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apus::{Address, Call, Client, Config, EngineAccess, EngineAt, Node, Request, SharedEngine};

const PORT: u16 = 4000;
const THREADS: usize = 4;
const WINDOW: usize = 6;
/// Number of kept requests; fewer than [`THREADS`], so that not all threads wait for them.
const HELD: usize = 3;
/// Time in which a meeting with a dead process is given up.
const SETTLES: Duration = Duration::from_millis(700);
/// Time from which a failed call is reported.
const SLOW: Duration = Duration::from_secs(1);
const LENGTH_MAX: f64 = 2_000_000.0;

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["be-server", place] => be_server(place),
        ["be-client", server, place] => be_client(server.parse().expect("an address"), place),
        ["be-engine", listen, path] => be_engine(listen.parse().expect("an address"), path),
        [killed @ ("server" | "client" | "engine"), ref rest @ ..] => {
            let uses_engine = killed == "engine" || rest.contains(&"--engine");
            let count = rest.first().filter(|count| !count.starts_with("--"));
            campaign(
                killed,
                count.map_or(20, |count| count.parse().expect("a count")),
                uses_engine,
            );
        }
        _ => panic!("usage: kills server|client|engine [COUNT] [--engine]"),
    }
}

/// The processes of a campaign.
struct Programs {
    /// The processes by name: client, engine, server.
    by_name: BTreeMap<String, Program>,
    /// The path of the engine's socket, if there is an engine.
    path: Option<String>,
    /// The address of the server's node.
    address: String,
}

impl Programs {
    fn start(uses_engine: bool) -> Self {
        let path = env::temp_dir().join(format!("apus-kills-{}.sock", process::id()));
        let path = uses_engine.then(|| path.display().to_string());
        let mut programs =
            Self { by_name: BTreeMap::new(), path, address: "127.0.0.1:0".to_owned() };
        for name in ["engine", "server", "client"] {
            programs.start_one(name);
        }
        programs
    }

    fn start_one(&mut self, name: &str) {
        let place = |or: &str| self.path.clone().unwrap_or_else(|| or.to_owned());
        let (address, nowhere) = (&*self.address, "127.0.0.1:0");
        let mut program = match (name, &self.path) {
            ("engine", None) => return,
            ("engine", Some(path)) => Program::start(&["be-engine", address, path]),
            ("server", _) => Program::start(&["be-server", &place(address)]),
            _ => Program::start(&["be-client", address, &place(nowhere)]),
        };
        if name != "client" {
            self.address = program.line();
        }
        self.by_name.insert(name.to_owned(), program);
    }

    fn get(&mut self, name: &str) -> &mut Program {
        self.by_name.get_mut(name).expect("it was started")
    }

    /// The resources of all processes except the killed one.
    fn left(&mut self, killed: &str) -> String {
        let (address, mut left) = (self.address.clone(), String::new());
        for (name, program) in self.by_name.iter_mut().filter(|(name, _)| *name != killed) {
            left += &format!("\n  {name}: {}", program.left(&address));
        }
        left
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.by_name.clear();
        self.path.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Kills one of the processes repeatedly, and reports the times that the others have measured.
fn campaign(killed: &str, count: usize, uses_engine: bool) {
    let mut random = Random(now() | 1);
    let mut programs = Programs::start(uses_engine);
    let survivors: Vec<_> =
        ["client", "server"].into_iter().filter(|name| *name != killed).collect();
    let mut times = Vec::with_capacity(count);
    let mut before = None;
    // After a few kills, the survivors have allocated everything that they allocate only once.
    let settled = 5.min(count / 2);
    for round in 1..=count {
        // With the engine, all processes share memory all the time.
        let pairs = if uses_engine { 0 } else { round };
        for name in &survivors {
            let met = programs.get(name).ask(&format!("met {pairs}"));
            assert_eq!(met, "met", "{name}, round {round}");
        }
        thread::sleep(Duration::from_micros(random.next() % 50_000));
        let at = now();
        programs.get(killed).child.kill().expect("the victim lives");
        for name in &survivors {
            programs.get(name).send_command(&format!("killed {at}"));
        }
        let ended = survivors.iter().map(|name| programs.get(name).line());
        let ended = ended.map(|time| time.parse().expect("a time")).max();
        times.push(Duration::from_nanos(ended.expect("somebody survives")));
        programs.get(killed).child.wait().expect("the victim has ended");
        if round == settled {
            before = Some(programs.left(killed));
        }
        if round < count {
            programs.start_one(killed);
        }
    }
    let after = programs.left(killed);
    times.sort_unstable();
    let rank = |thousandths: usize| times[(times.len() * thousandths).div_ceil(1000).max(1) - 1];
    let engine = if uses_engine && killed != "engine" { " at an engine" } else { "" };
    println!("{count} kills of the {killed}{engine}; until everything outstanding had ended:");
    println!(
        "p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        rank(500),
        rank(990),
        rank(999),
        rank(1000)
    );
    println!("left after {settled} kills: {}", before.unwrap_or_default());
    println!("left after {count} kills: {after}");
    for name in survivors {
        println!("the {name}: {}", programs.get(name).ask("stats"));
    }
}

/// A process of this program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let program = env::current_exe().expect("this program has a file");
        let mut command = Command::new(program);
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the process goes on");
        line.trim_end().to_owned()
    }

    fn send_command(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the process goes on");
    }

    fn ask(&mut self, question: &str) -> String {
        self.send_command(question);
        self.line()
    }

    /// The resources of the process while it shares memory only with an engine or its processes.
    fn left(&mut self, server: &str) -> String {
        assert_eq!(self.ask("alone"), "alone");
        let process = format!("/proc/{}", self.child.id());
        let descriptors = fs::read_dir(format!("{process}/fd")).expect("it lives").count();
        let maps = fs::read_to_string(format!("{process}/maps")).expect("it lives");
        let shared = maps.lines().filter(|line| line.contains("memfd:apus")).count();
        let unix = fs::read_to_string("/proc/net/unix").expect("Linux has it");
        let sockets =
            unix.lines().filter(|line| line.ends_with(&format!("@apus/1/{server}"))).count();
        let mappings = maps.lines().count();
        format!(
            "{descriptors} descriptors, {shared} mappings of shared memory of {mappings}, {sockets} sockets with a name"
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nanoseconds since 1970, the same for all processes of the machine.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// A configuration in which nothing ends because of a silence.
fn patient() -> Config {
    let mut config = Config::new();
    config.peer_timeout(Duration::from_secs(20));
    config.apply_environment().expect("the environment is right");
    config
}

/// A node at an address, or one that uses the engine at a path.
fn start_node(place: &str) -> Node {
    let mut config = patient();
    match place.parse() {
        Ok(listen) => config.listen(listen),
        Err(_) => config.engine(EngineAt::Socket(place.into())),
    };
    Node::start(&config).expect("the node starts")
}

/// Runs the engine of the others.
fn be_engine(listen: SocketAddr, path: &str) {
    let access = EngineAccess::new(Path::new(path));
    let engine = SharedEngine::start(patient().listen(listen), &access).expect("it starts");
    println!("{}", engine.local_addr());
    let engine = Arc::new(engine);
    let runner = Arc::clone(&engine);
    thread::spawn(move || runner.run());
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        if line == "alone" {
            wait_until(|| match &engine.processes()[..] {
                [left] => (left.calls, left.held_bytes) == (0, 0),
                _ => false,
            });
            thread::sleep(SETTLES);
        }
        println!("{line}");
    }
}

/// Answers the commands of the campaign. `outstanding` returns the time at which everything that was outstanding at a moment had
/// ended. `settle` waits until only shared memory has outstanding messages.
fn answer(node: &Node, settle: impl Fn(), mut outstanding: impl FnMut(u64) -> u64) {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let memory = node.stats().memory;
        match line.split_once(' ') {
            Some(("met", count)) => {
                let count: u64 = count.parse().expect("a count");
                wait_until(|| node.stats().memory.pairs_met >= count);
                settle();
                println!("met");
            }
            Some(("killed", at)) => {
                let at = at.parse().expect("a time");
                println!("{}", outstanding(at).saturating_sub(at));
            }
            _ if line == "alone" => {
                let has_engine = node.stats().link.packets_sent == 0;
                wait_until(|| {
                    let memory = node.stats().memory;
                    has_engine || memory.pairs_met == memory.pairs_ended
                });
                thread::sleep(SETTLES);
                println!("alone");
            }
            _ => println!("{memory:?}"),
        }
    }
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let since = SystemTime::now();
    while !holds() {
        assert!(since.elapsed().unwrap_or_default() < Duration::from_secs(30), "not within 30 s");
        thread::sleep(Duration::from_micros(100));
    }
}

/// Answers requests, and keeps some for a while.
fn be_server(place: &str) {
    let node = start_node(place);
    let service = node.bind(PORT).expect("the port is free");
    let held: Arc<Mutex<VecDeque<(u64, Request)>>> = Arc::default();
    let came = Arc::<AtomicU64>::default();
    for _ in 0..2 {
        let (service, held) = (service.clone(), Arc::clone(&held));
        let came = Arc::clone(&came);
        thread::spawn(move || {
            service.serve(|request| {
                came.fetch_add(1, Ordering::Relaxed);
                let mut answered = Some(request);
                if answered.as_ref().is_some_and(|request| request.body()[0] == b'h') {
                    let mut held = held.lock().expect("no handler panics");
                    held.extend(answered.take().map(|request| (now(), request)));
                    if held.len() > HELD {
                        answered = held.pop_front().map(|(_, request)| request);
                    }
                }
                let Some(mut request) = answered else { return };
                let body = request.take_body();
                let _ = request.reply(body);
            });
        });
    }
    println!("{}", node.local_addr());
    answer(
        &node,
        || wait_for_more(&came),
        |at| {
            let of_the_dead = |held: &mut VecDeque<(u64, Request)>| {
                held.iter().any(|(since, request)| *since <= at && !request.is_cancelled())
            };
            wait_until(|| !of_the_dead(&mut held.lock().expect("no handler panics")));
            let ended = now();
            // Requests of the next client are not answered along with these.
            held.lock().expect("no handler panics").retain(|(_, request)| !request.is_cancelled());
            ended
        },
    );
}

/// Waits until messages come again.
fn wait_for_more(counter: &AtomicU64) {
    let before = counter.load(Ordering::Relaxed);
    wait_until(|| counter.load(Ordering::Relaxed) > before);
}

/// The times at which the calls of a thread began and ended.
#[derive(Default)]
struct Log {
    /// Begin of each outstanding call.
    outstanding: VecDeque<u64>,
    /// Begin and end of calls that have ended recently.
    ended: VecDeque<(u64, u64)>,
}

/// Calls the server without a pause.
fn be_client(server: SocketAddr, place: &str) {
    let node = start_node(place);
    let client = node.client().expect("a port is free");
    let address = Address::new(server, PORT);
    client.connect(address).wait().expect("the server is there");
    wait_until(|| node.stats().memory.pairs_met == 1);
    let answered = Arc::<AtomicU64>::default();
    let logs: Vec<Arc<Mutex<Log>>> = (0..THREADS).map(|_| Arc::default()).collect();
    for (number, log) in logs.iter().enumerate() {
        let (client, log, answered) = (client.clone(), Arc::clone(log), Arc::clone(&answered));
        let random = Random(now() ^ (number as u64 + 1) << 32 | 1);
        thread::spawn(move || call(&client, address, random, &log, &answered));
    }
    let logs = || logs.iter().map(|log| log.lock().expect("no thread panics"));
    let wait_for_those_of = |at| {
        wait_until(|| logs().all(|log| log.outstanding.front().is_none_or(|&began| began > at)));
    };
    answer(
        &node,
        || {
            wait_for_those_of(now());
            wait_for_more(&answered);
        },
        |at| {
            wait_for_those_of(at);
            let of_then = |log: std::sync::MutexGuard<'_, Log>| {
                log.ended.iter().filter(|(began, _)| *began <= at).map(|(_, ended)| *ended).max()
            };
            logs().filter_map(of_then).max().unwrap_or(at)
        },
    );
}

/// A thread of the client.
fn call(client: &Client, to: Address, mut random: Random, log: &Mutex<Log>, answered: &AtomicU64) {
    let mut calls: VecDeque<(u64, usize, Call)> = VecDeque::new();
    loop {
        let length = LENGTH_MAX.powf(random.fraction()) as usize;
        let mut body = vec![b'x'; length.max(1)];
        if random.next().is_multiple_of(16) {
            body[0] = b'h';
        }
        let length = body.len();
        let began = now();
        log.lock().expect("no thread panics").outstanding.push_back(began);
        let mut left = match client.call(to, body).start() {
            Ok(call) => {
                calls.push_back((began, length, call));
                usize::from(calls.len() == WINDOW)
            }
            Err(_) => {
                log.lock().expect("no thread panics").outstanding.pop_back();
                thread::sleep(Duration::from_millis(1)); // There is no engine yet.
                calls.len()
            }
        };
        while left > 0
            && let Some((began, length, call)) = calls.pop_front()
        {
            left -= 1;
            match call.wait() {
                Ok(answer) => {
                    assert_eq!(answer.len(), length);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let after = Duration::from_nanos(now().saturating_sub(began));
                    if after > SLOW {
                        eprintln!("a call of {length} B ended after {after:?}: {error}");
                    }
                    // The server has ended. No new call begins before the others have ended.
                    left = calls.len();
                }
            }
            let mut log = log.lock().expect("no thread panics");
            log.outstanding.pop_front();
            log.ended.push_back((began, now()));
            if log.ended.len() > 10_000 {
                log.ended.pop_front();
            }
        }
    }
}

/// A generator whose pattern does not matter here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn fraction(&mut self) -> f64 {
        (self.next() % 1_000_000) as f64 / 1e6
    }
}
