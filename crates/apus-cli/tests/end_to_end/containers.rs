//! `apus run` in two network namespaces of one host that share a directory, as containers do: connections are carried, and only
//! their two ends take part in them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use apus_sockets::introduction::file_name;
use nix::unistd::geteuid;

use crate::between_hosts::{SERVER, on, started};
use crate::program::{stderr, wait_until};
use crate::raw::Wire;
use crate::run::{Directory, output};
use crate::run_trust::Lines;
use crate::skipped::skipped;

/// The address of the first host of a wire.
const CLIENT: &str = "10.88.0.1";

/// The user of honest programs.
/// The user of hostile programs.
const HONEST: u32 = 1000;
const HOSTILE: u32 = 33;

/// A directory that all users share.
fn shared(directory: &Directory) -> PathBuf {
    let path = directory.file("shared");
    fs::create_dir_all(&path).expect("the directory is ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).expect("as above");
    path
}

/// The command `apus run --explain` of a program in a network namespace.
fn run_in(namespace: &str, user: u32, program: &Path, directory: Option<&Path>) -> Command {
    let mut command = as_user(namespace, user, Path::new(env!("CARGO_BIN_EXE_apus")));
    command.args(["run", "--explain"]).arg(program).env("MEETS", "1");
    match directory {
        Some(directory) => command.env("APUS_SHM_DIR", directory),
        None => command.env_remove("APUS_SHM_DIR"),
    };
    command
}

/// The command of a program in a network namespace, as a user.
fn as_user(namespace: &str, user: u32, program: &Path) -> Command {
    let mut command = on(namespace, Path::new("setpriv"));
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    command.arg(program);
    command
}

fn count_carried(said: &str) -> usize {
    said.lines().filter(|line| line.ends_with(": carried")).count()
}

#[test]
fn programs_of_two_network_namespaces_share_memory() {
    let Some(wire) = Wire::new("boxes") else { return };
    let directory = Directory::new("boxes");
    let (program, shared) = (directory.program("checker.c", &[]), shared(&directory));
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    for (server_address, sockets) in [(SERVER, ""), (SERVER, "return:20000"), ("fd88::2", "")] {
        let start = |namespace, directory| {
            let mut command = run_in(namespace, HONEST, &program, directory);
            command.env("APUS_SOCKETS", sockets);
            if directory.is_none() {
                command.env_remove("MEETS");
            }
            command
        };
        let (_server, port) = started(start(b, Some(&shared)).args(["server", server_address]));
        let client = |bytes: &str, seed: u32, directory| {
            let seed = seed.to_string();
            let mut client = start(a, directory);
            let client = output(client.args(["client", &port, &seed, bytes, server_address]));
            assert!(client.status.success(), "{}: {}", client.status, stderr(&client));
            stderr(&client)
        };
        let said: String = (0..4).map(|seed| client("1000000", seed, Some(&*shared))).collect();
        assert_eq!(count_carried(&said), 4, "{server_address} {sockets}: {said}");
        let said = client("1000000", 5, None);
        assert!(said.contains("not carried: the peer is not at an address of this host"), "{said}");
        // The server looks for the last client for a moment, and is killed next.
        let is_empty = || fs::read_dir(&shared).expect("it is there").next().is_none();
        wait_until("no file is left in the directory", is_empty);
    }
}

/// Two honest ends in network namespaces of their own. The connecting end reports its port first.
pub(crate) struct Ends {
    pub(crate) accepts: Lines,
    pub(crate) connects: Lines,
    ports: [String; 2],
}

impl Ends {
    fn start([client, server]: [&str; 2], program: &Path, directory: &Path) -> Self {
        let honest = |namespace| {
            let mut command = run_in(namespace, HONEST, program, Some(directory));
            command.envs(ADDRESSES);
            command
        };
        Self::of(honest(server), honest(client))
    }

    /// Starts the accepting end and the connecting end with these commands.
    pub(crate) fn of(mut accepts: Command, mut connects: Command) -> Self {
        let mut accepts = Lines::start(accepts.arg("accepts"));
        let port = accepts.said();
        let mut connects = Lines::start(connects.args(["connects", &port]));
        let ports = [connects.said(), port];
        Self { accepts, connects, ports }
    }

    /// The name of the file through which they meet.
    fn file(&self) -> String {
        let [client, server] = [(CLIENT, 0), (SERVER, 1)]
            .map(|(ip, end)| format!("{ip}:{}", self.ports[end]).parse().expect("it is one"));
        file_name(client, server)
    }

    pub(crate) fn both(&mut self, connects: &str, accepts: &str) {
        let _ = writeln!(self.connects.input, "{connects}");
        let _ = writeln!(self.accepts.input, "{accepts}");
        assert_eq!((self.connects.said(), self.accepts.said()), ("done".into(), "done".into()));
    }

    /// Sends secrets in both directions. Returns the bytes that TCP has carried meanwhile.
    fn exchange_secrets(&mut self) -> u64 {
        let bytes = |end: &mut Lines| end.ask("tcp").parse::<u64>().expect("a number");
        let before = bytes(&mut self.connects);
        self.both("send 500", "receive 500");
        self.both("receive 500", "send 500");
        bytes(&mut self.connects) - before
    }
}

pub(crate) const ADDRESSES: [(&str, &str); 2] = [("CLIENT_IP", CLIENT), ("SERVER_IP", SERVER)];

#[test]
fn another_user_gets_no_byte_of_a_connection_between_network_namespaces() {
    if !geteuid().is_root() {
        return skipped("only root has other users attack");
    }
    let Some(wire) = Wire::new("others") else { return };
    let directory = Directory::new("others");
    let (program, shared) = (directory.program("impostor.c", &[]), shared(&directory));
    let [a, b] = [&*wire.names[0], &*wire.names[1]];
    let hostile = |ends: &Ends, namespace: &str, words: &[&str]| {
        let [client, server] = &ends.ports;
        let mut command = as_user(namespace, HOSTILE, &program);
        command.args(words).args([server, client]).envs(ADDRESSES);
        Lines::start(command.env("MEETING", shared.join(ends.file())))
    };
    for namespace in [a, b] {
        for how in ["own", "file", "nothing", "stale"] {
            if namespace == a && how == "stale" {
                continue; // The server's port accepts one connection before the honest one.
            }
            // The accepting end cannot get the name, so the connection stays with TCP.
            let mut ends = Ends::start([a, b], &program, &shared);
            let mut impostor = hostile(&ends, namespace, &["binds", how]);
            assert_eq!(impostor.said(), "bound");
            assert_eq!(ends.connects.ask("go"), "done");
            ends.both("send 8", "receive 8");
            ends.both("receive 8", "send 8");
            assert_eq!(impostor.said(), "met", "{how}");
            assert_eq!(ends.exchange_secrets(), 1000, "{how}");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");

            // The process that comes first does not keep the other end away.
            let mut ends = Ends::start([a, b], &program, &shared);
            let mut impostor = hostile(&ends, namespace, &["attempts", how]);
            assert_eq!(impostor.said(), "ready");
            assert_eq!(ends.connects.ask("go"), "done");
            ends.both("meet", "serve");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");
            assert_eq!(ends.exchange_secrets(), 0, "{how}: the ends are not carried");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");
        }
        // The data that an end shows are worthless to other processes.
        let mut ends = Ends::start([a, b], &program, &shared);
        let mut impostor = hostile(&ends, namespace, &["forwards"]);
        assert_eq!(impostor.said(), "bound");
        assert_eq!(ends.connects.ask("go"), "done");
        assert_eq!(ends.connects.ask("send 8"), "done");
        assert_eq!(impostor.said(), "met");
        assert_eq!(ends.accepts.ask("send 8"), "done");
        assert_eq!(impostor.said(), "relayed");
        assert_eq!(ends.connects.ask("send 20000"), "done");
        assert_eq!(impostor.ask("look"), "read nothing");
        assert_eq!(ends.accepts.ask("receive 20008"), "done");
    }
}

/// Other network namespaces may have the same addresses, and a connection with the same ports: the accepting end of one connection
/// and the connecting end of the other one meet. Their own peers do not run under Apus.
#[test]
fn connections_with_the_same_addresses_are_not_taken_for_each_other() {
    let (Some(one), Some(other)) = (Wire::new("twin-one"), Wire::new("twin-other")) else { return };
    let directory = Directory::new("twins");
    let (program, shared) = (directory.program("impostor.c", &[]), shared(&directory));
    let start = |wire: &Wire, of_apus: [bool; 2]| {
        let command = |end: usize| {
            let namespace = &wire.names[end];
            let mut command = match of_apus[end] {
                true => run_in(namespace, HONEST, &program, Some(&shared)),
                false => as_user(namespace, HONEST, &program),
            };
            command.envs(ADDRESSES).envs([("CLIENT_PORT", "20000"), ("SERVER_PORT", "30000")]);
            command
        };
        Ends::of(command(1), command(0))
    };
    let (mut accepts, mut connects) = (start(&one, [false, true]), start(&other, [true, false]));
    assert_eq!(accepts.file(), connects.file());
    assert_eq!(accepts.connects.ask("go"), "done");
    assert_eq!(connects.connects.ask("go"), "done");
    accepts.both("receive 8", "send 8");
    let file = shared.join(accepts.file());
    wait_until("the end that accepts listens", || file.exists());
    connects.both("send 8", "receive 8");
    wait_until("the end that accepts has given up", || !file.exists());
    for ends in [&mut accepts, &mut connects] {
        assert_eq!(ends.exchange_secrets(), 1000, "it is carried");
    }
}
