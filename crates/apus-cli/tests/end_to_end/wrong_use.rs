//! Wrong arguments: exit code 2 and one line that names the argument, its value and what is allowed.

use crate::program::{apus, fails, stderr};

#[test]
fn values_that_cannot_be() {
    fails(2, "bench rtt --pin left", &["left", "--pin", "split, same, none"]);
    fails(2, "bench rtt --runs 0", &["0", "--runs", "1..=1000"]);
    fails(2, "bench rtt --seconds -1", &["-1", "--seconds"]);
    fails(2, "bench rtt --seconds x", &["x", "--seconds", "between 0.01 and 3600"]);
    fails(2, "bench rtt --size 1", &["1", "--size", "between 16 and 67108864"]);
    fails(2, "bench rtt --size ten", &["ten", "--size"]);
    fails(
        2,
        "bench rtt --delivery fast",
        &["fast", "--delivery", "base, defer:20, napibusy, fullbusy"],
    );
    fails(2, "bench rtt --transports quic", &["quic", "--transports", "tcp-epoll", "apus-udp"]);
    fails(2, "bench rate --outstanding 0", &["0", "--outstanding", "1..=100000"]);
    fails(2, "bench mix --workload w6", &["w6", "--workload"]);
    fails(2, "bench mix --gbps 0", &["0", "--gbps", "between 0.001 and 1000"]);
    fails(2, "node client --servers a:1 --fault loss=2", &["loss=2", "--fault", "0 to 1"]);
    fails(2, "node client --servers a:1 --gbps -3", &["-3", "--gbps"]);
    fails(2, "node server --listen here", &["here", "--listen"]);
    fails(2, "completions cmd", &["cmd", "bash"]);
}

#[test]
fn values_that_do_not_fit_together() {
    fails(2, "bench mix --transports tcp-block", &["--transports tcp-block", "tcp-epoll"]);
    fails(2, "bench stream --echo --transports tcp-block", &["tcp-block", "--echo"]);
    fails(2, "node server --first-port 32767 --ports 2", &["--first-port 32767", "--ports 2"]);
    fails(2, "node server --first-port 0", &["--first-port 0", "between 1 and 32767"]);
    fails(2, "node client --servers a:1 --protocol tcp --verify", &["--verify", "apus"]);
    fails(2, "node server --protocol tcp --fault loss=0.1", &["--fault", "apus"]);
    fails(2, "demo --html x.html --no-html", &["--html", "--no-html"]);
}

#[test]
fn addresses_that_are_none() {
    fails(2, "node client --servers 127.0.0.1", &["--servers 127.0.0.1", "HOST:PORT"]);
    fails(2, "node client --servers x --protocol tcp", &["--servers x", "HOST:PORT"]);
}

#[test]
fn what_is_missing_or_unknown() {
    fails(2, "node client", &["--servers"]);
    fails(2, "report", &["RESULT.json"]);
    fails(2, "dance", &["dance"]);
    fails(2, "bench rtt --fast", &["--fast"]);
}

#[test]
fn without_a_command_the_help_is_shown() {
    for arguments in ["", "bench", "node"] {
        let output = apus(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("Usage: apus"));
    }
}
