//! `apus carrier`: its bounds, its status and its switch.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use apus_shm::{Channel, closer};
use apus_sockets::introduction::carrier_name;
use nix::errno::Errno;
use nix::libc::linger;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::sockopt::Linger;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, setsockopt, socket,
};
use nix::unistd::geteuid;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use crate::between_hosts::{SERVER, carried, carrier_of, datagrams, meeting, on, started};
use crate::program::{apus, stderr, wait_until};
use crate::raw::Wire;
use crate::run::{Directory, output, stdout};

/// A carrier on this host that may raise its limit of descriptors from 128 to 256. It is killed when it is dropped.
struct Limited {
    child: Child,
    port: u16,
}

impl Limited {
    fn start() -> Self {
        for _ in 0..100 {
            let free = UdpSocket::bind("[::]:0").and_then(|socket| socket.local_addr());
            let port = free.expect("there is a free port").port() / 2;
            let program = env!("CARGO_BIN_EXE_apus");
            let script = "ulimit -S -n 128; ulimit -H -n 256; exec \"$0\" \"$@\"";
            let mut child = Command::new("sh")
                .args(["-c", script, program, "carrier", "--idle", "never", "--port"])
                .arg(port.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("there is a shell");
            let mut line = String::new();
            let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
            if lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                return Self { child, port };
            }
            child.wait().expect("it was started"); // Another process has the port.
        }
        panic!("no free port");
    }

    fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.expect("the carrier runs").count()
    }

    /// A process that connects to the carrier.
    fn visitor(&self) -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
        let socket = socket.expect("the test has a descriptor left");
        let name = carrier_name(geteuid().as_raw(), self.port);
        let name = UnixAddr::new_abstract(name.as_bytes()).expect("the name is short");
        connect(socket.as_raw_fd(), &name).expect("the carrier accepts");
        socket
    }

    /// Serves a first process, so that the carrier has all descriptors that its threads make when they are first needed.
    fn warmed_up(self) -> Self {
        let first = self.visitor();
        wait_until("a process is served", || self.status()["guests"] == 1);
        assert!(self.connections() > 0, "its own is open");
        drop(first);
        wait_until("it has left", || self.status()["guests"] == 0);
        wait_until("its descriptor and that of the question are closed", || {
            self.connections() == 0
        });
        self
    }

    /// The number of unix sockets of the carrier that processes have connected to, and that are not closed yet.
    fn connections(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs");
        let sockets: BTreeSet<String> = open
            .filter_map(|entry| {
                fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()
            })
            .collect();
        let name = format!("@{}", carrier_name(geteuid().as_raw(), self.port));
        let all = fs::read_to_string("/proc/net/unix").expect("the kernel has it");
        let is_its = |line: &&str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [_, _, _, "00000000", _, _, inode, path] = words[..] else { return false };
            path == name && sockets.contains(&format!("socket:[{inode}]"))
        };
        all.lines().filter(is_its).count()
    }

    fn signal(&self, signal: Signal) {
        kill(nix::unistd::Pid::from_raw(self.child.id().cast_signed()), signal).expect("it runs");
    }

    /// Changes the limit of descriptors.
    fn limit(&self, limit: u64) {
        let limit = Rlimit { current: Some(limit), maximum: Some(256) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).expect("it is ours");
    }

    /// The lowest number that is not a descriptor's.
    fn free_number(&self) -> u64 {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs");
        let numbers: BTreeSet<u64> =
            open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        (0..).find(|number| !numbers.contains(number)).expect("numbers do not end")
    }

    fn status(&self) -> Value {
        let asked = apus(&format!("carrier status --json - --port {}", self.port));
        assert!(asked.status.success(), "{}", stderr(&asked));
        serde_json::from_slice(&asked.stdout).expect("it is JSON")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_carrier_without_descriptors_goes_on_and_frees_them() {
    let carrier = Limited::start().warmed_up();
    let limits = fs::read_to_string(format!("/proc/{}/limits", carrier.child.id()));
    let limits = limits.expect("the carrier runs");
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = files.expect("the kernel has this limit").split_whitespace().collect();
    assert_eq!(words[3..5], ["256", "256"], "the limit is raised");

    let before = carrier.descriptors();
    let visitors: Vec<OwnedFd> = (0..500).map(|_| carrier.visitor()).collect();
    // A process without a place gets a refusal, and the carrier answers others.
    wait_until("all are served or refused", || {
        let status = carrier.status();
        let guests = status["guests"].as_u64().expect("it is a number");
        let refused = status["refused"]["no_descriptor"].as_u64().expect("as above");
        refused > 0 && guests + refused == 500
    });
    assert!(carrier.descriptors() < 250);
    drop(visitors);
    wait_until("the descriptors are free", || carrier.descriptors() <= before);
    assert_eq!(carrier.status()["guests"], 0);
}

#[test]
fn a_carrier_whose_limit_falls_turns_visitors_away() {
    let carrier = Limited::start().warmed_up();
    carrier.limit(carrier.free_number());
    let visitors: Vec<OwnedFd> = (0..5).map(|_| carrier.visitor()).collect();
    wait_until("all are turned away", || visitors.iter().all(is_turned_away));
    carrier.limit(256);
    let _visitor = carrier.visitor();
    wait_until("a process is served", || carrier.status()["guests"] == 1);
}

/// Whether the carrier has closed the socket of a process.
fn is_turned_away(visitor: &OwnedFd) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    matches!(recv(visitor.as_raw_fd(), &mut [0], flags), Ok(0) | Err(Errno::ECONNRESET))
}

