//! `apus run`: a connection waits for its peer only where TCP would, whatever the peer does, and only its two ends take part in it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::stderr;
use crate::run::{Directory, Server, found, output, run, stdout};
use crate::skipped::skipped;

/// The command `apus run --explain` of a program that continues once its connections are carried.
fn carried(program: &Path) -> Command {
    let mut command = run(["--explain"]);
    command.arg(program).env("MEETS", "1");
    command
}

/// Asserts that a program succeeds with the same output plain and carried, and that this number of ends of connections were carried
/// to their end.
fn same_and_carried(program: &Path, arguments: &[&str], ends: usize) -> String {
    let plain = output(Command::new(program).args(arguments));
    assert!(plain.status.success(), "plain {arguments:?}: {}", stderr(&plain));
    let carried = output(carried(program).args(arguments));
    let said = stderr(&carried);
    assert!(carried.status.success(), "{arguments:?}: {}: {said}", carried.status);
    assert_eq!(stdout(&carried), stdout(&plain), "{said}");
    assert_eq!(count_carried(&said), ends, "{arguments:?}: {said}");
    stdout(&plain)
}

/// The number of ends of connections that were carried to their end, according to an explanation.
fn count_carried(said: &str) -> usize {
    said.lines().filter(|line| line.ends_with(": carried")).count()
}

#[test]
fn ends_may_write_whole_messages_before_they_read() {
    let directory = Directory::new("exchange");
    let program = directory.program("exchange.c", &[]);
    let sizes = ["8192", "32768", "100000", "500000", "1000000", "2000000"];
    for (shape, ends) in [("pair", 2), ("ring", 6)] {
        for way in ["blocking", "poll", "epoll"] {
            let arguments: Vec<&str> = [shape, way].into_iter().chain(sizes).collect();
            let text = same_and_carried(&program, &arguments, ends);
            assert_eq!(text.lines().count(), sizes.len(), "{shape}, {way}: {text}");
        }
    }
}

#[test]
fn a_server_may_write_back_while_its_client_writes() {
    let directory = Directory::new("pipes");
    let program = directory.program("exchange.c", &[]);
    assert_eq!(same_and_carried(&program, &["pipes", "50"], 2), "200 bodies: right\n");

    let Some(node) = found("node") else {
        return skipped("node is not installed");
    };
    let script = "const s = require('http').createServer((q, r) => {\n\
        r.writeHead(200, {'Content-Length': q.headers['content-length']}); q.pipe(r)});\n\
        s.listen(0, '127.0.0.1', () => console.log(s.address().port))";
    let mut server = run([node.as_os_str()]);
    server.args(["-e", script]).env("UV_USE_IO_URING", "0").stdout(Stdio::piped());
    let mut server = Server(server.spawn().expect("it starts"));
    let mut port = String::new();
    let mut lines = BufReader::new(server.0.stdout.take().expect("it is piped"));
    lines.read_line(&mut port).expect("it says its port");
    let client = output(carried(&program).args(["post", port.trim(), "300"]));
    let said = stderr(&client);
    assert_eq!(stdout(&client), "300 bodies: right\n", "{said}");
    assert_eq!(count_carried(&said), 1, "{said}");
}

/// The cost of idle connections behind the first one: at most 64 MiB for 1,000 in both processes together, and no wake-up of a thread.
#[test]
fn idle_connections_take_little_memory_and_no_time() {
    let directory = Directory::new("idle-many");
    let program = directory.program("idle_many.c", &[]);
    let ends = output(carried(&program).arg("200"));
    let said = stderr(&ends);
    assert!(ends.status.success(), "{}: {said}", ends.status);
    assert_eq!(count_carried(&said), 402, "{said}");
    let text = stdout(&ends);
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [segments, all, woken] = numbers[..] else { panic!("it says {text}") };
    assert!(segments > 0 && all <= 200 * (64 << 10) / 1000 && woken == 0, "{text}");
}

/// A program whose input and output are lines.
pub(crate) struct Lines {
    process: Server,
    pub(crate) input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Lines {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Server(command.spawn().expect("it starts"));
        let input = process.0.stdin.take().expect("it is piped");
        let output = BufReader::new(process.0.stdout.take().expect("it is piped"));
        Self { process, input, output }
    }

