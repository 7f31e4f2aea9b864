//! How soon a process notices that a process with which it shares memory was killed, and what is left of that one.
//!
//! A client process keeps a server process busy from several threads, with bodies of 1 B to 2 MB. One of them is killed at a random
//! moment and started again, over and over. For each kill, the other one says how long it was until everything that it had
//! outstanding at that moment had ended: calls at a client, requests in service at a server.
//!
//! ```sh
//! cargo run --release --example kills -- server 500
//! cargo run --release --example kills -- client 500
//! ```

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use apus::{Address, Call, CallOptions, Config, Node, Request};

const PORT: u16 = 4000;
const THREADS: usize = 4;
const WINDOW: usize = 6;
/// Fewer than [`THREADS`], so that not all threads wait for requests that are kept.
const HELD: usize = 3;
/// A failed call that took longer is told.
const SLOW: Duration = Duration::from_secs(1);
const LENGTH_MAX: f64 = 2_000_000.0;

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["be-server", listen] => be_server(listen.parse().expect("an address")),
        ["be-client", server] => be_client(server.parse().expect("an address")),
        [killed @ ("server" | "client")] => campaign(killed, 20),
        [killed @ ("server" | "client"), count] => {
            campaign(killed, count.parse().expect("a count"))
        }
        _ => panic!("usage: kills server|client [COUNT]"),
    }
}

/// Kills one of the two processes again and again, and reports what the other one has measured.
fn campaign(killed: &str, count: usize) {
    let mut random = Random(now() | 1);
    let mut server = Program::start(&["be-server", "127.0.0.1:0"]);
    let address = server.line();
    let mut client = Program::start(&["be-client", &address]);
    let mut times = Vec::with_capacity(count);
    let mut before = None;
    // The survivor has made all that it makes once after a few kills.
    let settled = 5.min(count / 2);
    for round in 1..=count {
        let (survivor, victim) = if killed == "server" {
            (&mut client, &mut server)
        } else {
            (&mut server, &mut client)
        };
        assert_eq!(survivor.ask(&format!("met {round}")), "met", "round {round}");
        thread::sleep(Duration::from_micros(random.next() % 50_000));
        let at = now();
        victim.child.kill().expect("the victim lives");
        let ended = survivor.ask(&format!("killed {at}"));
        times.push(Duration::from_nanos(ended.parse().expect("a time")));
        victim.child.wait().expect("the victim has ended");
        if round == settled {
            before = Some(survivor.left(&address));
        }
        if round < count {
            let again =
                if killed == "server" { ["be-server", &address] } else { ["be-client", &address] };
            *victim = Program::start(&again);
            if killed == "server" {
                assert_eq!(victim.line(), address);
            }
        }
    }
    let (before, survivor) =
        (before.unwrap_or_default(), if killed == "server" { &mut client } else { &mut server });
    let after = survivor.left(&address);
    times.sort_unstable();
    let rank = |thousandths: usize| times[(times.len() * thousandths).div_ceil(1000).max(1) - 1];
    println!(
        "{count} kills of the {killed}; until everything outstanding at the other process had ended:"
    );
    println!(
        "p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        rank(500),
        rank(990),
        rank(999),
        rank(1000)
    );
    println!("left at the survivor after {settled} kills: {before}");
    println!("left at the survivor after {count} kills: {after}");
    println!("the survivor: {}", survivor.ask("stats"));
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

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").expect("the process goes on");
        self.line()
    }

    /// What the process has, while it shares memory with nobody.
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

/// Nanoseconds since 1970, as all processes of the machine have them.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn start_node(listen: SocketAddr) -> Node {
    let mut config = Config::new();
    // Nothing that is measured ends because of a silence.
    config.peer_timeout(Duration::from_secs(20));
    config.apply_environment().expect("the environment is right").listen(listen);
    Node::start(&config).expect("the node starts")
}

/// Answers what the process is asked; `outstanding` says until when what was outstanding at a moment was so.
/// `settle` waits until nothing is outstanding that has not gone by shared memory.
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
                wait_until(|| {
                    let memory = node.stats().memory;
                    memory.pairs_met == memory.pairs_ended
                });
                // Meetings with the dead process are given up.
                thread::sleep(Duration::from_millis(700));
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
fn be_server(listen: SocketAddr) {
    let node = start_node(listen);
    let service = node.bind(PORT).expect("the port is free");
    let held: Arc<Mutex<VecDeque<(u64, Request)>>> = Arc::default();
    for _ in 0..2 {
        let (service, held) = (service.clone(), Arc::clone(&held));
        thread::spawn(move || {
            service.serve(|request| {
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
    let settle = || {}; // Clients make the server known first.
    answer(&node, settle, |at| {
        let of_the_dead = |held: &mut VecDeque<(u64, Request)>| {
            held.iter().any(|(since, request)| *since <= at && !request.is_cancelled())
        };
        wait_until(|| !of_the_dead(&mut held.lock().expect("no handler panics")));
        let ended = now();
        // Those of the next client are not answered with these.
        held.lock().expect("no handler panics").retain(|(_, request)| !request.is_cancelled());
        ended
    });
}

/// When the calls of a thread began and ended.
#[derive(Default)]
struct Log {
    /// Calls that have not ended began then.
    outstanding: VecDeque<u64>,
    /// Those that have ended lately.
    ended: VecDeque<(u64, u64)>,
}

/// Calls the server without a pause.
fn be_client(server: SocketAddr) {
    let node = start_node("127.0.0.1:0".parse().expect("an address"));
    let client = node.client().expect("a port is free");
    client.connect(Address::new(server, PORT), &CallOptions::new()).expect("the server is there");
    wait_until(|| node.stats().memory.pairs_met == 1);
    let logs: Vec<Arc<Mutex<Log>>> = (0..THREADS).map(|_| Arc::default()).collect();
    for (number, log) in logs.iter().enumerate() {
        let (client, log) = (client.clone(), Arc::clone(log));
        let mut random = Random(now() ^ (number as u64 + 1) << 32 | 1);
        thread::spawn(move || {
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
                match client.start(Address::new(server, PORT), body) {
                    Ok(call) => calls.push_back((began, length, call)),
                    Err(_) => drop(log.lock().expect("no thread panics").outstanding.pop_back()),
                }
                let mut left = usize::from(calls.len() == WINDOW);
                while left > 0
                    && let Some((began, length, call)) = calls.pop_front()
                {
                    left -= 1;
                    match call.wait() {
                        Ok(answer) => assert_eq!(answer.len(), length),
                        Err(error) => {
                            let after = Duration::from_nanos(now().saturating_sub(began));
                            if after > SLOW {
                                eprintln!("a call of {length} B ended after {after:?}: {error}");
                            }
                            // The server has ended. No new call before the others have ended.
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
        });
    }
    let logs = || logs.iter().map(|log| log.lock().expect("no thread panics"));
    let wait_for_those_of = |at| {
        wait_until(|| logs().all(|log| log.outstanding.front().is_none_or(|&began| began > at)));
    };
    answer(
        &node,
        || wait_for_those_of(now()),
        |at| {
            wait_for_those_of(at);
            let of_then = |log: std::sync::MutexGuard<'_, Log>| {
                log.ended.iter().filter(|(began, _)| *began <= at).map(|(_, ended)| *ended).max()
            };
            logs().filter_map(of_then).max().unwrap_or(at)
        },
    );
}

/// Numbers without a pattern that matters here.
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
