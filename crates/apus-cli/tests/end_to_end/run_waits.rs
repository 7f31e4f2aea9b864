//! `apus run`: waits and calls of programs with carried connections end as over TCP.

use std::path::Path;
use std::process::Command;

use crate::program::stderr;
use crate::run::{Directory, output, run, same, stdout};
use crate::skipped::skipped;

/// The command `apus run --explain` of a program that continues once its connections are carried.
fn explained(program: &Path) -> Command {
    let mut command = run(["--explain"]);
    command.arg(program).env("MEETS", "1");
    command
}

/// Asserts that all connections in a program's explanation were carried to their ends, and that it has `lines` lines.
fn all_carried(said: &str, lines: usize) {
    let carried = said.lines().filter(|line| line.ends_with(": carried")).count();
    assert_eq!((said.lines().count(), carried), (lines, lines), "{said}");
}

#[test]
fn sets_that_are_members_or_polled_wake_for_carried_connections() {
    let directory = Directory::new("nested");
    let program = directory.program("nested.c", &["-pthread"]);
    assert!(same(&program, &[]).ends_with("several: woken\nclosed, read: nothing\n"));
    let plain = stdout(&output(Command::new(&program).arg("carried")));
    let carried = output(explained(&program).arg("carried"));
    assert_eq!(stdout(&carried), plain);
    all_carried(&stderr(&carried), 4);
    // While a direction returns, a reported event may be on its way. But no wait lasts for ever.
    let returning = output(run([&program]).arg("carried").env("APUS_SOCKETS", "return:300"));
    assert!(stdout(&returning).ends_with("several: woken\n"), "{}", stderr(&returning));
}

#[test]
fn calls_may_be_left_by_jumps() {
    let directory = Directory::new("jumps");
    let program = directory.program("jumps.c", &["-pthread"]);
    let plain = output(Command::new(&program).arg("5000"));
    let carried = output(explained(&program).arg("5000"));
    assert_eq!(stdout(&carried), stdout(&plain), "{}", stderr(&carried));
    assert!(stdout(&plain).ends_with("descriptors: 0 too many\n"), "{}", stderr(&plain));
    // A child of fork calls exec at the end.
    let said = stderr(&carried).replace(": carried until the program called exec", ": carried");
    all_carried(&said, 16);
}

#[test]
fn a_process_and_its_child_go_on_with_a_call_in_which_a_handler_forks() {
    let directory = Directory::new("forked-calls");
    let program = directory.program("forked_calls.c", &[]);
    for order in ["first", "last", "writes"] {
        let text = same(&program, &[order]);
        assert_eq!(text, "writes are whole\nreads are whole\nsets are right\n", "{order}");
        all_carried(&stderr(&output(explained(&program).arg(order))), 2);
    }
}

#[test]
fn a_set_wakes_for_a_connection_whose_bell_was_full() {
    let directory = Directory::new("full-bell");
    let program = directory.program("full_bell.c", &[]);
    let woken = output(run([&program]).env("APUS_SOCKETS", "return:2000"));
    assert_eq!(stdout(&woken), "10 waits: woken\n", "{}", stderr(&woken));
}

#[test]
fn a_set_wakes_for_room_after_a_child_has_filled_the_ring() {
    let directory = Directory::new("child-fills");
    let program = directory.program("child_fills.c", &[]);
    let text = same(&program, &[]);
    assert_eq!(text, "level: room\nonce: room\nedge: room\nedge, once: room\n");
    all_carried(&stderr(&output(&mut explained(&program))), 8);
}

#[test]
fn each_member_of_a_set_has_its_turn() {
    let directory = Directory::new("fair");
    let program = directory.program("fair.c", &[]);
    assert!(!same(&program, &[]).contains("some have none"));
    all_carried(&stderr(&output(&mut explained(&program))), 12);
}

#[test]
fn calls_take_little_more_of_the_stack() {
    let directory = Directory::new("stacks");
    let program = directory.program("stacks.c", &["-pthread"]);
    let bytes = |text: &str| -> Vec<(String, usize)> {
        let line = |line: &str| {
            let (name, bytes) = line.split_once(": ").expect("a name and a number");
            (name.to_owned(), bytes.parse().expect("a number"))
        };
        text.lines().map(line).collect()
    };
    let plain = output(&mut Command::new(&program));
    let carried = output(&mut explained(&program));
    assert!(carried.status.success(), "{}: {}", carried.status, stdout(&carried));
    all_carried(&stderr(&carried), 2);
    let (plain, carried) = (bytes(&stdout(&plain)), bytes(&stdout(&carried)));
    assert_eq!(carried.len(), plain.len());
    for ((name, plain), (_, carried)) in plain.into_iter().zip(carried) {
        assert!(carried <= plain + 8192, "{name}: {carried} bytes, plain {plain}");
    }
}

