//! `apus run`: programs behave as they do without it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs, process};

use crate::program::{stderr, wait_until};
use crate::skipped::skipped;

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/programs");

/// A directory for the files that a test compiles, removed when it is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("apus-run-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes an executable file.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).expect("the directory is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("as above");
        path
    }

    /// Compiles a program of `tests/end_to_end/programs`. Returns whether the compiler could.
    pub(crate) fn compiled(
        &self,
        compiler: &str,
        source: &str,
        flags: &[&str],
        name: &str,
    ) -> Option<PathBuf> {
        let path = self.file(name);
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-pthread", "-w", "-o"])
            .arg(&path)
            .arg(Path::new(PROGRAMS).join(source));
        let output = command.args(flags).current_dir(&self.0).output().ok()?;
        output.status.success().then_some(path)
    }

    /// Like [`compiled`](Self::compiled), with the C compiler that Apus needs.
    pub(crate) fn program(&self, source: &str, flags: &[&str]) -> PathBuf {
        let name = source.trim_end_matches(".c");
        self.compiled("cc", source, flags, name).expect("the C compiler compiles it")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The command `apus run` with further arguments.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apus"));
    command
        .arg("run")
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .env_remove("APUS_EXPLAIN")
        .env_remove("APUS_SOCKETS");
    command
}

