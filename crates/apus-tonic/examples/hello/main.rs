//! Measures one generated service over four transports in one run: tonic's TCP and unix sockets, and Apus in shared memory and over UDP.
//!
//! ```text
//! cargo run --release -p apus-tonic --example hello -- [SECONDS] [--cpu] [--json]
//! ```
//!
//! Client and server are threads of one process, pinned to one core each, with a runtime of one thread each. Rounds go over all
//! transports in turn, so that other work of the machine is spread over them; each figure is the median of seven rounds. SECONDS
//! (default 70) is the time of all rounds. Ratios within a run can be compared; times of different runs cannot on a machine that does
//! other work, of which the program warns.
//!
//! With `--cpu`, both ends are tasks of one thread, and times are CPU times of this thread, with those of its system calls: the work
//! for a call, which does not depend on other work of the machine. Nothing waits for another core there.
//!
//! | figure | meaning |
//! |---|---|
//! | `one` | 100-byte calls one after the other, plain `await`: p50 and p99, µs |
//! | `many` | the same, 64 outstanding: thousand calls per second |
//! | `mixed` | calls as in `one` beside two loops of 1 MB echoes on the same channel: p50 and p99, µs; echoes per second |
//! | `stream` | messages of a stream of responses, of 100 bytes and of 64 KiB: µs each |

#![forbid(unsafe_code)]

mod clock;
mod load;
mod noise;
mod transports;

use std::error::Error;
use std::time::Duration;

use clock::Time;
use noise::Noise;
use transports::{ServerOn, Transport, pin, runtime};

#[allow(warnings, reason = "generated")]
mod interop {
    include!("../../proto/generated/interop.rs");
}

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 7;

/// Names of the figures, and their heads in the table.
const FIGURES: [(&str, &str); 8] = [
    ("one_p50_us", "one p50"),
    ("one_p99_us", "p99"),
    ("many_kcalls_s", "64: k/s"),
    ("mixed_p50_us", "mixed p50"),
    ("mixed_p99_us", "p99"),
    ("mixed_echoes_s", "1 MB: /s"),
    ("stream_100b_us", "100 B"),
    ("stream_64kib_us", "64 KiB"),
];

type Figures = [f64; FIGURES.len()];

/// Measures the figures of a transport once.
async fn round(transport: &Transport, clock: Time, time: Duration) -> Result<Figures> {
    let channel = &transport.channel;
    let (one_p50, one_p99) = load::one_by_one(channel, clock, time).await?;
    let many = load::outstanding(channel, clock, time).await?;
    let mixed = load::mixed(channel, clock, time).await?;
    let short = load::stream(channel, 100, clock, time).await?;
    let long = load::stream(channel, 64 << 10, clock, time).await?;
    Ok([one_p50, one_p99, many, mixed.p50, mixed.p99, mixed.echoes, short, long])
}

/// The medians of all rounds.
async fn measure(transports: &[Transport], clock: Time, seconds: f64) -> Result<Vec<Figures>> {
    let time = Duration::from_secs_f64(seconds / (ROUNDS * transports.len() * 5) as f64);
    let mut rounds = vec![Vec::new(); transports.len()];
    for transport in transports {
        load::one_by_one(&transport.channel, clock, time / 4).await?;
    }
    for _ in 0..ROUNDS {
        for (transport, rounds) in transports.iter().zip(&mut rounds) {
            rounds.push(round(transport, clock, time).await?);
        }
    }
    let medians = rounds.iter().map(|rounds| {
        std::array::from_fn(|figure| median(rounds.iter().map(|round| round[figure])))
    });
    Ok(medians.collect())
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn print_table(transports: &[Transport], figures: &[Figures]) {
    let head = |about: &str| {
        print!("{about:<20}");
        FIGURES.iter().for_each(|(_, head)| print!("{head:>11}"));
        println!();
    };
    head("");
    for (transport, figures) in transports.iter().zip(figures) {
        print!("{:<20}", transport.name);
        figures.iter().for_each(|figure| print!("{figure:>11.2}"));
        println!();
    }
    for (base, about) in [(0, "× TCP"), (1, "× unix socket")] {
        head(about);
        for (transport, own) in transports.iter().zip(figures).skip(2) {
            print!("{:<20}", transport.name);
            own.iter().zip(&figures[base]).for_each(|(own, base)| print!("{:>11.2}", own / base));
            println!();
        }
    }
}

fn print_json(transports: &[Transport], figures: &[Figures], noise: &Noise) {
    let rows = transports.iter().zip(figures).map(|(transport, figures)| {
        let figures = FIGURES.iter().zip(figures);
        let figures = figures.map(|((name, _), figure)| format!(", \"{name}\": {figure:.3}"));
        format!("    {{\"transport\": \"{}\"{}}}", transport.name, figures.collect::<String>())
    });
    let rows = rows.collect::<Vec<_>>().join(",\n");
    let other = noise.share_of_others();
    println!(
        "{{\n  \"rounds\": {ROUNDS},\n  \"other_work\": {other:.3},\n  \"rows\": [\n{rows}\n  ]\n}}"
    );
}

fn main() -> Result<()> {
    let (options, numbers): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let is_known = |option: &String| ["--json", "--cpu"].contains(&option.as_str());
    if !options.iter().all(is_known) || numbers.len() > 1 {
        return Err("hello [SECONDS] [--cpu] [--json]".into());
    }
    let has = |option| options.iter().any(|it| it == option);
    let (on, clock) = match has("--cpu") {
        true => (ServerOn::Task, Time::OfCpu),
        false => (ServerOn::Thread, Time::OfClock),
    };
    let seconds = numbers.first().map_or(Ok(70.0), |seconds| seconds.parse())?;
    pin(0)?;
    runtime()?.block_on(async {
        let transports = transports::all(on).await?;
        let noise = Noise::begin();
        let figures = measure(&transports, clock, seconds).await?;
        let noise = noise.end();
        if has("--json") {
            print_json(&transports, &figures, &noise);
        } else {
            print_table(&transports, &figures);
        }
        noise.warn();
        Ok(())
    })
}
