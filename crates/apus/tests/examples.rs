//! Every example for users ends by itself, and prints the output that its comment promises.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// The examples that measure calls; they are not for users.
const MEASURES: [&str; 4] = ["await_rate", "call_cost", "call_rate", "rekey"];

/// A server and its client, which run at the same time.
const PAIR: [&str; 2] = ["echo_client", "echo_server"];

/// Examples and their output. `N` stands for a number.
const OUTPUTS: [(&str, &str); 16] = [
    ("async_tokio", SQUARES),
    ("cancel", "the handler works\nthe call was cancelled\nthe handler has stopped\n"),
    (
        "deadline",
        "quick: at most N s are left\nquick: there is no deadline\nslow: the deadline has passed\n",
    ),
    ("echo", "hello\n"),
    ("event_loop", "one\ntwo\nthree\n"),
    (
        "graceful_shutdown",
        "a request is executed\nthe server has ended, and nothing was left\nthe response: done\n",
    ),
    ("many_calls", "N calls answered; the sum of their numbers is N\n"),
    (
        "metrics",
        "the client's node: N calls; the server's node: N requests\nmessages of the service: N\nby name: Some((\"calls\", N))\n",
    ),
    ("overload", "N calls: N answered in time, N executed, N skipped\n"),
    (
        "own_service",
        "one thread: the call waited Ns for its own thread, because no other thread serves the service\ntwo threads: inner\n",
    ),
    ("requests", "one\ntwo\nslow\nthe stream has ended\n"),
    (
        "retry",
        "not executed, so it is repeated: no service listens at this port of the peer\nthe first call: booked\nthe second call: the server's handler \
         panicked\n",
    ),
    ("shared_engine", "the route: Engine\nhello\nprocesses attached: N\n"),
    ("stream_echo", "connected to port N\nhello\n"),
    ("stream_tokio", "swift has N bytes\napus apus has N bytes\n"),
    ("tower_service", "SHORTEST\nREMAINING\nTIME\nFIRST\n"),
];

const SQUARES: &str = "N squared is N\n";

/// The path of an example. `cargo test` builds the examples with the tests; this function builds them if only this test runs.
fn program(name: &str) -> PathBuf {
    static BUILDS: Mutex<()> = Mutex::new(());
    let test = env::current_exe().expect("this program has a path");
    let directory = test.ancestors().nth(2).expect("cargo's directories");
    let program = directory.join("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let made = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    let _building = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    if made(&program) < made(&source) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--offline", "-p", "apus", "--example", name]);
        if directory.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.arg("--target-dir").arg(directory.parent().expect("of all profiles"));
        assert!(built.status().expect("cargo starts").success(), "{name} does not compile");
    }
    program
}

fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program(name));
    let output = command.args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Replaces each number by `N`, because numbers differ between runs.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for part in text.split_inclusive(|it: char| it.is_ascii_digit()) {
        let words = part.trim_end_matches(|it: char| it.is_ascii_digit());
        shown.push_str(words);
        if words.len() < part.len() && !(words.is_empty() && shown.ends_with('N')) {
            shown.push('N');
        }
    }
    shown
}

/// The output of an example, which must succeed.
fn written(name: &str) -> String {
    let output = run(name, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}: {said}", output.status);
    String::from_utf8(output.stdout).expect("it writes text")
}

#[test]
fn every_example_writes_what_it_promises() {
    for (name, expected) in OUTPUTS {
        let text = written(name);
        let shown = without_numbers(&text);
        match name {
            "async_tokio" => assert_eq!(shown, SQUARES.repeat(100), "{name}: {text}"),
            _ => assert_eq!(shown, expected, "{name}: {text}"),
        }
    }
}

#[test]
fn numbers_that_are_the_point_of_an_example_are_right() {
    let sum: u64 = (0..10_000).sum();
    assert!(written("many_calls").ends_with(&format!("is {sum}\n")));
    let metrics = written("metrics");
    assert!(
        metrics.starts_with("the client's node: 10 calls; the server's node: 10 "),
        "{metrics}"
    );
    // The same trace, with the span of the service in between.
    let trace = written("trace_context");
    let spans = ["00f067aa0ba902b7", "0707070707070707"];
    let contexts = spans.map(|span| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span}-01"));
    assert_eq!(trace, format!("given:   {}\narrived: {}\n", contexts[0], contexts[1]));
}

#[test]
fn the_server_serves_the_client_until_its_input_ends() {
    let mut server = Command::new(program("echo_server"));
    server.arg("127.0.0.1:0").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("the server starts");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it writes text");
    let address = line.trim().strip_prefix("serving ").expect("it says where it serves");
    let output = run("echo_client", &[address, "hello", "again"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let first: Vec<_> = shown.lines().filter_map(|line| line.split(" (").next()).collect();
    assert_eq!(first, ["hello", "again"], "{}", String::from_utf8_lossy(&output.stderr));
    drop(server.stdin.take());
    assert!(server.wait().expect("it is a child of this process").success());
}

#[test]
fn every_example_is_run_and_says_what_it_shows() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let entries = fs::read_dir(&directory).expect("it is there");
    let mut there = BTreeSet::new();
    for entry in entries.map(|it| it.expect("it can be read").path()) {
        let name =
            entry.file_stem().expect("a file").to_str().expect("its name is text").to_owned();
        let text = fs::read_to_string(&entry).expect("it is text");
        assert!(text.starts_with("//! "), "{name} does not say what it shows");
        let lines = text.lines().count();
        assert!(
            MEASURES.contains(&name.as_str()) || lines <= PAGE,
            "{name} is longer than a page: {lines} lines"
        );
        there.insert(name);
    }
    let run = OUTPUTS.iter().map(|(name, _)| *name).chain(PAIR);
    let run: BTreeSet<_> =
        run.chain(MEASURES).chain(["trace_context"]).map(str::to_owned).collect();
    assert_eq!(there, run, "which examples there are, and which are run");
}

/// Upper bound on the lines of an example: a page.
const PAGE: usize = 75;
