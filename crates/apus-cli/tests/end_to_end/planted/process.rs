//! Processes with faults: this test program, started again as one of its tests.

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus::net::{Capabilities, Descriptors, Link, LinkCounters, Path};
use apus::{Address, Config, Links, Node};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};

use crate::traces::Directory;

/// Length of a fault, much longer than a call takes.
pub(crate) const SLOW: Duration = Duration::from_millis(200);

/// Number of calls of a client. The slowest percent of them is one call, the slow one.
const CALLS: usize = 60;

const ROLE: &str = "APUS_TEST_ROLE";
const SERVER: &str = "APUS_TEST_SERVER";

/// Start of the lines of the test program that are meant for the test.
const MARK: &str = "planted: ";

/// A process with a role, which records all its calls in a directory.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: &str, server: &str, directory: &Directory) -> Self {
        let program = env::current_exe().expect("the program has a path");
        let mut child = Command::new(program)
            .args(["planted::process::of_a_test", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(SERVER, server)
            .env("APUS_TRACE", directory.path())
            .env("APUS_TRACE_CALLS", "all")
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Self { child, stdout }
    }

    /// The next line of the process for the test.
    pub(crate) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.stdout.read_line(&mut line).expect("it writes text");
            assert!(read > 0, "the process ended before it wrote a line");
            if let Some((_, text)) = line.split_once(MARK) {
                return text.trim().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(kill.expect("the system has a kill command").success());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The name of the process in the trace.
    pub(crate) fn program(&self) -> String {
        let name = env::current_exe().expect("the program has a path");
        let name = name.file_name().and_then(|name| name.to_str()).expect("it is UTF-8");
        name.to_owned()
    }

    /// Waits until the process ends by itself.
    pub(crate) fn finish(mut self) {
        io::copy(&mut self.stdout.by_ref(), &mut io::sink()).expect("it writes text");
        assert!(self.child.wait().expect("it is a child of this process").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "it is a process of other tests"]
fn of_a_test() {
    let server = env::var(SERVER).unwrap_or_default();
    match env::var(ROLE).as_deref() {
        Ok("server") => serve(),
        Ok("caller") => call(&server),
        Ok("hasty caller") => call_hastily(&server),
        Ok("late taker") => take_late(&server),
        Ok("steady caller") => call_steadily(&server),
        Ok("two threads") => contend(&server),
        _ => {}
    }
}

fn config() -> Config {
    let mut config = Config::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    config.listen(any).link(Links::Udp);
    config
}

fn node() -> Node {
    Node::start(&config()).expect("loopback is there")
}

fn address(server: &str) -> Address {
    Address::new(server.parse().expect("the test gave an address"), 4000)
}

fn say(text: impl std::fmt::Display) {
    println!("{MARK}{text}");
}

/// Answers requests one after the other until it is killed, and sleeps during requests that demand it.
fn serve() {
    let node = node();
    let service = node.bind(4000).expect("the port is free");
    say(node.local_addr());
    while let Ok(request) = service.recv() {
        if request.body() == &b"slow"[..] {
            thread::sleep(SLOW);
        }
        let _ = request.reply("answer");
    }
}

fn call(server: &str) {
    let node = node();
    let client = node.client().expect("a new node takes clients");
    for number in 0..CALLS {
        let body = if number == CALLS / 2 { "slow" } else { "fast" };
        client.call(address(server), body).wait().expect("the server answers");
    }
}

/// Makes a call that ends before its answer can come, and reports its error.
fn call_hastily(server: &str) {
    let node = node();
    let client = node.client().expect("a new node takes clients");
    client.call(address(server), "fast").wait().expect("the server answers");
    let error =
        client.call(address(server), "slow").deadline(SLOW / 2).wait().expect_err("it is too late");
    say(error);
}

fn take_late(server: &str) {
    let node = node();
    let client = node.client().expect("a new node takes clients");
    for number in 0..CALLS {
        let call = client.call(address(server), "fast").start().expect("the server answers");
        if number == CALLS / 2 {
            thread::sleep(SLOW);
        }
        call.wait().expect("the server answers");
    }
}

/// Makes calls until one has met the stop of the server. Further calls would overwrite the records of the stop.
fn call_steadily(server: &str) {
    let node = node();
    let client = node.client().expect("a new node takes clients");
    client.call(address(server), "fast").wait().expect("the server answers");
    say("calling");
    loop {
        let began = Instant::now();
        client.call(address(server), "fast").wait().expect("the server answers");
        if began.elapsed() > SLOW / 2 {
            return;
        }
    }
}

/// Lets two threads use a node whose link takes long to flush.
fn contend(server: &str) {
    let link = config().open_link().expect("loopback is there");
    let slow = Arc::new(AtomicBool::new(false));
    let link = Box::new(SlowLink { inner: link, slow: Arc::clone(&slow) });
    let node = Node::with_link(link, &config()).expect("the link is good");
    let client = node.client().expect("a new node takes clients");
    client.call(address(server), "fast").wait().expect("the server answers");
    slow.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..5 {
                    client.call(address(server), "fast").wait().expect("the server answers");
                }
            });
        }
    });
}

/// A link whose flush takes long, as a system call may, while the thread holds the engine's lock.
struct SlowLink {
    inner: Box<dyn Link>,
    slow: Arc<AtomicBool>,
}

impl PacketSink for SlowLink {
    fn send(&mut self, packet: Transmit<'_>) {
        self.inner.send(packet);
    }

    fn max_packet(&self, path: PathId) -> usize {
        self.inner.max_packet(path)
    }
}

impl Link for SlowLink {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.inner.recv(receiver)
    }

    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.inner.resolve(to)
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        self.inner.find(address)
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.inner.address(path)
    }

    fn flush(&mut self) {
        if self.slow.load(Ordering::Relaxed) {
            thread::sleep(SLOW / 4);
        }
        self.inner.flush();
    }

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        self.inner.poll_error()
    }

    fn descriptors(&self) -> Descriptors {
        self.inner.descriptors()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive_capacity(&self) -> usize {
        self.inner.receive_capacity()
    }

    fn path(&self, path: PathId) -> Path {
        self.inner.path(path)
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}
