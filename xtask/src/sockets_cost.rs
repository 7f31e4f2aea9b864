//! The cost of `apus run` for a program of which no connection is carried (`APUS_SOCKETS=off`): instructions of each call,
//! counted by callgrind, and time. Both are differences between a plain and a preloaded run of
//! `crates/apus-preload/tests/cost.c`.
//!
//! Instructions are the slope between two numbers of turns, so the start of the process does not count. Times are medians of 15
//! pairs of runs on one core, alternating plain and preloaded; on a machine with other work they say little.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::callgrind::{self, Invocation};
use crate::program::{cargo, is_installed, output, run, target};

const SOURCE: &str = "crates/apus-preload/tests/cost.c";

/// Upper bound on the instructions that a call takes more.
const INSTRUCTIONS_MAX: f64 = 60.0;

/// Turns of the two runs by which instructions are counted.
const TURNS: [u64; 2] = [1_000, 3_000];

/// Number of pairs of runs by which time is measured; odd, so that the median is one of them.
const RUNS: usize = 15;

/// A kind of turns of the program, by the calls that it makes.
struct Kind {
    name: &'static str,
    calls: u64,
    /// Turns that take half a second where a turn sends a segment of TCP.
    turns: u64,
}

const KINDS: [Kind; 8] = [
    kind("read_write", 2, 50_000),
    kind("send_recv", 2, 50_000),
    kind("poll_select", 2, 500_000),
    kind("epoll", 2, 500_000),
    kind("dup_close", 2, 500_000),
    kind("fcntl_getsockopt", 2, 500_000),
    kind("syscall", 2, 50_000),
    kind("connection", 5, 10_000),
];

const fn kind(name: &'static str, calls: u64, turns: u64) -> Kind {
    Kind { name, calls, turns }
}

/// Prints the instructions of all kinds.
pub(crate) fn instructions() -> Result<()> {
    match Cost::new()? {
        Some(cost) => cost.print_instructions(),
        None => Ok(()),
    }
}

/// Prints the instructions of all kinds, and the times of those that are named, or of all.
pub(crate) fn instructions_and_times(names: &[&str]) -> Result<()> {
    let is_kind = |name: &&&str| KINDS.iter().any(|kind| kind.name == **name);
    if let Some(name) = names.iter().find(|name| !is_kind(name)) {
        let kinds = KINDS.map(|kind| kind.name);
        bail!("`{name}` is none of {}", kinds.join(", "));
    }
    let Some(cost) = Cost::new()? else { return Ok(()) };
    cost.print_instructions()?;
    println!("\nns of a turn: plain, preloaded (medians of {RUNS}), median of the ratios of pairs");
    for kind in KINDS.iter().filter(|kind| names.is_empty() || names.contains(&kind.name)) {
        let [plain, preloaded, ratio] = medians(&cost.times(kind)?);
        let turns = kind.turns as f64;
        println!("{:<18} {:8.1} {:8.1}   {ratio:.3}", kind.name, plain / turns, preloaded / turns);
    }
    Ok(())
}

/// The program and the library, both built.
struct Cost {
    program: String,
    library: String,
}

impl Cost {
    fn new() -> Result<Option<Self>> {
        if !is_installed("valgrind") {
            println!("skipped: cost of apus run: valgrind is not installed");
            return Ok(None);
        }
        run(cargo().args(["build", "--release", "--locked", "--quiet", "-p", "apus-preload"]))?;
        let library = format!("{}/release/libapus_preload.so", target());
        let library = fs::canonicalize(&library).context(library)?;
        let program = format!("{}/sockets-cost", target());
        run(Command::new("cc").args(["-O2", "-o", &program, SOURCE]))?;
        let program = fs::canonicalize(&program).context(program)?;
        let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        Ok(Some(Self { program: text(program), library: text(library) }))
    }

    fn print_instructions(&self) -> Result<()> {
        let libc = output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
        let rustc = output(Command::new("rustc").arg("--version"))?;
        println!("instructions of a call: plain, preloaded, difference ({libc}, {rustc})");
        let mut too_many = false;
        for kind in &KINDS {
            let (plain, preloaded) = (self.a_call("", kind)?, self.a_call(&self.library, kind)?);
            let more = preloaded - plain;
            println!("{:<18} {plain:7.1} {preloaded:7.1} {more:7.1}", kind.name);
            too_many |= more > INSTRUCTIONS_MAX;
        }
        if too_many {
            bail!("a call takes more than {INSTRUCTIONS_MAX} instructions more");
        }
        Ok(())
    }

    /// Returns the instructions of a call with this library preloaded; an empty name preloads none.
    fn a_call(&self, library: &str, kind: &Kind) -> Result<f64> {
        let count = |turns: u64| {
            callgrind::instructions(&Invocation {
                program: &self.program,
                arguments: &[kind.name, &turns.to_string()],
                variables: &[("LD_PRELOAD", library), ("APUS_SOCKETS", "off")],
            })
        };
        let [fewer, more] = TURNS;
        Ok((count(more)? as f64 - count(fewer)? as f64) / ((more - fewer) * kind.calls) as f64)
    }

    /// Returns the nanoseconds of all turns, plain and preloaded, for each pair of runs.
    fn times(&self, kind: &Kind) -> Result<Vec<[f64; 2]>> {
        let nanoseconds = |library: &str| -> Result<f64> {
            let mut command = Command::new("taskset");
            command.args(["-c", "0", &self.program, kind.name, &kind.turns.to_string()]);
            command.env("LD_PRELOAD", library).env("APUS_SOCKETS", "off");
            let text = output(&mut command)?;
            text.trim().parse().with_context(|| format!("no time: {text}"))
        };
        let pair = |run: usize| -> Result<[f64; 2]> {
            // The one that runs first takes turns as well.
            if run % 2 == 1 {
                let plain = nanoseconds("")?;
                return Ok([plain, nanoseconds(&self.library)?]);
            }
            let preloaded = nanoseconds(&self.library)?;
            Ok([nanoseconds("")?, preloaded])
        };
        (0..RUNS).map(pair).collect()
    }
}

/// Returns the medians of plain times, of preloaded times, and of the ratios of pairs.
fn medians(pairs: &[[f64; 2]]) -> [f64; 3] {
    let median = |value: fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    [median(|pair| pair[0]), median(|pair| pair[1]), median(|pair| pair[1] / pair[0])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ratio_is_one_of_a_pair() {
        assert_eq!(medians(&[[10.0, 20.0], [30.0, 33.0], [20.0, 30.0]]), [20.0, 30.0, 1.5]);
        assert_eq!(RUNS % 2, 1);
    }

    #[test]
    fn every_kind_is_one_of_the_program() {
        let program = include_str!("../../crates/apus-preload/tests/cost.c");
        for Kind { name, .. } in &KINDS {
            assert!(program.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
