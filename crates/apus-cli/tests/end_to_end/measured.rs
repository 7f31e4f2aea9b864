//! The benchmarks, very short.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::{fs, thread};

use serde_json::Value;

use crate::program::{command, json, json_perhaps_refused, stderr, wait_until};
use crate::skipped::skipped;

fn rows(result: &Value) -> &Vec<Value> {
    assert_eq!(result["schema"], "apus-result/1");
    result["rows"].as_array().expect("rows are a list")
}

fn transports(rows: &[Value]) -> BTreeSet<&str> {
    rows.iter().map(|row| row["transport"].as_str().expect("a row names its transport")).collect()
}

/// Asserts that every row has a number above zero under `key`.
fn all_have(rows: &[Value], key: &str) {
    for row in rows {
        assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "no {key} in {row}");
    }
}

#[test]
fn rtt_has_a_row_for_every_run_of_every_transport() {
    let result = json("bench rtt --seconds 0.05 --runs 2 --json -");
    let rows = rows(&result);
    let all = [
        "apus-shm",
        "apus-shm-fullbusy",
        "apus-udp",
        "apus-udp-fullbusy",
        "raw-shm",
        "raw-udp",
        "raw-udp-block",
        "tcp-block",
        "tcp-epoll",
        "tcp-poll",
        "unix-block",
        "unix-poll",
    ];
    if thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        assert_eq!(transports(rows), all.into());
    }
    assert_eq!(rows.len(), 2 * transports(rows).len());
    for key in ["p50_us", "p99_us", "p99_9_us", "calls", "client_cpu_s", "server_cpu_s"] {
        all_have(rows, key);
    }
    let command = result["command"].as_str();
    assert_eq!(command, Some("apus bench rtt --seconds 0.05 --runs 2 --json -"));
}

#[test]
fn both_sides_on_one_cpu() {
    let result = json("bench rtt --pin same --seconds 0.05 --runs 1 --json -");
    let expected =
        ["apus-shm", "apus-udp", "raw-udp-block", "tcp-block", "tcp-epoll", "unix-block"];
    assert_eq!(transports(rows(&result)), expected.into());
}

#[test]
fn a_sweep_has_the_server_on_every_cpu() {
    let result = json(
        "bench rate --pin sweep --transports tcp-block,apus-udp --seconds 0.05 --runs 1 --json -",
    );
    let rows = rows(&result);
    let pins: BTreeSet<_> = rows.iter().filter_map(|row| row["pin"].as_str()).collect();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    assert!(pins.contains("none") && pins.len() == cpus + 1, "{pins:?}");
    assert_eq!(rows.len(), 2 * pins.len());
}

#[test]
fn rate_counts_calls_and_their_cpu_time() {
    let result = json(
        "bench rate --transports tcp-epoll,unix-block,unix-poll,raw-shm,apus-shm,apus-udp --outstanding 8,2000 --connections 2 --seconds 0.05 --runs 1 --json -",
    );
    assert_eq!(rows(&result).len(), 12);
    for key in ["calls_per_s", "client_cpu_ns_per_call", "server_cpu_ns_per_call", "outstanding"] {
        all_have(rows(&result), key);
    }
}

#[test]
fn stream_goes_one_way_and_both() {
    let comparison = "--connections 1 --seconds 0.05 --runs 1 --json -";
    let all =
        "raw-shm,raw-udp-gso,tcp-block,tcp-epoll,tcp-poll,unix-block,unix-poll,apus-shm,apus-udp";
    let one_way = json(&format!("bench stream --transports {all} {comparison}"));
    all_have(rows(&one_way), "goodput_gbps");
    let echo = json(&format!(
        "bench stream --transports tcp-epoll,unix-poll,raw-shm,apus-shm,apus-udp --echo {comparison}"
    ));
    all_have(rows(&echo), "goodput_gbps");
}

