//! `apus bench memcached` against third-party servers, each on a port or a unix socket of its own.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use serde_json::Value;

use crate::program::Server as Agent;
use crate::program::{apus, checked_json, fails, json, json_perhaps_refused, stderr, wait_until};
use crate::skipped::skipped;

/// A server, with a directory of its own, killed when it is dropped.
struct Server {
    child: Child,
    directory: PathBuf,
    /// Address in the form that `apus bench memcached` accepts.
    address: String,
}

impl Server {
    /// memcached on a TCP port that the system chooses; `None` where it is not installed.
    fn memcached(name: &str) -> Option<Self> {
        let directory = Self::directory(name);
        let port = directory.join("port");
        let mut command = Command::new("memcached");
        // Only root must name a user.
        command.args(["-u", "root", "-l", "127.0.0.1", "-p", "-1", "-U", "0", "-t", "2"]);
        command.env("MEMCACHED_PORT_FILENAME", &port);
        let mut server = Self::start(command, directory)?;
        wait_until("memcached reports its port", || {
            server.is_running();
            let text = fs::read_to_string(&port).unwrap_or_default();
            let found = text.lines().find_map(|line| line.strip_prefix("TCP INET: "));
            found.inspect(|port| server.address = format!("127.0.0.1:{port}")).is_some()
        });
        Some(server)
    }

    /// A server on a unix socket, whose path is the last argument; `None` where it is not installed.
    fn at_a_path(name: &str, program: &str, arguments: &[&str]) -> Option<Self> {
        let directory = Self::directory(name);
        let path = directory.join("socket");
        let mut command = Command::new(program);
        command.args(arguments).arg(&path);
        let mut server = Self::start(command, directory)?;
        server.address = format!("unix:{}", path.display());
        wait_until("the server listens", || {
            server.is_running();
            UnixStream::connect(&path).is_ok()
        });
        Some(server)
    }

    fn redis(name: &str) -> Option<Self> {
        let arguments = ["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"];
        Self::at_a_path(name, "redis-server", &arguments)
    }

    fn directory(name: &str) -> PathBuf {
        let directory = env::temp_dir().join(format!("apus-memcached-{name}-{}", process::id()));
        fs::create_dir_all(&directory).expect("a temporary directory");
        directory
    }

