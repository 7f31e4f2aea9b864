//! `apus run`: random programs of socket calls print the same plain and carried. `cargo xtask sockets-differ` runs many more of them.

use std::process::Command;

use crate::run::{Directory, output, run, stdout};

/// Seeds, the number of steps of each program, and the steps that are left out.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("2", "100", ""),
    ("3", "100", ""),
    ("4", "100", ""),
    // FIONREAD did not count bytes in a ring behind bytes of TCP.
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
    // recv of 0 bytes did not wait; a peek with MSG_TRUNC reset a connection whose peer had closed it.
    ("58", "3", ""),
    ("16", "28", ""),
    // A descriptor in a set was closed while a duplicate was open.
    ("156", "33", ""),
    // recvmmsg returned the end before a reset of a connection that was not carried yet.
    (
        "248",
        "59",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 58 29 30 31 32 33 34 35 36 37 38 39 40 41 42 57 52 53 54 43 44 47 48 51 56",
    ),
    // After a shutdown of both directions: POLLHUP, the error of a socket before EPIPE, and a refusal of the peer's bytes.
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
    // A parent did not know its child's shutdown.
    ("338", "5", "1 2"),
    // writev of no bytes failed after the end of the direction.
    ("517", "24", "12 13 14 15 16 17 3 4 5 6 7 8 18 19 20 0 1 2 10 11 21 22"),
    // A shutdown of both directions failed after the peer's end, and did not fail after its own.
    (
        "1339",
        "83",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 71 72 73 74 75 76 77 78 79 80 61 62 65 66 67 68 64 70 81",
    ),
    (
        "1920",
        "42",
        "0 1 2 3 4 5 6 7 8 9 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 12 13 16 17 18 19 10 14",
    ),
    // Members with EPOLLET or EPOLLONESHOT: some events were not reported, or were reported twice.
    (
        "555",
        "57",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 28 29 30 31 32 33 34 35 36 37 38 39 40 41 49 50 51 52 53 54 55 17 18 19 20 21 22 26 27 42 46 47 48 15 16 23 24 43 45",
    ),
    ("889", "21", "0 1 2 3 4 15 16 17 18 19 5 6 11 12 8 10 13"),
    (
        "1224",
        "61",
        "30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 0 1 2 3 4 5 6 7 8 9 13 14 15 19 20 21 22 23 24 10 12 17 18 25 27 28 29",
    ),
    (
        "2645",
        "36",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 21 22 23 24 25 26 27 28 29 30 31 32 15 16 17 18 13 19 34",
    ),
    (
        "9795",
        "44",
        "33 34 35 36 37 38 39 40 41 42 43 20 21 22 23 24 30 31 32 2 3 14 15 25 26 7 10 11 19 29",
    ),
    // A reset was reported without EPOLLOUT.
    (
        "2391",
        "120",
        "60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 6 7 8 12 13 14 24 25 26 27 28 29 4 9 11 20 21 23",
    ),
    // A read ended at the boundary between bytes of TCP and bytes of the ring.
    (
        "2958",
        "45",
        "5 6 7 8 9 15 16 17 18 19 25 26 27 28 29 35 36 37 38 39 0 1 2 3 13 14 22 23 31 32 40 41 12 33 43",
    ),
    // A read of all bytes consumed the error that belongs to the next call.
    (
        "1382",
        "60",
        "30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 0 1 2 3 4 5 6 14 15 16 17 18 19 20 50 51 52 53 54 55 56 7 8 9 23 24 25 29 45 46 11 12 13 22 26 28 47 49 57 58",
    ),
    // A peek at all bytes found none after the program's shutdown.
    (
        "2420",
        "91",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 78 79 80 81 82 83 84 85 86 87 88 66 67 68 69 70 58 59 60 61 62 63 64 65 71 72 75 76 77 89 56 73",
    ),
    // A reset was taken for an end, so one byte too many of the stream was read.
    (
        "5312",
        "35",
        "0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 10 11 12 13 24 25 28 29 32 33 9 14 27 30",
    ),
    ("5711", "23", "4 5 18 19 0 7 12 13 14 15 17 20"),
    (
        "6788",
        "116",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 86 87 88 89 90 91 92 93 94 95 96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 65 66 67 68 69 70 71 79 80 81 82 83 84 85 61 62 63 77 78 114 59 60 64 73 75 76",
    ),
    // Bytes in the ring behind bytes of TCP were lost at the return of a connection whose peer was gone.
    (
        "12310",
        "60",
        "0 1 2 3 4 5 6 14 15 16 17 18 19 20 28 29 30 31 32 33 34 23 24 25 39 40 41 42 43 44 51 52 53 54 55 56 7 10 12 13 21 26 35 36 37 49",
    ),
    // A program that a child executed took bytes that its parent had not read, and the error.
    ("1000006", "18", ""),
    // SO_RCVLOWAT applied to the ring alone, and a parent did not see its child's change of an option.
    (
        "1000040",
        "36",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 31 32 33 34 29 30 27",
    ),
    ("1000300", "6", "0 1 2 3 4"),
    // A peer was not reset, because a program that a child had executed counted as an owner of the connection.
    ("1000329", "27", "0 1 2 3 4 5 18 19 20 21 22 23"),
    // A raw system call to read did not find the bytes that a dead peer has left in its ring.
    (
        "1000230",
        "40",
        "10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 0 1 2 3 4 30 31 32 33 34 5 6 9 35 36 37 38",
    ),
    ("1000014", "17", "0 1 2 3 4 5 6 7 8 9 12 13 10 14"),
    // Bytes were put into TCP, which refused them, so the connection was reset.
    (
        "1000804",
        "68",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 25 26 27 28 29 30 31 32 41 42 43 44 45 46 47 48 17 18 19 20 33 34 35 36 53 54 55 56 23 24 37 38 51 52 59 60 61 62 22 49",
    ),
    // A member with EPOLLET that received bytes did not report room in TCP.
    ("1000171", "20", "0 1 2 3 4 6 7 9 12 14 16 17"),
    // A child recalled and executed a program, and the peer was not requested to answer.
    ("1001274", "27", "0 1 2 3 4 5 6 7 8 9 10 11 12 19 20 21 14 15 16 17 18 23"),
    // An end whose program had shut both directions down offered its ring, or was carried although the shutdown came first, so that
    // the peer was not reset.
    ("1006351", "12", "3 4 5"),
    ("2003682", "23", ""),
    ("2001152", "54", ""),
    // connect found that the connection had ended and disconnected the socket, whose unread bytes remained.
    (
        "2204699",
        "119",
        "29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 0 1 2 3 4 5 6 7 8 9 10 11 12 13 21 22 23 24 25 26 27 100 101 102 103 104 105 106 17 18 19 20 28 87 97 98 99 110 111 112 14 15 88 89 91 92 94 107 108 113 115 116 117",
    ),
    // After a shutdown of both directions a read found the end instead of the reset before it.
    (
        "2200386",
        "37",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 22 23 24 25 26 27 28 29 30 31 32 33 18 19 20 35",
    ),
];

#[test]
fn random_programs_print_the_same() {
    let directory = Directory::new("differ");
    let program = directory.program("differ.c", &[]);
    for &(seed, steps, dropped) in PROGRAMS {
        let arguments: Vec<&str> =
            [seed, steps].into_iter().chain(dropped.split_whitespace()).collect();
        let plain = || stdout(&output(Command::new(&program).args(&arguments)));
        let carried = || stdout(&output(run([&program]).args(&arguments).env("CARRIED", "1")));
        let (first, other) = (plain(), carried());
        assert!(first.ends_with("done\n"), "{arguments:?}: {first}");
        // On a slow machine, TCP may deliver bytes so late that two plain runs differ as well: then there is no basis for a
        // comparison.
        if first != other && first == plain() {
            assert_eq!(carried(), first, "{arguments:?}");
        }
    }
}