pub(crate) fn output(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that the output and exit code of a program are the same plain and preloaded. Returns the output.
pub(crate) fn same(program: &Path, arguments: &[&str]) -> String {
    let plain = output(Command::new(program).args(arguments));
    let preloaded = output(run([program.as_os_str()]).args(arguments));
    assert_eq!(stdout(&preloaded), stdout(&plain));
    assert_eq!(stderr(&preloaded), stderr(&plain));
    assert_eq!(preloaded.status, plain.status);
    stdout(&plain)
}

#[test]
fn every_call_returns_what_the_c_library_returns() {
    let directory = Directory::new("calls");
    let program = directory.program("calls.c", &[]);
    let text = same(&program, &[]);
    assert!(text.lines().count() > 200 && text.contains("close(a) = -1 EBADF"), "{text}");

    let explained = output(run(["--explain"]).arg(&program));
    assert_eq!(stdout(&explained), text);
    // The one call that behaves differently: libuv falls back to epoll.
    let ring = output(run([program.as_os_str()]).arg("io_uring"));
    assert_eq!(stdout(&ring), "syscall(SYS_io_uring_setup, 0, NULL) = -1 ENOSYS\n");
}

#[test]
fn a_library_may_call_before_ours_has_started() {
    let directory = Directory::new("constructor");
    directory
        .compiled("cc", "constructor.c", &["-shared", "-fPIC"], "libearly.so")
        .expect("as it compiles programs");
    let flags = ["-Wl,--no-as-needed", "-L.", "-learly", "-Wl,-rpath,$ORIGIN"];
    let program = directory.program("connections.c", &flags);
    let text = stdout(&output(&mut run([&program])));
    assert!(text.starts_with("constructor: 5 early\n"), "{text}");
}

#[test]
fn python_behaves_the_same() {
    let text = "import socket, subprocess, selectors, sys, threading\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        def serve():\n\
        \x20   peer, _ = server.accept()\n\
        \x20   with peer, peer.makefile('rwb') as lines:\n\
        \x20       for line in lines:\n\
        \x20           lines.write(line.upper()); lines.flush()\n\
        thread = threading.Thread(target=serve); thread.start()\n\
        with socket.create_connection(server.getsockname()) as client:\n\
        \x20   client.setblocking(False)\n\
        \x20   selector = selectors.DefaultSelector(); selector.register(client, selectors.EVENT_READ)\n\
        \x20   client.send(b'a line\\n')\n\
        \x20   selector.select(); print(client.recv(100))\n\
        thread.join()\n\
        print(subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True).stdout)\n\
        sys.exit(5)\n";
    let Some(python) = found("python3") else {
        return skipped("python3 is not installed");
    };
    let text = same(&python, &["-c", text]);
    assert_eq!(text, "b'A LINE\\n'\nb'7\\n'\n");
}

/// The path of a program in `PATH`.
pub(crate) fn found(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[test]
fn each_connection_is_explained_once() {
    let directory = Directory::new("explain");
    let program = directory.program("connections.c", &[]);
    let short = "it ended too early, or the peer does not run under `apus run`";
    let ends = [("return", short), ("_exit", short)].into_iter();
    let programs = [("exec", "the program called exec"), ("vfork", "the program called vfork")];
    for (end, why) in ends.chain(programs) {
        let output = output(run(["--explain", "--"]).arg(&program).arg(end));
        let ports: Vec<String> = stdout(&output).split_whitespace().map(str::to_owned).collect();
        let [server, one, other] = &ports[..] else { panic!("{ports:?}") };
        let expected = [
            format!("127.0.0.1:{one} to 127.0.0.1:{server}: not carried: {why}"),
            format!("127.0.0.1:{server} from 127.0.0.1:{one}: not carried: {short}"),
            format!("127.0.0.1:{other} to 127.0.0.1:{server}: not carried: {short}"),
            format!("127.0.0.1:{server} from 127.0.0.1:{other}: not carried: {short}"),
            "a connecting socket: not carried: it was not established, or was reset at once"
                .to_owned(),
        ];
        let said = stderr(&output);
        let lines: Vec<&str> =
            said.lines().map(|line| line.split_once("]: ").expect(end).1).collect();
        assert_eq!(lines, expected, "{end}");
        assert!(said.starts_with("apus["), "{said}");
    }
    let plain = output(&mut run([program.as_os_str()]));
    assert_eq!(stderr(&plain), "", "nothing is said unless it is asked for");
    let daemon = output(run(["--explain"]).arg(&program).arg("daemon"));
    assert_eq!(stderr(&daemon), "", "standard error has become a socket of the program");
}

#[test]
fn the_ends_of_a_carried_connection_see_what_those_of_tcp_see() {
    let directory = Directory::new("ends");
    let program = directory.program("ends.c", &[]);
    let plain = output(&mut Command::new(&program));
    let carried = output(run(["--explain"]).arg(&program).env("MEETS", "1"));
    assert_eq!(stdout(&carried), stdout(&plain));
    assert_eq!((carried.status, stdout(&plain).lines().count()), (plain.status, 72));
    let said = stderr(&carried);
    // The two connections that replace other ones have one message only.
    assert_eq!(said.lines().filter(|line| !line.contains(": carried")).count(), 4, "{said}");
    assert!(said.contains("until the program called exec"), "{said}");
}

#[test]
fn an_end_whose_peer_is_killed_sees_the_end_or_a_reset() {
    let directory = Directory::new("kills");
    let program = directory.program("kills.c", &["-pthread"]);
    let said = same(&program, &["60", "1"]);
    assert_eq!(said, "60 killed, 0 descriptors too many, 0 mappings left\n");
}

#[test]
fn a_process_with_busy_threads_may_fork() {
    let directory = Directory::new("forks");
    let program = directory.program("forks.c", &["-pthread"]);
    assert_eq!(same(&program, &["30"]), "30 forks, all bytes right\n");
}

#[test]
fn children_of_fork_go_on_with_a_connection_that_is_carried() {
    let directory = Directory::new("again");
    let program = directory.program("again.c", &[]);
    let plain = output(&mut Command::new(&program));
    let carried = output(run([&program]).env("MEETS", "1"));
    let by_tcp = |line: &str| line.rsplit_once(": ").expect("each line says it").0.to_owned();
    let stages = |text: &str| text.lines().map(by_tcp).collect::<Vec<_>>();
    assert_eq!(stages(&stdout(&carried)), stages(&stdout(&plain)), "{}", stderr(&carried));
    assert!(stdout(&plain).lines().all(|line| line.ends_with(": by TCP")));
    for line in stdout(&carried).lines() {
        let has_it = line.starts_with("a program has it");
        assert_eq!(line.ends_with(": by TCP"), has_it, "{line}");
    }
}

#[test]
fn streams_arrive_whole_although_both_ends_fork() {
    let directory = Directory::new("forked-streams");
    let program = directory.program("checker.c", &[]);
    for sockets in ["", "return:30000"] {
        let with_forks = || {
            let mut command = run([&program]);
            command.env("APUS_SOCKETS", sockets);
            command
        };
        check_seeds(&mut with_forks(), with_forks, 40..52);
    }
}

#[test]
fn a_connection_of_few_calls_is_carried_if_that_is_wanted() {
    let directory = Directory::new("short");
    let program = directory.program("short.c", &[]);
    // The accepting end waits for the other one, but not for ever: the machine may not run it for a while.
    wait_until("both ends are carried", || {
        let output = output(run(["--explain"]).arg(&program).env("APUS_SOCKETS", "early"));
        assert_eq!(stdout(&output), "there and back\n", "{}", stderr(&output));
        stderr(&output).lines().filter(|line| line.ends_with(": carried")).count() == 2
    });
    let plain = stderr(&output(run(["--explain"]).arg(&program)));
    assert!(!plain.contains(": carried"), "{plain}");
}

#[test]
fn a_connection_may_end_while_its_peer_is_looked_for() {
    let directory = Directory::new("brief");
    let program = directory.program("brief.c", &["-pthread"]);
    assert_eq!(same(&program, &["300"]), "4800 connections, all bytes right\n");
}

#[test]
fn a_signal_handler_may_write_while_it_interrupts_a_write() {
    let directory = Directory::new("handlers");
    let program = directory.program("handlers.c", &["-pthread"]);
    for ways in ["", "return:20000"] {
        let written = output(run([&program]).env("APUS_SOCKETS", ways));
        assert_eq!(stdout(&written), "all records arrived in order\n", "{}", stderr(&written));
    }
}

#[test]
fn waits_end_when_they_do_over_tcp() {
    let directory = Directory::new("waits");
    let program = directory.program("waits.c", &["-pthread"]);
    assert!(same(&program, &[]).ends_with("threads: all woken\n"));
    assert_eq!(same(&program, &["many"]), "many: woken\n");
    let explained = stderr(&output(run(["--explain"]).arg(&program).arg("many")));
    assert_eq!(
        explained.lines().filter(|line| line.ends_with(": carried")).count(),
        2,
        "{explained}"
    );
}

#[test]
fn connections_that_are_over_leave_no_descriptor() {
    let directory = Directory::new("leaks");
    assert_eq!(same(&directory.program("leaks.c", &[]), &[]), "few\n");
}

/// Kills a program when it is dropped.
pub(crate) struct Server(pub(crate) Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends known streams both ways. The two commands start the two ends.
fn check_streams(server: &mut Command, client: impl Fn() -> Command) -> String {
    check_seeds(server, client, 0..12)
}

/// The same for streams of these seeds.
fn check_seeds(server: &mut Command, client: impl Fn() -> Command, seeds: Range<u64>) -> String {
    let mut server =
        Server(server.arg("server").stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut port = String::new();
    let mut lines = BufReader::new(server.0.stdout.take().expect("it is piped"));
    lines.read_line(&mut port).expect("the server prints its port");
    let mut said = String::new();
    for seed in seeds {
        let seed = seed.to_string();
        let client = output(client().args(["client", port.trim(), &seed, "4000000"]));
        assert!(client.status.success(), "{}: {}", client.status, stderr(&client));
        said.push_str(&stderr(&client));
    }
    said
}

#[test]
fn streams_arrive_whole_through_memory_by_tcp_and_in_turns() {
    let directory = Directory::new("streams");
    let program = directory.program("checker.c", &[]);
    let plain = || Command::new(&program);
    let carried = |sockets: &str| {
        let mut command = run(["--explain"]);
        command.arg(&program).env("APUS_SOCKETS", sockets);
        command
    };
    for sockets in ["", "return:20000", "return:300000"] {
        let said = check_streams(&mut carried(sockets), || {
            let mut client = carried(sockets);
            client.env("MEETS", "1");
            client
        });
        let lines: Vec<&str> = said.lines().collect();
        let carried = lines.iter().filter(|line| line.ends_with(": carried"));
        assert_eq!((lines.len(), carried.count()), (12, 12), "{said}");
    }
    let said = check_streams(&mut plain(), || carried(""));
    assert!(said.lines().all(|line| line.contains("not carried")), "{said}");
    check_streams(&mut carried(""), plain);
    let said = check_streams(&mut carried(""), || carried("off"));
    assert!(said.lines().all(|line| line.contains("not carried")), "{said}");
}

#[test]
fn the_exit_status_is_the_programs() {
    let directory = Directory::new("status");
    let script = directory.script("script", "#!/bin/sh\nexit $1\n");
    assert_eq!(output(run([&script]).arg("37")).status.code(), Some(37));
    assert_eq!(output(&mut run(["sh", "-c", "kill -9 $$"])).status.signal(), Some(9));
    let arguments = output(&mut run(["printf", "%s,", "--explain", "-x", "a b", ""]));
    assert_eq!(stdout(&arguments), "--explain,-x,a b,,");
    let zero = directory.file("another-name");
    symlink("/bin/sh", &zero).expect("the directory is ours");
    let path = env::join_paths([&directory.0]).expect("no colon in it");
    let named = output(run(["another-name", "-c", "echo $0"]).env("PATH", path));
    assert_eq!(stdout(&named), "another-name\n");
}

#[test]
fn what_cannot_be_started_is_said_in_a_line() {
    let directory = Directory::new("wrong");
    let text = directory.file("text");
    fs::write(&text, "no program").expect("the directory is ours");
    let text = text.to_str().expect("it is text");
    let cases = [
        (vec!["no-such-program"], 127, "cannot find the program `no-such-program` in PATH"),
        (vec!["/no/such/program"], 127, "cannot find the program `/no/such/program`"),
        (vec![text], 126, "is not executable"),
        (vec!["/"], 126, "is not executable"),
        (vec![], 2, "PROGRAM"),
        (vec!["--no-such-option", "true"], 2, "--no-such-option"),
    ];
    for (arguments, code, words) in cases {
        let output = output(&mut run(&arguments));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.starts_with("apus: ") && message.contains(words), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let broken = directory.script("broken", "#!/no/such/interpreter\n");
    assert_eq!(output(run([&broken]).env("LC_ALL", "C")).status.code(), Some(127));
}

#[test]
fn the_library_is_where_the_environment_says() {
    let missing = output(run(["true"]).env("APUS_PRELOAD", "/no/such/library.so"));
    assert_eq!(missing.status.code(), Some(126));
    assert!(
        stderr(&missing).contains("APUS_PRELOAD is `/no/such/library.so`"),
        "{}",
        stderr(&missing)
    );

    let preloaded = |before: Option<&str>| {
        let mut command = run(["sh", "-c", "echo $LD_PRELOAD"]);
        if let Some(before) = before {
            command.env("LD_PRELOAD", before);
        }
        stdout(&output(&mut command)).trim().to_owned()
    };
    let ours = preloaded(None);
    assert!(ours.ends_with("/libapus_preload.so"), "{ours}");
    assert_eq!(preloaded(Some(&ours)), ours, "once is enough");
    let other = "/lib/no-such-library.so";
    assert_eq!(preloaded(Some(other)), format!("{other}:{ours}"));

    let directory = Directory::new("a colon:and a space");
    let library = directory.file("libapus_preload.so");
    fs::copy(&ours, &library).expect("the directory is ours");
    let unusable = output(run(["true"]).env("APUS_PRELOAD", &library));
    assert_eq!(unusable.status.code(), Some(2), "{}", stderr(&unusable));
    assert!(stderr(&unusable).contains("a colon or a space"));
}

#[test]
fn programs_that_cannot_be_preloaded_run_plain() {
    let directory = Directory::new("plain");
    let runs_plain = |program: &Path, why: &str| {
        let output = output(run([program.as_os_str()]).arg("arguments"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(11), "{message}");
        assert!(message.contains("runs plain: ") && message.contains(why), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    match directory.compiled("cc", "arguments.c", &["-static"], "static") {
        Some(program) => runs_plain(&program, "statically linked"),
        None => skipped("the C library is not installed for static linking"),
    }
    match directory.compiled("musl-gcc", "arguments.c", &[], "musl") {
        Some(program) => {
            runs_plain(&program, "musl");
            let script = directory.script("script", &format!("#!{} x\n", program.display()));
            runs_plain(&script, "musl");
        }
        None => skipped("musl-gcc is not installed"),
    }
    let setuid = directory.program("arguments.c", &[]);
    let is_root =
        Command::new("chown").args(["65534"]).arg(&setuid).status().is_ok_and(|s| s.success());
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("the file is ours");
    if is_root {
        runs_plain(&setuid, "setuid");
    } else {
        skipped("only root can make a program setuid to another user");
    }
}
