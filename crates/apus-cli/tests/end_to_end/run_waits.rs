//! `apus run`: waits and calls of programs whose connections are carried end as over TCP.

use std::process::Command;

use crate::program::stderr;
use crate::run::{Directory, output, run, same, stdout};

/// Asserts that all connections that a program explained were carried to their ends, and that there were so many lines.
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
    for sockets in ["", "return:300"] {
        let mut carried = run(["--explain"]);
        carried.arg(&program).arg("carried").env("APUS_SOCKETS", sockets);
        let carried = output(&mut carried);
        assert_eq!(stdout(&carried), plain);
        all_carried(&stderr(&carried), 4);
    }
}

#[test]
fn each_member_of_a_set_has_its_turn() {
    let directory = Directory::new("fair");
    let program = directory.program("fair.c", &[]);
    assert!(!same(&program, &[]).contains("some have none"));
    all_carried(&stderr(&output(run(["--explain"]).arg(&program))), 12);
}
