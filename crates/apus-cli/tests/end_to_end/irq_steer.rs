//! `apus irq attach --steer` with nginx, on a veth pair with two queues.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio, id};
use std::thread;

use apus_irq::{ProcessId, Program, set_feature};
use nix::sched::{CloneFlags, setns};

use crate::irq::{Server, Started, children, kill};
use crate::program::{stderr, wait_until};
use crate::run::Directory;
use crate::skipped::skipped;

/// The address of nginx, in a namespace of the test.
const AT: &str = "10.91.0.2:8080";

/// Number of connections of a round, large enough that a hash does not split them by queues.
const CONNECTIONS: usize = 40;

/// Two namespaces, for a client (0) and a server (1), with two queues between them.
struct Pair([String; 2]);

impl Pair {
    fn new(test: &str) -> Option<Self> {
        let pair = Self(["client", "server"].map(|name| format!("apus-{test}-{name}-{}", id())));
        let [client, server] = &pair.0;
        let queues = "numrxqueues 2 numtxqueues 2";
        let made = ip(&format!("netns add {client}"))
            && ip(&format!("netns add {server}"))
            && ip(&format!(
                "link add wire netns {client} {queues} type veth peer name wire netns {server} {queues}"
            ));
        if !made {
            skipped("no network namespaces");
            return None;
        }
        for (number, name) in pair.0.iter().enumerate() {
            assert!(ip(&format!("-n {name} addr add 10.91.0.{}/24 dev wire", number + 1)));
            assert!(ip(&format!("-n {name} link set wire up")));
        }
        for kind in ["", "6", "-ecn", "-mangleid"] {
            let feature = format!("tx-tcp{kind}-segmentation");
            pair.inside(0, || set_feature("wire", &feature, false)).expect("veth has TSO");
        }
        pair.inside(1, || set_feature("wire", "rx-gro", true)).expect("veth has GRO");
        Some(pair)
    }

    fn inside<T: Send>(&self, place: usize, what: impl FnOnce() -> T + Send) -> T {
        let run = || {
            let namespace =
                File::open(format!("/run/netns/{}", self.0[place])).expect("it was made");
            setns(&namespace, CloneFlags::CLONE_NEWNET).expect("who made it may enter it");
            what()
        };
        thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
    }