    /// The next line of the program; empty if it has ended.
    pub(crate) fn said(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says text");
        line.trim().to_owned()
    }

    /// Sends a line to the program, and returns its answer.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        // If the program has ended, its answer is empty.
        let _ = writeln!(self.input, "{line}");
        self.said()
    }

    fn is_running(&mut self) -> bool {
        self.process.0.try_wait().expect("it is a child of this process").is_none()
    }
}

/// The attacker of a server, with its user.
enum Attacker {
    /// Another user: the server's user, and the attacker's.
    OtherUser(u32, u32),
    /// A process of the same user in a PID namespace of its own.
    Sandboxed,
}

impl Attacker {
    /// The attackers that this machine permits.
    fn all() -> Vec<Self> {
        let unshared = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
        let mut all = Vec::new();
        if nix::unistd::geteuid().is_root() {
            all.push(Self::OtherUser(1000, 33));
        }
        if unshared.is_ok_and(|output| output.status.success()) {
            all.push(Self::Sandboxed);
        }
        if all.len() < 2 {
            skipped("only root has other users, or namespaces, attack");
        }
        all
    }

    /// The command of the server or of an honest client.
    fn honest(&self, mut command: Command) -> Command {
        if let Self::OtherUser(user, _) = self {
            command.uid(*user).gid(*user);
        }
        command
    }

    fn hostile(&self, program: &Path) -> Command {
        match self {
            Self::OtherUser(_, user) => {
                let mut command = Command::new(program);
                command.uid(*user).gid(*user);
                command
            }
            Self::Sandboxed => {
                let mut command = Command::new("unshare");
                command.args(["--pid", "--fork", "--kill-child"]).arg(program);
                command
            }
        }
    }
}

#[test]
fn a_server_serves_honest_clients_whatever_hostile_ones_do() {
    let directory = Directory::new("hostile");
    let program = directory.program("hostile.c", &["-pthread"]);
    let preloaded = |word: &str| {
        let mut command = run([&program]);
        command.arg(word);
        command
    };
    for attacker in Attacker::all() {
        for way in ["deaf", "fills", "closes", "passes", "lies", "leaves", "silent"] {
            let mut server = Lines::start(&mut attacker.honest(preloaded("server")));
            let port = server.said();
            let mut honest = Lines::start(attacker.honest(preloaded("honest")).arg(&port));
            assert_eq!(honest.said(), "carried", "{way}");
            let mut hostile = Lines::start(attacker.hostile(&program).args([way, &port]));
            // A stopped or ended server makes the attack fail, or does not let it end.
            assert_eq!(hostile.said(), "ready", "{way}");
            let calls = ["ping", "fork", "fork", "exec", "spawn", "ping", "close", "ping"];
            for call in calls {
                assert_eq!(honest.ask(call), "done", "{way}: {call}");
            }
            drop(hostile);
            assert_eq!(honest.ask("ping"), "done", "{way}: after the attack");
            assert!(server.is_running(), "{way}");
        }
    }
}

/// Two honest ends. The connecting end reports its port first.
struct Ends {
    accepts: Lines,
    connects: Lines,
    /// The ports of the accepting end and of the connecting end.
    ports: [String; 2],
}

impl Ends {
    fn start(program: &Path, attacker: &Attacker) -> Self {
        let honest = || attacker.honest(carried(program));
        let mut accepts = Lines::start(honest().arg("accepts"));
        let port = accepts.said();
        let mut connects = Lines::start(honest().args(["connects", &port]));
        let ports = [port, connects.said()];
        Self { accepts, connects, ports }
    }

    fn impostor(&self, program: &Path, attacker: &Attacker, words: &[&str]) -> Lines {
        let [server, client] = &self.ports;
        Lines::start(attacker.hostile(program).args(words).args([server, client]))
    }

