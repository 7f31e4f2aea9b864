//! `apus irq tune` on memcached under load, and presets. It needs root, and is skipped with a message otherwise.

use std::process::{Command, Output, Stdio};

use apus_irq::{EpollParameters, NapiParameters};
use serde_json::Value;

use crate::irq::{Host, Started, tracepoints_are_there};
use crate::irq_programs::{AT, Directory, Server};
use crate::program::{fails, stderr, wait_until};
use crate::skipped::skipped;

/// memcached in the host's namespace, and a load for it from the peer's; `None` where this process may not watch the kernel.
fn memcached(host: &Host) -> Option<(Server, Started)> {
    if !tracepoints_are_there() {
        return None;
    }
    let is_there = Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        skipped("no memcached");
        return None;
    }
    host.without_tso();
    let (address, port) = AT.split_once(':').expect("it has a port");
    let arguments = ["-u", "root", "-l", address, "-p", port, "-U", "0", "-t", "1"];
    let server = Server::start(host, "memcached", &arguments);
    // The load sleeps between requests, as the machine has few CPUs; it does not matter whether it is late.
    let load =
        format!("bench memcached {AT} --qps 3000 --wait sleep --keys 100 --seconds 600 --runs 1");
    let mut load = host.wire.command(0, &load);
    load.stdout(Stdio::null()).stderr(Stdio::null());
    let load = Started(load.spawn().expect("the program starts"));
    let is_set = || {
        let sets = apus_irq::Program::open(server.pid()).expect("it runs").sockets_by_napi();
        !sets.expect("root may read it").is_empty()
    };
    wait_until("packets come by a NAPI instance", is_set);
    Some((server, load))
}

#[test]
fn memcached_is_tuned_under_load_and_the_result_is_a_preset() {
    let Some(host) = Host::new("irqtune") else { return };
    let Some((server, _load)) = memcached(&host) else { return };
    let presets = Directory::new("irqtune-presets");
    let irq = |arguments: &str| -> Output {
        let mut command = host.command(arguments);
        command.env("XDG_CONFIG_HOME", &presets.0).output().expect("the program starts")
    };
    let before = server.epoll_parameters();
    let pid = server.pid();
    // One second is enough, whatever else the machine does.
    let tuned =
        irq(&format!("tune {pid} --p99 1000000 --seconds 1 --steps 4 --save of-test --json -"));
    assert!(tuned.status.success(), "{}", stderr(&tuned));
    let result: Value = serde_json::from_slice(&tuned.stdout).expect("JSON");
    let steps = result["steps"].as_array().expect("a list");
    assert!((1..=4).contains(&steps.len()) && result["is_met"] == true, "{result}");
    let sample = &steps[0]["sample"];
    for field in ["cycles", "events", "cycle_p50_ns", "busy_ns", "idles"] {
        assert!(sample[field].as_u64().is_some_and(|number| number > 0), "{field}: {sample}");
    }
    assert!(!steps[0]["reason"].as_str().expect("a text").is_empty());
    assert_eq!(host.parameters(), [NapiParameters::default()], "it is restored");
    assert_eq!(server.epoll_parameters(), before, "it is restored");
    // A preset is accepted in place of a mode.
    let shown = irq("show --presets");
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.starts_with("of-test: defer ") && shown.contains("memcached"), "{shown}");
    let set = irq("set eth0 --preset of-test --once");
    assert!(set.status.success(), "{}", stderr(&set));
    let wanted: NapiParameters = serde_json::from_value(result["napi"].clone()).expect("numbers");
    assert_eq!(host.parameters(), [wanted]);
    host.succeeds("restore");
    let epoll: EpollParameters = serde_json::from_value(result["epoll"].clone()).expect("numbers");
    let mut attach = host.command(&format!("attach {pid} --mode of-test"));
    attach.env("XDG_CONFIG_HOME", &presets.0).stderr(Stdio::null());
    let attach = Started(attach.spawn().expect("the program starts"));
    wait_until("its epoll sets are set", || {
        server.epoll_parameters().values().all(|it| *it == epoll)
    });
    attach.signal("TERM");
    wait_until("they are restored", || server.epoll_parameters() == before);
}

#[test]
fn a_client_reports_the_percentile_and_a_missed_target_is_a_failure() {
    let Some(host) = Host::new("irqclient") else { return };
    let Some((server, _load)) = memcached(&host) else { return };
    let presets = Directory::new("irqclient-presets");
    let tune = |client: &str| {
        let mut command =
            host.command(&format!("tune {} --p99 100 --steps 3 --save missed", server.pid()));
        command.args(["--p99-from", client]).env("XDG_CONFIG_HOME", &presets.0);
        command.output().expect("the program starts")
    };
    let missed = tune("sleep 1; echo measuring; echo 250.5");
    let text = String::from_utf8_lossy(&missed.stdout).into_owned();
    assert_eq!(missed.status.code(), Some(1), "{}", stderr(&missed));
    assert!(text.contains("250.5") && text.contains("misses 100 us"), "{text}");
    assert!(stderr(&missed).contains("no step met '--p99 100'"), "{}", stderr(&missed));
    for (client, words) in
        [("echo fast", "its last line is 'fast'"), ("exit 3", "--p99-from exit 3")]
    {
        let failed = tune(client);
        assert!(!failed.status.success() && stderr(&failed).contains(words), "{}", stderr(&failed));
    }
    assert_eq!(host.parameters(), [NapiParameters::default()]);
}

#[test]
fn wrong_use_of_tune_is_named() {
    fails(2, "irq tune 1", &["--p99"]);
    fails(2, "irq tune 1 --p99 0", &["--p99", "1..=1000000"]);
    fails(1, "irq tune 2147483647 --p99 100", &["process 2147483647"]);
    fails(2, "irq attach 1 --mode no-such-preset", &["no-such-preset.toml"]);
    fails(2, "irq show --presets eth0", &["--presets"]);
}