#[test]
fn a_program_that_restricts_its_system_calls_stays_with_tcp() {
    let directory = Directory::new("sandbox");
    let program = directory.program("sandbox.c", &[]);
    for when in ["before", "after"] {
        for how in [&["seccomp"][..], &["seccomp", "tsync"], &["prctl"], &["wrapper"]] {
            let arguments = [&[when], how].concat();
            let text = same(&program, &arguments);
            assert!(text.ends_with("locked in\ntalked\nended\n"), "{text}");
            let said = stderr(&output(explained(&program).args(&arguments)));
            let lines = |words: &str| said.lines().filter(|line| line.contains(words)).count();
            let (carried, returned) = if when == "after" { (2, 1) } else { (0, 0) };
            // The end that returns second may learn of the other one's return before.
            assert_eq!(lines(": carried"), carried, "{said}");
            assert!(lines(": carried until the program called seccomp") >= returned, "{said}");
            assert!(said.ends_with("no connection is carried or explained\n"), "{said}");
        }
    }
}

#[test]
fn programs_with_sanitizers_run_without_reports() {
    let directory = Directory::new("sanitizers");
    for (name, carried) in [("address", true), ("undefined", true), ("thread", false)] {
        let flag = format!("-fsanitize={name}");
        let Some(program) = directory.compiled("gcc", "waits.c", &[&flag], name) else {
            skipped(format!("gcc is not installed, or cannot compile with {flag}"));
            continue;
        };
        let plain = output(&mut Command::new(&program));
        let preloaded = output(&mut explained(&program));
        assert_eq!(stdout(&preloaded), stdout(&plain), "{name}: {}", stderr(&preloaded));
        let said = stderr(&preloaded);
        assert!(said.lines().all(|line| line.starts_with("apus[")), "{name}: {said}");
        assert_eq!(said.contains(": carried"), carried, "{name}: {said}");
        assert_eq!(said.contains("ThreadSanitizer cannot see"), !carried, "{name}: {said}");
    }
}

#[test]
fn functions_that_another_library_replaces_are_not_relied_on() {
    let directory = Directory::new("replaced");
    let program = directory.program("replaced.c", &["-pthread"]);
    assert_eq!(same(&program, &[]), "all calls ended\n");
    let said = stderr(&output(&mut explained(&program)));
    assert_eq!(said.lines().filter(|line| line.contains(": carried")).count(), 22, "{said}");
}

#[test]
fn bare_system_calls_spare_the_descriptors_of_the_library() {
    let directory = Directory::new("spared");
    let program = directory.program("spared.c", &[]);
    let text = same(&program, &[]);
    assert!(text.ends_with("all are there\n") && text.contains("dup: 0 taken\n"), "{text}");
    all_carried(&stderr(&output(&mut explained(&program))), 2);
}

#[test]
fn what_is_announced_is_there() {
    let directory = Directory::new("announced");
    let program = directory.program("announced.c", &[]);
    let plain = stdout(&output(&mut Command::new(&program)));
    for sockets in ["", "return:1000", "return:20000"] {
        let carried = output(run([&program]).env("APUS_SOCKETS", sockets));
        assert_eq!(stdout(&carried), plain, "{sockets}: {}", stderr(&carried));
    }
}

#[test]
fn a_thread_that_sleeps_in_a_set_learns_what_others_change() {
    let directory = Directory::new("rearmed");
    let program = directory.program("rearmed.c", &["-pthread"]);
    assert!(same(&program, &[]).ends_with("filled: woken\nanswered: reported\n"));
    all_carried(&stderr(&output(&mut explained(&program))), 2);
}

#[test]
fn options_and_calls_follow_bytes_in_memory() {
    let directory = Directory::new("options");
    let program = directory.program("options.c", &["-pthread"]);
    assert!(same(&program, &[]).contains("the end: 0\n"));
    let said = stderr(&output(&mut explained(&program)));
    let returned = said.lines().filter(|line| !line.ends_with(": carried"));
    let wrong =
        ["preadv2 or pwritev2 with flags", "sendfile from a source that is not a file, or splice"];
    assert!(returned.clone().all(|line| wrong.iter().any(|wrong| line.ends_with(wrong))), "{said}");
    // An end may learn of the other end's return before it returns itself.
    assert_eq!(said.lines().count(), 10, "{said}");
    assert!(matches!(returned.count(), 2 | 3), "{said}");
}

#[test]
fn members_may_be_exclusive_or_older_than_their_connections() {
    let directory = Directory::new("members");
    let program = directory.program("members.c", &["-pthread"]);
    assert!(
        same(&program, &[]).ends_with("edge: woken\nearly: woken\nearly: woken\nearly: woken\n")
    );
    let said = stderr(&output(&mut explained(&program)));
    // A duplicate of a socket that was added before is not carried.
    let carried = said.lines().filter(|line| line.ends_with(": carried")).count();
    assert_eq!((said.lines().count(), carried), (8, 6), "{said}");
}

#[test]
fn a_child_may_wait_in_a_set_of_its_parent() {
    let directory = Directory::new("inherited");
    let program = directory.program("inherited.c", &[]);
    let text = same(&program, &[]);
    assert!(text.lines().count() == 30 && text.lines().all(|line| line.ends_with(": 1 77 read 1")));
}

#[test]
fn a_set_that_another_process_has_as_well_wakes_there() {
    let directory = Directory::new("passed");
    let program = directory.program("passed.c", &[]);
    assert_eq!(same(&program, &[]), "the other process: 1 with 77\n");
    assert_eq!(same(&program, &["inherited"]), "poll: 1 with 1\n");
    for arguments in [&[][..], &["inherited"]] {
        let output = output(explained(&program).args(arguments));
        let said = stderr(&output);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(": carried until the program called a wait for its epoll set"),
            "{said}"
        );
    }
}
