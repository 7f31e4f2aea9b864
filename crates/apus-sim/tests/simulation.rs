//! Small whole simulations.

use apus_sim::results::{Compared, compare};
use apus_sim::{Plan, Protocol, SimulationResult, run};

fn simulate(text: &str) -> SimulationResult {
    let plan = Plan::from_toml(text).expect("the plan is right");
    run(&plan, &mut |_| {}).expect("the plan can be run")
}

#[test]
fn a_plan_gives_the_same_events_every_time() {
    let text = "topology = \"leafspine-2x4x2\"\nworkload = \"w3\"\nsim_ms = 1.0";
    let (first, second) = (simulate(text), simulate(text));
    assert_eq!((first.hash, first.events), (second.hash, second.events));
    assert_eq!(first.deciles, second.deciles);
    assert_ne!(first.hash, simulate(&format!("seed = 2\n{text}")).hash);
}

/// Number and fingerprint of the events of a small run with full ports, on every machine. A change of the core or of the model changes
/// them: the test prints the new ones, to be recorded with that change.
const RECORDED: [(Protocol, u64, u64); 6] = [
    (Protocol::Apus, 72431, 0xd9be86e4ee19e679),
    (Protocol::Pfabric, 56681, 0x342bfe2597643f6b),
    (Protocol::Dctcp, 53463, 0xfe42ba2951191dda),
    (Protocol::TcpNewreno, 55129, 0x9c1d81eb44ee04e7),
    (Protocol::TcpCubic, 54826, 0x1e169f08df5bcb07),
    (Protocol::SrptOracle, 15578, 0xedfb8334f0847f0e),
];

#[test]
fn a_small_run_has_the_recorded_events() {
    let run = |(protocol, _, _)| {
        let outcome = simulate(&format!(
            "topology = \"leafspine-2x4x2\"\ntransport = \"{protocol}\"\nworkload = \"w3\"\nsim_ms = 0.5\nbuffers = {{ port_bytes = 40000 }}\n[homa]\nresend_min_us = 2000"
        ));
        (protocol, outcome.events, outcome.hash)
    };
    let found = RECORDED.map(run);
    let line = |(protocol, events, hash): &(Protocol, u64, u64)| {
        format!("    (Protocol::{protocol:?}, {events}, 0x{hash:016x}),")
    };
    let lines = found.iter().map(line).collect::<Vec<_>>().join("\n");
    assert!(found == RECORDED, "the events are now:\n{lines}");
}

#[test]
fn a_message_alone_takes_the_least_time() {
    let outcome = simulate(
        "topology = \"leafspine-2x4x2\"\nworkload = \"100kB\"\nload = 0.001\nsim_ms = 20.0",
    );
    assert!(outcome.messages > 0 && outcome.unfinished == 0, "{outcome:?}");
    let p50 = outcome.deciles[4].p50;
    assert!((0.99..1.06).contains(&p50), "median slowdown {p50}");
}

#[test]
fn ports_are_measured_in_the_measured_time() {
    // Before it, hosts greet each other at twice the load; after it, the last messages end on an idle network.
    let outcome = simulate(
        "topology = \"single-16\"\nworkload = \"10kB\"\nload = 0.3\nwarmup_ms = 0.0\nsim_ms = 2.0",
    );
    for layer in &outcome.layers {
        assert!((0.28..0.32).contains(&layer.utilization), "{layer:?}");
    }
}

#[test]
fn every_transport_delivers_everything() {
    for protocol in Protocol::ALL {
        let outcome = simulate(&format!(
            "topology = \"leafspine-2x4x2\"\ntransport = \"{protocol}\"\nworkload = \"w2\"\nload = 0.5\nsim_ms = 1.0\ndrain_ms = 200.0"
        ));
        assert!(outcome.messages > 1_000 && outcome.unfinished == 0, "{protocol}: {outcome:?}");
        assert!(outcome.deciles.iter().all(|decile| decile.p50 > 0.99), "{protocol}");
    }
}

#[test]
fn a_layout_of_unlike_links_is_simulated() {
    let layout = "[[topology.switches]]\nname = \"near\"\nhosts = 3\n\
        [[topology.switches]]\nname = \"far\"\nhosts = 2\n\
        [[topology.links]]\nbetween = [\"near\", \"far\"]\nwire_ns = 20000\n";
    for protocol in Protocol::ALL {
        let outcome = simulate(&format!(
            "transport = \"{protocol}\"\nworkload = \"w2\"\nload = 0.3\nsim_ms = 1.0\ndrain_ms = 200.0\n{layout}"
        ));
        assert!(outcome.messages > 500 && outcome.unfinished == 0, "{protocol}: {outcome:?}");
        // Each pair of hosts has the least time of its own path.
        let (first, last) = (&outcome.deciles[0], &outcome.deciles[9]);
        assert!(first.p50 > 0.99 && first.p50 < 3.0 && last.p50 > 0.99, "{protocol}: {first:?}");
    }
}