/// The end of a connection with unsent bytes, for which `close` waits, and the other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let mut end = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let other = listener.accept().expect("it has come").0;
    end.set_nonblocking(true).expect("sockets can be non-blocking");
    while end.write(&[0; 1 << 16]).is_ok() {}
    setsockopt(&end, Linger, &linger { l_onoff: 1, l_linger: 3_600 }).expect("as above");
    (end, other)
}

/// Whether the other end of a connection is in the state FIN-WAIT-1: `close` has begun, and waits for its unsent bytes.
fn is_closed(end: &TcpStream) -> bool {
    let port = end.peer_addr().expect("it is connected").port();
    let all = fs::read_to_string("/proc/net/tcp").expect("the kernel has it");
    all.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_its = words.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
        is_its && words.nth(1) == Some("04")
    })
}

#[test]
fn a_carrier_without_descriptors_turns_all_away_while_no_thread_can_close_any() {
    let carrier = Limited::start().warmed_up();
    // A stopped carrier receives the last descriptors of the connections.
    carrier.signal(Signal::SIGSTOP);
    let bring = |_| {
        let (end, other) = lingering();
        let channel = Channel::new(carrier.visitor());
        channel.send(b"no introduction", &[end.as_fd()]).expect("the carrier is there");
        other
    };
    let others: Vec<_> = (0..closer::THREADS_MAX).map(bring).collect();
    carrier.signal(Signal::SIGCONT);
    // A thread that closes a socket of a process waits for nothing, and goes on to free a lower number.
    wait_until("all threads wait for the connections", || others.iter().all(is_closed));

    carrier.limit(carrier.free_number());
    for _ in 0..3 {
        let visitor = carrier.visitor();
        wait_until("a process is turned away", || is_turned_away(&visitor));
    }
}

/// The status of a host's carrier.
fn status(host: &str) -> Value {
    let mut command = on(host, env!("CARGO_BIN_EXE_apus").as_ref());
    let asked = output(command.args(["carrier", "status", "--json", "-"]));
    assert!(asked.status.success(), "{}", stderr(&asked));
    serde_json::from_slice(&asked.stdout).expect("it is JSON")
}

fn switched(host: &str, switch: &str) -> String {
    let mut command = on(host, env!("CARGO_BIN_EXE_apus").as_ref());
    stdout(&output(command.args(["carrier", switch])))
}

#[test]
fn a_carrier_reports_its_status_and_is_switched_off_and_on() {
    let Some(wire) = Wire::new("switch") else { return };
    let directory = Directory::new("switch");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let state = directory.file("state");
    let with_state = |mut command: Command| {
        command.env("XDG_STATE_HOME", &state);
        command
    };
    let mut server = with_state(carried(b, &program, ""));
    let (_server, port) = started(server.args(["server", SERVER]));
    let run = |mut client: Command, seed: u32| {
        let arguments = ["client", &port, &seed.to_string(), "1000000", SERVER];
        let client = output(client.args(arguments).env("XDG_STATE_HOME", &state));
        assert!(client.status.success(), "{}: {}", client.status, stderr(&client));
        stderr(&client)
    };
    assert!(run(meeting(a, &program, ""), 1).contains(": carried between hosts"));
    let seen = status(b);
    assert_eq!((&seen["carries"], &seen["carried"]), (&Value::Bool(true), &1.into()), "{seen}");
    assert!(seen["listen"].as_str().is_some_and(|text| text.ends_with(":20147")), "{seen}");

    // The server's carrier refuses the stream, and the client's carrier refuses the program.
    for (host, seed) in [(b, 2), (a, 3)] {
        let said = switched(host, "off");
        assert!(said.starts_with("no new connections are carried; "), "{said}");
        // A short connection may end before a carrier looks for its other end.
        wait_until("a connection is refused", || {
            assert!(run(carried(a, &program, ""), seed).contains("not carried"));
            status(host)["refused"]["off"].as_u64() > Some(0)
        });
        assert_eq!(switched(host, "on"), "new connections are carried\n");
    }
    assert!(run(meeting(a, &program, ""), 4).contains(": carried between hosts"));
    let log = status(b)["log"].as_str().expect("it has a log").to_owned();
    assert_eq!(log, state.join("apus/carrier-20147.log").display().to_string());
    let log = fs::read_to_string(log).expect("it can be read");
    assert!(log.contains("switched off") && log.contains("switched on"), "{log}");
}

