//! Wrong arguments: exit code 2 and one line with the argument, its value and the permitted values.

use std::{env, fs, process};

use crate::program::{apus, fails, stderr};

#[test]
fn values_that_cannot_be() {
    fails(2, "bench rtt --pin left", &["left", "--pin", "sweep, or a list of split, same, none"]);
    fails(
        2,
        "bench rtt --pin 0-99999",
        &["0-99999", "--pin", "this process may not use CPU 99999"],
    );
    fails(2, "bench scale --pin sweep", &["sweep", "--pin", "split, same, none"]);
    fails(2, "bench rtt --runs 0", &["0", "--runs", "1..=1000"]);
    fails(2, "bench rtt --seconds -1", &["-1", "--seconds"]);
    fails(2, "bench rtt --seconds x", &["x", "--seconds", "between 0.01 and 3600"]);
    for size in ["0", "1", "15", "65MiB", "5GB"] {
        let words = [size, "--size", "between 16 and 67108864 bytes"];
        fails(2, &format!("bench rtt --size {size}"), &words);
    }
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
    for size in ["0", "65MiB"] {
        let words = [size, "--sizes", "between 1 and 67108864 bytes"];
        fails(2, &format!("bench sockets --sizes {size}"), &words);
    }
    fails(2, "bench sockets --only ping", &["ping", "--only", "rr, stream"]);
    fails(2, "node client --servers a:1 --fault loss=2", &["loss=2", "--fault", "0 to 1"]);
    fails(2, "node client --servers a:1 --gbps -3", &["-3", "--gbps"]);
    fails(2, "node server --listen here", &["here", "--listen"]);
    fails(2, "node server --pin 99999", &["--pin 99999", "this process may use the CPUs", "0"]);
    fails(2, "sim compare --scale 0", &["--scale", "between 0.001 and 1000"]);
    fails(2, "sim run --load -1", &["-1", "--load", "above 0 and up to 2"]);
    fails(2, "sim run --sim-ms x", &["x", "--sim-ms", "0 to 1000000"]);
    fails(2, "sim sweep x --jobs 0", &["0", "--jobs", "1..=1024"]);
    fails(2, "completions cmd", &["cmd", "bash"]);
}

#[test]
fn values_that_do_not_fit_together() {
    fails(2, "bench mix --transports tcp-block", &["--transports tcp-block", "tcp-epoll"]);
    for blocking in ["tcp-block", "unix-block"] {
        fails(2, &format!("bench stream --echo --transports {blocking}"), &[blocking, "--echo"]);
    }
    for floor in ["--only stream", "--only rr --sizes 1"] {
        let arguments = format!("bench sockets --transports raw-shm {floor}");
        fails(2, &arguments, &["--transports raw-shm", "round trips", "16 bytes"]);
    }
    fails(2, "node server --first-port 32767 --ports 2", &["--first-port 32767", "--ports 2"]);
    fails(2, "node server --first-port 0", &["--first-port 0", "between 1 and 32767"]);
    fails(2, "node client --servers a:1 --protocol tcp --verify", &["--verify", "apus"]);
    fails(2, "node server --protocol tcp --fault loss=0.1", &["--fault", "apus"]);
    fails(2, "node server --protocol tcp --body cp-node", &["--body", "apus"]);
    fails(2, "node client --servers a:1 --body cp-node --verify", &["--verify", "cp-node"]);
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

#[test]
fn plans_that_are_none() {
    let dir = env::temp_dir().join(format!("apus-plans-{}", process::id()));
    fs::create_dir_all(&dir).expect("a temporary directory");
    let plan = dir.join("plan.toml");
    let path = plan.display();
    fs::write(&plan, "load = 0.5\nworkload = [\n").expect("as above");
    for command in ["sim run", "sim sweep", "lab run"] {
        let output = apus(&format!("{command} {path}"));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("plan.toml`: not ") && message.contains(": line "), "{message}");
        assert!(!message.contains(" | ") && !message.contains('^'), "{message}");
    }
    fs::write(&plan, "workload = 'w1'\n").expect("as above");
    fails(2, &format!("sim sweep {path}"), &["no [sweep] table", "apus sim run"]);
    fs::write(&plan, "topology = 'single-4'\nworkload = 'w1'\nsim_ms = 0.1\n[sweep]\nseed = [1]\n")
        .expect("as above");
    fs::write(dir.join("00000.json"), "half a res").expect("as above");
    let sweep = format!("sim sweep {path} --dir {}", dir.display());
    fails(1, &sweep, &["00000.json", "is not a kept result", "not a JSON object"]);
    fs::remove_file(dir.join("00000.json")).expect("it was made here");
    assert!(apus(&sweep).status.success());
    fs::remove_dir_all(dir).expect("it was made here");
}
