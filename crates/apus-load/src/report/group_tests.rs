use super::*;
use crate::machine::Machine;
use crate::report::sample;
use crate::report::table::Standing;

fn tables_of(result: &ResultFile) -> Vec<Table> {
    tables(result, &sample::CONVENTIONS)
}

fn result(rows: Vec<Row>) -> ResultFile {
    let mut result = ResultFile::new("apus bench", Machine::default());
    result.rows = rows;
    result
}

fn heads(table: &Table) -> Vec<&str> {
    table.heads.iter().map(|head| head.text.as_str()).collect()
}

fn line(table: &Table, number: usize) -> Vec<&str> {
    table.lines[number].iter().map(|entry| entry.text.as_str()).collect()
}

fn rtt(transport: &str, p50_us: f64) -> Row {
    Row::new(transport).set("bench", "rtt").set("size_bytes", 100_u32).set("p50_us", p50_us)
}

#[test]
fn rows_under_other_conditions_stand_in_another_table() {
    let stream = |transport, outstanding: u32| {
        Row::new(transport)
            .set("bench", "stream")
            .set("size_bytes", 500_000_u32)
            .set("outstanding", outstanding)
            .set("goodput_gbps", 20.0)
    };
    let tables = tables_of(&result(vec![
        rtt("a", 5.0),
        stream("a", 1),
        stream("a", 8),
        rtt("b", 6.0),
        stream("b", 1),
    ]));
    let titles: Vec<&str> = tables.iter().map(|table| table.title.as_str()).collect();
    assert_eq!(
        titles,
        ["rtt · 100 B", "stream · 500 kB · 1 outstanding", "stream · 500 kB · 8 outstanding"]
    );
    assert_eq!(tables[0].lines.len(), 2);
}

#[test]
fn figures_under_different_loads_are_not_compared() {
    let mix = |transport, offered: f64, p99_us: f64| {
        let row = Row::new(transport).set("bench", "mix").set("load", "60 % of own capacity");
        row.set("offered_gbps", offered).set("p99_us", p99_us)
    };
    let differ =
        &tables_of(&result(vec![mix("apus-udp", 31.9, 90.0), mix("tcp-epoll", 3.25, 31.0)]))[0];
    assert!(heads(differ).iter().all(|head| !head.contains("against")), "{:?}", heads(differ));
    assert!(
        differ.note.contains("the loads differ, so results are not compared"),
        "{}",
        differ.note
    );
    assert!(differ.headline.is_none() && differ.lines.iter().flatten().all(|entry| !entry.best));

    let same = &tables_of(&result(vec![mix("apus-udp", 2.0, 9.0), mix("tcp-epoll", 2.0, 31.0)]))[0];
    assert_eq!(heads(same).last(), Some(&"p99 against tcp-epoll"));
    let late = mix("apus-udp", 2.0, 9.0).refused_as_late();
    let refused = &tables_of(&result(vec![late, mix("tcp-epoll", 2.0, 31.0)]))[0];
    assert_eq!(line(refused, 0).last(), Some(&"refused"));
    let late = |transport| mix(transport, 2.0, 9.0).set("late_pct", 90.0).refused_as_late();
    let nothing = &tables_of(&result(vec![late("apus-udp"), late("tcp-epoll")]))[0];
    assert!(nothing.headline.is_none(), "lateness is not a result");
}

#[test]
fn the_subject_is_compared_with_each_kind_of_rival() {
    let conventions = Conventions {
        rivals: &["tcp", "unix"],
        names: &[("apus", "Apus"), ("tcp", "kernel TCP"), ("unix", "unix sockets")],
        ..sample::CONVENTIONS
    };
    let rows = vec![rtt("apus-shm", 6.0), rtt("tcp-a", 54.0), rtt("tcp-b", 60.0), rtt("unix", 3.0)];
    let tables = tables(&result(rows), &conventions);
    let claims = &tables[0].headline.as_ref().unwrap().claims;
    let said: Vec<(&str, Standing)> =
        claims.iter().map(|claim| (&*claim.rival, claim.standing)).collect();
    assert_eq!(said, [("unix", Standing::Behind), ("tcp-a", Standing::Ahead)]);
}

#[test]
fn conditions_read_as_words() {
    let row = Row::new("a")
        .set("bench", "mix")
        .set("workload", "mix")
        .set("load", "60 % of own capacity")
        .set("pin", "same")
        .set("loss_pct", 10_u32)
        .set("p99_us", 1.5);
    assert_eq!(
        tables_of(&result(vec![row]))[0].title,
        "mix · 60 % of own capacity · pin same · 10 % loss"
    );
    let row = Row::new("a").set("workload", "w3").set("size_bytes", None::<u32>).set("p99_us", 1.5);
    assert_eq!(tables_of(&result(vec![row]))[0].title, "workload w3");
    assert_eq!(tables_of(&result(vec![Row::new("a")]))[0].title, "results");
}

