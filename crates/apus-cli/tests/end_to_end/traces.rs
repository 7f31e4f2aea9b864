//! The time trace, recorded by nodes and by simulations, and read by `apus trace`.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use crate::program::{Server, apus, command, fails, json, stderr, wait_until};
use crate::skipped::skipped;

/// A directory that is removed when it is dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("apus-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// All files in it, as arguments.
    pub(crate) fn files(&self) -> String {
        let entries = fs::read_dir(&self.0).expect("the directory exists");
        let paths = entries.map(|entry| entry.expect("it is readable").path());
        paths.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asserts that the timeline has every stage, in the order in which a call reaches them, and that the stages add up to the round
/// trip.
fn stages_add_up(timeline: &Value) {
    let stages = timeline["stages"].as_array().expect("stages are a list");
    let names: Vec<_> = stages.iter().map(|stage| stage["stage"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"sendmsg_request"));
    assert_eq!(names.last(), Some(&"recvmsg_response"));
    assert_eq!(names.len(), 10);
    let deltas = stages.iter().map(|stage| stage["delta_mean_us"].as_f64().unwrap());
    let (sum, least) =
        deltas.fold((0.0, 0.0f64), |(sum, least), delta| (sum + delta, least.min(delta)));
    let round_trip = timeline["round_trip_mean_us"].as_f64().unwrap();
    assert!(least >= 0.0 && round_trip > 0.0, "{timeline}");
    assert!((sum - round_trip).abs() < 0.01 * round_trip, "{sum} of {round_trip}");
    let at_server = stages.iter().filter(|stage| stage["at"] == "server").count();
    assert_eq!(at_server, 5);
}

/// Both nodes leave their traces in files although the server is killed, and the traces have all stages of the calls at both ends.
#[test]
fn traces_of_two_processes_have_all_stages_of_calls() {
    let directory = Directory::new("traces-of-two");
    let path = directory.0.to_str().unwrap();
    let variables = [("APUS_TRACE", path), ("APUS_TRACE_CALLS", "all")];
    let mut server = Server::start_with("--link udp", &variables);
    let client = format!(
        "node client --link udp --servers {} --workload 100 --client-max 2 --seconds 0.1",
        server.address
    );
    let output = command(&client).envs(variables).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    server.kill();
    let files = directory.files();
    assert_eq!(files.split(' ').count(), 2, "{files}");
    let timeline = json(&format!("trace timeline --json - {files}"));
    stages_add_up(&timeline);
    let rpcs = json(&format!("trace rpcs --slowest 1 --json - {files}"));
    let id = rpcs["rpcs"][0]["id"].as_u64().expect("there are calls");
    let one = apus(&format!("trace rpcid {id} {files}"));
    let text = String::from_utf8_lossy(&one.stdout).into_owned();
    assert!(text.contains("sendmsg request") && text.contains("recvmsg_response"), "{text}");
    the_files_of_analyses_are_read(&directory.0, &files, &timeline);
    every_analysis_finds_something(&files, timeline["calls"].as_u64().expect("it is a number"));
    let page = directory.0.join("call.html");
    let done = apus(&format!("trace rpcid {id} --html {} {files}", page.display()));
    assert!(done.status.success(), "{}", stderr(&done));
    let page = fs::read_to_string(page).expect("the page was written");
    assert!(page.contains("recvmsg_response") && page.contains("class=\"packet\""), "{page}");
}

/// Analyses, each with a table that has rows whenever there are calls, and a column of it.
const ANALYSES: [(&str, &str, &str); 19] = [
    ("delay", "packets", "p50_us"),
    ("handoffs", "handoffs", "count"),
    ("p99short", "slowest", "took_us"),
    ("lost", "kinds", "sent"),
    ("ooo", "late", "count"),
    ("grants", "stages", "count"),
    ("sockqs", "queues", "requests"),
    ("pass", "nodes", "short_packets"),
    ("incoming", "threads", "bytes"),
    ("net", "ways", "bytes"),
    ("activity", "over_time", "live_mean"),
    ("longterm", "over_time", "begun"),
    ("tput --length 100", "slowest", "gbps"),
    ("sum", "events", "records"),
    ("rtt", "longest", "took_us"),
    ("minlatency", "ways", "both_ways_us"),
    ("pairs", "ways", "least_us"),
    ("gaps --threshold 1", "threads", "count"),
    ("delay", "batches", "packets"),
];

fn every_analysis_finds_something(files: &str, calls: u64) {
    for (analysis, table, column) in ANALYSES {
        let report = json(&format!("trace {analysis} --json - {files}"));
        assert!(report[table][0][column].is_number(), "{analysis}: {report:#}");
        let text = apus(&format!("trace {analysis} {files}"));
        assert!(text.status.success() && !text.stdout.is_empty(), "{analysis}");
    }
    for analysis in ["locks", "copy", "snapshot --at 1000", "timeline --length 1-200"] {
        assert!(apus(&format!("trace {analysis} {files}")).status.success(), "{analysis}");
    }
    let short = json(&format!("trace p99short --json - {files}"));
    assert!((1..=calls).contains(&short["calls"].as_u64().unwrap_or(0)), "{short:#}");
    let one = files.split(' ').next().expect("there are files");
    let diff = json(&format!("trace diff --json - {one} {one}"));
    assert_eq!(diff["differences"].as_array().map(Vec::len), Some(0), "{diff:#}");
}

/// A merged trace lists the events of its parts, and trace viewers can read an export.
fn the_files_of_analyses_are_read(directory: &Path, files: &str, timeline: &Value) {
    let (both, export) = (directory.join("both.merged"), directory.join("export.json"));
    let done = apus(&format!("trace merge {files} --to {}", both.display()));
    assert!(done.status.success(), "{}", stderr(&done));
    let merged = json(&format!("trace timeline --json - {}", both.display()));
    assert_eq!(merged["calls"], timeline["calls"]);
    let done = apus(&format!("trace export {files} --to {}", export.display()));
    assert!(done.status.success(), "{}", stderr(&done));
    let text = fs::read_to_string(export).expect("the export was written");
    let export: Value = serde_json::from_str(&text).expect("it is JSON");
    assert!(export["traceEvents"].as_array().is_some_and(|events| events.len() > 10));
}

/// A running process is recorded from outside, although it writes no file itself.
#[test]
fn the_trace_of_a_running_process_is_recorded() {
    let directory = Directory::new("trace-of-running");
    let server = Server::start("--link udp");
    let client = format!(
        "node client --link udp --servers {} --workload 100 --client-max 2 --seconds 0.1",
        server.address
    );
    let output = command(&client).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let to = directory.0.display();
    let done = apus(&format!("trace record --pid {} --to {to}", server.id()));
    assert!(done.status.success(), "{}", stderr(&done));
    let shown = apus(&format!("trace grep packets {}", directory.files()));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("link flushed"), "{text}");
}

