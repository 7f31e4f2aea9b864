//! `apus run`: random programs of socket calls print the same plain and carried. `.ci/sockets-differ` runs many more of them.

use std::process::Command;

use crate::run::{Directory, output, run, stdout};

/// Seeds, the steps of each program, and those of them that are left out.
const PROGRAMS: [(u64, &str, &str); 8] = [
    (2, "100", ""),
    (3, "100", ""),
    (4, "100", ""),
    (7, "100", ""),
    (10, "100", ""),
    (11, "100", ""),
    (13, "100", ""),
    (14, "100", ""),
];

#[test]
fn random_programs_print_the_same() {
    let directory = Directory::new("differ");
    let program = directory.program("differ.c", &[]);
    for (seed, steps, dropped) in PROGRAMS {
        let seed = seed.to_string();
        let arguments: Vec<&str> =
            [&*seed, steps].into_iter().chain(dropped.split_whitespace()).collect();
        let plain = || stdout(&output(Command::new(&program).args(&arguments)));
        let carried = || stdout(&output(run([&program]).args(&arguments).env("CARRIED", "1")));
        let (first, other) = (plain(), carried());
        assert!(first.ends_with("done\n"), "{arguments:?}: {first}");
        // On a machine that is late, TCP may bring bytes so late that two plain runs differ as well: there is nothing to compare with then.
        if first != other && first == plain() {
            assert_eq!(carried(), first, "{arguments:?}");
        }
    }
}