#[test]
fn mix_measures_every_load() {
    let result = json_perhaps_refused(
        "bench mix --transports tcp-epoll,apus-shm,apus-udp --connections 1,2 --gbps 0.5 --seconds 0.5 --runs 1 --json -",
    );
    let loads: BTreeSet<&str> =
        rows(&result).iter().filter_map(|row| row["load"].as_str()).collect();
    let expected = [
        "0.5 Gb/s",
        "60 % of own capacity",
        "60 % of the capacity of apus-udp",
        "capacity, closed loop",
        "choosing connections",
    ];
    assert_eq!(loads, expected.into());
    // The rule of all commands: a run with more than 1 % of late calls has no figures, and no curve.
    let is_offered =
        |row: &&Value| row["offered_gbps"].is_f64() && row["load"] != "choosing connections";
    let mut valid = 0;
    for row in rows(&result).iter().filter(is_offered) {
        let is_late = row["late_pct"].as_f64().is_some_and(|percent| percent > 1.0);
        assert_eq!(row["verdict"] == "the generator, not the server", is_late, "{row}");
        assert_eq!(row["p99_us"].is_null(), is_late, "{row}");
        valid += usize::from(!is_late);
    }
    let curves = result["series"].as_array().map_or(0, Vec::len);
    assert_eq!(curves, 2 * valid, "latency and slowdown of each transport at each load");
}

/// Whether the generator of `bench delivery` has a core of its own.
fn two_cpus() -> bool {
    thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1)
}

#[test]
fn delivery_has_a_row_for_every_case_load_and_number_of_threads() {
    if !two_cpus() {
        return skipped("there is one CPU");
    }
    let result = json_perhaps_refused(
        "bench delivery --cases base,suspend20,budget=32 --loads 20,MAX --threads 1,2 --base-qps 2000 --records 500 --runs 2 --seconds 0.1 --json -",
    );
    let rows = rows(&result);
    assert_eq!(rows.len(), 2 * 2 * 2 * 2);
    for row in rows {
        for key in ["testcase", "load", "threads", "run", "late_percent", "refused_runs"] {
            assert!(!row[key].is_null(), "no {key} in {row}");
        }
        let refused = row["refused_runs"].as_u64() > Some(3);
        assert_eq!(row["qps"].is_null(), refused, "a refused run has no figures: {row}");
        assert_eq!(row["verdict"].is_null(), !refused, "a refused run says so: {row}");
    }
    // Other load may starve one run this short, but not all runs.
    for key in ["qps", "avglat_us", "p95_us", "p99_us", "cpu_percent", "busy_ns_per_query", "batch"]
    {
        let measured = |row: &&Value| row[key].as_f64().is_some_and(|value| value > 0.0);
        assert!(rows.iter().any(|row| measured(&row)), "no {key}");
    }
    let plots: BTreeSet<&str> = result["series"]
        .as_array()
        .expect("there are curves")
        .iter()
        .filter_map(|curve| curve["name"].as_str())
        .collect();
    assert_eq!(plots.len(), 4);
}

#[test]
fn delivery_finds_the_highest_rate_of_base() {
    if !two_cpus() {
        return skipped("there is one CPU");
    }
    let result = json_perhaps_refused(
        "bench delivery --cases base --loads 100 --arrival etc --records 500 --runs 1 --seconds 0.1 --json -",
    );
    let highest: Vec<f64> = rows(&result)
        .iter()
        .filter(|row| row["load"] == "base")
        .filter_map(|row| row["qps"].as_f64())
        .collect();
    assert_eq!(highest.len(), 3);
    let offered = rows(&result).iter().find_map(|row| row["offered_qps"].as_f64());
    assert!(highest.contains(&offered.expect("the load was offered")));
}

#[test]
fn handoffs_are_counted_on_both_sides() {
    let result = json_perhaps_refused("bench handoffs --cases base,fullbusy --calls 200 --json -");
    for row in rows(&result) {
        for side in ["server", "client"] {
            let handoffs = row[format!("{side}_handoffs_per_message")].as_f64();
            match row["testcase"].as_str() {
                Some("fullbusy") => assert_eq!(handoffs, Some(0.0), "{row}"),
                _ => assert!(handoffs > Some(0.0), "{row}"),
            }
        }
    }
}