#[test]
fn the_reference_is_the_best_tcp_and_the_floor_is_no_contender() {
    let rows = vec![
        rtt("apus-udp", 5.0),
        rtt("tcp-epoll", 75.0),
        rtt("tcp-busy", 7.5),
        rtt("raw-udp", 4.0),
    ];
    let table = &tables_of(&result(rows))[0];
    assert_eq!(heads(table), ["transport", "p50 µs", "p50 against tcp-busy"]);
    assert_eq!(line(table, 0), ["apus-udp", "5", "1.5× faster"]);
    assert_eq!(line(table, 1), ["tcp-epoll", "75", "10× slower"]);
    assert_eq!(line(table, 2), ["tcp-busy", "7.50", "reference"]);
    assert_eq!(line(table, 3), ["raw-udp (floor)", "4", "1.9× faster"]);
    let best: Vec<bool> = table.lines.iter().map(|line| line[1].best).collect();
    assert_eq!(best, [true, false, false, false]);
    let claim = table.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(
        (claim.headline.as_str(), claim.standing),
        ("Apus is 1.5× faster than kernel TCP", Standing::Ahead)
    );
    assert_eq!(
        (claim.ours.as_str(), claim.reference.as_str()),
        ("apus-udp 5 µs", "tcp-busy 7.50 µs")
    );
}

#[test]
fn runs_become_a_median_with_spread_and_ratios_within_a_run() {
    // In run 2 the machine was half as fast; the ratio of the runs is not affected.
    let mut rows = Vec::new();
    for (run, slow) in [(1_u32, 1.0), (2, 2.0), (3, 1.1)] {
        rows.push(rtt("apus-udp", 5.0 * slow).set("run", run));
        rows.push(rtt("tcp-busy", 10.0 * slow).set("run", run));
    }
    let table = &tables_of(&result(rows))[0];
    assert_eq!(heads(table), ["transport", "p50 µs", "±", "p50 against tcp-busy"]);
    assert_eq!(line(table, 0), ["apus-udp", "5.50", "23 %", "2.0× faster"]);
    assert!(table.note.starts_with("medians of 3 runs"), "{}", table.note);
}

#[test]
fn repetitions_without_a_number_are_runs_too() {
    let rows = vec![rtt("a", 5.0), rtt("a", 7.0), rtt("a", 6.0)];
    let table = &tables_of(&result(rows))[0];
    assert_eq!(line(table, 0), ["a", "6", "8 %"]);
    let same_number = vec![rtt("a", 5.0).set("run", 1_u32), rtt("a", 7.0).set("run", 1_u32)];
    assert_eq!(line(&tables_of(&result(same_number))[0], 0)[1], "6");
}

#[test]
fn settings_distinguish_lines_and_constants_go_into_the_note() {
    let row = |transport, connections: Option<u32>, p99_us| {
        Row::new(transport)
            .set("bench", "mix")
            .set("connections", connections)
            .set("delivery", "base")
            .set("offered_gbps", 2.0)
            .set("p99_us", p99_us)
    };
    let rows = vec![
        row("apus-udp", None, 20.0),
        row("tcp-epoll", Some(1), 140.0),
        row("tcp-epoll", Some(4), 90.0),
    ];
    let table = &tables_of(&result(rows))[0];
    assert_eq!(
        heads(table),
        ["transport", "connections", "p99 µs", "p99 against tcp-epoll, 4 connections"]
    );
    assert_eq!(line(table, 1), ["tcp-epoll", "1", "140", "1.6× slower"]);
    assert_eq!(table.note, "delivery base · offered 2 Gb/s");
    let values = &table.headline.as_ref().unwrap().values;
    assert_eq!(values[2].0, "tcp-epoll, 4 connections");
}

#[test]
fn flags_are_named_in_labels() {
    let row = |zero_copy, calls_per_s| {
        Row::new("apus-udp")
            .set("bench", "rate")
            .set("zero_copy", zero_copy)
            .set("calls_per_s", calls_per_s)
    };
    let table = &tables_of(&result(vec![row(true, 2e6), row(false, 1e6)]))[0];
    assert_eq!(heads(table), ["transport", "zero copy", "calls per s"]);
    assert_eq!(table.headline.as_ref().unwrap().values[0].0, "apus-udp, zero copy yes");
}

#[test]
fn the_subject_is_the_first_transport_in_its_best_setting() {
    let rows = vec![
        rtt("apus-udp", 9.0).set("delivery", "base"),
        rtt("apus-udp", 5.0).set("delivery", "fullbusy"),
        rtt("other", 1.0),
        rtt("tcp-busy", 10.0),
    ];
    let table = &tables_of(&result(rows))[0];
    let claim = table.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(claim.ours, "apus-udp, fullbusy 5 µs");
}