/// Starts a client until Apus carries its bytes. A machine that is too busy for carriers to answer needs several attempts.
fn under_way(host: &str, start: impl Fn() -> Child) -> Child {
    for _ in 0..5 {
        let before = datagrams(host);
        let mut client = start();
        while client.try_wait().expect("it was started").is_none() {
            if datagrams(host) > before + 10_000 {
                return client;
            }
        }
    }
    panic!("no connection was carried");
}

/// A long carried stream returns to TCP when the carrier of one of its ends is switched off or ended by a signal, and arrives.
#[test]
fn connections_return_to_tcp_when_a_carrier_is_switched_off_or_ended() {
    let Some(wire) = Wire::new("leave") else { return };
    let directory = Directory::new("leave");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let (_server, port) = started(carried(b, &program, "").args(["server", SERVER]));
    let end = |host: &str| {
        let carrier = carrier_of(host);
        assert!(output(Command::new("kill").arg(&carrier)).status.success());
        wait_until("the carrier ends", || fs::metadata(format!("/proc/{carrier}/fd/0")).is_err());
    };
    let off = |host: &str| {
        let said = switched(host, "off");
        assert!(said.ends_with(" return to TCP\n") && !said.contains("; 0 return"), "{said}");
        wait_until("none is carried", || status(host)["connections"] == serde_json::json!([]));
        switched(host, "on");
    };
    type Leave<'a> = &'a dyn Fn(&str);
    let cases: [(Leave<'_>, &str, &str); 3] = [
        (&off, a, ": carried between hosts until the carrier was switched off"),
        (&off, b, ": carried between hosts"),
        (&end, a, ": carried between hosts until the carrier was switched off"),
    ];
    for (seed, (leave, host, explained)) in cases.into_iter().enumerate() {
        let arguments = ["client", &port, &seed.to_string(), "200000000", SERVER];
        let client = under_way(a, || {
            let mut client = meeting(a, &program, "");
            client.args(arguments).stderr(Stdio::piped()).spawn().expect("it starts")
        });
        leave(host);
        let client = client.wait_with_output().expect("it was started");
        let said = stderr(&client);
        assert!(client.status.success(), "{}: {said}", client.status);
        assert!(said.trim_end().ends_with(explained), "case {seed}: {said}");
    }
}

#[test]
fn connections_to_and_from_other_hosts_than_those_of_the_list_are_not_carried() {
    let Some(wire) = Wire::new("hosts") else { return };
    let directory = Directory::new("hosts");
    let program = directory.program("checker.c", &[]);
    let [a, b] = &wire.names[..] else { unreachable!("a wire has two ends") };
    let apus = env!("CARGO_BIN_EXE_apus").as_ref();
    let hosts = ["carrier", "--idle", "1h", "--hosts", "192.0.2.0/24,10.88.0.9"];
    let (_carrier, _) = started(on(b, apus).args(hosts));
    let (_server, port) = started(carried(b, &program, "").args(["server", SERVER]));
    wait_until("a stream is refused", || {
        let mut client = carried(a, &program, "");
        let client = output(client.args(["client", &port, "1", "1000000", SERVER]));
        assert!(stderr(&client).contains("not carried"), "{}", stderr(&client));
        status(b)["refused"]["foreign_host"].as_u64() > Some(0)
    });
    assert_eq!(status(b)["hosts"], serde_json::json!(["192.0.2.0/24", "10.88.0.9/32"]));
}

#[test]
fn without_a_carrier_the_status_says_so() {
    crate::program::fails(1, "carrier status --port 1", &["no carrier runs at port 1"]);
    crate::program::fails(
        2,
        "carrier off --user nobody-has-this-name",
        &["no user `nobody-has-this-name`"],
    );
    crate::program::fails(2, "carrier --hosts 10.0.0.0/40", &["expected an address or a network"]);
}

#[test]
fn the_unit_of_systemd_is_sound_and_hardened() {
    let directory = Directory::new("carrier-unit");
    let unit = format!("{}/../../deploy/apus-carrier@.service", env!("CARGO_MANIFEST_DIR"));
    let unit = fs::read_to_string(unit).expect("the unit is there");
    let unit = unit.replace("/usr/bin/apus", env!("CARGO_BIN_EXE_apus"));
    // To run as root costs the unit 0.4.
    for (user, threshold) in [("root", "--threshold=25"), ("daemon", "--threshold=20")] {
        let place = directory.file(&format!("apus-carrier@{user}.service"));
        fs::write(&place, &unit).expect("the directory is ours");
        for task in [&["verify", "--man=no"][..], &["security", "--offline=true", threshold]] {
            let output = match Command::new("systemd-analyze").args(task).arg(&place).output() {
                Ok(output) => output,
                Err(error) => return crate::skipped::skipped(format!("systemd-analyze: {error}")),
            };
            assert!(output.status.success(), "{user}: {}", stderr(&output));
        }
    }
}