/// A call that is slower than its limit freezes its client and its server; the command that writes the server's trace lets it
/// record again.
#[test]
fn a_slow_call_freezes_both_ends() {
    let directory = Directory::new("frozen-traces");
    let path = directory.0.to_str().unwrap();
    let variables = [("APUS_TRACE", path), ("APUS_TRACE_SLOWER_THAN", "1us")];
    let server = Server::start("--link udp");
    let client = format!(
        "node client --link udp --servers {} --workload 100 --client-max 1 --seconds 0.1",
        server.address
    );
    let output = command(&client).envs(variables).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let found = |text: &str, files: &str| {
        let shown = apus(&format!("trace grep {text} {files}"));
        String::from_utf8_lossy(&shown.stdout).contains(text)
    };
    let client = directory.files();
    assert!(found("slow", &client) && found("freeze", &client));
    let record = format!("trace record --pid {} --to {path}", server.id());
    let shown = |words: &str| String::from_utf8_lossy(&apus(words).stdout).into_owned();
    assert!(shown(&record).contains("was frozen"));
    assert!(!shown(&record).contains("was frozen"));
    assert!(found("freeze", &directory.files().replace(&client, "")));
    assert!(shown(&format!("trace freeze --pid {}", server.id())).contains("is frozen"));
    assert!(shown(&format!("trace freeze --off --pid {}", server.id())).contains("records"));
}

/// All calls of a process are recorded while a command requests that.
#[test]
fn every_call_is_recorded_on_demand() {
    let directory = Directory::new("traces-on-demand");
    let server = Server::start("--link udp");
    let to = directory.0.display();
    let arguments = format!(
        "node client --link udp --servers {} --workload 100 --client-max 1 --seconds 3600",
        server.address
    );
    let mut client = command(&arguments);
    let mut client = client.stdout(Stdio::null()).spawn().expect("the program starts");
    // The client may begin to call late.
    wait_until("calls that are not one in 64 are recorded", || {
        let record = format!("trace record --pid {} --to {to} --calls all --for 50ms", server.id());
        let recorded = apus(&record);
        assert!(recorded.status.success(), "{}", stderr(&recorded));
        let calls = json(&format!("trace rpcs --json - {}", directory.files()));
        let mut ids = calls["rpcs"].as_array().expect("calls are a list").iter();
        ids.any(|call| call["id"].as_u64().expect("an id is a number") % 128 >= 2)
    });
    client.kill().expect("it is still running");
    client.wait().expect("it is a child of this process");
}

