//! The demo, very short: with the lab where one can be made, and with the simulator elsewhere.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs, process};

use nix::unistd::geteuid;

use crate::emulated;
use crate::program::{command, stderr, wait_until};
use crate::skipped::skipped;

const SHORT: &str = "--seconds 0.05 --runs 1";

/// Runs the demo, which must succeed. Returns its output.
fn shown(demo: &mut Command) -> String {
    let output = demo.output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let table = text.lines().skip_while(|line| !line.contains("Apus than"));
    let lines = table.skip(2).take_while(|line| !line.starts_with("p50: "));
    assert_eq!(lines.count(), 8, "{text}");
    for words in ["100 B call, p50", "500 kB messages, Gb/s", "network: 100 B, p99", " Gb/s in all"]
    {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
    let warnings =
        text.lines().skip_while(|line| !line.starts_with("Warnings for this run")).skip(1);
    for line in warnings.take_while(|line| !line.is_empty()) {
        assert!(line.starts_with("  ! ") && line.chars().count() <= 80, "{text}");
    }
    // The output ends in a sentence, whatever the machine can do.
    let conclusion = text.split("\n\n").last().unwrap_or_default().replace('\n', " ");
    assert!(
        conclusion.starts_with("Between two processes here, a 100 B call over Apus takes "),
        "{text}"
    );
    assert!(
        ["In the loaded network", "too small or too busy"]
            .iter()
            .any(|words| conclusion.contains(words)),
        "{text}"
    );
    text
}

#[test]
fn the_demo_shows_apus_beside_its_rivals() {
    let page = env::temp_dir().join(format!("apus-demo-{}.html", process::id()));
    let text = shown(&mut command(&format!("demo {SHORT} --html {}", page.display())));
    assert!(text.contains("apus-demo-"), "{text}");
    let tested = ["Network: emulated on this machine", "Network: SIMULATED"];
    assert!(tested.iter().any(|words| text.contains(words)), "{text}");
    let html = fs::read_to_string(&page).expect("the report is written");
    assert!(html.contains("<svg") && html.contains("apus-shm") && html.contains("unix-poll"));
    fs::remove_file(page).expect("it is ours");
    let left = Command::new("ip").args(["netns", "list"]).output();
    let left = left.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned());
    assert!(!left.unwrap_or_default().contains("trial"), "the trial ended with its namespaces");
}

#[test]
fn an_ordinary_user_gets_a_lab_in_a_user_namespace() {
    if !geteuid().is_root() {
        return skipped("only root can become another user");
    }
    let links = "ip link add p type veth peer name q && tc qdisc add dev p root htb";
    let mut probe = Command::new("unshare");
    probe.args(["-Urnm", "sh", "-c", links]).uid(65534).gid(65534);
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("ordinary users cannot make network namespaces with links and queues");
    }
    // A copy of the program that other users cannot read.
    let copy = env::temp_dir().join(format!("apus-demo-copy-{}", process::id()));
    fs::copy(env!("CARGO_BIN_EXE_apus"), &copy).expect("a temporary file");
    let mut demo = Command::new(&copy);
    demo.arg("demo").args(SHORT.split(' ')).arg("--no-html").uid(65534).gid(65534);
    let text = shown(&mut demo);
    fs::remove_file(&copy).expect("it was made here");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Network: emulated on this machine in a user namespace"), "{text}");
}

#[test]
fn where_namespaces_are_forbidden_the_network_is_simulated() {
    let forbid = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let forbidden = |program: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-Ur", "sh", "-c", forbid, "sh"]).args(program);
        command
    };
    if !forbidden(&["true"]).output().is_ok_and(|output| output.status.success()) {
        return skipped("user namespaces cannot be made");
    }
    let mut demo = forbidden(&[env!("CARGO_BIN_EXE_apus"), "demo", "--no-html"]);
    let text = shown(demo.args(SHORT.split(' ')));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("Network: SIMULATED, because this process cannot create network namespaces"),
        "{text}"
    );
    assert!(words.contains("DCTCP stands in the column unix"), "{text}");
    assert!(words.contains("(unshare: "), "{text}");
}

/// A variable of a demo, which all its processes inherit.
const MARK: &str = "DEMO_OF_TEST";

/// The processes of the demo with this mark.
fn processes(mark: &str) -> Vec<PathBuf> {
    let is_of = |process: &PathBuf| {
        let variables = fs::read(process.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("Linux has it");
    processes.map(|entry| entry.expect("it is listed").path()).filter(is_of).collect()
}

/// How many of some processes are the command `name` of the program.
fn count(processes: &[PathBuf], name: &str) -> usize {
    let lines = processes.iter().map(|process| fs::read(process.join("cmdline")));
    lines
        .filter(|line| {
            line.as_ref()
                .is_ok_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(name.as_bytes()))
        })
        .count()
}

fn namespaces() -> String {
    let listed = Command::new("ip").args(["netns", "list"]).output().expect("ip runs");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

#[test]
fn a_demo_that_is_ended_leaves_no_process_namespace_or_file() {
    if let Some(reason) = emulated::obstacle() {
        return skipped(reason);
    }
    // `timeout` sends SIGTERM twice.
    for signals in [&["TERM"][..], &["INT"], &["HUP"], &["KILL"], &["TERM", "TERM"]] {
        let name = format!("apus-demo-{}-{}", signals.concat(), process::id());
        let directory = env::temp_dir().join(&name);
        fs::create_dir_all(&directory).expect("a temporary directory");
        let mut demo = command(&format!("demo {SHORT} --html {}/x.html", directory.display()));
        demo.env(MARK, &name).stdout(Stdio::null()).stderr(Stdio::null());
        let mut demo = demo.spawn().expect("the program starts");
        let mark = format!("{MARK}={name}");
        let mut lab = None;
        wait_until("the hosts of the lab run", || {
            let running = processes(&mark);
            assert!(demo.try_wait().expect("it was started").is_none(), "the demo has a lab");
            let is_lab = |process: &&PathBuf| count(&[process.to_path_buf()], "demo-lab") == 1;
            lab = running.iter().find(is_lab).cloned();
            count(&running, "lab-agent") == 5
        });
        let lab = lab.expect("it has the hosts");
        let lab = lab.file_name().expect("its number").to_string_lossy().into_owned();
        let lab = format!("apus-lab-run{lab}-");
        assert!(namespaces().contains(&lab), "{}", namespaces());
        for signal in signals {
            let kill = Command::new("kill").args(["-s", signal, &demo.id().to_string()]).status();
            assert!(kill.expect("the system has a kill command").success());
        }
        assert!(!demo.wait().expect("it was started").success(), "{signals:?}");
        wait_until("its processes end", || processes(&mark).is_empty());
        assert!(!namespaces().contains(&lab), "{signals:?}: {}", namespaces());
        // A demo that was asked to end has written a report of its measurements.
        let left = fs::read_dir(&directory).expect("it was made here");
        let mut left = left.map(|entry| entry.expect("it is listed").file_name());
        assert!(left.all(|name| name == "x.html"), "{signals:?}");
        fs::remove_dir_all(&directory).expect("it was made here");
    }
}
