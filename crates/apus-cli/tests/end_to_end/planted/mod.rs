//! Planted faults, each of which an analysis of the time trace has to find and name.
//!
//! Most faults last much longer than a call takes on a busy machine, so that no other delay can be taken for them.

mod process;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Server, apus, command, json, stderr, wait_until};
use crate::traces::Directory;
use process::{Process, SLOW};

/// The first finding of an analysis of all traces in a directory.
fn finding(analysis: &str, directory: &Directory) -> (String, Value) {
    let report = json(&format!("trace {analysis} --json - {}", directory.files()));
    let finding = report["findings"][0].as_str().unwrap_or_default().to_owned();
    (finding, report)
}

/// Waits until the time of a fault has passed.
fn let_pass(time: Duration) {
    let since = Instant::now();
    wait_until("time passes", || since.elapsed() >= time);
}

/// The handler of one request sleeps.
#[test]
fn a_slow_handler_is_the_cause_of_the_slowest_call() {
    let directory = Directory::new("slow-handler");
    let mut server = Process::start("server", "", &directory);
    let at = server.line();
    Process::start("caller", &at, &directory).finish();
    drop(server);
    let (finding, report) = finding("p99short", &directory);
    assert!(finding.contains("the server's application"), "{report:#}");
    assert_eq!(report["causes"][0]["before_stage"], "sendmsg_response", "{report:#}");
    let took = report["slowest"][0]["took_us"].as_f64().expect("it is a number");
    assert!(took >= SLOW.as_micros() as f64, "{took}");
    // The handler is not a handoff: its request was taken before it slept.
    let handoffs = json(&format!("trace handoffs --json - {}", directory.files()));
    assert!(handoffs["longest"][0]["waited_us"].as_f64() < Some(took), "{handoffs:#}");
}

/// A call's deadline passes while the handler of its request sleeps. The error names the call, and the trace explains it.
#[test]
fn a_call_that_failed_is_explained_by_its_error_and_by_the_trace() {
    let directory = Directory::new("hasty");
    let mut server = Process::start("server", "", &directory);
    let at = server.line();
    let mut client = Process::start("hasty caller", &at, &directory);
    let error = client.line();
    client.finish();
    drop(server);
    assert!(error.starts_with("deadline exceeded after "), "{error}");
    assert!(error.contains("waited for the response; all 4 bytes were sent"), "{error}");
    let (_, after) = error.split_once("RPC ").expect("it has the id");
    let id: u32 = after.split(' ').next().and_then(|id| id.parse().ok()).expect("it is a number");
    let report = json(&format!("trace explain {id} --json - {}", directory.files()));
    let findings = report["calls"][0]["findings"].to_string();
    assert!(findings.contains("its deadline passed"), "{findings}");
    assert!(findings.contains("in the server's application"), "{findings}");
    let failed = apus(&format!("trace explain failed {}", directory.files()));
    let text = String::from_utf8_lossy(&failed.stdout);
    assert!(text.contains(&format!("id: {id}")), "{text}");
    // The first call of a node, too, has one pair of records from its begin to its end.
    let rpcs = json(&format!("trace rpcs --json - {}", directory.files()));
    assert_eq!(rpcs["rpcs"][0]["records"], "all", "{rpcs:#}");
}

/// A thread of the client takes a response long after it was complete.
#[test]
fn a_response_that_is_taken_late_waits_for_the_application() {
    let directory = Directory::new("late-taker");
    let mut server = Process::start("server", "", &directory);
    let at = server.line();
    Process::start("late taker", &at, &directory).finish();
    drop(server);
    let (finding, report) = finding("p99short", &directory);
    assert!(finding.contains("the hand-off to the client's application"), "{report:#}");
    let handoffs = json(&format!("trace handoffs --json - {}", directory.files()));
    let longest = &handoffs["longest"][0];
    assert_eq!(longest["message"], "response", "{handoffs:#}");
    assert!(longest["waited_us"].as_f64() > Some(SLOW.as_micros() as f64 / 2.0), "{handoffs:#}");
}