/// The simulator's traces are read by the same analyses.
#[test]
fn a_simulation_has_a_time_trace() {
    let directory = Directory::new("trace-of-simulation");
    let file = directory.0.join("sim.trace");
    let file = file.display();
    let done = apus(&format!(
        "sim run --topology single-4 --workload 100 --load 0.1 --sim-ms 0.2 --warmup-ms 0 --time-trace {file}"
    ));
    assert!(done.status.success(), "{}", stderr(&done));
    stages_add_up(&json(&format!("trace timeline --length 100 --json - {file}")));
}

#[test]
fn wrong_traces_and_ranges_are_named() {
    fails(1, "trace show /proc/version", &["/proc/version"]);
    fails(1, "trace show /proc/self/exe", &["not a time trace"]);
    fails(2, "trace range --from 2 --to 1 x", &["--to", "--from"]);
    fails(2, "trace timeline --length 200-100 x", &["--length", "200-100", "a range such as"]);
    fails(2, "trace gaps --live --seconds 0", &["--seconds 0", "more than 0"]);
    fails(1, "trace diff /proc/version /proc/version", &["/proc/version"]);
    fails(2, "trace record --to /proc/version", &["--to", "not a directory"]);
    fails(2, "trace record --calls 0", &["--calls", "expected all"]);
    fails(2, "trace record --calls all", &["--for", "--slower-than"]);
    fails(1, "trace freeze --pid 1", &["process 1 has no time trace"]);
    for (name, value) in [
        ("APUS_TRACE", "/nonexistent"),
        ("APUS_TRACE_CALLS", "0"),
        ("APUS_TRACE_SLOWER_THAN", "soon"),
        ("APUS_TRACE_KERNEL", "yes"),
    ] {
        let output = command("settings").env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = stderr(&output);
        assert!(error.contains(&format!("{name}: '{value}': expected ")), "{error}");
    }
}

/// A process of another user that has files open, killed when it is dropped.
struct Stranger(Child);

impl Stranger {
    /// An arbitrary unprivileged uid.
    const USER: u32 = 65_534;

    fn with(file: &File) -> Option<Self> {
        let mut program = Command::new("sleep");
        program.arg("3600").uid(Self::USER).gid(Self::USER);
        let fd = file.as_raw_fd();
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).expect("it is open");
        let child = program.spawn().ok();
        fcntl(file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("it is open");
        let child = Self(child?);
        // Before the process has executed its program, it is a copy of this one.
        let is_there = || {
            fs::read_link(format!("/proc/{}/exe", child.0.id()))
                .is_ok_and(|exe| exe != std::env::current_exe().unwrap())
        };
        wait_until("it runs", is_there);
        fs::read_link(format!("/proc/{}/fd/{fd}", child.0.id())).ok().map(|_| child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory with the content of a trace that belongs to another user.
fn memory_of_a_stranger(bytes: &[u8], length: u64) -> File {
    let memory = File::from(memfd_create("time-trace.apus", MemfdFlags::CLOEXEC).unwrap());
    memory.write_all_at(bytes, 0).unwrap();
    memory.set_len(length).unwrap();
    let (user, group) = (Some(Stranger::USER), Some(Stranger::USER));
    std::os::unix::fs::fchown(&memory, user, group).unwrap();
    memory
}

/// The start of a real trace, modified by another process.
fn forged(server: &Server, program: &[u8]) -> Vec<u8> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().flatten();
    let is_trace = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|it| it.to_string_lossy().contains("time-trace.apus"))
    };
    let path = descriptors.map(|it| it.path()).find(is_trace).expect("a server has a trace");
    let mut start = vec![0; 16_384 + 256];
    File::open(path).unwrap().read_exact_at(&mut start[..16_384], 0).unwrap();
    start[84..116].fill(0);
    start[84..84 + program.len()].copy_from_slice(program);
    start
}

