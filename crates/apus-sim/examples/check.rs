//! Runs the fault campaign over a range of seeds: `check FROM TO [log|minimize]`.

use apus_sim::check::{Part, check, log, minimize};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (from, to) = (arguments[0].parse().unwrap(), arguments[1].parse().unwrap());
    let how = arguments.get(2).map(String::as_str);
    std::panic::set_hook(Box::new(|_| {}));
    let (mut calls, mut answered, mut failed, mut packets, mut bad) = (0, 0, 0, 0, 0);
    for seed in from..to {
        match check(seed, &Part::default()) {
            Ok(tally) => {
                calls += tally.calls;
                answered += tally.answered;
                failed += tally.failed;
                packets += tally.packets;
            }
            Err(failure) => {
                bad += 1;
                println!("seed {seed}: {}", failure.violation);
                if how == Some("minimize") || how == Some("log") {
                    let small = minimize(&failure);
                    println!("  {} -> {}", small.violation, small.replay());
                    if how == Some("log") {
                        println!("{}", log(seed, &small.part).join("\n"));
                    }
                }
            }
        }
    }
    println!(
        "{} seeds, {bad} bad; {calls} calls, {answered} answered, {failed} failed, {packets} packets",
        to - from
    );
}