#[test]
fn short_messages_go_first_with_apus_and_wait_with_tcp() {
    let p99 = |protocol: &str| {
        let outcome = simulate(&format!(
            "topology = \"leafspine-2x8x2\"\ntransport = \"{protocol}\"\nworkload = \"w4\"\nload = 0.7\nsim_ms = 4.0\ndrain_ms = 100.0"
        ));
        outcome.deciles[0].p99
    };
    let (apus, tcp) = (p99("apus"), p99("tcp-newreno"));
    assert!(apus < 3.0 && tcp > 2.0 * apus, "Apus {apus}, TCP {tcp}");
}

#[test]
fn responses_that_bypass_the_link_leave_no_message_waiting_on_an_idle_link() {
    // Half of the messages are long enough to wait for the core's pacer.
    let outcome = simulate(
        "topology = \"single-4\"\nworkload = \"50:10,50:1400\"\nload = 0.8\nsim_ms = 20.0",
    );
    let longest = &outcome.deciles[9];
    assert!(longest.p50 < 4.0 && longest.p99 < 12.0, "{longest:?}");
}

#[test]
fn links_carry_the_load_with_every_transport() {
    // Answers would add 18 % with an acknowledgement of 84 bytes for each packet of these two sizes.
    for protocol in Protocol::ALL.into_iter().filter(|it| *it != Protocol::SrptOracle) {
        let outcome = simulate(&format!(
            "topology = \"single-8\"\ntransport = \"{protocol}\"\nworkload = \"50:10,50:1400\"\nload = 0.5\nsim_ms = 5.0"
        ));
        for layer in &outcome.layers {
            assert!((0.47..0.53).contains(&layer.utilization), "{protocol}: {layer:?}");
        }
    }
}

/// The mean over deciles of the ratio to the paper's figures, of the medians and of the 99th percentiles.
fn ratios_to_the_paper(protocol: Protocol, workload: &str, ms: f64) -> (f64, f64) {
    let outcome = simulate(&format!(
        "topology = \"leafspine-3x8x2\"\ntransport = \"{protocol}\"\nworkload = \"{workload}\"\nwarmup_ms = {}\nsim_ms = {ms}\ndrain_ms = 20.0",
        ms / 2.0
    ));
    let cells = compare(&outcome).expect("the paper has these figures");
    let mean = |ratio: fn(&Compared) -> f64| {
        cells[..9].iter().map(|cell| 1.0 + ratio(cell)).sum::<f64>() / 9.0
    };
    (mean(Compared::p50_difference), mean(Compared::p99_difference))
}

/// The tolerance is that of `apus sim compare`, 10 % of medians and 15 % of 99th percentiles. The longest decile, which depends on
/// the length of the run, is left out.
#[test]
fn pfabric_and_the_oracle_are_those_of_the_paper() {
    for (protocol, workload, ms) in [
        (Protocol::Pfabric, "w1", 0.4),
        (Protocol::Pfabric, "w2", 0.8),
        (Protocol::SrptOracle, "w1", 0.4),
        (Protocol::SrptOracle, "w2", 0.8),
    ] {
        let (p50, p99) = ratios_to_the_paper(protocol, workload, ms);
        let agrees = (0.90..1.10).contains(&p50) && (0.85..1.15).contains(&p99);
        assert!(agrees, "{protocol}, {workload}: medians {p50}, 99th percentiles {p99}");
    }
}

#[test]
fn timeouts_of_tcp_are_those_of_lost_packets() {
    let plan = |protocol: &str, buffers: &str| {
        format!(
            "topology = \"leafspine-3x8x2\"\ntransport = \"{protocol}\"\nworkload = \"w3\"\nsim_ms = 1.0\nbuffers = {buffers}"
        )
    };
    for protocol in ["tcp-cubic", "tcp-newreno", "dctcp"] {
        for buffers in ["{ port_bytes = 50000 }", "{ port_bytes = 200000 }", "\"unlimited\""] {
            let outcome = simulate(&plan(protocol, buffers));
            let lost: u64 = outcome.layers.iter().map(|layer| layer.lost).sum();
            let counter = |name: &str| {
                let found = outcome.counters.iter().find(|(known, _)| *known == name);
                found.expect("TCP counts it").1
            };
            let (timeouts, undone) = (counter("timeouts"), counter("timeouts_undone"));
            assert!(timeouts - undone <= lost, "{protocol}, {buffers}: {timeouts} for {lost} lost");
            if buffers != "\"unlimited\"" {
                assert!(timeouts <= lost, "{protocol}, {buffers}: {timeouts} for {lost} lost");
            }
        }
    }
}

