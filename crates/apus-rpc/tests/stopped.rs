//! A server that is stopped (SIGSTOP) among others.

use std::env;
use std::fs;
use std::future::pending;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use apus::Config;
use apus_rpc::{Address, Balance, Bytes, Channel, Context, Node, Server, Status};

/// Homa port of all servers.
const PORT: u16 = 4000;

/// Variable of a process that is a server.
const ROLE: &str = "APUS_TEST_ROLE";

/// A node that shares no memory, as one of another host.
fn node() -> Node {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().expect("an address"));
    config.set("link", "udp").expect("a setting");
    // A stopped process is found sooner than with the default.
    config.peer_timeout(Duration::from_millis(300));
    Node::start(&config).expect("a node")
}

#[test]
#[ignore = "it is a process of another test"]
fn role() {
    // All ignored tests were requested otherwise.
    if env::var_os(ROLE).is_some() {
        let node = node();
        let echo = |_: Context, body: Bytes| async move { Ok::<_, Status>(body) };
        let serving = Server::builder(&node).route("/a.B/Echo", echo).serve(PORT, pending());
        println!("address {}", Address::new(node.local_addr(), PORT));
        drop(serving.wait().expect("the port was opened"));
    }
}

struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start() -> Self {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "role", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, "server")
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut lines = output.lines().map(|line| line.expect("a text"));
        let address = lines.find_map(|line| line.split_once("address ").map(|it| it.1.to_owned()));
        Self { child, address: address.expect("a server") }
    }

    fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill");
        assert!(status.success());
    }

    /// A signal takes effect later.
    fn wait_until_stopped(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("State:\tT"))
        };
        while !fs::read_dir(&tasks).expect("a process").map_while(Result::ok).all(is_stopped) {
            thread::yield_now();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_stopped_server_costs_five_calls_at_most() {
    let servers: Vec<_> = (0..4).map(|_| Program::start()).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address.as_str()).collect();
    for balance in [Balance::RoundRobin, Balance::LeastOutstanding] {
        let channel = Channel::builder(&format!("static:{}", addresses.join(","))).node(&node());
        let channel = channel.balance(balance).build().expect("a channel");
        let call = || channel.unary("/a.B/Echo", "x").wait();
        for _ in 0..100 {
            call().expect("a response");
        }
        servers[1].signal("-STOP");
        servers[1].wait_until_stopped();
        // Calls that were not sent completely have gone to another server.
        let failed = (0..500).filter(|_| call().is_err()).count();
        assert!((1..=5).contains(&failed), "{balance:?}: {failed}");
        let is_ejected = channel.endpoints()[1].is_ejected;
        assert_eq!(is_ejected, balance == Balance::RoundRobin, "the others have no failure");
        servers[1].signal("-CONT");
    }
}