#[test]
fn scale_has_a_row_for_every_number_held_and_of_peers() {
    let result = json_perhaps_refused(
        "bench scale --held 5,50 --peers 1,20 --runs 1 --seconds 0.05 --json -",
    );
    let of = |key: &str| -> Vec<u64> {
        rows(&result).iter().filter_map(|row| row[key].as_u64()).collect()
    };
    assert_eq!((of("calls_held"), of("peers")), (vec![5, 50], vec![1, 20]));
    all_have(rows(&result), "server_cpu_ns_per_call");
    all_have(rows(&result), "client_cpu_ns_per_call");
}

#[test]
fn sockets_has_a_row_for_every_size_and_transport_and_apus_run_is_carried() {
    let result =
        json_perhaps_refused("bench sockets --sizes 1,20kB --seconds 0.02 --runs 2 --json -");
    let rows = rows(&result);
    let (round_trips, streams): (Vec<Value>, Vec<Value>) =
        rows.iter().cloned().partition(|row| row["bench"] == "sockets rr");
    let mut expected = BTreeSet::from(["apus-run", "tcp", "unix"]);
    assert_eq!((transports(&streams), streams.len()), (expected.clone(), 2 * 2 * 3));
    all_have(&streams, "goodput_gbps");
    if two_cpus() {
        // The floor has no messages of one byte.
        expected.extend(["raw-shm", "tcp-spin"]);
        assert_eq!(round_trips.len(), 2 * (2 * 4 + 1));
    }
    assert_eq!(transports(&round_trips), expected);
    for key in ["p50_us", "p99_us", "transactions_per_s", "transactions"] {
        all_have(&round_trips, key);
    }
    for row in rows {
        let kernel_pct = row["kernel_pct"].as_f64();
        match (row["transport"].as_str(), kernel_pct) {
            (Some("apus-run"), Some(percent)) => assert!(percent <= 1.0, "{row}"),
            (Some("tcp" | "tcp-spin"), Some(percent)) => assert!(percent >= 50.0, "{row}"),
            (Some("unix" | "raw-shm"), None) => {}
            _ => panic!("{row}"),
        }
    }
    let curves = result["series"].as_array().map(Vec::len);
    assert_eq!(curves, Some(transports(&round_trips).len() + 3));
}

#[test]
fn a_check_that_fails_is_no_success() {
    // A program that was not carried would be as fast as TCP; other figures cannot be forced.
    let output = command("bench sockets --sizes 1,1kB --seconds 0.02 --runs 1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = text.lines().filter(|line| line.trim_end().ends_with(" FAILS")).count();
    let expected = i32::from(failed > 0);
    assert_eq!(output.status.code(), Some(expected), "{text}{}", stderr(&output));
    assert_eq!(stderr(&output).contains(&format!("{failed} checks FAIL")), failed > 0);
}

#[test]
fn sockets_fails_if_apus_run_does_not_carry() {
    let small = "bench sockets --only rr --sizes 1 --seconds 0.02 --runs 1 --transports apus-run";
    let fails = |mut command: Command, words: &str| {
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    let mut off = command(small);
    off.env("APUS_SOCKETS", "off");
    fails(off, "carried 100.0 % of the bytes; the library reports");
    let mut missing = command(small);
    missing.env("APUS_PRELOAD", "/no/such/library.so");
    fails(missing, "APUS_PRELOAD is `/no/such/library.so`");
}

/// Whether a process has a handler for SIGINT, from its `/proc/PID/status`.
fn handles_interrupts(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 0b10 != 0)
}

#[test]
fn what_was_measured_before_a_signal_is_shown() {
    let run =
        command("bench rtt --transports tcp-block,tcp-epoll --seconds 3600 --runs 1 --json -")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
    let status = format!("/proc/{}/status", run.id());
    wait_until("the program handles interrupts", || {
        handles_interrupts(&fs::read_to_string(&status).expect("it runs for an hour"))
    });
    let kill = Command::new("kill").args(["-s", "INT", &run.id().to_string()]).status();
    assert!(kill.expect("the system has a kill command").success());
    let output = run.wait_with_output().expect("it is a child of this process");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("stopped by a signal"), "{}", stderr(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(rows(&result).is_empty());
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains("later measurements are missing"), "{warnings}");
}
