//! Nodes of different network namespaces, as of containers, share memory if they share a directory.

mod pair;
mod program;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apus::net::interface_addresses;
use apus::{Config, Node};
use apus_shm::{Listener, Place};
use pair::engine::Directory;
use pair::skipped::skipped;
use program::{Program, play_role};

#[test]
#[ignore = "it is a process of other tests"]
fn role() {
    play_role();
}

/// A network namespace that is deleted when it is dropped.
struct Namespace {
    holder: Child,
    /// Whether it has its own process ids.
    has_pids: bool,
}

impl Namespace {
    /// Makes a namespace; `None` if this process may not.
    fn new(has_pids: bool) -> Option<Self> {
        let mut command = Command::new("unshare");
        let pids: &[_] = if has_pids { &["--pid", "--fork", "--kill-child"] } else { &[] };
        command.arg("--net").args(pids).args(["--", "sh", "-c"]);
        command.arg("ip link set lo up && echo ready && exec cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut namespace = Self { holder: command.spawn().ok()?, has_pids };
        let mut line = String::new();
        BufReader::new(namespace.holder.stdout.take()?).read_line(&mut line).ok()?;
        (line == "ready\n").then_some(namespace)
    }

    /// Runs `ip` in the namespace. Returns whether it succeeded.
    fn ip(&self, arguments: &str) -> bool {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).args(["--", "ip"]);
        command.args(arguments.split(' ')).status().is_ok_and(|status| status.success())
    }

    fn start(&self, role: &str) -> Program {
        Program::start_in(self.holder.id(), self.has_pids, role).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Two namespaces with the addresses 10.77.0.1 and 10.77.0.2, the second with its own process ids. `None` if this process may not
/// make them.
fn network() -> Option<[Namespace; 2]> {
    let [first, second] = [Namespace::new(false)?, Namespace::new(true)?];
    let peer = second.holder.id();
    let made = first.ip(&format!("link add near type veth peer name far netns {peer}"))
        && first.ip("addr add 10.77.0.1/24 dev near")
        && first.ip("link set near up")
        && second.ip("addr add 10.77.0.2/24 dev far")
        && second.ip("link set far up");
    made.then_some([first, second])
}

#[test]
fn containers_that_share_a_directory_share_memory() {
    let Some([first, second]) = network() else {
        return skipped("no network namespaces here");
    };
    let directory = Directory::new();
    let shared = directory.path().display();
    let mut listen: SocketAddr = "0.0.0.0:0".parse().unwrap();
    for round in 1..=2 {
        let mut server = first.start(&format!("server {listen} {shared}"));
        listen = server.line().parse().unwrap();
        let address = format!("10.77.0.1:{}", listen.port());
        let mut client = second.start(&format!("client {address} 10.77.0.2:0 {shared}"));
        assert_eq!(client.line(), "connected", "memory is shared, round {round}");
        assert_eq!(client.ask("hello 100"), "started");
        assert_eq!(client.ask("wait"), "100");
        assert_eq!((server.report().pairs_met, server.report().meetings_failed), (1, 0));
        assert!(directory.names().contains(&format!("apus-{address}")), "{:?}", directory.names());
        server.kill(); // The server's file remains, and the next server has the same address.
    }
}

#[test]
fn containers_that_share_no_directory_use_udp() {
    let Some([first, second]) = network() else {
        return skipped("no network namespaces here");
    };
    let [ours, theirs] = [Directory::new(), Directory::new()];
    let mut server = first.start(&format!("server 10.77.0.1:0 {}", ours.path().display()));
    let address = server.line();
    // In the client's directory, the place belongs to another node.
    let place = Place::Directory(theirs.path().to_owned(), address.parse().unwrap());
    let stranger = Listener::bind(&place).unwrap();
    let client = format!("udp-client {address} 10.77.0.2:0 {}", theirs.path().display());
    let mut client = second.start(&client);
    assert_eq!(client.line(), "connected");
    assert_eq!(client.ask("hello 100"), "started");
    assert_eq!(client.ask("wait"), "100");
    assert!(stranger.accept_socket().is_ok(), "the client has looked in its directory");
    let report = server.report();
    assert_eq!((report.pairs_met, report.meetings_failed), (0, 0));
}

fn config(listen: &str, directory: &Directory) -> Config {
    let mut config = Config::new();
    config.listen(listen.parse().unwrap()).shm_dir(Some(directory.path().to_owned()));
    config
}

#[test]
fn a_node_that_is_closed_leaves_no_file() {
    let directory = Directory::new();
    let node = Node::start(&config("0.0.0.0:0", &directory)).unwrap();
    let reachable = interface_addresses().into_iter().filter(|ip| match ip {
        std::net::IpAddr::V4(ip) => !ip.is_link_local(),
        std::net::IpAddr::V6(_) => false,
    });
    let port = node.local_addr().port();
    let reachable = reachable.take(16);
    let mut expected: Vec<_> = reachable.map(|ip| format!("apus-{ip}:{port}")).collect();
    let mut names = directory.names();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    node.close(Duration::ZERO).unwrap();
    assert!(directory.names().is_empty());
    let node = Node::start(&config("127.0.0.1:0", &directory)).unwrap();
    assert!(directory.names().is_empty(), "no other namespace reaches it");
    drop(node);
}

#[test]
fn a_directory_in_which_no_file_can_be_made_is_named() {
    // An address outside of loopback at which a socket can be bound; nothing is sent.
    let own = interface_addresses().into_iter().find(|ip| UdpSocket::bind((*ip, 0)).is_ok());
    let Some(ip) = own.filter(|ip| ip.is_ipv4()) else {
        return skipped("this machine has no address but loopback");
    };
    let mut config = Config::new();
    config.listen((ip, 0).into()).shm_dir(Some("/proc".into()));
    let error = Node::start(&config).unwrap_err().to_string();
    let expected =
        "shm_dir = '/proc': expected a directory in which this process may create sockets";
    assert!(error.starts_with(expected), "{error}");
}
