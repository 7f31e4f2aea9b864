//! The lab, very small. It needs root and iproute2, and is skipped with a message otherwise.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::browser;
use crate::program::{apus, checked_json, command, fails, stderr, wait_until};
use crate::skipped::skipped;

/// The reason why the lab cannot be tried here, determined once for all tests.
pub(crate) fn obstacle() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    *FOUND.get_or_init(look_for_obstacle)
}

fn look_for_obstacle() -> Option<&'static str> {
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    if !works("ip", &["-V"]) || !works("tc", &["-V"]) {
        return Some("iproute2 is not installed");
    }
    let name = format!("apus-test-{}", std::process::id());
    if !works("ip", &["netns", "add", &name]) {
        return Some("network namespaces cannot be made: no root");
    }
    let link = works("ip", &["-n", &name, "link", "add", "p", "type", "veth", "peer", "name", "q"]);
    let bucket = works("tc", &["-n", &name, "qdisc", "add", "dev", "p", "root", "htb"]);
    works("ip", &["netns", "del", &name]);
    if link && bucket { None } else { Some("this kernel has no veth or htb") }
}

/// Runs a lab. Returns its name and result.
fn lab_of(mut run: Command) -> (String, Value) {
    let run =
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let lab = format!("apus-lab-run{}-", run.id());
    let output = run.wait_with_output().expect("it was started");
    (lab, checked_json("lab run", &output))
}

