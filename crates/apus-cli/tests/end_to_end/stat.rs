//! `apus stat`: the counters of real processes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use serde_json::Value;

use crate::program::{Server, checked_json, command, fails, json, stderr, wait_until};
use crate::skipped::skipped;

/// A directory for the counters of a test, removed when it is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("apus-stat-{name}-{}", process::id()));
        fs::create_dir(&path).expect("the directory is new");
        Self(path)
    }

    fn path(&self) -> String {
        self.0.display().to_string()
    }

    fn server(&self) -> Server {
        Server::start_with("", &[("APUS_METRICS", &self.path())])
    }

    /// Calls a server. Returns the number of calls.
    fn call(&self, server: &Server, seconds: &str) -> u64 {
        let arguments = format!(
            "node client --servers {} --workload mix --client-max 8 --seconds {seconds} --json -",
            server.address
        );
        let output = command(&arguments).env("APUS_METRICS", "off").output().expect("it runs");
        checked_json(&arguments, &output)["rows"][0]["calls"].as_u64().expect("it made calls")
    }

    fn processes(&self) -> Value {
        json(&format!("stat --dir {} --json -", self.path()))["processes"].clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(arguments: &str) -> String {
    let output = command(arguments).output().expect("it runs");
    assert!(output.status.success(), "`{arguments}`: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("it writes text")
}

#[test]
fn a_process_that_was_killed_shows_its_last_counters() {
    let directory = Directory::new("killed");
    let mut server = directory.server();
    let calls = directory.call(&server, "0.2");
    let pid = server.id();
    let requests = || directory.processes()[0]["counters"]["protocol.requests"].as_u64();
    // The counters of the last turn are complete when the server sleeps.
    wait_until("the server sleeps", || requests() >= Some(calls));
    assert_eq!(directory.processes()[0]["alive"], true);
    let before = directory.processes()[0]["counters"].clone();
    server.kill();
    let after = directory.processes()[0].clone();
    assert_eq!((&after["pid"], &after["alive"]), (&pid.into(), &false.into()));
    assert!(
        after["counters"]["protocol.requests"].as_u64() >= before["protocol.requests"].as_u64()
    );
    let shown = text(&format!("stat {pid} --dir {}", directory.path()));
    assert!(shown.contains("ended") && shown.contains("protocol.requests"), "{shown}");
    let listed = text(&format!("stat --ended --dir {}", directory.path()));
    assert!(listed.contains(&pid.to_string()) && listed.contains("ended"), "{listed}");
}

#[test]
fn rates_and_changes_are_shown() {
    let directory = Directory::new("rates");
    let server = directory.server();
    let [before, after] = ["before", "after"].map(|name| directory.0.join(name));
    let save = |path: &PathBuf| {
        text(&format!("stat --dir {} --json {}", directory.path(), path.display()));
    };
    save(&before);
    let calls = directory.call(&server, "0.1");
    let requests = || directory.processes()[0]["counters"]["protocol.requests"].as_u64();
    wait_until("the server sleeps", || requests() >= Some(calls));
    save(&after);
    let files = format!("{} {}", before.display(), after.display());
    let shown = text(&format!("stat --diff {files}"));
    let line = shown.lines().find(|line| line.starts_with("protocol.requests ")).expect(&shown);
    let grown: u64 = line.split_whitespace().nth(2).and_then(|it| it.parse().ok()).expect(line);
    assert!(grown >= calls, "{shown}");
    let same = format!("{} {}", after.display(), after.display());
    assert_eq!(text(&format!("stat --diff {same}")), "No counter changed.\n");
    let watched =
        text(&format!("stat --watch --count 2 --interval 10ms --dir {}", directory.path()));
    assert_eq!(watched.matches("Running processes").count(), 2, "{watched}");
    let one = directory.path();
    fails(2, &format!("stat --diff {} --dir {one}", after.display()), &["--diff", "two files"]);
    fails(1, &format!("stat 1 --dir {one}"), &["process 1", &one]);
    fails(1, "stat --dir /nowhere", &["no process", "/nowhere", "APUS_METRICS=off"]);
    fails(2, "stat --interval 1ns", &["--interval", "1ns", "10 ms"]);
}

#[test]
fn a_process_that_shall_show_none_shows_none() {
    let directory = Directory::new("off");
    let _server = Server::start_with("", &[("APUS_METRICS", "off")]);
    let _nowhere = Server::start_with("", &[("APUS_METRICS", "/proc/nowhere")]);
    assert_eq!(directory.processes(), Value::from(Vec::<Value>::new()));
}

#[test]
fn garbage_is_left_out() {
    let directory = Directory::new("garbage");
    let server = directory.server();
    let file = |pid: u32| directory.0.join(format!("{pid}.1.1"));
    fs::write(file(1), "garbage").expect("the directory is there");
    fs::write(file(2), b"apusmetr\x01\0\0\0\xff\xff\xff\xff").expect("the directory is there");
    fs::create_dir(file(3)).expect("the directory is there");
    std::os::unix::fs::symlink("/dev/zero", file(4)).expect("the directory is there");
    nix::unistd::mkfifo(&file(5), nix::sys::stat::Mode::S_IRWXU).expect("the directory is there");
    let output = command(&format!("stat --interval 10ms --dir {}", directory.path())).output();
    let output = output.expect("it runs");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains(&server.id().to_string()));
    let notes = stderr(&output);
    assert_eq!(notes.lines().count(), 5, "{notes}");
}

/// A running `apus stat --prometheus`, killed when it is dropped.
struct Exporter(Child, String);

impl Exporter {
    fn start(directory: &Directory) -> Self {
        Self::start_with(directory, "")
    }

    fn start_with(directory: &Directory, more: &str) -> Self {
        let arguments = format!("stat --prometheus 127.0.0.1:0 --dir {} {more}", directory.path());
        let mut child =
            command(&arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("it says where it is");
        let address = line.trim().strip_prefix("metrics at http://");
        let address = address.and_then(|it| it.strip_suffix("/metrics")).expect(&line);
        Self(child, address.to_owned())
    }

    fn request(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.1).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn page(&self, accept: &str) -> String {
        let answer =
            self.request(&format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a head and a body").1.to_owned()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill(); // Fails if the process has ended.
        let _ = self.0.wait();
    }
}

#[test]
fn prometheus_accepts_the_page() {
    let directory = Directory::new("prometheus");
    let server = directory.server();
    let exporter = Exporter::start(&directory);
    let open = exporter.page("*/*");
    assert!(
        open.contains("# TYPE apus_protocol_requests counter") && open.ends_with("# EOF\n"),
        "{open}"
    );
    assert!(open.contains("apus_processes{program=\"apus\"} 1\n"), "{open}");
    assert!(!open.contains("pid="), "a series for each program: {open}");
    let process = Exporter::start_with(&directory, "--per-process").page("*/*");
    assert!(process.contains(&format!("pid=\"{}\"", server.id())), "{process}");
    let other = |request: &str| exporter.request(request).lines().next().map(str::to_owned);
    let status = |text: &str| Some(format!("HTTP/1.1 {text}"));
    assert_eq!(other("GET /x HTTP/1.1\r\nHost: x\r\n\r\n"), status("404 Not Found"));
    assert_eq!(other("POST / HTTP/1.1\r\nHost: x\r\n\r\n"), status("405 Method Not Allowed"));
    if Command::new("promtool").arg("--version").output().is_err() {
        return skipped("the Prometheus page: promtool is not installed (Debian: prometheus)");
    }
    // promtool reads OpenMetrics only when it makes blocks, which need a time for each sample.
    let timed: Vec<_> = open
        .lines()
        .map(|line| if line.starts_with('#') { line.to_owned() } else { format!("{line} 1") })
        .collect();
    let file = directory.0.join("page");
    fs::write(&file, timed.join("\n") + "\n").expect("the directory is there");
    let (file, blocks) = (file.display().to_string(), directory.0.join("blocks"));
    check(&["tsdb", "create-blocks-from", "openmetrics", &file, &blocks.display().to_string()], "");
}

#[test]
fn a_stopped_server_is_distinguished_from_a_killed_one() {
    let directory = Directory::new("died");
    let server = directory.server();
    let exporter = Exporter::start(&directory);
    let state = || {
        let page = exporter.page("*/*");
        let value = |name: &str| {
            let begin = format!("{name}{{program=\"apus\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&begin)).expect(name).to_owned()
        };
        (value("apus_processes"), value("apus_died"))
    };
    let is = |processes: &str, died: &str| state() == (processes.to_owned(), died.to_owned());
    assert!(is("1", "0"));
    server.signal("TERM");
    server.finish();
    assert!(is("0", "0"), "{:?}", state());
    let mut server = directory.server();
    assert!(is("1", "0"));
    server.kill();
    assert!(is("0", "1"), "{:?}", state());
    let ended = directory.processes();
    let closed: Vec<_> = ended.as_array().expect("a list").iter().map(|it| &it["closed"]).collect();
    assert!(closed.contains(&&Value::Bool(true)) && closed.contains(&&Value::Bool(false)));
}

#[test]
fn the_latency_of_calls_is_a_histogram() {
    let directory = Directory::new("latency");
    let server = directory.server();
    let exporter = Exporter::start_with(&directory, "--per-process");
    let arguments = format!(
        "node client --servers {} --workload mix --client-max 8 --seconds 0.5 --json -",
        server.address
    );
    let of = |page: &str, part: &str| -> f64 {
        let values = page.lines().filter(|line| line.contains(part) && !line.starts_with('#'));
        values.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().expect(line)).sum()
    };
    let [count, sum, all] = [
        "apus_protocol_call_latency_seconds_count",
        "apus_protocol_call_latency_seconds_sum",
        "apus_protocol_call_latency_seconds_bucket{le=\"+Inf\"",
    ];
    // A slow machine may make too few calls for one of them to be timed.
    wait_until("a call was timed", || {
        let client = command(&arguments).env("APUS_METRICS", directory.path()).output();
        checked_json(&arguments, &client.expect("it runs"));
        let page = exporter.page("text/plain;version=0.0.4");
        assert!(page.contains("# TYPE apus_protocol_calls_total counter"), "{page}");
        assert!(!page.contains("# EOF"), "{page}");
        assert!((of(&page, all) - of(&page, count)).abs() < 0.5, "{page}");
        of(&page, count) > 0.0 && of(&page, sum) > 0.0
    });
}

#[test]
fn slow_clients_stop_nobody() {
    let directory = Directory::new("slow");
    let _server = directory.server();
    let exporter = Exporter::start(&directory);
    let connect = || TcpStream::connect(&exporter.1).expect("it listens");
    let idle: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost:").expect("it reads");
    // Each of the clients would have taken seconds.
    assert!(exporter.page("*/*").contains("apus_processes"));
    // An unread page is longer than the kernel's buffers if there are many clients.
    let unread: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
            stream
        })
        .collect();
    assert!(exporter.page("*/*").ends_with("# EOF\n"));
    // The server gives up on a silent client.
    let mut answer = Vec::new();
    let ended = (&idle[0]).read_to_end(&mut answer);
    assert!(ended.is_err() || answer.is_empty() || answer.starts_with(b"HTTP/1.1 408"));
    drop((half, unread));
}

#[test]
fn running_processes_are_distinguished_and_ended_ones_are_shown_on_request() {
    let directory = Directory::new("names");
    let server = directory.server();
    let mut ended = directory.server();
    ended.kill();
    let port = server.address.rsplit('@').next().expect("a UDP port").to_owned();
    let listed = text(&format!("stat --dir {} --interval 50ms", directory.path()));
    let line = listed.lines().find(|line| line.trim_start().starts_with(&server.id().to_string()));
    let line = line.unwrap_or_else(|| panic!("no line of the server: {listed}"));
    assert!(line.contains("apus node") && line.contains(&port), "{listed}");
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
    assert!(listed.contains("1 more ended") && !listed.contains(" ended 0s ago"), "{listed}");
    let all = text(&format!("stat --ended --dir {} --interval 50ms", directory.path()));
    let place = |id: u32| all.find(&format!("{id} ")).unwrap_or_else(|| panic!("no {id}: {all}"));
    assert!(place(server.id()) < place(ended.id()), "{all}");
}

#[test]
fn the_alerts_name_counters_of_the_page() {
    let directory = Directory::new("alerts");
    let _server = directory.server();
    let page = Exporter::start(&directory).page("*/*");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    let text = fs::read_to_string(rules.join("apus.rules.yml")).expect("it is there");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_sample = |it: &&str| it.ends_with("_total") || it.ends_with("_bucket");
    let names = words.filter(|it| {
        ["apus_processes", "apus_died"].contains(it) || it.starts_with("apus_") && is_sample(it)
    });
    let names: BTreeSet<_> = names.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(
            page.contains(&format!(
                "# TYPE {} ",
                name.trim_end_matches("_total").trim_end_matches("_bucket")
            )),
            "no counter {name}"
        );
    }
    if Command::new("promtool").arg("--version").output().is_err() {
        return skipped("the alerts: promtool is not installed (Debian: prometheus)");
    }
    let file = |name| rules.join(name).display().to_string();
    check(&["check", "rules", &file("apus.rules.yml")], "");
    check(&["test", "rules", &file("apus.rules.test.yml")], "");
}

fn check(arguments: &[&str], input: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().expect("promtool is installed");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it is a child of this process");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn the_unit_of_systemd_is_sound_and_hardened() {
    let directory = Directory::new("unit");
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/apus-stat@.service");
    let unit = fs::read_to_string(unit).expect("the unit is there");
    let place = directory.0.join("apus-stat@root.service");
    let unit = unit.replace("/usr/bin/apus", env!("CARGO_BIN_EXE_apus"));
    fs::write(&place, unit).expect("the directory is ours");
    for task in [&["verify", "--man=no"][..], &["security", "--offline=true", "--threshold=20"]] {
        let output = match Command::new("systemd-analyze").args(task).arg(&place).output() {
            Ok(output) => output,
            Err(error) => return skipped(format!("systemd-analyze: {error}")),
        };
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
