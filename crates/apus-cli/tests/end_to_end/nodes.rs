//! `apus node`: real processes that exchange real messages.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::{env, fs, process};

use serde_json::Value;

use crate::program::{self, Server, command, fails, json, json_perhaps_refused, stderr};

/// The only row of a client's result, with `arguments` and with JSON on standard output.
fn client(server: &Server, arguments: &str) -> Value {
    let client = format!("node client --servers {} {arguments} --json -", server.address);
    json_perhaps_refused(&client)["rows"][0].clone()
}

#[test]
fn a_client_and_a_server() {
    let server = Server::start("--ports 2 --port-threads 2");
    let row =
        client(&server, "--server-ports 2 --workload w2 --client-max 8 --ports 2 --seconds 0.3");
    assert_eq!(
        (row["transport"].as_str(), row["unfinished"].as_u64()),
        (Some("apus-auto"), Some(0))
    );
    for key in ["calls", "p50_us", "calls_per_s", "out_gbps", "in_gbps"] {
        assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "no {key} in {row}");
    }
}

#[test]
fn the_sender_receives_too() {
    let server = Server::start("");
    let row = client(&server, "--port-receivers 0 --workload mix --gbps 0.1 --seconds 0.3");
    assert_eq!(row["unfinished"], 0, "{row}");
    assert!(row["calls"].as_u64() > Some(0), "{row}");
}

#[test]
fn an_open_loop_over_tcp() {
    let server = Server::start("--protocol tcp --first-port 0 --port-threads 2");
    let row = client(&server, "--protocol tcp --workload mix --gbps 0.2 --one-way --seconds 0.3");
    assert_eq!(
        (row["transport"].as_str(), row["unfinished"].as_u64()),
        (Some("tcp-epoll"), Some(0))
    );
    // A generator that was late on a busy machine has no figures.
    let is_late = row["late_pct"].as_f64().is_some_and(|percent| percent > 1.0);
    assert_eq!(row["out_gbps"].is_null(), is_late, "{row}");
    assert!(is_late || row["out_gbps"].as_f64() > row["in_gbps"].as_f64(), "{row}");
}

#[test]
fn every_byte_is_right_and_nothing_is_executed_twice_on_a_bad_network() {
    let temporary = |name| env::temp_dir().join(format!("apus-{name}-{}", process::id()));
    let (served, dump) = (temporary("served"), temporary("dump"));
    let faults = "loss=0.05,dup=0.05,reorder=0.05";
    let server = Server::start(&format!("--fault {faults},seed=1 --json {}", served.display()));
    let load = "--workload w3 --client-max 20 --verify --seconds 1";
    let row = client(&server, &format!("{load} --fault {faults},seed=2 --dump {}", dump.display()));
    assert_eq!(row["unfinished"], 0, "{row}");
    let lines = fs::read_to_string(&dump).expect("the dump is written").lines().count() as u64;
    assert_eq!(row["calls"].as_u64(), Some(lines));
    server.signal("TERM");
    server.finish();
    let served_text = fs::read_to_string(&served).expect("the server's result is written");
    let result: Value = serde_json::from_str(&served_text).expect("it is JSON");
    let counts = &result["rows"][0];
    assert_eq!((&counts["wrong"], &counts["executed_twice"]), (&0.into(), &0.into()), "{counts}");
    assert!(counts["requests"].as_u64() >= Some(lines), "{counts}");
    fs::remove_file(served).and_then(|()| fs::remove_file(dump)).expect("they are ours");
}

#[test]
fn every_length_unloaded() {
    let server = Server::start("");
    let result = json(&format!(
        "node client --servers {} --workload mix --unloaded 5 --json -",
        server.address
    ));
    let rows = result["rows"].as_array().expect("rows are a list");
    let lengths: Vec<&str> = rows.iter().filter_map(|row| row["length"].as_str()).collect();
    assert_eq!(lengths, ["100", "10kB", "1MB"]);
}

#[test]
fn a_signal_ends_a_server_with_its_summary() {
    for (signal, options) in [("TERM", "--delivery base"), ("INT", "--delivery fullbusy")] {
        let server = Server::start(options);
        let row = client(&server, "--unloaded 1");
        assert_eq!(row["calls"], 1);
        server.signal(signal);
        let summary = server.finish();
        assert!(summary.contains("node server") && summary.contains("requests 11"), "{summary}");
    }
}

#[test]
fn a_busy_port() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    fails(1, &format!("node server --listen {address}"), &[&address, "in use"]);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let server = "node server --protocol tcp --listen 127.0.0.1:0 --first-port";
    fails(1, &format!("{server} {port}"), &[&port, "in use"]);
}

#[test]
fn an_address_of_another_machine() {
    let words = ["192.0.2.1", "not an address of this machine"];
    fails(1, "node server --listen 192.0.2.1:0", &words);
}

#[test]
fn a_server_that_is_not_there() {
    // Bound and released again, so it is most likely unused.
    let free =
        UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let server = format!("127.0.0.1:4000@{}", free.port());
    let client = format!("node client --servers {server}");
    fails(1, &format!("{client} --fail-fast"), &[&server, "unreachable"]);
    fails(1, &format!("{client} --seconds 0.2"), &[&server, "no call succeeded", "unreachable"]);
    let free =
        TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    fails(
        1,
        &format!("node client --protocol tcp --servers {free}"),
        &[&free.to_string(), "refused"],
    );
    let nowhere = "no-such-host.invalid";
    fails(1, &format!("node client --servers {nowhere}:4000"), &[nowhere]);
}

