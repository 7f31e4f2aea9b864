//! `apus bench irq` with memcached behind a veth pair. It needs root, and is skipped with a message otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::thread::available_parallelism;

use nix::unistd::geteuid;
use serde_json::Value;

use crate::irq::{Host, tracepoints_are_there};
use crate::program::{apus, checked_json, command, fails, stderr, wait_until};
use crate::skipped::skipped;

/// A plan in a file, removed when it is dropped.
struct Plan(PathBuf);

impl Plan {
    fn new(test: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("apus-bench-irq-{test}-{}.toml", id()));
        fs::write(&path, text).expect("a temporary file");
        Self(path)
    }

    /// A plan for memcached; `None` where memcached is not installed, or the kernel lacks a function that the command needs. The
    /// kernel is asked by other means than the command, which then has to work.
    fn of_memcached(test: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skipped("only root may make network namespaces and set NAPI instances");
            return None;
        }
        if !available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            skipped("there is one CPU");
            return None;
        }
        drop(Host::new(test)?);
        let version = Command::new("memcached").arg("-V").stdout(Stdio::null()).status();
        if version.is_err() {
            skipped("memcached is not installed");
            return None;
        }
        Some(Self::new(
            test,
            "server = ['memcached', '-u', 'nobody', '-l', '{address}', '-p', '{port}', '-U', '0', '-t', '1']\n\
             cases = ['base', 'suspend20']\nloads = [20]\nruns = 2\nseconds = 0.2\nwarmup_s = 0.05\nkeys = 300\n",
        ))
    }

    fn arguments(&self) -> String {
        format!("bench irq {} --json -", self.0.display())
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The namespaces of a command.
fn namespaces(pid: u32) -> Vec<PathBuf> {
    let sides = ["client", "server"];
    let path = |side| Path::new("/run/netns").join(format!("apus-bench-irq-{pid}-{side}"));
    sides.map(path).into_iter().filter(|path| path.exists()).collect()
}

#[test]
fn cases_are_measured_and_suspension_is_seen() {
    let Some(plan) = Plan::of_memcached("irqbench") else { return };
    let arguments = plan.arguments();
    let run = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let run = run.expect("the program starts");
    let pid = run.id();
    let output = run.wait_with_output().expect("it is a child of this process");
    assert!(namespaces(pid).is_empty(), "both are gone");
    let result = checked_json(&arguments, &output);
    let rows = result["rows"].as_array().expect("rows are a list");
    let of = |load: &str, key: &str| -> Vec<&Value> {
        rows.iter().filter(|row| row["load"] == load && !row[key].is_null()).collect()
    };
    assert_eq!((of("base", "run").len(), of("20", "run").len()), (3, 4));
    for row in of("20", "qps") {
        for key in
            ["avglat_us", "p99_us", "cpu_percent", "busy_ns_per_query", "server_ns_per_query"]
        {
            assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "no {key} in {row}");
        }
        assert_eq!((&row["errors"], &row["missing_runs"]), (&0.into(), &0.into()), "{row}");
    }
    if !tracepoints_are_there() {
        return;
    }
    let watched = of("20", "watched");
    assert_eq!(watched.len(), 2);
    for row in watched {
        let expected = if row["testcase"] == "base" { "no" } else { "yes" };
        assert_eq!(row["suspended"], expected, "{row}");
    }
}

/// A command that is killed when it is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        // Fails if the command has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_stays_after_a_signal() {
    let Some(plan) = Plan::of_memcached("irqstop") else { return };
    let arguments = format!("{} --runs 1000", plan.arguments());
    let mut run = command(&arguments);
    run.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Started(run.spawn().expect("the program starts"));
    let pid = run.0.id();
    wait_until("both namespaces", || {
        assert_eq!(run.0.try_wait().expect("it is a child of this process"), None, "it ended");
        namespaces(pid).len() == 2
    });
    let kill = Command::new("kill").args(["-s", "INT", &pid.to_string()]).status();
    assert!(kill.expect("the system has a kill command").success());
    run.0.wait().expect("it is a child of this process");
    assert!(namespaces(pid).is_empty());
}

#[test]
fn a_wrong_plan_is_named() {
    let plan = |text: &str| Plan::new("wrong", text);
    for (text, code, words) in [
        ("server = ['x']\ncolour = 1", 2, ["colour", "apus-bench-irq-wrong"]),
        ("server = ['x']\ncases = ['suspend:x']", 2, ["`suspend:x`", "1 to 100000"]),
        ("", 2, ["server = []", "apus-bench-irq-wrong"]),
        ("server = ['x']\ndevice = 'eth9'", 2, ["eth9", "needs an address"]),
    ] {
        let plan = plan(text);
        fails(code, &plan.arguments(), &words);
    }
    fails(1, "bench irq /no/such/plan.toml", &["/no/such/plan.toml"]);
    fails(2, "bench irq plan.toml --cases nonsense", &["nonsense", "--cases"]);
}

#[test]
fn the_letter_is_a_report() {
    let letter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/measurements/irq-letter.json");
    let output = apus(&format!("report {letter}"));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("it writes text");
    for words in ["suspend200", "from the letter", "too small by a factor of 3"] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
}
