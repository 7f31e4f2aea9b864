//! Exit codes are one table, in docs/commands.md and in `apus --help`; and `--json` is one word.

use std::collections::BTreeSet;
use std::fs;

use crate::program::{Server, apus, fails, json, stderr};
use crate::run::{Directory, output, run, stdout};

#[test]
fn the_table_of_exit_codes_holds() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let page = fs::read_to_string(page).expect("the tests run in a checkout");
    let table = page.split("| exit code | meaning |").nth(1).expect("the page has the table");
    let code = |line: &str| line.strip_prefix("| ")?.split(' ').next()?.parse::<i32>().ok();
    let documented: BTreeSet<i32> = table.lines().skip(2).map_while(code).collect();
    assert_eq!(documented, [0, 1, 2, 3, 126, 127].into());
    let help = stdout(&apus("--help"));
    for code in &documented {
        let is_it = |line: &str| line.trim_start().starts_with(&format!("{code}  "));
        assert!(help.lines().any(is_it), "no {code} in: {help}");
    }

    assert_eq!(apus("--version").status.code(), Some(0));
    fails(1, "report /no/such/result.json", &["/no/such/result.json"]);
    fails(2, "report --nothing x", &["--nothing"]);
    fails(127, "run /no/such/program", &["/no/such/program"]);
    fails(126, "run /etc/passwd", &["/etc/passwd"]);
    let unusable = output(run(["true"]).env("APUS_PRELOAD", "/no/such/library.so"));
    assert_eq!(unusable.status.code(), Some(126), "{}", stderr(&unusable));
    let own = output(&mut run(["sh", "-c", "exit 42"]));
    assert_eq!(own.status.code(), Some(42), "the program's own");
}

#[test]
fn addresses_say_what_is_expected() {
    for command in
        ["node server --listen localhost:1", "bench memcached-agent --listen localhost:1"]
    {
        fails(2, command, &["localhost:1", "expected IP:PORT, as in 127.0.0.1:20146"]);
    }
    fails(2, "stat --prometheus localhost:1", &["expected IP:PORT"]);
}

#[test]
fn commands_that_show_something_have_it_as_json() {
    let settings = json("settings budget --json -");
    let keys: Vec<&str> = settings["settings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["key"].as_str())
        .collect();
    assert!(keys.contains(&"peer_budget"), "{keys:?}");
    assert!(json("lab status --json -")["labs"].is_array());
    let checked = json("sim check --seeds 0..2 --json -");
    assert_eq!((checked["from"].as_u64(), checked["to"].as_u64()), (Some(0), Some(2)));
    assert!(checked["failures"].as_array().is_some_and(Vec::is_empty), "{checked}");

    let directory = Directory::new("json");
    let metrics = directory.file("metrics");
    let metrics = metrics.to_str().expect("it is text");
    let server = Server::start_with("", &[("APUS_METRICS", metrics)]);
    let top = json(&format!("top --once --interval 0.1 --dir {metrics} --json -"));
    let process = &top["processes"][0];
    assert_eq!(process["pid"].as_u64(), Some(u64::from(server.id())), "{top}");
    assert!(process["rates"]["calls_per_s"].is_number(), "{top}");
    let text = stdout(&apus(&format!("top --once --interval 0.1 --dir {metrics}")));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // `--json` was once a flag, and now takes the next argument, a trace, as its file.
    fails(2, "trace show --json x.trace", &["x.trace", "would overwrite", "--json -"]);
    fails(2, "top --json -", &["--once"]);
}