#[test]
fn a_small_lab_measures_both_transports_and_leaves_nothing_behind() {
    if let Some(reason) = obstacle() {
        return skipped(reason);
    }
    let page = std::env::temp_dir().join(format!("apus-lab-{}.html", std::process::id()));
    let run = command(&format!(
        "lab run --hosts 3 --link-mbps 20 --workload mix --load 0.3 --seconds 2 --connections 1 --json - --html {}",
        page.display()
    ));
    let (lab, result) = lab_of(run);
    browser::renders(&page);
    std::fs::remove_file(&page).expect("it was written");
    let rows = result["rows"].as_array().expect("rows are a list");
    let of = |bench: &str| rows.iter().filter(|row| row["bench"] == bench).collect::<Vec<_>>();
    let transports: Vec<_> = of("lab").iter().map(|row| row["transport"].clone()).collect();
    assert_eq!(transports, ["apus-udp", "tcp-epoll"]);
    for row in of("lab") {
        assert!(row["calls"].as_u64() > Some(20), "{row}");
        assert!(row["short_p99_us"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(of("lab deciles").len(), 10);
    for row in of("lab idle") {
        assert!(
            row["computed_us"].as_f64() > Some(0.0) && row["tcp_p50_us"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    let curves = result["series"].as_array().expect("series are a list");
    assert!(curves.iter().all(|curve| !curve["points"].as_array().expect("points").is_empty()));
    let left = Command::new("ip").args(["netns", "list"]).output().expect("ip runs");
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&lab));
}

#[test]
fn a_lab_goes_down_with_its_processes_after_a_kill() {
    if let Some(reason) = obstacle() {
        return skipped(reason);
    }
    let lab = format!("test{}", std::process::id());
    let up = apus(&format!("lab up {lab} --hosts 2"));
    assert!(up.status.success(), "{}", stderr(&up));
    assert!(!apus(&format!("lab up {lab}")).status.success(), "a name is used once");
    let namespace = format!("apus-lab-{lab}-h0");
    let mut left = Command::new("ip")
        .args(["netns", "exec", &namespace, "sleep", "600"])
        .spawn()
        .expect("ip runs");
    // The process is in the namespace once the namespace lists it.
    let pids =
        || Command::new("ip").args(["netns", "pids", &namespace]).output().expect("ip runs").stdout;
    wait_until("the process is in the namespace", || !pids().is_empty());
    assert!(apus(&format!("lab down {lab}")).status.success());
    assert!(!left.wait().expect("it was started").success(), "it was killed");
    assert!(!apus(&format!("lab exec --lab {lab} h0 -- true")).status.success());
}

#[test]
fn what_is_wrong_with_a_plan_is_said_before_anything_is_made() {
    for (arguments, words) in [
        ("lab run --load 3", "load `3`"),
        ("lab run --hosts 1", "hosts = 1: it must be from 2"),
        ("lab run --link-mbps 25000", "link_mbps = 25000: it must be from 1 to 10000 in the lab"),
        ("lab run --priorities 9", "1..=8"),
        ("lab run --link-mbps fast", "from 1 to 10000"),
        ("lab run --seconds long", "from 0.1 to 100000"),
        ("lab run --hosts many", "from 2 to 200"),
        ("lab run --connections x", "from 1 to 64"),
        ("lab up --link-mbps 0", "1..=10000"),
        ("lab run no-such-plan.toml", "cannot read plan `no-such-plan.toml`"),
        ("cluster run --hosts no-such-hosts", "cannot read hosts file `no-such-hosts`"),
    ] {
        let run = apus(arguments);
        assert!(!run.status.success() && stderr(&run).contains(words), "{}", stderr(&run));
    }
}

/// A lab that is taken down when it is dropped.
struct Lab(String);

impl Drop for Lab {
    fn drop(&mut self) {
        apus(&format!("lab down {}", self.0));
    }
}

#[test]
fn a_cluster_is_led_over_ssh() {
    let sshd = "/usr/sbin/sshd";
    let missing =
        (!std::path::Path::new(sshd).exists()).then_some("openssh-server is not installed");
    if let Some(reason) = obstacle().or(missing) {
        return skipped(reason);
    }
    let dir = std::env::temp_dir().join(format!("apus-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for keys");
    std::fs::create_dir_all("/run/sshd").expect("sshd wants it");
    let path = |name: &str| dir.join(name).display().to_string();
    for key in ["host", "user"] {
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
            .status();
        assert!(made.expect("ssh-keygen runs").success());
    }
    let lab = Lab(format!("ssh{}", std::process::id()));
    assert!(apus(&format!("lab up {} --hosts 2 --link-mbps 20", lab.0)).status.success());
    for host in ["h0", "h1"] {
        let options = format!(
            "-o AuthorizedKeysFile={} -o PidFile=none -o StrictModes=no -o PermitRootLogin=yes -o UsePAM=no",
            path("user.pub")
        );
        let started = apus(&format!(
            "lab exec --lab {} {host} -- {sshd} -f /dev/null -h {} {options}",
            lab.0,
            path("host")
        ));
        assert!(started.status.success(), "{}", stderr(&started));
    }
    let hosts = "root@10.213.0.1 10.213.0.1\nroot@10.213.0.2 10.213.0.2\n";
    std::fs::write(path("hosts"), hosts).expect("the hosts file");
    let program = env!("CARGO_BIN_EXE_apus");
    let mut run = command(&format!(
        "lab exec --lab {} h0 -- {program} cluster run --program {program}",
        lab.0
    ));
    let ssh = format!(
        "-i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        path("user")
    );
    run.args(["--hosts", &path("hosts"), &format!("--ssh={ssh}")]);
    run.args(
        "--link-mbps 20 --workload 1kB --load 0.2 --seconds 1 --connections 1 --json -".split(' '),
    );
    let (_, result) = lab_of(run);
    let rows = result["rows"].as_array().expect("rows are a list");
    let calls = |row: &&Value| row["bench"] == "lab" && row["calls"].as_u64() > Some(20);
    assert_eq!(rows.iter().filter(calls).count(), 2);
    std::fs::remove_dir_all(&dir).expect("it was made");
}

#[test]
fn a_file_in_the_place_of_a_kept_result_is_named_before_anything_is_measured() {
    if let Some(reason) = obstacle() {
        return skipped(reason);
    }
    let dir = std::env::temp_dir().join(format!("apus-kept-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    std::fs::write(dir.join("000.json"), "{").expect("as above");
    let words = ["000.json", "is not a kept result", "move it away"];
    fails(1, &format!("lab run --seconds 1 --dir {}", dir.display()), &words);
    std::fs::remove_dir_all(&dir).expect("it was made here");
}

#[test]
fn a_cluster_knows_the_rate_of_its_links() {
    let hosts = std::env::temp_dir().join(format!("apus-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "a 192.0.2.1\nb 192.0.2.2\n").expect("a temporary file");
    let run = format!("cluster run --hosts {} --workload 100", hosts.display());
    fails(2, &run, &["--link-mbps", "link_mbps in the plan", "Mb/s"]);
    std::fs::remove_file(&hosts).expect("it was made here");
}

#[test]
fn the_labs_are_listed_for_everybody() {
    if let Some(reason) = obstacle() {
        return skipped(reason);
    }
    let lab = Lab(format!("seen{}", std::process::id()));
    assert!(apus(&format!("lab up {} --hosts 2", lab.0)).status.success());
    let listed = |run: &mut Command| {
        let output = run.output().expect("the program starts");
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let line = format!("{}: 2 hosts, h0 10.213.0.1 to h1 10.213.0.2, ", lab.0);
    assert!(listed(&mut command("lab status")).contains(&format!("{line}0 processes")));
    // Runs as the user nobody, with a copy of the program that this user cannot read.
    let copy = std::env::temp_dir().join(format!("apus-copy-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_apus"), &copy).expect("a temporary file");
    let mut unprivileged = Command::new(&copy);
    unprivileged.args(["lab", "status"]).uid(65534).gid(65534);
    assert!(listed(&mut unprivileged).contains(&format!("{line}processes are shown only to root")));
    std::fs::remove_file(&copy).expect("it was made here");
}
