//! Runs a plan and prints what came of it: `sim [KEY=VALUE…]`, keys as in a plan's TOML.

use apus_sim::{Plan, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text: Vec<String> = std::env::args().skip(1).collect();
    let plan = Plan::from_toml(&text.join("\n"))?;
    let outcome = run(&plan, &mut |progress| {
        if progress.packet_hops % 64 == 0 {
            eprintln!("{:?} of {:?}", progress.simulated, progress.target);
        }
    })?;
    println!(
        "{} messages, {} unfinished; {:?} simulated in {:?}; {} hops, {:.2} M hops/s, {} events, hash {:016x}, goodput {:.2} Gb/s",
        outcome.messages,
        outcome.unfinished,
        outcome.simulated,
        outcome.wall,
        outcome.packet_hops,
        outcome.packet_hops_per_s() / 1e6,
        outcome.events,
        outcome.hash,
        outcome.goodput_gbps
    );
    let paper = plan.workload.paper().map(|w| w.homa());
    for (i, d) in outcome.deciles.iter().enumerate() {
        let (p50, p99) = paper.map_or((0.0, 0.0), |p| p[i]);
        println!(
            "{:>9} {:>9.0} {:6.2} {:6.2} {:6.2}   paper {:6.2} {:6.2}   {:+6.1}% {:+6.1}%",
            d.bytes,
            d.messages,
            d.p50,
            d.p99,
            d.p999,
            p50,
            p99,
            (d.p50 / p50 - 1.0) * 100.0,
            (d.p99 / p99 - 1.0) * 100.0
        );
    }
    if std::env::var("SIZES").is_ok() {
        for s in &outcome.sizes {
            let bin =
                plan.workload.paper().and_then(|w| w.bins().iter().find(|b| b.bytes == s.bytes));
            let (p50, p99) = bin.map_or((0.0, 0.0), |b| (b.p50, b.p99));
            println!(
                "size {:>9} n {:>8} {:6.2} {:6.2}  paper {:6.2} {:6.2}",
                s.bytes, s.messages, s.p50, s.p99, p50, p99
            );
        }
    }
    for layer in &outcome.layers {
        println!("{layer:?}");
    }
    let counters: Vec<_> = outcome.counters.iter().filter(|c| c.1 > 0).collect();
    println!("{counters:?}");
    Ok(())
}