#[test]
fn a_port_that_nobody_serves() {
    let server = Server::start("");
    let other = server.address.replace(":4000@", ":4001@");
    let client = format!("node client --servers {other} --fail-fast");
    fails(1, &client, &[&other, "no service listens at this port"]);
}

#[test]
fn a_server_that_vanishes() {
    for options in ["--protocol apus", "--protocol tcp --first-port 0"] {
        let mut server = Server::start(options);
        let protocol = options.split(" --first").next().expect("a text has a first part");
        let client = format!("node client --servers {} {protocol} --fail-fast", server.address);
        let client = command(&client)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        server.kill();
        let output = client.wait_with_output().expect("it is a child of this process");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn calls_that_fail_are_counted_and_the_others_go_on() {
    let server = Server::start("");
    let nobody = server.address.replace(":4000@", ":4001@");
    let both = format!("{},{nobody}", server.address);
    for load in ["--client-max 4", "--gbps 0.01", "--port-receivers 0", "--unloaded 4"] {
        let client = format!("node client --servers {both} {load} --seconds 0.3 --json -");
        let result = json_perhaps_refused(&client);
        let row = &result["rows"][0];
        assert!(row["calls"].as_u64() > Some(0), "{row}");
        assert!(row["errors"].as_u64() > Some(0), "{row}");
        assert_eq!(row["errors"], row["errors_no_such_port"], "{row}");
        let warnings = result["warnings"].to_string();
        assert!(warnings.contains("no such port") && warnings.contains(&nobody), "{warnings}");
    }
    let row = client(&server, "--seconds 0.1");
    assert_eq!(row["errors"], 0, "{row}");
}

#[test]
fn a_client_that_is_stopped_shows_what_it_measured() {
    let server = Server::start("");
    let mut client = command(&format!("node client --servers {} --json -", server.address))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Its first line of statistics shows that it runs.
    let mut lines = BufReader::new(client.stderr.take().expect("it is a pipe")).lines();
    assert!(lines.next().expect("a line").expect("text").contains("Kops/s"));
    let kill = Command::new("kill").args(["-s", "INT", &client.id().to_string()]).status();
    assert!(kill.expect("the system has a kill command").success());
    let output = client.wait_with_output().expect("it is a child of this process");
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(result["rows"][0]["calls"].as_u64() > Some(0), "{result}");
}

#[test]
fn a_client_outlives_its_server() {
    for options in ["--protocol apus", "--protocol tcp --first-port 0"] {
        let mut server = Server::start(options);
        let protocol = options.split(" --first").next().expect("a text has a first part");
        let client = format!("node client --servers {} {protocol} --seconds 4", server.address);
        let mut client = command(&format!("{client} --json -"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(client.stderr.take().expect("it is a pipe")).lines();
        assert!(lines.next().expect("a line").expect("text").contains("Kops/s"));
        server.kill();
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let output = client.wait_with_output().expect("it is a child of this process");
        assert!(output.status.success(), "{protocol}: {rest:?}");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let row = &result["rows"][0];
        assert!(row["calls"].as_u64() > Some(0) && row["errors"].as_u64() > Some(0), "{row}");
    }
}

/// The peak memory of a process, in bytes.
fn memory_peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it has memory");
    let kib: u64 = line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
    kib << 10
}

#[test]
fn a_server_builds_no_reply_to_what_is_no_request() {
    let server = Server::start("");
    let node =
        apus::Node::start(apus::Config::new().listen("127.0.0.1:0".parse().expect("an address")));
    let caller = node.as_ref().expect("a node").client().expect("a client");
    let to = apus::resolve(&server.address).expect("an address");
    // A tag, no length, and a request for the longest reply that 32 bits allow; a valid end of the pattern does not help.
    let mut greedy = vec![1_u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    greedy.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(caller.call(to, greedy.clone()).wait().expect("a reply").len(), 16);
    greedy.resize(100, 0xa5);
    for byte in 0..=u8::MAX {
        greedy[7] = byte;
        greedy[99] = byte;
        let reply = caller.call(to, greedy.clone()).wait().expect("a reply");
        assert_eq!((reply.len(), &reply[12..]), (16, &[0; 4][..]));
    }
    for length in [1, 15, 1000] {
        let reply = caller.call(to, vec![0xff; length]).wait().expect("a reply");
        assert!(reply.len() <= length);
    }
    let peak = memory_peak(server.id());
    assert!(peak < 1 << 30, "{peak} bytes");
    let row = client(&server, "--verify --seconds 0.1");
    assert_eq!((&row["errors"], &row["unfinished"]), (&0.into(), &0.into()), "{row}");
    server.signal("TERM");
    let summary = server.finish();
    assert!(summary.contains("260 requests were malformed or had a wrong byte"), "{summary}");
}

#[test]
fn a_server_listens_on_loopback_by_default() {
    let help = program::apus("node server --help");
    let help = String::from_utf8(help.stdout).expect("text");
    assert!(help.contains("[default: 127.0.0.1:20146]"), "{help}");
}
