//! IRQ suspension for unmodified programs: attached while they are under load, shown to act by the kernel's timers, and restored.
//! It needs root, and is skipped with a message otherwise.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use apus_irq::{EpollParameters, NapiParameters, Program};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::irq::{Host, Started, suspend20, tracepoints_are_there};
use crate::program::{stderr, wait_until};
use crate::skipped::skipped;

/// Address of the servers. In a network namespace of the test, every port is free.
pub(crate) const AT: &str = "10.88.0.2:7000";

/// A directory of a test, removed when it is dropped.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("apus-irq-{test}-{}", id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server in the host's namespace, ended when it is dropped.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(host: &Host, program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host.wire.names[1], program]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self(command.spawn().expect("`ip` starts"));
        wait_until("the server listens", || {
            let ended = server.0.try_wait().expect("it is a child of this process");
            assert_eq!(ended, None, "{program} ended");
            host.inside_of(0, || TcpStream::connect(AT)).is_ok()
        });
        server
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("the kernel's numbers are smaller")
    }

    /// The parameters of its epoll sets, and of the epoll sets of its children.
    pub(crate) fn epoll_parameters(&self) -> BTreeMap<(i32, i32), EpollParameters> {
        let program = Program::open(self.pid()).expect("it runs");
        let family = program.id().with_descendants();
        let programs = family.iter().map(|it| Program::open(it.pid).expect("it runs"));
        let sets = |program: Program| {
            let (pid, sets) = (program.id().pid, program.epoll_sets().expect("root may read it"));
            sets.into_iter().map(move |set| ((pid, set.fd), set.parameters))
        };
        programs.flat_map(sets).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGKILL would leave the workers of nginx running.
        let _ = Command::new("kill").args(["-s", "TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

/// Clients in the peer's namespace, each with one connection and one request at a time.
struct Load {
    ends: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    const CLIENTS: usize = 4;

    fn start(host: &Host, request: &'static [u8], answer_ends: &'static [u8]) -> Self {
        let (ends, answers) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let namespace = format!("/run/netns/{}", host.wire.names[0]);
        let client = || {
            let (ends, answers) = (Arc::clone(&ends), Arc::clone(&answers));
            let namespace = File::open(&namespace).expect("`ip netns add` made it");
            thread::spawn(move || {
                setns(&namespace, CloneFlags::CLONE_NEWNET).expect("root may enter it");
                let at: SocketAddr = AT.parse().expect("it is an address");
                let mut connection = TcpStream::connect(at).expect("it listens");
                connection.set_nodelay(true).expect("TCP has it");
                while !ends.load(Ordering::Relaxed) {
                    connection.write_all(request).expect("it is connected");
                    read_until(&mut connection, answer_ends);
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..Self::CLIENTS).map(|_| client()).collect();
        let load = Self { ends, answers, clients };
        load.more();
        load
    }

    /// Waits for more answers.
    fn more(&self) {
        let wanted = self.answers.load(Ordering::Relaxed) + 100;
        wait_until("answers", || self.answers.load(Ordering::Relaxed) >= wanted);
    }

    fn end(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().expect("every request was answered");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn read_until(connection: &mut TcpStream, end: &[u8]) {
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(end) {
        let length = connection.read(&mut bytes).expect("it is connected");
        assert!(length > 0, "the server closed the connection");
        answer.extend_from_slice(&bytes[..length]);
    }
}

/// The findings of `apus irq doctor`: the verdict and text of each finding, and the counts.
fn doctor(host: &Host, subject: &str) -> (BTreeMap<String, (String, String)>, Value) {
    let output = host.irq(&format!("doctor {subject} --json -"));
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON: {}", stderr(&output)));
    let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().expect("findings are a list");
    let of = |it: &Value| {
        let found = format!("{} {}", text(it, "found"), text(it, "change"));
        (text(it, "name"), (text(it, "verdict"), found))
    };
    let findings: BTreeMap<_, _> = findings.iter().map(of).collect();
    let bad = findings.values().any(|(verdict, _)| verdict == "bad");
    assert_eq!(output.status.code(), Some(i32::from(bad)), "{}", stderr(&output));
    (findings, report["watch"].clone())
}

/// A host with a wire on which local TCP packets come by a NAPI instance.
fn host(test: &str) -> Option<Host> {
    let host = Host::new(test)?;
    host.without_tso();
    Some(host)
}

/// Attaches to the program under load, checks that suspension acts, ends the attachment, and checks that all values are restored.
fn is_suspended_and_restored(host: &Host, server: &Server, name: &str, load: &Load) {
    if !tracepoints_are_there() {
        return;
    }
    let pid = server.pid().to_string();
    let before = server.epoll_parameters();
    let (findings, watch) = doctor(host, &pid);
    for finding in ["prefer", "defer", "gro-flush", "irq-suspend", "acts"] {
        assert_eq!(findings[finding].0, "bad", "{finding}: {findings:?}");
    }
    for finding in ["epoll", "NAPI ids of sockets", "NAPI instances"] {
        assert_eq!(findings[finding].0, "good", "{finding}: {findings:?}");
    }
    assert_eq!((&watch["long_rearms"], &watch["busy_poll_packets"]), (&0.into(), &0.into()));
    let mut attach = host.command(&format!("attach {pid} --mode suspend:20 eth0"));
    let attach = attach.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut attach = Started(attach.expect("the program starts"));
    let is_set = || {
        let sets = server.epoll_parameters();
        let wanted = suspend20().epoll();
        if attach.0.try_wait().expect("it is a child of this process").is_some() {
            let mut said = String::new();
            let stderr = attach.0.stderr.as_mut().expect("it is a pipe");
            stderr.read_to_string(&mut said).expect("it writes text");
            panic!("the attachment ended: {said}");
        }
        host.parameters() == [suspend20().napi()] && sets.values().all(|it| *it == wanted)
    };
    wait_until("the mode is set", is_set);
    load.more();
    let (findings, watch) = doctor(host, &pid);
    println!("{name}: {watch}");
    for finding in ["epoll", "prefer", "defer", "gro-flush", "irq-suspend", "acts", "own queue"] {
        assert_eq!(findings[finding].0, "good", "{finding}: {findings:?}");
    }
    for count in ["long_rearms", "task_packets", "busy_poll_packets"] {
        assert!(watch[count].as_u64().is_some_and(|it| it > 0), "{name}: {watch}");
    }
    attach.signal("TERM");
    attach.0.wait().expect("it is a child of this process");
    assert_eq!(host.parameters(), [NapiParameters::default()]);
    let mut after = server.epoll_parameters();
    after.retain(|set, _| before.contains_key(set));
    assert_eq!(after, before);
    load.more();
    let (findings, watch) = doctor(host, &pid);
    println!("{name}, restored: {watch}");
    assert_eq!((&watch["long_rearms"], &watch["busy_poll_packets"]), (&0.into(), &0.into()));
    assert_eq!(findings["prefer"].0, "bad", "{findings:?}");
}

/// Whether a program is installed. Prints a message otherwise.
fn is_installed(program: &str) -> bool {
    let mut found = Command::new(program);
    found.arg("--help").stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = match found.status() {
        Err(error) => error.kind() != ErrorKind::NotFound,
        Ok(_) => true,
    };
    if !is_there {
        skipped(format!("{program} is not installed"));
    }
    is_there
}

#[test]
fn memcached_is_attached_under_load() {
    let Some(host) = host("irqmemcached").filter(|_| is_installed("memcached")) else { return };
    let arguments = ["-u", "root", "-l", "10.88.0.2", "-p", "7000", "-U", "0", "-t", "2"];
    let server = Server::start(&host, "memcached", &arguments);
    let load = Load::start(&host, b"get key\r\n", b"END\r\n");
    is_suspended_and_restored(&host, &server, "memcached", &load);
    load.end();
}

#[test]
fn redis_is_attached_under_load() {
    let Some(host) = host("irqredis").filter(|_| is_installed("redis-server")) else { return };
    let directory = Directory::new("redis");
    let arguments = [
        ["--bind", "10.88.0.2"],
        ["--port", "7000"],
        ["--protected-mode", "no"],
        ["--save", ""],
        ["--dir", directory.0.to_str().expect("it is text")],
    ];
    let server = Server::start(&host, "redis-server", arguments.as_flattened());
    let load = Load::start(&host, b"PING\r\n", b"+PONG\r\n");
    is_suspended_and_restored(&host, &server, "redis", &load);
    load.end();
}

/// The path of nginx, including the directories of administrators' programs.
fn nginx() -> Option<&'static str> {
    ["nginx", "/usr/sbin/nginx"]
        .into_iter()
        .find(|it| Command::new(it).arg("-v").stderr(Stdio::null()).status().is_ok())
}

/// Arguments with which nginx answers at [`AT`]. `daemon` is `on` if it goes to the background, else `off`.
fn nginx_arguments(directory: &Directory, daemon: &str) -> [String; 4] {
    let path = directory.0.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|it| format!("{it}_temp_path {path}/{it};\n"))
        .concat();
    let configuration = format!(
        "user root;\ndaemon {daemon};\nworker_processes 2;\npid {path}/pid;\nerror_log {path}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{\naccess_log off;\nkeepalive_requests 1000000000;\n{temporary}\
         server {{ listen {AT}; location / {{ return 200 \"pong\\n\"; }} }}\n}}\n"
    );
    let file = directory.0.join("nginx.conf");
    fs::write(&file, configuration).expect("a file in the directory");
    let file = file.to_str().expect("it is text").to_owned();
    ["-p".to_owned(), path.to_string(), "-c".to_owned(), file]
}

#[test]
fn nginx_is_attached_under_load() {
    let Some(nginx) = nginx() else { return skipped("nginx is not installed") };
    let Some(host) = host("irqnginx") else { return };
    let directory = Directory::new("nginx");
    let arguments = nginx_arguments(&directory, "off");
    let server = Server::start(&host, nginx, &arguments.each_ref().map(String::as_str));
    let load = Load::start(&host, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n\r\npong\n");
    is_suspended_and_restored(&host, &server, "nginx", &load);
    load.end();
}

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/programs").join(file)
}

/// The echo server in C, linked statically; `None` without a compiler.
fn echo(directory: &Directory) -> Option<String> {
    let program = directory.0.join("echo");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-static", "-o"]).arg(&program).arg(source("echo.c"));
    match cc.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            skipped(format!("no static linking: {}", stderr(&output).trim()));
            return None;
        }
        Err(error) => {
            skipped(format!("no C compiler: {error}"));
            return None;
        }
    }
    Some(program.to_str().expect("it is text").to_owned())
}

#[test]
fn a_static_program_is_attached_under_load() {
    let Some(host) = host("irqstatic") else { return };
    let directory = Directory::new("static");
    let Some(program) = echo(&directory) else { return };
    let server = Server::start(&host, &program, &["10.88.0.2", "7000", "epoll"]);
    let load = Load::start(&host, b"ping\n", b"ping\n");
    is_suspended_and_restored(&host, &server, "static C", &load);
    load.end();
}

#[test]
fn a_program_in_go_is_attached_under_load() {
    let Some(host) = host("irqgo") else { return };
    let directory = Directory::new("go");
    let program = directory.0.join("echo");
    let go = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|it| Command::new(it).arg("version").stdout(Stdio::null()).status().is_ok());
    let Some(go) = go else { return skipped("go is not installed") };
    let mut build = Command::new(go);
    build.arg("build").arg("-o").arg(&program).arg(source("echo.go"));
    // Builds without a network and without a C compiler.
    build.envs([("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0"), ("GO111MODULE", "off")]);
    let built = build.output().expect("go starts");
    assert!(built.status.success(), "{}", stderr(&built));
    let program = program.to_str().expect("it is text");
    let server = Server::start(&host, program, &["10.88.0.2", "7000"]);
    let load = Load::start(&host, b"ping\n", b"ping\n");
    is_suspended_and_restored(&host, &server, "Go", &load);
    load.end();
}

/// Runs a server that goes to the background by `apus irq run`. The command follows the server there, a signal ends the server, and
/// its exit code becomes the exit code of `run`.
fn is_followed(host: &Host, program: &[&str], request: &'static [u8], answer: &'static [u8]) {
    let mut run = host.command("run --mode suspend:20 eth0");
    run.arg("--").args(program);
    let mut run =
        Started(run.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let mut lines = BufReader::new(run.0.stderr.take().expect("it is a pipe")).lines();
    let followed = lines.by_ref().map_while(Result::ok).find(|it| it.contains("background"));
    let followed = followed.expect("it says that it follows");
    wait_until("the server listens", || host.inside_of(0, || TcpStream::connect(AT)).is_ok());
    let load = Load::start(host, request, answer);
    let words = followed.split("(pid ").nth(1).expect("it names the process");
    let pid: i32 = words.split(')').next().and_then(|it| it.parse().ok()).expect("it is a number");
    wait_until("its epoll sets are set", || {
        let program = Program::open(pid).expect("it runs");
        let family = program.id().with_descendants();
        let sets = family.iter().filter_map(|it| Program::open(it.pid).ok()?.epoll_sets().ok());
        let sets: Vec<_> = sets.flatten().map(|set| set.parameters).collect();
        !sets.is_empty() && sets.iter().all(|it| *it == suspend20().epoll())
    });
    assert_eq!(host.parameters(), [suspend20().napi()]);
    load.more();
    load.end();
    assert!(matches!(run.0.try_wait(), Ok(None)), "it waits for the server");
    run.signal("TERM");
    let status = run.0.wait().expect("it is a child of this process");
    assert_eq!(status.code(), Some(0), "{followed}");
    assert_eq!(host.parameters(), [NapiParameters::default()]);
    assert!(host.inside_of(0, || TcpStream::connect(AT)).is_err(), "the server has ended");
}

#[test]
fn memcached_in_the_background_is_followed() {
    let Some(host) = host("irqdmemcached").filter(|_| is_installed("memcached")) else { return };
    let program = ["memcached", "-d", "-u", "root", "-l", "10.88.0.2", "-p", "7000", "-U", "0"];
    is_followed(&host, &program, b"get key\r\n", b"END\r\n");
}

#[test]
fn redis_in_the_background_is_followed() {
    let Some(host) = host("irqdredis").filter(|_| is_installed("redis-server")) else { return };
    let directory = Directory::new("dredis");
    let path = directory.0.to_str().expect("it is text");
    let program = [
        ["redis-server", "--daemonize"],
        ["yes", "--bind"],
        ["10.88.0.2", "--port"],
        ["7000", "--protected-mode"],
        ["no", "--save"],
        ["", "--dir"],
        [path, "--pidfile"],
    ];
    let mut program = program.as_flattened().to_vec();
    let pidfile = format!("{path}/pid");
    program.push(&pidfile);
    is_followed(&host, &program, b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn nginx_in_the_background_is_followed() {
    let Some(nginx) = nginx() else { return skipped("nginx is not installed") };
    let Some(host) = host("irqdnginx") else { return };
    let directory = Directory::new("dnginx");
    let arguments = nginx_arguments(&directory, "on");
    let mut program = vec![nginx];
    program.extend(arguments.iter().map(String::as_str));
    is_followed(&host, &program, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n\r\npong\n");
}

#[test]
fn a_child_of_a_shell_that_has_ended_is_followed() {
    let Some(host) = host("irqdsh") else { return };
    let directory = Directory::new("dsh");
    let Some(echo) = echo(&directory) else { return };
    // The echo server has no handler for SIGTERM.
    let shell = format!("{{ {echo} 10.88.0.2 7000 epoll; exit 0; }} &");
    is_followed(&host, &["sh", "-c", &shell], b"ping\n", b"ping\n");
}

/// Asserts verdicts of findings, and words in their texts.
fn verdicts(host: &Host, subject: &str, wanted: &[(&str, &str, &str)]) {
    let (findings, _) = doctor(host, subject);
    for (name, verdict, words) in wanted {
        let (found, text) = &findings[*name];
        assert!(found == verdict && text.contains(words), "{name}: {findings:?}");
    }
}

#[test]
fn the_doctor_names_what_keeps_suspension_from_acting() {
    let Some(host) = Host::new("irqwrong") else { return };
    let directory = Directory::new("wrong");
    let Some(program) = echo(&directory) else { return };
    {
        // With any kind of TSO, local TCP packets bypass the NAPI instance.
        let server = Server::start(&host, &program, &["10.88.0.2", "7000", "epoll"]);
        let load = Load::start(&host, b"ping\n", b"ping\n");
        let pid = server.pid().to_string();
        let wanted = [
            ("epoll", "good", ""),
            ("NAPI ids of sockets", "bad", "tx-tcp-mangleid-segmentation off"),
            ("NAPI instances", "not-known", ""),
        ];
        verdicts(&host, &pid, &wanted);
        load.end();
        let outside = crate::program::apus(&format!("irq doctor {pid} --watch 0.1"));
        let said = String::from_utf8_lossy(&outside.stdout).into_owned();
        assert!(said.contains(&format!("nsenter -t {pid} -n apus irq doctor {pid}")), "{said}");
    }
    let parameters = ["defer", "gro-flush", "irq-suspend"];
    verdicts(&host, "eth0", &parameters.map(|it| (it, "bad", "set eth0 --preset suspend:20")));
    host.succeeds("set eth0 --preset suspend:20");
    verdicts(&host, "eth0", &parameters.map(|it| (it, "good", "")));
    verdicts(&host, "eth0", &[("kept values", "good", "")]);
    let write = "echo 0 >/sys/class/net/eth0/napi_defer_hard_irqs";
    let written =
        Command::new("ip").args(["netns", "exec", &host.wire.names[1], "sh", "-c", write]).status();
    assert!(written.expect("`ip` starts").success());
    let change = "set eth0 --defer 100 --gro-flush 20 --suspend 20";
    verdicts(&host, "eth0", &[("kept values", "bad", change), ("defer", "bad", "")]);
    host.succeeds("restore eth0");
    verdicts(&host, "lo", &[("NAPI instances", "bad", "loopback has no NAPI instance")]);
}

#[test]
fn the_doctor_names_programs_that_wait_without_epoll() {
    let Some(host) = host("irqwaits") else { return };
    let directory = Directory::new("waits");
    let Some(program) = echo(&directory) else { return };
    let mut ways = vec![
        ("poll", "waiting", "in poll or select"),
        ("block", "waiting", "in a blocking receive"),
    ];
    let rings = Command::new(&program).args(["-", "0", "probe"]).status();
    match rings.expect("it was compiled").success() {
        true => ways.push(("ring", "io_uring", "1 rings")),
        false => skipped("no io_uring"),
    }
    for (way, name, seen) in ways {
        let server = Server::start(&host, &program, &["10.88.0.2", "7000", way]);
        let mut client = host.inside_of(0, || TcpStream::connect(AT)).expect("it listens");
        client.write_all(b"ping\n").expect("it is connected");
        read_until(&mut client, b"ping\n");
        let wanted = [
            ("epoll", "bad", "--preset defer:20"),
            (name, "bad", seen),
            ("NAPI ids of sockets", "good", ""),
            ("acts", "not-known", "too few for a result"),
        ];
        verdicts(&host, &server.pid().to_string(), &wanted);
    }
}

#[test]
fn without_the_right_to_watch_the_rest_is_looked_at() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("only root can give up a right");
    }
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-sys_admin,-perfmon,-syslog").arg(env!("CARGO_BIN_EXE_apus"));
    command.args(["irq", "doctor", "lo", "--json", "-", "--watch", "0.1"]);
    let mut probe = Command::new("setpriv");
    match probe.args(["--bounding-set=-sys_admin,-perfmon,-syslog", "true"]).output() {
        Ok(probed) if probed.status.success() => {}
        Ok(probed) => return skipped(format!("no setpriv: {}", stderr(&probed))),
        Err(error) => return skipped(format!("no setpriv: {error}")),
    }
    let output = command.output().expect("setpriv starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings are a list");
    let acts = findings.iter().find(|it| it["name"] == "acts").expect("it is one of them");
    assert_eq!(acts["verdict"], "not-known", "{acts}");
    let missing = report["watch"]["missing"].as_str().expect("it says what is missing");
    assert!(missing.contains("CAP_"), "{missing}");
    assert!(findings.iter().any(|it| it["name"] == "NAPI instances"), "{report}");
}
