//! `apus sim`: the description of a run in its results.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{apus, fails, json, stderr};
use crate::run::{Directory, stdout};

const SHORT: &str = "topology = \"single-4\"\nworkload = \"100\"\nsim_ms = 0.05\n";

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the file is there")).expect("it is JSON")
}

/// Writes a plan with a sweep over loads; returns the command that runs it.
fn sweep(directory: &Directory, loads: &str, seed: u64) -> String {
    let plan = directory.file("plan.toml");
    let axes = format!("[sweep]\nload = [{loads}]\n\"homa.priorities\" = [2]\n");
    fs::write(&plan, format!("{SHORT}seed = {seed}\n{axes}")).expect("the directory is ours");
    format!("sim sweep {} --dir {}", plan.display(), directory.file("results").display())
}

#[test]
fn the_files_of_a_sweep_say_what_was_swept() {
    let directory = Directory::new("sweep");
    let output = apus(&sweep(&directory, "0.2, 0.5", 7));
    assert!(output.status.success(), "{}", stderr(&output));
    let (one, other) = (directory.file("results/00000.json"), directory.file("results/00001.json"));
    let result = read(&other);
    let plan = &result["plan"];
    assert_eq!((plan["seed"].as_u64(), plan["load"].as_f64()), (Some(7), Some(0.5)));
    assert_eq!(plan["homa"]["priorities"], 2);
    for row in result["rows"].as_array().unwrap() {
        assert_eq!((row["homa.priorities"].as_u64(), row["load"].as_f64()), (Some(2), Some(0.5)));
    }

    let report = stdout(&apus(&format!("report {} {}", one.display(), other.display())));
    let titles = report.lines().filter(|line| line.starts_with("sim slowdown"));
    let titles: Vec<&str> = titles.collect();
    assert_eq!(titles.len(), 2, "{report}");
    assert!(titles[0].contains("load = 0.2") && titles[1].contains("load = 0.5"), "{titles:?}");

    let csv = stdout(&apus(&format!("report {} {} --csv -", one.display(), other.display())));
    let heading: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert!(
        ["transport", "load", "homa.priorities"].iter().all(|key| heading.contains(key)),
        "{csv}"
    );
}

#[test]
fn a_file_of_another_plan_is_no_result_of_this_one() {
    let directory = Directory::new("changed-plan");
    assert!(apus(&sweep(&directory, "0.2, 0.5", 7)).status.success());
    let first = directory.file("results/00000.json");
    let same = fs::metadata(&first).unwrap().modified().unwrap();
    assert!(apus(&sweep(&directory, "0.2, 0.5", 7)).status.success());
    assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), same, "measured again");

    let changed = sweep(&directory, "0.2, 0.5", 8);
    fails(
        2,
        &changed,
        &["00000.json", "another plan", "seed = 7 in the file, 8 in the plan", "--anew"],
    );
    let fewer = sweep(&directory, "0.2", 7);
    fails(2, &fewer, &["00001.json", "another plan", "--anew"]);
    assert!(apus(&format!("{fewer} --anew")).status.success());
    assert!(!directory.file("results/00001.json").exists());
    assert!(apus(&format!("{} --anew", sweep(&directory, "0.5", 9))).status.success());
    assert_eq!(read(&first)["plan"]["seed"], 9);

    // A file of an earlier version has no plan.
    let mut old = read(&first);
    old.as_object_mut().unwrap().remove("plan");
    fs::write(&first, old.to_string()).unwrap();
    fails(2, &sweep(&directory, "0.5", 9), &["00000.json", "does not name its plan"]);
}

#[test]
fn any_value_of_a_plan_can_be_set() {
    let run = "sim run --topology single-4 --workload 100 --sim-ms 0.05 --json -";
    let result = json(&format!("{run} --set homa.priorities=4 --set links.host_gbps=100"));
    assert_eq!(result["plan"]["homa"]["priorities"], 4);
    assert_eq!(result["plan"]["links"]["host_gbps"], 100);
    fails(2, &format!("{run} --set homa.nothing=4"), &["homa.nothing", "unknown field"]);
    fails(2, &format!("{run} --set homa.priorities=9"), &["priorities = 9", "1 to 8"]);
    fails(2, &format!("{run} --set priorities"), &["NAME=VALUE"]);
}

