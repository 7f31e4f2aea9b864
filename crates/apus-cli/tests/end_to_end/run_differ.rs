//! `apus run`: random programs of socket calls print the same plain and carried. `.ci/sockets-differ` runs many more of them.

use std::process::Command;

use crate::run::{Directory, output, run, stdout};

/// Seeds, the steps of each program, and those of them that are left out.
const PROGRAMS: [(&str, &str, &str); 17] = [
    ("2", "100", ""),
    ("3", "100", ""),
    ("4", "100", ""),
    // FIONREAD did not count a ring behind bytes of TCP.
    ("1", "100", ""),
    ("17", "100", ""),
    ("24", "100", ""),
    ("31", "100", ""),
    // POLLRDHUP came when the ring was read.
    ("38", "7", "0 1 2 4 5"),
    (
        "36",
        "42",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 36 37 38 39 40 31 32 34 35",
    ),
    // recvmmsg returned bytes before a reset.
    (
        "30",
        "35",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 31 32 25 27 29 33",
    ),
    // recv of 0 bytes did not wait; a look with MSG_TRUNC reset a connection whose peer had closed it.
    ("58", "3", ""),
    ("16", "28", ""),
    // A descriptor was closed that a set had, while a duplicate was open.
    ("156", "33", ""),
    // recvmmsg returned the end before a reset of a connection that was not carried yet.
    (
        "248",
        "59",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 58 29 30 31 32 33 34 35 36 37 38 39 40 41 42 57 52 53 54 43 44 47 48 51 56",
    ),
    // After a shutdown of both directions: POLLHUP, the error of a socket before EPIPE, and a refusal of what the peer writes.
    (
        "265",
        "36",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 17 18 19 20 25 26 27 28 29 30 31 32 15 16 21 22 33 34 13 23",
    ),
    (
        "273",
        "100",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 25 26 27 28 29 30 31 32 33 34 35 36 86 87 88 89 90 91 92 93 94 95 96 97 98 99 37 38 39 46 47 48 49 75 76 83 84 85 41 42 43 44 77 79 81 82",
    ),
    (
        "299",
        "43",
        "0 1 2 3 4 5 6 7 8 9 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 12 13 16 17 18 19",
    ),
];

#[test]
fn random_programs_print_the_same() {
    let directory = Directory::new("differ");
    let program = directory.program("differ.c", &[]);
    for (seed, steps, dropped) in PROGRAMS {
        let arguments: Vec<&str> =
            [seed, steps].into_iter().chain(dropped.split_whitespace()).collect();
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