    fn start(mut command: Command, directory: PathBuf) -> Option<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.current_dir(&directory).spawn() {
            Ok(child) => Some(Self { child, directory, address: String::new() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let _ = fs::remove_dir_all(directory);
                skipped(format!("{} is not installed", command.get_program().display()));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn is_running(&mut self) {
        let ended = self.child.try_wait().expect("it is a child of this process");
        assert_eq!(ended, None, "the server ended");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the server has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Arguments for a short load.
const SHORT: &str = "--keys 300 --seconds 0.2 --warmup 0.05 --json -";

/// Asserts that each row has the figures of a run without errors, unless it is refused.
fn all_went_well(result: &Value) {
    for row in result["rows"].as_array().expect("rows are a list") {
        assert!(row["late_pct"].is_number(), "{row}");
        if row["verdict"].is_string() {
            assert!(row["p50_us"].is_null(), "a refused run has no figures: {row}");
            continue;
        }
        for key in ["qps", "p50_us", "p99_9_us", "mean_us", "update_p50_us", "sent_bytes"] {
            assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "no {key} in {row}");
        }
        for key in ["misses", "errors"] {
            assert_eq!(row[key], 0, "{row} {}", result["warnings"]);
        }
    }
}

/// Runs an open loop, and a closed one, which is never refused.
fn both_loops(server: &Server, arguments: &str) {
    let address = &server.address;
    let command = format!("bench memcached {address} {arguments} --update 0.2 --runs 1 {SHORT}");
    let closed = json(&command);
    assert_eq!(closed["rows"][0]["arrival"], "closed loop");
    all_went_well(&closed);
    let open = json_perhaps_refused(&format!("{command} --qps 2000 --no-load"));
    assert_eq!(open["rows"][0]["offered_qps"], 2000.0);
    all_went_well(&open);
}

#[test]
fn memcached_answers_text() {
    let Some(server) = Server::memcached("text") else { return };
    both_loops(&server, "--protocol text");
    both_loops(&server, "--value-size 100kB --threads 2 --connections 3 --wait sleep");
}

#[test]
fn memcached_answers_the_binary_protocol() {
    let arguments = ["-u", "root", "-s"];
    let Some(server) = Server::at_a_path("binary", "memcached", &arguments) else { return };
    both_loops(&server, "--protocol binary --arrival fb-ia");
    both_loops(&server, "--protocol binary --key-size 250 --value-size 0 --arrival fixed");
}

#[test]
fn redis_answers_resp() {
    let Some(server) = Server::redis("resp") else { return };
    both_loops(&server, "--protocol resp --depth 16");
    let other = format!("bench memcached {} --protocol text {SHORT}", server.address);
    fails(1, &other, &["unix:", "is not an answer to a set", "'--protocol'"]);
}

#[test]
fn a_scan_measures_every_rate_and_draws_curves() {
    let Some(server) = Server::memcached("scan") else { return };
    let address = &server.address;
    let scan = json_perhaps_refused(&format!(
        "bench memcached {address} --scan 1000:3000:1000 --runs 2 --update 0.5 {SHORT}"
    ));
    all_went_well(&scan);
    let offered: Vec<f64> = scan["rows"]
        .as_array()
        .expect("rows are a list")
        .iter()
        .filter_map(|row| row["offered_qps"].as_f64())
        .collect();
    assert_eq!(offered, [1000.0, 2000.0, 3000.0, 1000.0, 2000.0, 3000.0]);
    assert_eq!(scan["series"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_generator_that_cannot_keep_up_is_refused() {
    let Some(server) = Server::memcached("late") else { return };
    let arguments = format!(
        "bench memcached {} --qps 10000000 --keys 10 --connections 1 --depth 65536 --seconds 0.01 --warmup 0 --runs 1 --json -",
        server.address
    );
    let output = apus(&arguments);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let result = checked_json(&arguments, &output);
    assert_eq!(result["rows"][0]["verdict"], "the generator, not the server");
    assert!(result["rows"][0]["qps"].is_null() && result["rows"][0]["p50_us"].is_null());
    let warnings = result["warnings"].to_string();
    assert!(warnings.contains("the generator was late") && warnings.contains("refused"));
    assert!(result["series"].is_null(), "a refused run has no curve");
}

#[test]
fn missing_and_wrong_values_are_reported() {
    let Some(server) = Server::memcached("wrong") else { return };
    let closed =
        format!("bench memcached {} --runs 1 --update 0 --value-size 10 {SHORT}", server.address);
    let empty = json(&format!("{closed} --no-load"));
    let row = &empty["rows"][0];
    assert!(row["misses"].as_u64() > Some(0) && row["misses"] == row["reads"], "{row}");
    assert!(empty["warnings"].to_string().contains("found no value"));
    all_went_well_but_updates(&json(&closed));
    let others =
        json(&format!("{closed} --no-load --value-size 11").replace("--value-size 10 ", ""));
    assert!(others["rows"][0]["errors"].as_u64() > Some(0));
    let warnings = others["warnings"].to_string();
    assert!(warnings.contains("a value has 10 bytes instead of 11"), "{warnings}");
}

fn all_went_well_but_updates(result: &Value) {
    let row = &result["rows"][0];
    assert_eq!(
        (&row["misses"], &row["errors"], &row["updates"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert!(row["update_p50_us"].is_null());
}

#[test]
fn agents_share_the_load_of_a_leader() {
    let Some(server) = Server::memcached("agents") else { return };
    let agents =
        [(); 2].map(|()| Agent::serving("bench memcached-agent --listen 127.0.0.1:0", &[]));
    let names = agents.each_ref().map(|agent| &*agent.address).join(",");
    let address = &server.address;
    let closed =
        json(&format!("bench memcached {address} --agents {names} --update 0.2 --runs 2 {SHORT}"));
    all_went_well(&closed);
    assert!(
        closed["rows"].as_array().expect("rows are a list").iter().all(|row| row["agents"] == 2)
    );
    let open = json_perhaps_refused(&format!(
        "bench memcached {address} --agents {names} --qps 3000 --update 0.2 --runs 1 {SHORT}"
    ));
    all_went_well(&open);
    drop(agents);
    let gone = format!("bench memcached {address} --agents {names} {SHORT}");
    fails(1, &gone, &["agent '127.0.0.1:", "refused"]);
    fails(2, &format!("bench memcached {address} --no-load --agents host"), &["'--agents host'"]);
}

#[test]
fn what_is_no_server_is_named() {
    fails(2, "bench memcached localhost", &["'localhost'", "HOST:PORT"]);
    fails(2, "bench memcached x:1 --connections 1 --threads 2", &["'--threads 2'"]);
    fails(2, "bench memcached x:1 --scan 5", &["--scan", "A:B:STEP"]);
    fails(2, "bench memcached x:1 --value-size 5MB", &["--value-size", "1000000"]);
    fails(1, "bench memcached unix:/nowhere/at/all", &["unix:/nowhere/at/all", "No such file"]);
}