#[test]
fn small_buffers_lose_and_nothing_is_lost_for_good() {
    let outcome = simulate(
        "topology = \"single-8\"\nworkload = \"50kB\"\npattern = \"incast\"\nload = 0.5\nsim_ms = 2.0\ndrain_ms = 300.0\nbuffers = { port_bytes = 30000 }\n[homa]\nprofile = \"production\"",
    );
    assert!(outcome.layers.iter().any(|layer| layer.lost > 0), "{:?}", outcome.layers);
    assert_eq!(outcome.unfinished, 0, "{:?}", outcome.counters);
}

#[test]
fn messages_that_do_not_end_count_with_their_age() {
    let outcome = simulate(
        "topology = \"single-8\"\nworkload = \"1MB\"\nload = 1.5\nwarmup_ms = 0.0\nsim_ms = 10.0\ndrain_ms = 10.0",
    );
    assert!(outcome.unfinished > 0, "the links carry two thirds of the load");
    let [size] = outcome.sizes[..] else { panic!("{:?}", outcome.sizes) };
    assert_eq!((size.messages, size.unfinished), (outcome.messages, outcome.unfinished));
    // A message takes 0.85 ms at least; an unfinished one has waited for 10 ms or more.
    assert!(size.p99 > 10.0, "{size:?}");
}

#[test]
fn responses_are_part_of_an_exchange() {
    let outcome = simulate(
        "topology = \"single-4\"\nworkload = \"100\"\nexchange = { response = 20000 }\nload = 0.0002\nsim_ms = 20.0",
    );
    assert!(outcome.messages > 0 && outcome.unfinished == 0);
    assert!((0.98..1.6).contains(&outcome.deciles[4].p50), "{:?}", outcome.deciles[4]);
}

#[test]
fn a_trace_is_sent_as_it_stands() {
    let path = std::env::temp_dir().join(format!("apus-trace-{}.csv", std::process::id()));
    std::fs::write(
        &path,
        "time_ns,source,destination,bytes\n1000,0,1,100\n2000,3,2,50000\n9000,0,1,7\n",
    )
    .expect("the temporary directory can be written");
    for protocol in Protocol::ALL {
        let outcome = simulate(&format!(
            "topology = \"single-4\"\ntransport = \"{protocol}\"\ntrace = \"{}\"\nwarmup_ms = 0.0\nsim_ms = 1.0",
            path.display()
        ));
        assert_eq!((outcome.messages, outcome.unfinished), (3, 0), "{protocol}");
        let sizes: Vec<u64> = outcome.sizes.iter().map(|size| size.messages).collect();
        assert_eq!(sizes, [1, 1, 1], "{protocol}");
    }
    std::fs::write(&path, "5,0,9,100").expect("as above");
    let plan = Plan { trace: Some(path.clone()), ..Plan::default() };
    let plan = Plan { topology: "single-4".parse().expect("known"), ..plan };
    let error = run(&plan, &mut |_| {}).expect_err("there is no host 9").to_string();
    assert!(error.contains("line 1") && error.contains("below 4"), "{error}");
    std::fs::remove_file(path).expect("it was made here");
}

#[test]
fn a_layer_can_have_buffers_and_delays_of_its_own() {
    let text = "topology = \"leafspine-2x4x1\"\nworkload = \"50kB\"\nload = 0.6\nsim_ms = 2.0\ndrain_ms = 300.0\n[homa]\nprofile = \"production\"";
    let narrow =
        simulate(&format!("{text}\n[links]\ncore_gbps = 10\n[layer_bytes]\ntor_up = 20000"));
    let lost = |name: &str| {
        let layer = narrow.layers.iter().find(|layer| layer.name == name);
        layer.expect("a layer of a leaf-spine network").lost
    };
    assert!(lost("tor_up") > 0 && lost("tor_down") == 0, "{:?}", narrow.layers);
    assert!(Plan::from_toml("[layer_bytes]\nring = 1").is_err());
    // The least time of a message grows as well, so its slowdown is the same.
    let far = simulate(
        "topology = \"leafspine-2x4x2\"\nworkload = \"100\"\nload = 0.001\nsim_ms = 5.0\n[links]\ncore_wire_ns = 5000",
    );
    assert!((0.99..1.05).contains(&far.deciles[4].p50), "{:?}", far.deciles[4]);
}
