//! `apus daemon`: one engine for several processes.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use serde_json::Value;

use crate::program::{Server, checked_json, command, fails, json, stderr, wait_until};
use crate::skipped::skipped;

/// A directory for the sockets of a test, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("apus-daemon-{name}-{}", process::id()));
        fs::create_dir(&path).expect("the directory is new");
        Self(path)
    }

    fn socket(&self) -> String {
        self.0.join("engine.sock").display().to_string()
    }

    fn engine(&self) -> String {
        format!("unix:{}", self.socket())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // The test may have removed it.
    }
}

/// A running `apus daemon`, killed when it is dropped.
struct Daemon(Child);

impl Daemon {
    /// Runs the command and waits until it reports that the engine is ready.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        stdout.read_line(&mut line).expect("it says where it is");
        assert!(line.starts_with("engine at 127.0.0.1:"), "{line}");
        assert!(line.contains("APUS_ENGINE=unix:"), "{line}");
        Self(child)
    }

    fn at(directory: &Directory) -> Self {
        let arguments = format!("daemon --listen 127.0.0.1:0 --socket {}", directory.socket());
        Self::start(command(&arguments))
    }

    fn terminate(&mut self) {
        let kill = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(kill.expect("the system has a kill command").success());
        assert!(self.0.wait().expect("it is a child of this process").success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the daemon has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status(directory: &Directory) -> Value {
    json(&format!("daemon status --json - --socket {}", directory.socket()))
}

#[test]
fn programs_use_the_engine_of_a_daemon() {
    let directory = Directory::new("used");
    let mut daemon = Daemon::at(&directory);
    let engine = directory.engine();
    let server = Server::start_with("", &[("APUS_ENGINE", &engine)]);
    let arguments = format!(
        "node client --servers {} --workload mix --client-max 8 --verify --seconds 0.5 --json -",
        server.address
    );
    let output = command(&arguments).env("APUS_ENGINE", &engine).output().expect("it runs");
    let row = checked_json(&arguments, &output)["rows"][0].clone();
    assert_eq!((row["transport"].as_str(), &row["unfinished"]), (Some("apus-engine"), &0.into()));
    let calls = row["calls"].as_u64().expect("it has made calls");
    wait_until("the client is gone", || {
        status(&directory)["processes"].as_array().is_some_and(|processes| processes.len() == 1)
    });
    let process = &status(&directory)["processes"][0];
    assert_eq!((&process["pid"], &process["ports"]), (&server.id().into(), &[4000].into()));
    assert!(process["requests"].as_u64() >= Some(calls), "{process}");
    let table = command(&format!("daemon status --socket {}", directory.socket())).output();
    let table = String::from_utf8(table.expect("it runs").stdout).expect("it writes text");
    assert!(table.contains("Processes of the engine") && table.contains("4000"), "{table}");
    daemon.terminate();
    assert_eq!(fs::read_dir(&directory.0).expect("it is there").count(), 0, "all is removed");
}

#[test]
fn the_access_list_is_read_anew() {
    let directory = Directory::new("reloaded");
    let file = directory.0.join("daemon.toml");
    let write = |text: &str| fs::write(&file, text).expect("the directory is ours");
    write("[access]\nmode = '0666'");
    let socket = directory.socket();
    let arguments =
        format!("daemon --config {} --listen 127.0.0.1:0 --socket {socket}", file.display());
    let mut start = command(&arguments);
    // The variable is for the programs, and may be set for the daemon as well.
    start.env("APUS_ENGINE", directory.engine()).stderr(Stdio::piped());
    let mut daemon = Daemon::start(start);
    let log = daemon.0.stderr.take().expect("it is a pipe");
    let mut log = BufReader::new(log);
    let _server = Server::start_with("", &[("APUS_ENGINE", &directory.engine())]);
    assert_eq!(status(&directory)["users"][0]["processes"], 1);
    let reload = format!("daemon reload --socket {socket}");

    // A user that is not on the list is detached, and not admitted again.
    write("[access]\nmode = '0600'\nusers = [4000000000]");
    let done = command(&reload).output().expect("it runs");
    let report = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && report.contains("1 programs were detached"), "{report}");
    wait_until("the program was refused", || status(&directory)["refused_users"] != 0);
    assert_eq!(status(&directory)["processes"], Value::Array(Vec::new()));
    let mode = fs::metadata(&socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A file with an error is ignored.
    write("[access]\nusers = ['no such user']");
    fails(1, &reload, &["not reloaded", "no such user"]);
    let hang_up = || {
        let id = daemon.0.id().to_string();
        let kill = Command::new("kill").args(["-HUP", &id]).status();
        assert!(kill.expect("the system has a kill command").success());
    };
    let mut line = String::new();
    hang_up();
    log.read_line(&mut line).expect("the daemon reports the result");
    assert!(line.contains("not reloaded") && line.contains("no such user"), "{line}");

    // The signal does the same as the command, and the program attaches again by itself.
    write("");
    line.clear();
    hang_up();
    log.read_line(&mut line).expect("the daemon reports the result");
    assert!(line.starts_with("reloaded"), "{line}");
    wait_until("the program is attached again", || {
        status(&directory)["processes"].as_array().is_some_and(|processes| processes.len() == 1)
    });
    daemon.terminate();
    fs::remove_file(&file).expect("the test has made it");
    assert_eq!(fs::read_dir(&directory.0).expect("it is there").count(), 0, "all is removed");
}

#[test]
fn a_server_goes_on_when_the_daemon_is_replaced() {
    let directory = Directory::new("replaced");
    let mut daemon = Daemon::at(&directory);
    let listen = status(&directory)["listen"].as_str().expect("it is a text").to_owned();
    let server = Server::start_with("", &[("APUS_ENGINE", &directory.engine())]);
    daemon.0.kill().expect("it is still running");
    daemon.0.wait().expect("it is a child of this process");
    let again = format!("daemon --listen {listen} --socket {}", directory.socket());
    let _daemon = Daemon::start(command(&again));
    wait_until("the server is attached again", || {
        status(&directory)["processes"][0]["ports"] == Value::from([4000])
    });
    // A node with its own engine calls it.
    let row = &json(&format!("node client --servers {} --seconds 0.2 --json -", server.address))["rows"]
        [0];
    assert_eq!(row["unfinished"], 0, "{row}");
}

#[test]
fn a_service_manager_may_open_the_socket() {
    let directory = Directory::new("inherited");
    let mut activate = Command::new("systemd-socket-activate");
    activate.args(["--seqpacket", "--listen", &directory.socket(), env!("CARGO_BIN_EXE_apus")]);
    let arguments = format!("daemon --listen 127.0.0.1:0 --socket {}", directory.socket());
    activate.args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match activate.spawn() {
        Ok(child) => Daemon(child),
        Err(error) => return skipped(format!("systemd-socket-activate: {error}")),
    };
    let path = PathBuf::from(directory.socket());
    wait_until("the socket is there", || path.exists());
    // The first program that attaches starts the daemon.
    let server = Server::start_with("", &[("APUS_ENGINE", &directory.engine())]);
    assert_eq!(status(&directory)["processes"][0]["pid"], server.id());
    child.terminate();
}

#[test]
fn what_is_wrong_is_said() {
    let directory = Directory::new("wrong");
    let socket = directory.socket();
    fails(1, &format!("daemon status --socket {socket}"), &["no daemon answers", &socket]);
    let server =
        command("node server --listen 127.0.0.1:0").env("APUS_ENGINE", directory.engine()).output();
    let message = stderr(&server.expect("it runs"));
    assert!(message.contains(&socket) && message.contains("No such file"), "{message}");
    let _daemon = Daemon::at(&directory);
    fails(1, &format!("daemon --listen 127.0.0.1:0 --socket {socket}"), &["in use", &socket]);
    let file = directory.0.join("daemon.toml");
    let file_text = file.display().to_string();
    let with_file = format!("daemon --config {file_text} --socket {socket}2");
    fails(1, &with_file, &[&file_text, "No such file"]);
    fs::write(&file, "[access]\nmode = 'rw'").expect("the directory is ours");
    fails(2, &with_file, &["mode", "'rw'", "0660"]);
    fs::write(&file, "[node]\nshards = 2").expect("the directory is ours");
    fails(1, &with_file, &["shards", "'2'"]);
}

#[test]
fn the_units_of_systemd_are_sound_and_hardened() {
    let directory = Directory::new("units");
    let units = ["apus-daemon.service", "apus-daemon.socket", "apus-daemon-status.socket"];
    let units = units.map(|name| {
        let unit = format!("{}/../../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
        let unit = fs::read_to_string(unit).expect("the unit is there");
        let unit = unit.replace("/usr/bin/apus", env!("CARGO_BIN_EXE_apus"));
        let place = directory.0.join(name);
        fs::write(&place, unit).expect("the directory is ours");
        place
    });
    for (task, units) in [
        (&["verify", "--man=no"][..], &units[..]),
        (&["security", "--offline=true", "--threshold=15"], &units[..1]),
    ] {
        let output = match Command::new("systemd-analyze").args(task).args(units).output() {
            Ok(output) => output,
            Err(error) => return skipped(format!("systemd-analyze: {error}")),
        };
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
