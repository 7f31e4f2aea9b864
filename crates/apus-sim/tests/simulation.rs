//! Whole simulations, small ones.

use apus_sim::{Outcome, Plan, Protocol, run};

fn simulate(text: &str) -> Outcome {
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
fn small_buffers_lose_and_nothing_is_lost_for_good() {
    let outcome = simulate(
        "topology = \"single-8\"\nworkload = \"50kB\"\npattern = \"incast\"\nload = 0.5\nsim_ms = 2.0\ndrain_ms = 300.0\nbuffers = { port_bytes = 30000 }\n[homa]\nprofile = \"production\"",
    );
    assert!(outcome.layers.iter().any(|layer| layer.lost > 0), "{:?}", outcome.layers);
    assert_eq!(outcome.unfinished, 0, "{:?}", outcome.counters);
}

#[test]
fn responses_are_part_of_an_exchange() {
    let outcome = simulate(
        "topology = \"single-4\"\nworkload = \"100\"\nexchange = { response = 20000 }\nload = 0.0002\nsim_ms = 20.0",
    );
    assert!(outcome.messages > 0 && outcome.unfinished == 0);
    assert!((0.98..1.6).contains(&outcome.deciles[4].p50), "{:?}", outcome.deciles[4]);
}
