//! `apus run --net`: connections between hosts behave as over TCP, and Apus carries their bytes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::program::stderr;
use crate::raw::Wire;
use crate::run::{Directory, Server, output, stdout};

/// The address of the second host of a wire.
pub(crate) const SERVER: &str = "10.88.0.2";

/// A command on a host.
pub(crate) fn on(host: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", host]).arg(program);
    for variable in ["LD_PRELOAD", "APUS_EXPLAIN", "APUS_SOCKETS", "APUS_CARRIER"] {
        command.env_remove(variable);
    }
    command.env("XDG_STATE_HOME", std::env::temp_dir()); // For the log of a carrier in the background.
    command
}

/// A command on a host, by `apus run --net --explain`.
pub(crate) fn carried(host: &str, program: &Path, sockets: &str) -> Command {
    let mut command = on(host, Path::new(env!("CARGO_BIN_EXE_apus")));
    command.args(["run", "--net", "--explain"]).arg(program).env("APUS_SOCKETS", sockets);
    command
}

/// Like `carried`, for a client that continues once its connection is carried.
pub(crate) fn meeting(host: &str, program: &Path, sockets: &str) -> Command {
    let mut command = carried(host, program, sockets);
    command.env("MEETS", "1");
    command
}

/// Starts a program that reports when it is ready, and returns that line.
pub(crate) fn started(command: &mut Command) -> (Server, String) {
    let mut server = Server(command.stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut line = String::new();
    let mut lines = BufReader::new(server.0.stdout.take().expect("it is piped"));
    lines.read_line(&mut line).expect("the program prints a line");
    (server, line.trim().to_owned())
}

/// Sends known streams of `bytes` bytes both ways. Returns the explanations of the clients.
fn check_streams(
    server: &mut Command,
    client: impl Fn() -> Command,
    seeds: std::ops::Range<u32>,
    bytes: u32,
) -> String {
    check_streams_to(SERVER, server, client, seeds, bytes)
}

/// The same to any address of the second host.
fn check_streams_to(
    address: &str,
    server: &mut Command,
    client: impl Fn() -> Command,
    seeds: std::ops::Range<u32>,
    bytes: u32,
) -> String {
    let (_server, port) = started(server.args(["server", address]));
    let mut said = String::new();
    for seed in seeds {
        let arguments = ["client", &port, &seed.to_string(), &bytes.to_string(), address];
        let client = output(client().args(arguments));
        assert!(client.status.success(), "{}: {}", client.status, stderr(&client));
        said.push_str(&stderr(&client));
    }
    said
}

/// The number of packets that TCP has sent on a host.
fn tcp_packets(host: &str) -> u64 {
    counter(host, "Tcp:", "OutSegs")
}

/// The value of a kernel counter on a host.
fn counter(host: &str, protocol: &str, name: &str) -> u64 {
    let counters = stdout(&output(on(host, Path::new("cat")).arg("/proc/net/snmp")));
    let mut lines = counters.lines().filter(|line| line.starts_with(protocol));
    let [names, values] = [lines.next(), lines.next()].map(|line| line.expect("it has counters"));
    let place = names.split(' ').position(|it| it == name).expect("the kernel counts this");
    values.split(' ').nth(place).expect("each has a value").parse().expect("it is a number")
}

#[test]
fn streams_between_hosts_arrive_whole() {
    let Some(wire) = Wire::new("streams") else { return };
    let directory = Directory::new("between");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    for sockets in ["", "return:20000", "return:300000"] {
        let server = &mut carried(b, &program, sockets);
        let said = check_streams(server, || meeting(a, &program, sockets), 0..6, 4_000_000);
        let carried = said.lines().filter(|line| line.ends_with(": carried between hosts"));
        assert_eq!((said.lines().count(), carried.count()), (6, 6), "{said}");
    }
    let before = tcp_packets(a);
    let (bytes, packet) = (40_000_000, 1_448);
    check_streams(&mut carried(b, &program, ""), || meeting(a, &program, ""), 7..8, bytes);
    let by_tcp = (tcp_packets(a) - before) * packet;
    assert!(by_tcp < u64::from(bytes) / 2, "at most {by_tcp} of {bytes} bytes by TCP");
}

#[test]
fn streams_over_ipv6_are_carried() {
    let Some(wire) = Wire::new("six") else { return };
    let directory = Directory::new("six");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let server = &mut carried(b, &program, "return:100000");
    let client = || meeting(a, &program, "return:100000");
    let said = check_streams_to("fd88::2", server, client, 0..4, 1_000_000);
    let carried = said.lines().filter(|line| line.ends_with(": carried between hosts"));
    assert_eq!((said.lines().count(), carried.count()), (4, 4), "{said}");
}

#[test]
fn carriers_with_certificates_seal_what_they_carry() {
    let Some(wire) = Wire::new("sealed") else { return };
    let directory = Directory::new("sealed");
    let program = directory.program("checker.c", &[]);
    let certificates = directory.file("certs");
    let addresses = ["--address", "10.88.0.1", "--address", "10.88.0.2"];
    let mut made = Command::new(env!("CARGO_BIN_EXE_apus"));
    stdout(&output(made.arg("dev-certs").arg(&certificates).args(addresses)));
    let with_certificate = |mut command: Command| {
        for (variable, file) in
            [("APUS_TLS_CERT", "node.pem"), ("APUS_TLS_KEY", "node.key"), ("APUS_TLS_CA", "ca.pem")]
        {
            command.env(variable, certificates.join(file));
        }
        command
    };
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let server = &mut with_certificate(carried(b, &program, ""));
    let client = || with_certificate(meeting(a, &program, ""));
    let said = check_streams(server, client, 0..3, 1_000_000);
    let carried = said.lines().filter(|line| line.ends_with(": carried between hosts"));
    assert_eq!((said.lines().count(), carried.count()), (3, 3), "{said}");
    let stat = stdout(&output(
        on(a, Path::new(env!("CARGO_BIN_EXE_apus"))).args(["stat", &carrier_of(a)]),
    ));
    assert!(stat.contains("link.sealed_sent"), "{stat}");
}

/// The number of datagrams that were sent on a host.
pub(crate) fn datagrams(host: &str) -> u64 {
    counter(host, "Udp:", "OutDatagrams")
}

/// The process id of a host's carrier.
pub(crate) fn carrier_of(host: &str) -> String {
    let pids = stdout(&output(Command::new("ip").args(["netns", "pids", host])));
    let is_carrier = |pid: &&str| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"carrier")
    };
    pids.lines().find(is_carrier).expect("the host has a carrier").to_owned()
}

