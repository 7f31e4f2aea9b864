//! `--link raw`, and paths with a fault, across network namespaces. It needs root, and is skipped with a message otherwise.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio, id};

use serde_json::Value;

use crate::program::stderr;
use crate::skipped::skipped;

/// Two hosts and a wire between them, possibly with a router, removed when it is dropped.
pub(crate) struct Wire {
    /// The namespaces of client, server and router.
    pub(crate) names: Vec<String>,
}

fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("ip {arguments}: {}", stderr(&output));
            false
        }
        Err(error) => {
            println!("no ip command: {error}");
            false
        }
    }
}

impl Wire {
    pub(crate) fn new(test: &str) -> Option<Self> {
        let wire = Self::named(test, &["a", "b"]);
        let [a, b] = &wire.names[..] else { unreachable!("two were named") };
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"));
        if !made {
            skipped("no network namespaces");
            return None;
        }
        for (number, name) in wire.names.iter().enumerate() {
            for line in [
                "link set lo up".to_owned(),
                "link set eth0 up".to_owned(),
                format!("addr add 10.88.0.{}/24 dev eth0", number + 1),
                format!("addr add fd88::{}/64 dev eth0 nodad", number + 1),
            ] {
                assert!(ip(&format!("-n {name} {line}")));
            }
        }
        Some(wire)
    }

    fn named(test: &str, hosts: &[&str]) -> Self {
        let name = |host| format!("apus-{test}-{host}-{}", id());
        Self { names: hosts.iter().map(name).collect() }
    }

    /// Makes a wire with a router between the hosts; the router's link to the server is `eth1`.
    fn with_router(test: &str) -> Option<Self> {
        let wire = Self::named(test, &["a", "b", "r"]);
        let [a, b, r] = &wire.names[..] else { unreachable!("three were named") };
        if !wire.names.iter().all(|name| ip(&format!("netns add {name}"))) {
            skipped("no network namespaces");
            return None;
        }
        for line in [
            format!("link add eth0 netns {a} type veth peer name eth0 netns {r}"),
            format!("link add eth0 netns {b} type veth peer name eth1 netns {r}"),
            format!("-n {a} addr add 10.88.0.1/24 dev eth0"),
            format!("-n {r} addr add 10.88.0.254/24 dev eth0"),
            format!("-n {b} addr add 10.88.1.1/24 dev eth0"),
            format!("-n {r} addr add 10.88.1.254/24 dev eth1"),
            format!("-n {a} link set eth0 up"),
            format!("-n {b} link set eth0 up"),
            format!("-n {r} link set eth0 up"),
            format!("-n {r} link set eth1 up"),
            format!("-n {a} route add default via 10.88.0.254"),
            format!("-n {b} route add default via 10.88.1.254"),
            format!("netns exec {r} sysctl -qw net.ipv4.ip_forward=1"),
        ] {
            assert!(ip(&line), "{line}");
        }
        Some(wire)
    }

