//! `apus doctor`: every subject has findings with a verdict on any machine, and so has the path to a peer.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::program::{Server, apus, command, fails, stderr};

const SUBJECTS: [&str; 17] = [
    "af-xdp",
    "busy-polling",
    "clock",
    "dev-shm",
    "encryption",
    "idle-states",
    "interface",
    "interrupts",
    "irq-suspension",
    "limits",
    "other-load",
    "privileges",
    "processes",
    "processors",
    "socket-buffers",
    "udp-offloads",
    "wake-up",
];

fn text<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap_or_default()
}

#[test]
fn every_subject_has_a_verdict() {
    let output = apus("doctor --device lo --json -");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
    assert_eq!((&report["schema"], &report["device"]), (&"apus-doctor/1".into(), &"lo".into()));
    let findings = report["findings"].as_array().expect("findings are a list");
    let subjects: BTreeSet<_> = findings.iter().map(|it| text(it, "subject")).collect();
    assert_eq!(subjects, SUBJECTS.into());
    let mut names = BTreeSet::new();
    for finding in findings {
        let verdict = text(finding, "verdict");
        assert!(["good", "could-be-better", "bad", "not-known"].contains(&verdict), "{finding}");
        assert!(!text(finding, "found").is_empty(), "{finding}");
        assert!(names.insert((text(finding, "subject"), text(finding, "name"))), "{finding}");
        let change = finding.get("change").is_some();
        assert_eq!(change, finding.get("brings").is_some() && change, "{finding}");
        assert!(verdict != "good" || !change, "{finding}");
    }
    let is_bad = findings.iter().any(|it| text(it, "verdict") == "bad");
    assert_eq!(output.status.code(), Some(i32::from(is_bad)), "{}", stderr(&output));
    assert_eq!(stderr(&output).contains("findings are bad"), is_bad, "{}", stderr(&output));
}

#[test]
fn the_text_has_headings_verdicts_and_a_summary() {
    let shown = command("doctor").env("APUS_RECEIVE_BUFFER", "64 KiB").output().expect("it runs");
    let shown = String::from_utf8(shown.stdout).expect("it writes text");
    for words in ["\nUDP offloads\n", "\nWake-ups\n", "gets 64 KiB", "\n    Apus:  "] {
        assert!(shown.contains(words), "no '{words}' in: {shown}");
    }
    let last = shown.lines().last().unwrap_or_default();
    assert!(last.contains(" findings: ") && last.ends_with("not known."), "{last}");
}

/// Verdict and command of each finding about a path, by name.
fn path(arguments: &str) -> BTreeMap<String, (String, String)> {
    let output = apus(&format!("doctor {arguments} --json -"));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
    let findings = report["findings"].as_array().expect("findings are a list").clone();
    assert!(findings.iter().all(|it| text(it, "subject") == "path"), "{report}");
    let entry = |it: &Value| {
        (
            text(it, "name").to_owned(),
            (text(it, "verdict").to_owned(), text(it, "change").to_owned()),
        )
    };
    findings.iter().map(entry).collect()
}

#[test]
fn the_path_to_a_doctor_is_shown() {
    let peer = Server::serving("doctor --serve --listen 127.0.0.1:0", &[]);
    let found = path(&format!("{} --flood 10", peer.address));
    let names = ["DSCP", "packet length", "peer", "priorities", "round trip", "transport"];
    assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), names);
    // Loopback changes no packet.
    assert_eq!((&*found["peer"].0, &*found["DSCP"].0), ("good", "good"), "{found:?}");
}

#[test]
fn a_peer_without_a_doctor_reports_less() {
    let mut peer = Server::start("");
    let found = path(&peer.address);
    assert_eq!((&*found["peer"].0, &*found["DSCP"].0), ("good", "not-known"), "{found:?}");
    assert!(found["DSCP"].1.contains("apus doctor --serve"), "{found:?}");
    assert!(
        found["priorities"].1.contains(&format!("doctor {} --flood", peer.address)),
        "{found:?}"
    );
    peer.kill();
    assert_eq!(path(&peer.address)["peer"].0, "bad");
    assert_eq!(apus(&format!("doctor {}", peer.address)).status.code(), Some(1));
}

#[test]
fn wrong_arguments_are_named() {
    fails(2, "doctor --flood 5", &["HOST"]);
    fails(2, "doctor 127.0.0.1 --flood 0", &["--flood", "1..=100000"]);
    fails(2, "doctor 127.0.0.1 --serve", &["--serve"]);
    fails(2, "doctor a:b", &["a:b", "HOST:PORT"]);
    fails(1, "doctor --serve --listen 192.0.2.1:0", &["192.0.2.1"]);
    fails(2, "doctor --device nothing0", &["--device nothing0", "lo"]);
    fails(1, "doctor --json /nowhere/at/all", &["/nowhere/at/all"]);
}

/// Beyond `RLIMIT_FSIZE` the kernel ends a process by a signal.
#[test]
fn a_limit_for_files_is_reported_and_ends_nothing() {
    for (blocks, verdict) in [(0, "bad"), (8, "bad"), (100_000, "could-be-better")] {
        let limited = |arguments: &str| {
            let script = format!("ulimit -f {blocks} && exec \"$@\"");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_apus")]);
            shell.args(arguments.split(' '));
            shell.output().expect("it runs")
        };
        let output = limited("doctor --json -");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
        let findings = report["findings"].as_array().expect("findings are a list");
        let finding = findings.iter().find(|it| text(it, "name") == "RLIMIT_FSIZE").unwrap();
        assert_eq!(text(finding, "verdict"), verdict, "{finding}");
        assert!(text(finding, "found").contains("no time trace"), "{finding}");
        let served = limited("node server --listen 127.0.0.1:0 --seconds 0.1");
        assert_eq!(served.status.code(), Some(0), "{}", stderr(&served));
        let said = String::from_utf8_lossy(&served.stdout);
        assert!(said.contains("runs without time trace: it takes"), "{said}");
        assert_eq!(said.contains("without counters"), blocks < 16, "{said}");
        assert_eq!(said.contains("without memory between processes"), blocks < 1_024, "{said}");
    }
}