#[test]
fn connections_of_a_carrier_that_is_killed_are_reset_and_later_ones_are_carried() {
    let Some(wire) = Wire::new("lost") else { return };
    let directory = Directory::new("lost");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let mut explained = 0;
    for (seed, host) in [a, b, b, a].into_iter().enumerate() {
        let client = killing(host, || {
            let (server, port) = started(carried(b, &program, "").args(["server", SERVER]));
            let arguments = ["client", &port, &seed.to_string(), "100000000000", SERVER];
            let mut client = meeting(a, &program, "");
            (
                server,
                client.args(arguments).stderr(Stdio::piped()).spawn().expect("it starts"),
                a.clone(),
            )
        });
        let said = stderr(&client);
        // As over TCP, the first call reports the reset, later calls report the end or a signal. The client has two threads, and
        // the one that ends the process last may keep the other one from printing.
        let signal = client.status.signal();
        assert!(signal == Some(13) || client.status.code() == Some(1), "{}: {said}", client.status);
        let expected = ["Connection reset", "Broken pipe", " of 100000000000 bytes"];
        assert!(signal.is_some() || expected.iter().any(|text| said.contains(text)), "{said}");
        explained += usize::from(said.contains("and reset because a carrier ended"));
    }
    assert!(explained > 0, "no client explained what happened");
}

/// Starts programs until Apus carries their bytes, and kills the carrier of a host. A machine that is too busy for carriers to
/// answer needs several attempts. Returns the output of the client.
fn killing(host: &str, start: impl Fn() -> (Server, Child, String)) -> Output {
    for _ in 0..5 {
        let (_server, mut client, sender) = start();
        let (before, since) = (datagrams(&sender), Instant::now());
        while since.elapsed() < Duration::from_secs(30) {
            if datagrams(&sender) > before + 10_000 {
                let killed = output(Command::new("kill").args(["-9", &carrier_of(host)]));
                assert!(killed.status.success());
                return client.wait_with_output().expect("it was started");
            }
        }
        client.kill().expect("it runs");
        client.wait().expect("it was started");
    }
    panic!("no connection was carried");
}

#[test]
fn a_host_without_a_carrier_is_reached_by_tcp() {
    let Some(wire) = Wire::new("alone") else { return };
    let directory = Directory::new("alone");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let said = check_streams(&mut on(b, &program), || carried(a, &program, ""), 0..2, 1_000_000);
    assert!(said.lines().all(|line| line.contains("not carried")), "{said}");
    check_streams(&mut carried(b, &program, ""), || on(a, &program), 0..2, 1_000_000);
}

#[test]
fn the_ends_of_a_connection_between_hosts_see_what_those_of_tcp_see() {
    let Some(wire) = Wire::new("ends") else { return };
    let directory = Directory::new("ends-between");
    let program = directory.program("ends.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let namespace = format!("/run/netns/{b}");
    // The program moves to the other host by itself, so no carrier is started there.
    let apus = Path::new(env!("CARGO_BIN_EXE_apus"));
    let (_carrier, line) = started(on(b, apus).args(["carrier", "--idle", "1h"]));
    assert_eq!(line, "carrier at [::]:20147");
    let plain = output(on(a, &program).args([&namespace, SERVER]));
    let carried = output(meeting(a, &program, "").args([&namespace, SERVER]));
    assert_eq!(stdout(&carried), stdout(&plain));
    assert_eq!((carried.status, stdout(&plain).lines().count()), (plain.status, 72));
    let said = stderr(&carried);
    // The two connections that replace other ones have one message only.
    let other = said.lines().filter(|line| !line.contains(": carried between hosts"));
    assert_eq!(other.count(), 4, "{said}");
    assert!(said.contains("until the program called exec"), "{said}");
    let second = output(on(b, apus).arg("carrier"));
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("a carrier of this user already runs"), "{}", stderr(&second));
}