    pub(crate) fn command(&self, host: usize, arguments: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host], env!("CARGO_BIN_EXE_apus")]);
        command.args(arguments.split_whitespace()).env("APUS_INSECURE", "true");
        command
    }

    fn client(&self, arguments: &str) -> Output {
        self.command(0, arguments).output().expect("the program starts")
    }

    /// Starts a server on the second host, and waits until it serves.
    fn server(&self, arguments: &str) -> Running {
        Running::start(&mut self.command(1, &format!("node server {arguments}")))
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server says where it is");
        assert!(line.starts_with("serving"), "{line}");
        Self { child, line }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

struct Running {
    child: Child,
    line: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The row of a client's result.
fn row(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    result["rows"][0].clone()
}

#[test]
fn w4_between_two_hosts_with_and_without_loss() {
    let Some(wire) = Wire::new("w4") else { return };
    for host in ["10.88.0.2", "[fd88::2]"] {
        for faults in ["", "--fault loss=0.01,seed=3"] {
            let server = wire.server(&format!("--link raw --listen {host}:0 {faults}"));
            assert!(server.line.contains(&format!("homa://{host} ports 4000")), "{}", server.line);
            let load = "--workload w4 --client-max 8 --verify --seconds 1 --json -";
            let client = format!("node client --link raw --servers {host}:4000 {load} {faults}");
            let row = row(&wire.client(&client));
            assert_eq!((&row["transport"], &row["unfinished"]), (&"apus-raw".into(), &0.into()));
            assert!(row["calls"].as_u64() > Some(0), "{row}");
        }
    }
}

#[test]
fn a_node_with_both_links_and_who_is_asked_for_it() {
    let Some(wire) = Wire::new("both") else { return };
    let _server = wire.server("--link both --listen 10.88.0.2:20146");
    for server in ["apus://10.88.0.2:4000", "homa://10.88.0.2:4000"] {
        let client = format!("node client --link both --servers {server} --unloaded 1 --json -");
        assert_eq!(row(&wire.client(&client))["calls"], 1, "{server}");
    }
    let servers = "apus://10.88.0.2:4000,homa://10.88.0.2:4000";
    let client = format!(
        "node client --link both --servers {servers} --client-max 8 --seconds 0.3 --json -"
    );
    let row_of_both = row(&wire.client(&client));
    assert_eq!(row_of_both["unfinished"], 0, "one client calls by both");
    assert_eq!(row_of_both["transport"], "apus-both");
    let probe = |address: &str| {
        let output = wire.client(&format!("node probe {address} --json -"));
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let answers = result["rows"].as_array().expect("a list").iter();
        let answers = answers.map(|row| row["answer"].as_str().expect("a text").to_owned());
        (output.status.code(), answers.collect::<Vec<_>>())
    };
    let not_served = "answers, but no service listens at the port".to_owned();
    let answered = "answered".to_owned();
    assert_eq!(probe("10.88.0.2:4000"), (Some(0), vec![answered.clone(), answered]));
    assert_eq!(probe("10.88.0.2:9"), (Some(0), vec![not_served.clone(), not_served]));
    let (status, answers) = probe("10.88.0.1:4000");
    assert_eq!((status, answers.len()), (Some(1), 2), "nobody is there: {answers:?}");
}

#[test]
fn plain_packets_are_exchanged_with_the_own_machine_and_the_plain_peers_only() {
    let Some(wire) = Wire::new("barred") else { return };
    let node = |host: usize, arguments: &str, peers: &str| {
        let mut command = wire.command(host, arguments);
        command.env_remove("APUS_INSECURE").env("APUS_TLS_PLAIN_PEERS", peers);
        command
    };
    let client = |host: usize, server: &str, peers: &str| {
        let link = if server.starts_with("homa") { "raw" } else { "udp" };
        let client = format!("node client --link {link} --unloaded 1 --fail-fast --servers");
        node(host, &format!("{client} {server}:4000 --json -"), peers).output().expect("it runs")
    };
    let refused = |output: &Output, words: &str| {
        assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
        assert!(stderr(output).contains(words), "{}", stderr(output));
    };
    let server = "node server --link both --listen 0.0.0.0:20146";
    let closed = Running::start(&mut node(1, server, "none"));
    let near = client(1, "apus://10.88.0.2", "none");
    assert_eq!(row(&near)["calls"], 1, "an address of the machine");
    refused(&client(0, "apus://10.88.0.2", "none"), "this node has no identity");
    refused(&client(0, "homa://10.88.0.2", "10.88.1.0/24"), "not in tls_plain_peers");
    refused(&client(0, "apus://10.88.0.2", "10.88.0.2"), "takes sealed packets only");
    refused(&client(0, "homa://10.88.0.2", "10.88.0.2"), "received nothing");
    drop(closed);
    let _open = Running::start(&mut node(1, server, "10.88.0.1"));
    for scheme in ["apus", "homa"] {
        let listed = client(0, &format!("{scheme}://10.88.0.2"), "10.88.0.2");
        assert_eq!(row(&listed)["calls"], 1, "{scheme}");
    }
    let called = "node client --insecure --link udp --unloaded 1 --servers 10.88.0.2:4000 --json -";
    let open = node(0, called, "none").output().expect("it runs");
    assert_eq!(row(&open)["calls"], 1, "the server knows the client's address");
    assert!(stderr(&open).contains("this node speaks plain with everybody"), "{}", stderr(&open));
}

#[test]
fn a_port_nobody_serves_and_a_message_that_is_too_long() {
    let Some(wire) = Wire::new("refuse") else { return };
    let _server = wire.server("--link raw --listen 10.88.0.2:0");
    let fails = |arguments: &str, word: &str| {
        let client = format!("node client --fail-fast --servers homa://10.88.0.2:{arguments}");
        let output = wire.client(&client);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    };
    fails("9 --link raw", "no service listens at this port");
    fails("4000 --link udp", "no link for such an address");
    fails("4000 --link raw --workload 2MB --longest 2MB", "accepts at most 1000000");
}

#[test]
fn a_path_that_shrinks_behind_a_router_in_the_middle_of_a_run() {
    let Some(wire) = Wire::with_router("router") else { return };
    let _server = wire.server("--link raw --listen 10.88.1.1:0");
    let load = "--workload 300kB --client-max 4 --verify --seconds 2 --json -";
    let client = wire
        .command(0, &format!("node client --link raw --servers 10.88.1.1:4000 {load}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The server's own link shrinks too. The router refuses the client's packets, with ICMP fragmentation needed.
    for (name, link) in [(&wire.names[2], "eth1"), (&wire.names[1], "eth0")] {
        assert!(ip(&format!("-n {name} link set {link} mtu 1300")));
    }
    let row = row(&client.wait_with_output().expect("it is a child of this process"));
    assert_eq!(row["unfinished"], 0, "{row}");
    assert!(row["calls"].as_u64() > Some(0), "{row}");
}

/// Drops every packet of 1,408 to 1,535 bytes that leaves by `link` of a host, without an ICMP error. Returns `false`, with a
/// message, where that is not possible.
fn swallow_long_packets(host: &str, link: &str) -> bool {
    let tc = |arguments: &str| {
        let tc = ["netns", "exec", host, "tc"];
        let output = Command::new("ip").args(tc).args(arguments.split_whitespace()).output();
        let output = output.expect("ip was there a moment ago");
        if !output.status.success() {
            println!("tc {arguments}: {}", stderr(&output));
        }
        output.status.success()
    };
    tc(&format!("qdisc add dev {link} root handle 1: htb default 1"))
        && tc(&format!("class add dev {link} parent 1: classid 1:1 htb rate 10gbit quantum 60000"))
        && tc(&format!("class add dev {link} parent 1: classid 1:2 htb rate 8bit quantum 1500"))
        && tc(&format!("qdisc add dev {link} parent 1:2 bfifo limit 1"))
        && tc(&format!(
            "filter add dev {link} parent 1: protocol ip u32 match u16 0x0580 0xff80 at 2 flowid 1:2"
        ))
}

#[test]
fn a_path_that_swallows_long_packets_without_a_word() {
    let Some(wire) = Wire::with_router("swallow") else { return };
    let [client, server, router] = &wire.names[..] else { unreachable!("three were named") };
    // The router has to see packets as they are on a wire.
    let segments = |host| ip(&format!("-n {host} link set eth0 gso_max_segs 1"));
    let swallows = swallow_long_packets(router, "eth0") && swallow_long_packets(router, "eth1");
    if !(segments(client) && segments(server) && swallows) {
        return skipped("this kernel cannot drop packets by their length");
    }
    let _server = wire.server("--listen 10.88.1.1:20146");
    let load = "--workload 100kB --client-max 4 --verify --seconds 2 --json -";
    let row = row(&wire.client(&format!("node client --servers 10.88.1.1:4000 {load}")));
    assert_eq!(row["unfinished"], 0, "{row}");
    assert!(row["errors"].is_null() || row["errors"] == 0, "{row}");
    assert!(row["calls"].as_u64() > Some(10), "{row}");
}