/// Root reads all processes, and each of them can have any files open.
#[test]
fn processes_of_other_users_choose_no_file_of_roots() {
    let directory = Directory::new("hostile-traces");
    let victim = directory.path().join("victim");
    fs::write(&victim, [b'v'; 4_096]).unwrap();
    let Some(stranger) = Stranger::with(&File::open(&victim).unwrap()) else {
        return skipped("no process of another user can be started");
    };
    let server = Server::start("--link udp");
    let id = stranger.id();
    let named = directory.path().join(format!("victim.{id}.trace"));
    fs::rename(&victim, &named).unwrap();
    let refused = apus(&format!("trace freeze --pid {id}"));
    assert_eq!(refused.status.code(), Some(1));
    let said = stderr(&refused);
    assert!(said.contains("the file does not belong to the user of the process"), "{said}");
    assert_eq!(fs::read(&named).unwrap(), [b'v'; 4_096]);

    // Names from a trace are not used as paths.
    let to = directory.path().join("to");
    fs::create_dir(&to).unwrap();
    let mut strangers = Vec::new();
    for program in ["../escaped", "/tmp/escaped", "\x1b[2Jx", "..", ""] {
        let mut start = forged(&server, program.as_bytes());
        let memory = memory_of_a_stranger(&start, 1 << 20);
        let stranger = Stranger::with(&memory).unwrap();
        start[20..24].copy_from_slice(&stranger.id().to_le_bytes());
        memory.write_all_at(&start, 0).unwrap();
        let done = apus(&format!("trace record --pid {} --to {}", stranger.id(), to.display()));
        assert!(done.status.success(), "{program:?}: {}", stderr(&done));
        assert!(!done.stdout.contains(&0x1b), "{program:?}");
        strangers.push(stranger);
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), strangers.len());
    let files = fs::read_dir(&to).unwrap().map(|it| it.unwrap().path().display().to_string());
    for file in files {
        let shown = apus(&format!("trace show {file}"));
        assert!(!shown.stdout.contains(&0x1b) && !shown.stderr.contains(&0x1b), "{file}");
    }

    // Links are not followed.
    let target = directory.path().join("target");
    fs::write(&target, "of root").unwrap();
    let planted = to.join(format!("apus.{}.trace", server.id()));
    std::os::unix::fs::symlink(&target, &planted).unwrap();
    // One bad process does not keep the others from being recorded.
    let mut start = forged(&server, b"huge");
    start[16_384..16_392].copy_from_slice(&(1u64 << 35).to_le_bytes());
    let memory = memory_of_a_stranger(&start, 1 << 40);
    let huge = Stranger::with(&memory).unwrap();
    start[20..24].copy_from_slice(&huge.id().to_le_bytes());
    memory.write_all_at(&start, 0).unwrap();
    let pids = format!("--pid {id} --pid {} --pid {}", huge.id(), server.id());
    let done = apus(&format!("trace record {pids} --to {}", to.display()));
    assert_eq!(done.status.code(), Some(1), "two were left out");
    assert!(stderr(&done).contains("its rings are longer than it says"), "{}", stderr(&done));
    assert_eq!(fs::read_to_string(&target).unwrap(), "of root");
    assert!(fs::symlink_metadata(&planted).unwrap().is_file(), "the link was replaced");
    let frozen = apus(&format!("trace freeze {pids}"));
    assert!(String::from_utf8_lossy(&frozen.stdout).contains(&format!("{}: is", server.id())));
    assert_eq!(fs::read(&named).unwrap(), [b'v'; 4_096]);
}

/// A command in a PID namespace of its own, in which it has the number 1.
fn in_container(arguments: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
    command.arg(env!("CARGO_BIN_EXE_apus")).args(arguments.split_whitespace());
    command
}

/// Two containers share a directory for traces, and both programs have the number 1: neither removes the memory of the other one,
/// which would end it, nor its records.
#[test]
fn containers_that_share_a_directory_keep_their_traces_apart() {
    let tried = in_container("--version").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        return skipped(format_args!("no pid namespace can be made: {tried:?}"));
    }
    let directory = Directory::new("traces-of-containers");
    let variables =
        [("APUS_TRACE", directory.path().to_str().unwrap()), ("APUS_TRACE_CALLS", "all")];
    let start = || {
        let arguments = "node server --listen 127.0.0.1:0 --link udp";
        Server::started_by(in_container(arguments).envs(variables))
    };
    let call = |server: &Server| {
        let servers = &server.address;
        let load = "--link udp --workload 100 --client-max 2 --seconds 0.1";
        let done = apus(&format!("node client {load} --servers {servers}"));
        assert!(done.status.success(), "{}", stderr(&done));
    };
    let first = start();
    call(&first);
    for _ in 0..3 {
        let next = start();
        call(&next);
        call(&first);
    }
    let files = directory.files();
    let names: Vec<_> = files.split(' ').collect();
    assert!(names.len() == 4 && names.iter().all(|name| name.ends_with(".1.trace")), "{files}");
    for name in names {
        let sum = json(&format!("trace sum --json - {name}"));
        assert!(sum["events"].as_array().is_some_and(|events| events.len() > 3), "{sum:#}");
    }
}
