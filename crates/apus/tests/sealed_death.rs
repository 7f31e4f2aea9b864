//! A sealed server that is killed under load, again and again: nothing is executed twice, and each call ends as its error says.
#![cfg(feature = "secure")]

mod certificates;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use apus::{Address, Client, Config, Links, Node};
use certificates::Authority;

const PORT: u16 = 4000;
const ROLE: &str = "APUS_TEST_ROLE";
const CALLERS: u64 = 4;

/// A file to which the server appends the number of each request that it executes.
const EXECUTED: &str = "executed";

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    let Ok(role) = env::var(ROLE) else { return }; // All ignored tests were requested.
    let (directory, listen) = role.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let file = |name: &str| directory.join(name);
    let mut config = Config::new();
    config.listen(listen.parse().unwrap()).link(Links::Udp);
    config.tls_cert(Some(file("server.pem"))).tls_key(Some(file("server.key")));
    config.tls_ca(vec![file("ca.pem")]);
    let node = Node::start(&config).unwrap();
    let service = node.bind(PORT).unwrap();
    println!("\nserving {}", node.local_addr());
    let mut executed = OpenOptions::new().append(true).create(true).open(file(EXECUTED)).unwrap();
    service.serve(|request| {
        executed.write_all(&request.body()[..8]).unwrap();
        let body = request.body().clone();
        let _ = request.reply(body);
    });
}

struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(directory: &Path, listen: SocketAddr) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["role", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, format!("{} {listen}", directory.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.filter_map(|line| line.strip_prefix("serving ")?.parse().ok()).next();
        Self { process, address: address.expect("the server starts") }
    }
}

impl Drop for Server {
    /// Kills it by SIGKILL.
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The ends of calls by their numbers: `Ok` or whether the request may have been executed.
type Ends = BTreeMap<u64, Result<(), bool>>;

fn call_until(client: &Client, to: Address, numbers: &AtomicU64, ended: &AtomicBool) -> Ends {
    let mut ends = Ends::new();
    while !ended.load(Ordering::Relaxed) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let mut body = number.to_be_bytes().to_vec();
        body.resize(if number.is_multiple_of(7) { 30_000 } else { 100 }, 0);
        let end = match client.call(to, body.clone()).wait() {
            Ok(response) => {
                assert!(response == body, "the response of another call");
                Ok(())
            }
            Err(error) => Err(error.may_have_executed()),
        };
        ends.insert(number, end);
    }
    ends
}

fn kill_under_load(kills: u32) {
    let authority = Authority::new();
    authority.issue("server", &["spiffe://example.org/kv", "127.0.0.1"], 2100);
    File::create(authority.directory().join(EXECUTED)).unwrap();
    let node = authority.node("client", &["spiffe://example.org/front"]);
    let mut server = Server::start(authority.directory(), "127.0.0.1:0".parse().unwrap());
    let to = Address::new(server.address, PORT);
    let (numbers, ended) = (AtomicU64::new(1), AtomicBool::new(false));
    let ends: Ends = thread::scope(|scope| {
        let call = |_| {
            let client = node.client().unwrap();
            let (numbers, ended) = (&numbers, &ended);
            scope.spawn(move || call_until(&client, to, numbers, ended))
        };
        let callers: Vec<_> = (0..CALLERS).map(call).collect();
        for _ in 0..kills {
            let until = node.stats().protocol.calls_completed + 40;
            while node.stats().protocol.calls_completed < until {
                thread::yield_now();
            }
            drop(server);
            server = Server::start(authority.directory(), to.host);
        }
        ended.store(true, Ordering::Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    let mut executed = BTreeMap::<u64, u32>::new();
    let bytes = fs::read(authority.directory().join(EXECUTED)).unwrap();
    for number in bytes.chunks_exact(8) {
        *executed.entry(u64::from_be_bytes(number.try_into().unwrap())).or_default() += 1;
    }
    for (number, end) in &ends {
        let times = executed.get(number).copied().unwrap_or(0);
        match end {
            Ok(()) => assert_eq!(times, 1, "request {number} was answered"),
            Err(true) => assert!(times <= 1, "request {number} was executed {times} times"),
            Err(false) => assert_eq!(times, 0, "request {number} was not to be executed"),
        }
    }
    let failed = ends.values().filter(|end| end.is_err()).count();
    println!("{kills} kills, {} calls, {failed} of them failed", ends.len());
    assert!(node.stats().handshakes.client_done >= u64::from(kills));
}

//= docs/protocol.md#once-1
//= docs/protocol.md#seal-9
#[test]
fn a_sealed_server_that_is_killed_executes_nothing_twice() {
    kill_under_load(5);
}

#[test]
#[ignore = "takes a minute: 200 kills"]
fn a_sealed_server_that_is_killed_200_times_executes_nothing_twice() {
    kill_under_load(200);
}
