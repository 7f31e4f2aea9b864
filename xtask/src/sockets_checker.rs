//! Known streams through carried connections: nothing is lost, repeated or out of order.
//!
//! A seed chooses calls, sizes and waits (`checker.c`), while directions return to TCP at random offsets and both ends fork. The
//! record, docs/measurements/sockets-checker.txt, has a line for each run. A seed that fails ends the run without a line.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::apus_program::ApusProgram;
use crate::cpu_time::{CpuTicks, ticks_per_second};
use crate::program::run;
use crate::scratch::ScratchDirectory;
use crate::seed_record::{append, last_seed, today};

const RECORD: &str = "docs/measurements/sockets-checker.txt";
const SOURCE: &str = "crates/apus-cli/tests/end_to_end/programs/checker.c";

/// The values of `APUS_SOCKETS`: no returns to TCP, and returns after about that many bytes.
const WAYS: [&str; 5] = ["", "return:3000", "return:30000", "return:300000", "return:3000000"];

/// Lanes, each with a server, which serves one client at a time. A lane takes every twentieth seed.
const LANES: u64 = 20;

/// Runs seeds for a number of minutes, after those of the record.
pub(crate) fn check(directory: &Path, arguments: &[&str]) -> Result<()> {
    let [minutes] = arguments else { bail!("expected: sockets-checker MINUTES") };
    let minutes: u64 = minutes.parse().context("the number of minutes")?;
    let apus = ApusProgram::find(directory, None)?;
    let scratch = ScratchDirectory::new("sockets-checker")?;
    let program = scratch.join("checker");
    run(Command::new("cc").args(["-O2", "-pthread", "-w", "-o"]).arg(&program).arg(SOURCE))?;
    let first =
        last_seed(&fs::read_to_string(RECORD).unwrap_or_default()).map_or(1, |last| last + 1);
    let before = CpuTicks::of("self")?;
    let campaign = Campaign {
        apus: apus.path,
        program,
        end: Instant::now() + Duration::from_secs(60 * minutes),
        passed: Mutex::new(Vec::new()),
        has_failed: AtomicBool::new(false),
    };
    let servers: Vec<Server> =
        (0..LANES).map(|lane| campaign.server(lane)).collect::<Result<_>>()?;
    let work = |lane: u64| campaign.run(first + lane, lane, &servers[lane as usize].port);
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..LANES).map(|lane| scope.spawn(move || work(lane))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a lane does not panic"))
    })?;
    if campaign.has_failed.into_inner() {
        bail!("a stream was wrong");
    }
    let mut ticks = CpuTicks::of("self")?.of_children - before.of_children;
    for server in &servers {
        let used = CpuTicks::of(&server.child.id().to_string())?;
        ticks += used.own + used.of_children;
    }
    let passed = campaign.passed.into_inner().expect("no lane panicked");
    let last = passed.iter().map(|(seed, _)| *seed).max().context("no seed was run")?;
    let line = format!(
        "seeds {first} to {last}, {} of them, {} bytes, {} core-seconds, {minutes} minutes: nothing lost ({}, {})",
        passed.len(),
        passed.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        ticks / ticks_per_second()?,
        today()?,
        apus.commit
    );
    append(RECORD, &line)
}

struct Campaign {
    apus: PathBuf,
    program: PathBuf,
    end: Instant,
    /// Seeds and bytes.
    passed: Mutex<Vec<(u64, u64)>>,
    has_failed: AtomicBool,
}

impl Campaign {
    /// Starts the server of a lane.
    fn server(&self, lane: u64) -> Result<Server> {
        let mut command = Command::new(&self.apus);
        command.arg("run").arg(&self.program).arg("server").env("APUS_SOCKETS", way(lane));
        let mut child = command.stdout(Stdio::piped()).spawn().context("a server")?;
        let stdout = child.stdout.take().context("a pipe")?;
        let mut server = Server { child, port: String::new(), stdout: BufReader::new(stdout) };
        server.stdout.read_line(&mut server.port).context("the port of a server")?;
        server.port.truncate(server.port.trim_end().len());
        Ok(server)
    }

    /// Runs the seeds of a lane until the end, or until one of any lane fails.
    fn run(&self, first: u64, lane: u64, port: &str) -> Result<()> {
        let mut seed = first;
        while Instant::now() < self.end && !self.has_failed.load(Ordering::Relaxed) {
            let size = 1000 + seed.wrapping_mul(2_654_435_761) % 6_000_000;
            let (seed_text, size_text) = (seed.to_string(), size.to_string());
            let mut command = Command::new("timeout");
            command.arg("300").arg(&self.apus).arg("run").arg(&self.program);
            command.args(["client", port, &seed_text, &size_text]);
            let status = command.env("APUS_SOCKETS", way(lane)).stdin(Stdio::null()).status();
            if status.context("timeout")?.success() {
                self.passed.lock().expect("no lane panics with it").push((seed, 2 * size));
            } else {
                let way = Some(way(lane)).filter(|way| !way.is_empty()).unwrap_or("no returns");
                eprintln!("seed {seed}, {way}, {size} bytes each way: failed");
                self.has_failed.store(true, Ordering::Relaxed);
            }
            seed += LANES;
        }
        Ok(())
    }
}

/// A running server. Killed when it is dropped.
struct Server {
    child: Child,
    port: String,
    /// The pipe stays open, because the server may write to it.
    stdout: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail when the server has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn way(lane: u64) -> &'static str {
    WAYS[(lane % WAYS.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_four_lanes() {
        for each in WAYS {
            assert_eq!((0..LANES).filter(|lane| way(*lane) == each).count(), 4);
        }
    }
}