    /// Both ends execute a command at the same time.
    fn both(&mut self, connects: &str, accepts: &str) {
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

#[test]
fn impostors_get_no_byte_of_a_connection() {
    let directory = Directory::new("impostor");
    let program = directory.program("impostor.c", &[]);
    for attacker in Attacker::all() {
        for how in ["own", "file", "nothing", "stale"] {
            // The accepting end cannot get the name, so the connection stays with TCP.
            let mut ends = Ends::start(&program, &attacker);
            let mut impostor = ends.impostor(&program, &attacker, &["binds", how]);
            assert_eq!(impostor.said(), "bound");
            assert_eq!(ends.connects.ask("go"), "done");
            ends.both("send 8", "receive 8");
            ends.both("receive 8", "send 8");
            assert_eq!(impostor.said(), "met", "{how}");
            assert_eq!(ends.exchange_secrets(), 1000, "{how}");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");

            // The process that comes first does not keep the other end away.
            let mut ends = Ends::start(&program, &attacker);
            let mut impostor = ends.impostor(&program, &attacker, &["attempts", how]);
            assert_eq!(impostor.said(), "ready");
            assert_eq!(ends.connects.ask("go"), "done");
            ends.both("meet", "serve");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");
            assert_eq!(ends.exchange_secrets(), 0, "{how}: the ends are not carried");
            assert_eq!(impostor.ask("look"), "read nothing", "{how}");
        }
    }
}

#[test]
fn what_an_end_shows_is_worth_nothing_to_another_user() {
    let directory = Directory::new("relay");
    let program = directory.program("impostor.c", &[]);
    let is_other = |attacker: &Attacker| matches!(attacker, Attacker::OtherUser(..));
    for attacker in Attacker::all().into_iter().filter(is_other) {
        let mut ends = Ends::start(&program, &attacker);
        let mut impostor = ends.impostor(&program, &attacker, &["forwards"]);
        assert_eq!(impostor.said(), "bound");
        assert_eq!(ends.connects.ask("go"), "done");
        // The connecting end looks for its peer before the other one does.
        assert_eq!(ends.connects.ask("send 8"), "done");
        assert_eq!(impostor.said(), "met");
        assert_eq!(ends.accepts.ask("send 8"), "done");
        assert_eq!(impostor.said(), "relayed");
        assert_eq!(ends.connects.ask("send 20000"), "done");
        assert_eq!(impostor.ask("look"), "read nothing");
        assert_eq!(ends.accepts.ask("receive 20008"), "done");
    }
}

#[test]
fn a_process_for_each_connection_is_carried() {
    let directory = Directory::new("forking");
    let program = directory.program("limits.c", &["-pthread"]);
    // The accepting process explains the connections in its children.
    assert_eq!(same_and_carried(&program, &["forks", "8"], 16), "8 connections: right\n");
}

#[test]
fn a_process_and_its_child_share_a_connection_in_the_midst_of_streams() {
    let directory = Directory::new("shared");
    let program = directory.program("shared.c", &[]);
    // A child that executes a program with the descriptor returns its end to TCP.
    for (how, ends) in [("turns", 2), ("at-once", 2), ("kept", 1), ("closed", 2)] {
        same_and_carried(&program, &[how], ends);
    }
    // A killed process explains nothing.
    for (how, ends) in [("kill-child", 2), ("kill-parent", 1)] {
        let text = same_and_carried(&program, &[how], ends);
        assert_eq!(text, "some of the one, 100000 of the other, 0 wrong\n", "{how}");
    }
    let plain = stdout(&output(Command::new(&program).arg("namespace")));
    if plain == "no namespace\n" {
        return skipped("only root has namespaces for processes");
    }
    same_and_carried(&program, &["namespace"], 2);
}

#[test]
fn processes_that_share_a_connection_sleep_while_nothing_comes() {
    let directory = Directory::new("idle");
    let program = directory.program("idle.c", &[]);
    let text = same_and_carried(&program, &[], 2);
    assert_eq!(text.matches("idle").count(), 6, "{text}");
}

#[test]
fn what_a_peer_has_written_before_it_closed_is_read_whatever_ends_carrying() {
    let directory = Directory::new("rest");
    let program = directory.program("rest.c", &[]);
    // With more than a receiver's window, the kernel's calls themselves lose the bytes that are still at the sender.
    let by_kernel = [", dprintf: ", ", shutdown: "];
    for (bytes, lost) in [("9000", &[][..]), ("60000", &[][..]), ("900000", &by_kernel[..])] {
        let plain = output(Command::new(&program).arg(bytes));
        let carried = output(carried(&program).arg(bytes));
        let results = |output: &Output| {
            let is_kept = |line: &&str| !lost.iter().any(|way: &&str| line.contains(way));
            stdout(output).lines().filter(is_kept).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(results(&carried), results(&plain), "{}", stderr(&carried));
        assert_eq!(stdout(&plain).matches("right").count(), 40, "{}", stdout(&plain));
        assert_eq!(stderr(&carried).matches(": carried").count(), 76, "{}", stderr(&carried));
    }
}

/// An unused port.
fn free_port() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback interface");
    listener.local_addr().expect("it has one").port().to_string()
}

#[test]
fn redis_saves_beside_a_client_that_does_not_run() {
    if found("redis-server").is_none() || found("redis-benchmark").is_none() {
        return skipped("redis is not installed");
    }
    let directory = Directory::new("redis");
    let files = directory.file("");
    let port = free_port();
    let arguments = ["redis-server", "--save", "", "--bind", "127.0.0.1", "--port", &port];
    let quiet = |command: &mut Command| {
        command.current_dir(&files).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let _server = Server(quiet(&mut run(arguments)).expect("it starts"));
    let ask = |words: &[&str]| {
        let call = ["redis-cli", "-p", &port];
        stdout(&output(&mut run(call.iter().chain(words))))
    };
    let value = |name: &str| {
        let info = ask(&["info"]);
        let line = info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    while ask(&["ping"]) != "PONG\n" {}
    let load = ["redis-benchmark", "-p", &port, "-c", "1", "-n", "100000", "-t", "set", "-q"];
    let mut client = Server(quiet(&mut run(load)).expect("it starts"));
    while value("total_commands_processed") < 5_000 {}
    let process = Pid::from_raw(client.0.id().try_into().expect("a number of a process"));
    kill(process, Signal::SIGSTOP).expect("it is a child of this process");
    for _ in 0..5 {
        assert!(ask(&["bgsave"]).starts_with("Background saving started"));
        while value("rdb_bgsave_in_progress") > 0 {}
        assert_eq!(ask(&["ping"]), "PONG\n");
    }
    kill(process, Signal::SIGCONT).expect("as above");
    assert!(client.0.wait().expect("as above").success(), "its connection was reset");
}

/// Runs a carried program from a shell that sets a limit first.
fn limited(limit: &str, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} && exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_apus")).args(["run", "--explain"]).arg(program).args(arguments);
    output(command.env("MEETS", "1").env_remove("LD_PRELOAD"))
}

#[test]
fn a_small_limit_of_descriptors_is_enough_to_be_carried() {
    let directory = Directory::new("limits");
    let program = directory.program("limits.c", &["-pthread"]);
    let few = limited("ulimit -n 256", &program, &["forks", "4"]);
    assert_eq!(count_carried(&stderr(&few)), 8, "{}", stderr(&few));
}

#[test]
fn a_program_uses_its_limits_as_plain() {
    let directory = Directory::new("many");
    let program = directory.program("limits.c", &["-pthread"]);
    let many = limited("ulimit -n 1024", &program, &["many", "900"]);
    assert_eq!(stdout(&many), "900 connections: right\n", "{}", stderr(&many));

    // Root has no limit of processes.
    let mut command = run([program.as_os_str()]);
    if nix::unistd::geteuid().is_root() {
        command.uid(1000).gid(1000);
    }
    let one = output(command.args(["one-process", "20"]));
    assert_eq!(stdout(&one), "20 connections: right\n", "{}", stderr(&one));
}

#[test]
fn connections_are_carried_without_netlink() {
    let directory = Directory::new("no-netlink");
    let program = directory.program("limits.c", &["-pthread"]);
    let restricted = limited(
        &format!("set -- {} no-netlink \"$@\"", program.display()),
        &program,
        &["forks", "4"],
    );
    assert_eq!(stdout(&restricted), "4 connections: right\n");
    assert_eq!(count_carried(&stderr(&restricted)), 8, "{}", stderr(&restricted));
}
