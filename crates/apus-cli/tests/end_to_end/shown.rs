//! Help, version, manual pages, completions, reports: commands that only print.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{self, Stdio};

use crate::program::{apus, command, fails, json, stderr};

fn shows(arguments: &str, words: &[&str]) {
    let output = apus(arguments);
    assert!(output.status.success(), "`{arguments}`: {}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    for word in words {
        assert!(text.contains(word), "`{arguments}`: no '{word}' in: {text}");
    }
}

#[test]
fn every_command_explains_itself() {
    shows("--version", &["apus 0."]);
    shows("--help", &["demo", "bench", "node", "report", "Exit status"]);
    for name in ["rtt", "rate", "stream", "mix"] {
        let words = ["Examples:", "--transports", "--json", "--pin"];
        shows(&format!("bench {name} --help"), &words);
    }
    shows("bench delivery --help", &["Examples:", "--cases", "--loads", "--threads", "--ipq"]);
    shows("bench handoffs --help", &["Examples:", "--calls", "--gap"]);
    shows("bench scale --help", &["Examples:", "--held", "--peers"]);
    shows("bench sockets --help", &["Examples:", "--sizes", "--only", "apus-run", "TCP_RR"]);
    shows("node server --help", &["Examples:", "--port-threads", "--fault", "--capture"]);
    shows("node client --help", &["Examples:", "--client-max", "--unloaded", "--dump"]);
    shows("top --help", &["Examples:", "--interval", "--once", "--dir"]);
    shows("demo --help", &["Examples:", "--html", "--no-html"]);
    shows("report --help", &["Examples:", "RESULT.json"]);
}

#[test]
fn manual_pages_and_completions() {
    shows("man", &[".TH", "apus"]);
    shows("completions bash", &["_apus()"]);
    let dir = env::temp_dir().join(format!("apus-man-{}", process::id()));
    shows(&format!("man --dir {}", dir.display()), &[]);
    let page = fs::read_to_string(dir.join("apus-bench-rtt.1")).expect("the page is written");
    assert!(page.contains("Round\\-trip time"), "{page}");
    let page = fs::read_to_string(dir.join("apus-bench-sockets.1")).expect("the page is written");
    assert!(page.contains("TCP_STREAM") && page.contains("tcp\\-spin"), "{page}");
    for hidden in ["server", "store", "holder"] {
        assert!(!dir.join(format!("apus-bench-{hidden}.1")).exists());
    }
    fs::remove_dir_all(dir).expect("it is ours");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = command("completions bash")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = BufReader::with_capacity(16, child.stdout.take().expect("it is a pipe"));
    stdout.read_line(&mut String::new()).expect("there is a first line");
    drop(stdout);
    let output = child.wait_with_output().expect("it is a child of this process");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn results_are_read_again() {
    let path = env::temp_dir().join(format!("apus-result-{}.json", process::id()));
    let file = path.display();
    let bench = format!("bench rtt --transports tcp-block --seconds 0.02 --runs 1 --json {file}");
    let output = apus(&bench);
    assert!(output.status.success(), "{}", stderr(&output));
    shows(&format!("report {file}"), &["tcp-block", "p50"]);
    shows(&format!("report {file} --html -"), &["<html", "tcp-block"]);
    let all = json(&format!("report {file} {file} --json -"));
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    fs::remove_file(path).expect("it is ours");
}

#[test]
fn a_file_that_is_no_result() {
    fails(1, "report /nonexistent/x.json", &["/nonexistent/x.json", "No such file"]);
    fails(1, "report /proc/version", &["/proc/version", "not a result file"]);
}

#[test]
fn a_file_that_cannot_be_written() {
    // These commands must fail before they measure: the measurement would take an hour.
    for arguments in [
        "bench rtt --transports tcp-block --seconds 3600 --json /nonexistent/x",
        "bench mix --seconds 3600 --html /nonexistent/x",
        "demo --seconds 3600 --html /nonexistent/x",
        "sim run --html /nonexistent/x",
        "sim compare --json /nonexistent/x",
        "node client --servers 127.0.0.1:9 --dump /nonexistent/x",
        "node server --listen 127.0.0.1:0 --json /nonexistent/x",
    ] {
        fails(1, arguments, &["/nonexistent/x", "No such file"]);
    }
}

#[test]
fn one_file_cannot_have_two_contents() {
    for (arguments, words) in [
        ("bench rtt --json same.out --html ./same.out", ["--json same.out", "--html same.out"]),
        ("demo --json apus-demo.html", ["--json apus-demo.html", "--html apus-demo.html"]),
        ("sim run --json - --html -", ["--json -", "--html -"]),
        ("node client --servers a:1 --json x.out --dump x.out", ["--json x.out", "--dump x.out"]),
        ("report x.json --html y.out --markdown y.out", ["--html y.out", "--markdown y.out"]),
    ] {
        fails(2, arguments, &words);
    }
}

#[test]
fn a_result_becomes_tables_and_plots_for_a_document() {
    let dir = env::temp_dir().join(format!("apus-svg-{}", process::id()));
    let result = dir.with_extension("json");
    let row = r#"{"transport":"apus-udp","bench":"delivery","testcase":"base","load":"20","threads":1,"p99_us":7.5}"#;
    let curve = r#"{"name":"CPU against load","transport":"base","x_label":"load","y_label":"CPU","points":[[20,3],[40,5]]}"#;
    let machine =
        json("bench rtt --transports tcp-block --runs 1 --seconds 0.01 --json -")["machine"]
            .clone();
    let text = format!(
        r#"{{"schema":"apus-result/1","command":"apus bench delivery","machine":{machine},"started":"2026-11-20T18:40:00Z","rows":[{row}],"series":[{curve}]}}"#
    );
    fs::write(&result, text).expect("a temporary file");
    let report = format!("report {} --markdown - --svg {}", result.display(), dir.display());
    shows(&report, &["**delivery · 20 % · 1 thread**", "| base | 20% | 7.5 |"]);
    let plot = fs::read_to_string(dir.join("cpu-against-load.svg")).expect("the plot is written");
    assert!(plot.contains("CPU against load") && plot.contains("prefers-color-scheme"));
    fs::remove_dir_all(dir).expect("it is ours");
    fs::remove_file(result).expect("it is ours");
}