/// The server's link loses nearly every second packet that it sends, including grants. A busy kernel may lose others.
#[test]
fn lost_grants_are_named() {
    let directory = Directory::new("lost-grants");
    let variables =
        [("APUS_TRACE", directory.path().to_str().unwrap()), ("APUS_TRACE_CALLS", "all")];
    let server = Server::start_with("--link udp --fault loss=0.4,seed=3", &variables);
    let client = format!(
        "node client --link udp --servers {} --workload 500000 --one-way --client-max 2 --seconds 0.5",
        server.address
    );
    let output = command(&client).envs(variables).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    drop(server);
    let (_, report) = finding("lost", &directory);
    let kinds = report["kinds"].as_array().expect("kinds are a list");
    let grants = kinds.iter().find(|kind| kind["packet"] == "GRANT").expect("it is listed");
    assert!(grants["lost"].as_u64() > Some(0), "{report:#}");
    let findings = report["findings"].as_array().expect("findings are a list");
    let names_grants =
        |finding: &Value| finding.as_str().is_some_and(|it| it.contains("GRANT packet"));
    assert!(findings.iter().any(names_grants), "{report:#}");
}

/// The server does not run while a client calls it.
#[test]
fn a_process_that_was_stopped_has_a_gap() {
    let directory = Directory::new("stopped");
    let mut server = Process::start("server", "", &directory);
    let at = server.line();
    let mut client = Process::start("steady caller", &at, &directory);
    assert_eq!(client.line(), "calling");
    server.signal("STOP");
    let_pass(SLOW);
    server.signal("CONT");
    client.finish();
    let name = format!("{}.{}", server.program(), server.id());
    drop(server);
    let (finding, report) = finding("gaps", &directory);
    assert!(finding.starts_with(&format!("{name} stood still")), "{report:#}");
    let waited = report["stops"][0]["waited_us"].as_f64();
    assert!(waited > Some(SLOW.as_micros() as f64 / 2.0), "{report:#}");
}

/// All watched CPUs are taken from a process that is stopped.
#[test]
fn a_stopped_watcher_finds_that_all_cpus_were_taken() {
    let arguments = "trace gaps --live --seconds 3 --threshold 10000 --json -";
    let watcher = command(arguments).stdout(std::process::Stdio::piped()).spawn();
    let watcher = watcher.expect("the program starts");
    let signal = |name: &str| {
        let pid = watcher.id().to_string();
        let kill = std::process::Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.expect("the system has a kill command").success());
    };
    // The first stops may come before it watches.
    for _ in 0..5 {
        signal("STOP");
        let_pass(SLOW);
        signal("CONT");
        let_pass(SLOW);
    }
    let output = watcher.wait_with_output().expect("it was started");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let all = report["cpus"].as_array().and_then(|rows| rows.last()).expect("all CPUs have a row");
    assert_eq!(all["cpu"], "all at once");
    assert!(all["most_us"].as_f64() > Some(SLOW.as_micros() as f64 / 2.0), "{report:#}");
}

/// The link of a thread takes long for each flush, during which the thread holds the engine's lock.
#[test]
fn a_thread_that_waits_for_the_lock_is_named() {
    let directory = Directory::new("held-lock");
    let mut server = Process::start("server", "", &directory);
    let at = server.line();
    let client = Process::start("two threads", &at, &directory);
    let name = format!("{}.{}/", client.program(), client.id());
    client.finish();
    drop(server);
    let (finding, report) = finding("locks", &directory);
    assert!(finding.starts_with(&name) && finding.contains("for the engine's lock"), "{report:#}");
    let waited = report["longest"][0]["waited_us"].as_f64();
    assert!(waited > Some(SLOW.as_micros() as f64 / 20.0), "{report:#}");
}

/// Without priorities, short messages wait behind long ones in the switch. The test uses a simulator, whose network has priorities.
#[test]
fn short_messages_do_not_pass_without_priorities() {
    let directory = Directory::new("priorities");
    let passed = ["1", "8"].map(|priorities| {
        let (plan, trace) =
            (directory.path().join("plan.toml"), directory.path().join("sim.trace"));
        let text = "topology = \"single-8\"\nworkload = \"90:100,10:100000\"\nload = 0.9\n\
                    pattern = \"incast\"\nsim_ms = 2.0\nwarmup_ms = 0.0\n[homa]\npriorities = ";
        std::fs::write(&plan, format!("{text}{priorities}\n")).expect("the directory is ours");
        let run = apus(&format!("sim run {} --time-trace {}", plan.display(), trace.display()));
        assert!(run.status.success(), "{}", stderr(&run));
        let report = json(&format!("trace pass --json - {}", trace.display()));
        report["passed_share"].as_f64().unwrap_or_else(|| panic!("{report:#}"))
    });
    let [without, with] = passed;
    assert!(without < 0.1 && with > 0.5, "{passed:?}");
}