#[test]
fn a_comparison_counts_the_cells_of_every_transport() {
    let compare = "sim compare --workloads w1 --scale 0.01 --set topology=single-4";
    let text = stdout(&apus(&format!("{compare} --transports apus,pfabric,srpt-oracle,dctcp")));
    for transport in ["apus", "pfabric", "srpt-oracle"] {
        let line = text.lines().find(|line| line.starts_with(&format!("{transport}: ")));
        let line = line.unwrap_or_else(|| panic!("{transport} is not counted: {text}"));
        let numbers = line.split(' ').filter_map(|word| word.parse().ok());
        let [agree, all, lower, higher] = numbers.collect::<Vec<u64>>()[..] else {
            panic!("{line}")
        };
        assert!(all == 10 && agree + lower + higher == all, "{line}");
    }
    assert!(text.contains("dctcp: the paper has no figures for it"), "{text}");
}

#[test]
fn the_csv_file_has_a_row_for_each_size_transport_and_seed() {
    let directory = Directory::new("sizes-csv");
    let file = directory.file("w1.csv");
    let compare = "sim compare --workloads w1 --scale 0.01 --seed 7 --set topology=single-4";
    let run = format!("{compare} --transports apus,srpt-oracle --csv {}", file.display());
    let text = stdout(&apus(&run));
    assert!(!text.contains("sim sizes"), "tables leave them out: {text}");
    let csv = fs::read_to_string(file).expect("it was written");
    let heading: Vec<&str> = csv.lines().next().expect("a heading").split(',').collect();
    let at = |key: &str| heading.iter().position(|name| *name == key).expect(key);
    let rows = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let rows: Vec<_> = rows.filter(|row| row[at("bench")] == "sim sizes").collect();
    for transport in ["apus", "srpt-oracle"] {
        let of = rows.iter().filter(|row| row[0] == transport && row[at("seed")] == "7");
        let bytes: Vec<u32> = of.map(|row| row[at("bytes_max")].parse().unwrap()).collect();
        assert!(bytes.len() > 20 && bytes.is_sorted(), "{transport}: {bytes:?}");
    }
}

#[test]
fn sizes_come_from_a_file() {
    let directory = Directory::new("sizes");
    let sizes = directory.file("sizes.csv");
    fs::write(&sizes, "bytes,cdf\n100,0.9\n5000,1\n").expect("the directory is ours");
    let run =
        format!("sim run --topology single-4 --workload {} --sim-ms 0.2 --json -", sizes.display());
    let result = json(&run);
    let name = result["plan"]["workload"].as_str().unwrap();
    assert!(name.starts_with(&format!("csv:{}#", sizes.display())), "{name}");
    let rows = result["rows"].as_array().unwrap();
    let deciles: Vec<&str> = rows.iter().filter_map(|row| row["decile"].as_str()).collect();
    assert!(deciles.first().is_some_and(|name| name.ends_with(" 100 B")), "{deciles:?}");
    assert!(deciles.last().is_some_and(|name| name.ends_with(" 5000 B")), "{deciles:?}");
    fs::write(&sizes, "bytes,cdf\n100,0.9\n0,1\n").expect("the directory is ours");
    fails(2, &run, &["sizes.csv", "line 3", "`0,1`"]);
}

#[test]
fn counters_that_are_zero_are_in_the_file_and_not_in_the_table() {
    let directory = Directory::new("zero");
    let file = directory.file("run.json");
    let run = "sim run --topology single-4 --workload 100 --sim-ms 0.05";
    let text = stdout(&apus(&format!("{run} --json {}", file.display())));
    let result = read(&file);
    let rows = result["rows"].as_array().unwrap();
    let counters = rows.iter().find(|row| row["bench"] == "sim counters").unwrap();
    let zero = counters.as_object().unwrap().iter().find(|(_, value)| **value == 0);
    let (name, _) = zero.expect("not everything happens in so short a run");
    assert!(!text.lines().any(|line| line.starts_with(&format!("{name} "))), "{text}");
    let table = text.split("sim counters").nth(1).expect("the counters are a table");
    assert!(table.lines().count() > 5 && table.contains("are 0 in all rows"), "{text}");
}

#[test]
fn a_time_trace_that_cannot_be_written_leaves_no_file() {
    let directory = Directory::new("torn");
    let trace = directory.file("sim.trace");
    // The limit is below the length of the trace.
    let script = format!(
        "ulimit -f 1; trap '' XFSZ; exec {} sim run --topology single-4 --workload 100 --load 0.1 --sim-ms 0.2 --time-trace {}",
        env!("CARGO_BIN_EXE_apus"),
        trace.display()
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("time trace"), "{}", stderr(&output));
    let left: Vec<_> = fs::read_dir(directory.file("")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