    /// A command in the namespace of the server.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[1], program]);
        command
    }

    /// Opens connections. Each of them has received an answer.
    fn connections(&self) -> Vec<TcpStream> {
        let connect = || TcpStream::connect(AT).expect("nginx listens");
        let mut all: Vec<_> = self.inside(0, || (0..CONNECTIONS).map(|_| connect()).collect());
        for connection in &mut all {
            connection.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is connected");
            assert!(connection.read(&mut [0; 64]).expect("it answers") > 0);
        }
        all
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

/// The number of connections of each worker of nginx by their NAPI instance.
fn of_workers(nginx: u32) -> Vec<BTreeMap<u32, usize>> {
    let pid = i32::try_from(nginx).expect("the kernel's numbers are smaller");
    let family = ProcessId::of(pid).map(|it| it.with_descendants()).unwrap_or_default();
    let programs = family.iter().filter_map(|it| Program::open(it.pid).ok());
    let sets = programs.filter_map(|program| program.epoll_sets().ok()).flatten();
    sets.map(|set| set.napis).collect()
}

/// Whether all connections of each worker have one instance, and both instances have some.
fn is_split(workers: &[BTreeMap<u32, usize>]) -> bool {
    let ids: BTreeSet<_> = workers.iter().flat_map(BTreeMap::keys).collect();
    workers.iter().all(|napis| napis.len() == 1) && ids.len() == 2
}

/// The arguments of nginx with some workers in the foreground; `None` if it is not installed.
fn nginx(directory: &Directory, workers: usize, listen: &str) -> Option<Vec<String>> {
    if !Command::new("nginx").arg("-v").output().is_ok_and(|output| output.status.success()) {
        skipped("nginx is not installed");
        return None;
    }
    let configuration = format!(
        "user root; daemon off; worker_processes {workers}; pid {}; error_log stderr; events {{}} \
         http {{ access_log off; server {{ listen {listen}; return 200 ok; }} }}",
        directory.file("pid").display()
    );
    let file = directory.file("conf");
    std::fs::write(&file, configuration).expect("the directory is ours");
    Some(["-e", "stderr", "-c", &file.display().to_string()].map(str::to_owned).to_vec())
}

/// Starts a server with workers, and waits for their epoll sets.
fn serving(mut command: Command, workers: usize) -> Server {
    let server = Server(Started(command.stdin(Stdio::null()).spawn().expect("ip starts it")));
    wait_until("all workers have an epoll set", || of_workers(server.0.0.id()).len() == workers);
    server
}

/// Whether a round of new connections is split. The connections are closed afterwards.
fn splits(pair: &Pair, server: &Server) -> bool {
    let connections = pair.connections();
    let workers = of_workers(server.0.0.id());
    drop(connections);
    println!("{workers:?}");
    let are_closed = || of_workers(server.0.0.id()).iter().all(BTreeMap::is_empty);
    wait_until("the connections are closed", are_closed);
    is_split(&workers)
}

#[test]
fn connections_go_to_the_worker_of_their_queue_until_attach_ends_or_is_killed() {
    let Some(pair) = Pair::new("steer") else { return };
    let directory = Directory::new("irq-steer");
    let Some(arguments) = nginx(&directory, 2, &format!("{AT} reuseport")) else { return };
    let mut command = pair.command("nginx");
    command.args(arguments);
    let nginx = serving(command, 2);
    let state = directory.file("state");
    let groups = || {
        let entries = std::fs::read_dir(&state).into_iter().flatten().flatten();
        entries.filter(|it| it.file_name().to_string_lossy().starts_with("group-")).count()
    };
    let split = || splits(&pair, &nginx);
    assert!(!split(), "a hash does not split them");
    for (killed, by_hand) in [("TERM", false), ("KILL", false), ("KILL", true)] {
        let mut attach = pair.command(env!("CARGO_BIN_EXE_apus"));
        attach.args([
            "irq",
            "attach",
            &nginx.0.0.id().to_string(),
            "--mode",
            "suspend:20",
            "--steer",
        ]);
        attach.arg("wire").arg("--state").arg(&state);
        let attach = attach.stderr(Stdio::null()).spawn();
        let mut attach = Started(attach.expect("the program starts"));
        let wanted = |set: &apus_irq::EpollSet| set.parameters.prefer_busy_poll;
        wait_until("it is attached", || {
            let pid = i32::try_from(nginx.0.0.id()).expect("it is small");
            let family = ProcessId::of(pid).expect("nginx runs").with_descendants();
            let sets = family.iter().filter_map(|it| Program::open(it.pid).ok()?.epoll_sets().ok());
            let sets: Vec<_> = sets.flatten().collect();
            sets.len() == 2 && sets.iter().all(wanted) && groups() == 1
        });
        assert!(split(), "the filter splits them");
        for guardian in children(attach.0.id(), "apus").iter().filter(|_| by_hand) {
            kill(guardian, "KILL");
        }
        attach.signal(killed);
        attach.0.wait().expect("it is a child of this process");
        if by_hand {
            assert!(split(), "nobody is left to take the filter away");
            let mut restore = pair.command(env!("CARGO_BIN_EXE_apus"));
            let restored = restore.args(["irq", "restore", "--state"]).arg(&state).output();
            let text = String::from_utf8(restored.expect("the program starts").stdout);
            assert!(text.expect("it is text").contains("listeners of 10.91.0.2:8080: restored"));
        }
        wait_until("the filter is taken away", || groups() == 0);
        assert!(!split(), "the hash is back");
    }
}

#[test]
fn a_program_that_is_started_with_more_workers_than_queues_is_steered() {
    let Some(pair) = Pair::new("steerrun") else { return };
    let directory = Directory::new("irq-steerrun");
    let Some(arguments) = nginx(&directory, 4, &format!("{AT} reuseport")) else { return };
    let mut command = pair.command(env!("CARGO_BIN_EXE_apus"));
    command.args("irq run --mode suspend:20 --steer wire --state".split(' '));
    command.arg(directory.file("state")).args(["--", "nginx"]).args(arguments);
    command.stderr(Stdio::null());
    let run = serving(command, 4);
    wait_until("the filter splits the connections", || splits(&pair, &run));
}

#[test]
fn a_program_that_cannot_be_steered_is_refused() {
    let Some(pair) = Pair::new("nosteer") else { return };
    let directory = Directory::new("irq-nosteer");
    let Some(arguments) = nginx(&directory, 2, AT) else { return };
    let mut command = pair.command("nginx");
    command.args(arguments);
    let nginx = serving(command, 2);
    let attach = |target: &str| {
        let mut attach = pair.command(env!("CARGO_BIN_EXE_apus"));
        attach.args([
            "irq",
            "attach",
            &nginx.0.0.id().to_string(),
            "--mode",
            "suspend:20",
            "--steer",
        ]);
        attach.arg(target).arg("--state").arg(directory.file("state"));
        attach.output().expect("the program starts")
    };
    let refused = attach("wire");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("SO_REUSEPORT"), "{}", stderr(&refused));
    let refused = attach("wire:0");
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("exactly one device, without a queue"),
        "{}",
        stderr(&refused)
    );
}