#[test]
fn what_was_not_measured_is_a_dash() {
    let rows = vec![rtt("a", 5.0), rtt("tcp", f64::NAN), rtt("tcp-busy", 0.0)];
    let table = &tables_of(&result(rows))[0];
    assert_eq!(line(table, 1), ["tcp", "—", "—"]);
    assert_eq!(line(table, 0)[2], "—", "nothing is compared with zero");
}

#[test]
fn lines_that_are_no_transports_are_not_compared() {
    let row = |tenth: &str, us: f64| {
        Row::new(tenth)
            .set("bench", "lab sizes of apus-udp")
            .set("hosts", 10_u32)
            .set("link_mbps", 50.0)
            .set("p99_us", us)
    };
    let table = &tables_of(&result(vec![row("1: 315", 5.0), row("10: 1MB", 500.0)]))[0];
    assert_eq!(table.title, "lab sizes of apus-udp · 10 hosts · 50 Mb/s links");
    assert_eq!(heads(table), ["tenth: up to", "p99 µs"]);
    assert!(table.headline.is_none() && table.lines.iter().flatten().all(|entry| !entry.best));
}

#[test]
fn nothing_to_compare_gives_no_claim() {
    let table = &tables_of(&result(vec![rtt("tcp-busy", 5.0)]))[0];
    assert_eq!(heads(table), ["transport", "p50 µs"]);
    let table = &tables_of(&result(vec![rtt("apus-udp", 5.0)]))[0];
    assert!(table.headline.as_ref().unwrap().claims.is_empty());
    let table = &tables_of(&result(vec![
        Row::new("a").set("calls", 5_u32),
        Row::new("b").set("calls", 6_u32),
    ]))[0];
    assert!(table.headline.is_none());
    assert!(tables_of(&result(Vec::new())).is_empty());
}

fn lab(transport: &str, verdict: &str, us: f64) -> Row {
    Row::new(transport).set("bench", "lab").set("verdict", verdict).set("short_p99_us", us)
}

#[test]
fn no_card_says_what_its_figures_deny() {
    // Two of three runs are faster, but the medians are not.
    let runs = [(1_u32, 22_020.0, 23_000.0), (2, 9_000.0, 9_600.0), (3, 30_000.0, 13_042.0)];
    let mut rows = Vec::new();
    for (run, ours, theirs) in runs {
        rows.push(rtt("apus-udp", ours).set("run", run));
        rows.push(rtt("tcp-busy", theirs).set("run", run));
    }
    let table = &tables_of(&result(rows))[0];
    assert_eq!(line(table, 0)[3], "runs disagree");
    let claim = table.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(
        (claim.headline.as_str(), claim.standing),
        ("Apus or kernel TCP: the runs disagree", Standing::Unclear)
    );
    assert_eq!(claim.ours, "apus-udp 22.0 ms");
    assert_eq!(claim.reference, "tcp-busy 13.0 ms");
}

#[test]
fn runs_at_another_pace_of_the_machine_are_not_compared() {
    // The machine was slow during one run of one transport, or during all.
    let table = |floors: [f64; 3]| {
        let mut rows = Vec::new();
        for (run, floor) in (1_u32..).zip(floors) {
            rows.push(rtt("apus-udp", 5.0 * floor / 0.16).set("run", run).set(FLOOR, floor));
            rows.push(rtt("tcp-busy", 10.0).set("run", run).set(FLOOR, 0.16));
        }
        tables_of(&result(rows))[0].clone()
    };
    let words = |table: &Table| line(table, 0)[3].to_owned();
    assert_eq!(words(&table([0.16, 0.15, 0.17])), "2.0× faster");
    assert_eq!(words(&table([0.16, 0.65, 0.16])), "2.0× faster");
    let other = table([0.65, 0.65, 0.16]);
    assert_eq!(words(&other), "other pace");
    let claim = other.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(
        (claim.headline.as_str(), claim.standing),
        ("The machine changed its pace between the runs", Standing::Unclear)
    );
}

#[test]
fn a_refused_run_has_no_headline_to_be_proud_of() {
    let rows = vec![lab("apus-udp", REFUSED, 5.0), lab("tcp-epoll", "good", 50.0)];
    let table = &tables_of(&result(rows))[0];
    let words: Vec<&str> = table.lines.iter().map(|line| line[3].text.as_str()).collect();
    assert_eq!(words, ["refused", "reference"]);
    assert!(!table.lines[0].iter().any(|entry| entry.best));
    let claim = table.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(
        (claim.headline.as_str(), claim.standing),
        ("The machine was too busy to compare", Standing::Unclear)
    );
    // A repetition that was not refused is the one to compare with.
    let rows = vec![
        lab("apus-udp", "good", 5.0),
        lab("tcp-epoll", REFUSED, 40.0),
        lab("tcp-epoll", "good", 50.0),
    ];
    let table = &tables_of(&result(rows))[0];
    let claim = table.headline.as_ref().unwrap().claims.first().unwrap();
    assert_eq!(
        (claim.headline.as_str(), claim.standing),
        ("Apus is 10× faster than kernel TCP", Standing::Ahead)
    );
}
