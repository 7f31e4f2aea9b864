//! Random programs of socket calls, plain and under `apus run`: the lines that the calls print are compared (results, errno,
//! readiness and bytes). `differ.c` makes the program of a seed.
//!
//! A seed whose runs differ is run up to three times more, because a plain run may differ from itself where the machine is late. A
//! seed that differs each time is shrunk: steps are dropped while the runs still differ. The other seeds continue.

mod record;
mod shrinking;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::apus_program::ApusProgram;
use crate::cpu_time::{CpuTicks, ticks_per_second};
use crate::program::{both_outputs, read, run};
use crate::scratch::ScratchDirectory;
use crate::seed_record::{append, today};
use record::{RunRecord, next_seed};
use shrinking::{first_difference, shrunk};

const RECORD: &str = "docs/measurements/sockets-differ.txt";
const SOURCE: &str = "crates/apus-cli/tests/end_to_end/programs/differ.c";

/// Time for shrinking after the end of a campaign.
const SHRINKING_MAX: Duration = Duration::from_secs(30);

/// Repetitions of a seed whose runs differ.
const REPEATS: usize = 3;

/// Runs seeds for a number of seconds, or one seed.
pub(crate) fn check(directory: &Path, arguments: &[&str]) -> Result<()> {
    match arguments {
        ["seed", seed] => check_seed(directory, seed.parse().context("the seed")?),
        [seconds] => campaign(directory, seconds.parse().context("the number of seconds")?),
        _ => bail!("expected: sockets-differ SECONDS, or sockets-differ seed SEED"),
    }
}

fn check_seed(directory: &Path, seed: u64) -> Result<()> {
    let differ = Differ::build(directory)?;
    let lane = Lane { differ: &differ, number: 0, until: None };
    if !lane.differs(seed, differ.steps, &[])? {
        println!("seed {seed}: the same");
        return Ok(());
    }
    print!("{}", lane.shrink(seed)?);
    bail!("seed {seed} differs")
}

fn campaign(directory: &Path, seconds: u64) -> Result<()> {
    let differ = Differ::build(directory)?;
    let first = match variable("FIRST")? {
        Some(first) => first,
        None => next_seed(&fs::read_to_string(RECORD).unwrap_or_default()),
    };
    let lanes = variable("LANES")?.unwrap_or(4);
    let before = CpuTicks::of("self")?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let results = Mutex::new(Vec::new());
    let work = |number| {
        let lane = Lane { differ: &differ, number, until: Some(end) };
        lane.run(first + number, lanes, &results)
    };
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..lanes).map(|number| scope.spawn(move || work(number))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a lane does not panic"))
    })?;
    let ticks = CpuTicks::of("self")?.of_children - before.of_children;
    let record = RunRecord {
        first,
        steps: differ.steps,
        core_seconds: ticks / ticks_per_second()?,
        results: results.into_inner().expect("no lane panicked"),
        date: today()?,
        commit: differ.apus.commit.clone(),
    };
    append(RECORD, &record.to_string())?;
    match record.differing().count() {
        0 => Ok(()),
        count => bail!("{count} seeds differ"),
    }
}

/// The result of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Same,
    /// Runs differed, but not each time.
    Late,
    Differs,
}

/// The built programs.
struct Differ {
    program: PathBuf,
    apus: ApusProgram,
    /// Number of steps of a program.
    steps: u64,
    scratch: ScratchDirectory,
}

impl Differ {
    fn build(directory: &Path) -> Result<Self> {
        let apus = ApusProgram::find(directory, None)?;
        let scratch = ScratchDirectory::new("sockets-differ")?;
        let program = scratch.join("differ");
        let options = ["-O1", "-g", "-pthread", "-w", "-o"];
        run(Command::new("cc").args(options).arg(&program).arg(SOURCE))?;
        Ok(Self { program, apus, steps: variable("STEPS")?.unwrap_or(120), scratch })
    }
}

/// One of the lanes that run seeds at the same time.
#[derive(Clone, Copy)]
struct Lane<'a> {
    differ: &'a Differ,
    number: u64,
    /// End of the campaign.
    until: Option<Instant>,
}

impl Lane<'_> {
    /// Runs every `lanes`-th seed until the end.
    fn run(&self, first: u64, lanes: u64, results: &Mutex<Vec<(u64, Verdict)>>) -> Result<()> {
        let mut seed = first;
        while self.until.is_some_and(|end| Instant::now() < end) {
            let verdict = self.verdict(seed)?;
            if verdict == Verdict::Differs {
                eprint!("seed {seed} differs:\n{}", self.shrink(seed)?);
            }
            results.lock().expect("no lane panics with it").push((seed, verdict));
            seed += lanes;
        }
        Ok(())
    }

    fn verdict(&self, seed: u64) -> Result<Verdict> {
        let steps = self.differ.steps;
        if self.plain("a", seed, steps, &[])? == self.carried("b", seed, steps, &[])? {
            return Ok(Verdict::Same);
        }
        let mut verdict = Verdict::Late;
        for repeat in 0..REPEATS {
            if repeat > 0 && self.is_over() {
                break;
            }
            if !self.differs(seed, steps, &[])? {
                return Ok(Verdict::Late);
            }
            verdict = Verdict::Differs;
        }
        Ok(verdict)
    }

    /// Whether the time for shrinking is over.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|end| Instant::now() >= end + SHRINKING_MAX)
    }

    /// Whether two plain runs are the same, and two carried ones differ from them. The outputs stay in the files `a` and `b`.
    fn differs(&self, seed: u64, steps: u64, dropped: &[u64]) -> Result<bool> {
        let plain = self.plain("a", seed, steps, dropped)?;
        if plain == self.carried("b", seed, steps, dropped)? {
            return Ok(false);
        }
        if plain != self.plain("c", seed, steps, dropped)? {
            return Ok(false);
        }
        Ok(plain != self.carried("b", seed, steps, dropped)?)
    }

    /// Drops steps of a seed that differs. Returns the report: the arguments of the program, and what differs.
    fn shrink(&self, seed: u64) -> Result<String> {
        let whole = self.diff()?;
        let shorter = first_difference(&whole).map(|step| step + 1);
        let steps = match shorter {
            Some(steps) if self.differs(seed, steps, &[])? => steps,
            _ => self.differ.steps,
        };
        let dropped =
            shrunk(steps, |dropped| self.differs(seed, steps, dropped), || self.is_over())?;
        self.differs(seed, steps, &dropped)?;
        let numbers: String = dropped.iter().map(|step| format!(" {step}")).collect();
        let plain = read(self.file("a"))?;
        let differences = self.diff()?;
        Ok(format!(
            "at first:\n{whole}differ {seed} {steps}{numbers}\nplain:\n{plain}differences:\n{differences}"
        ))
    }

    fn diff(&self) -> Result<String> {
        both_outputs(Command::new("diff").arg(self.file("a")).arg(self.file("b")))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.differ.scratch.join(format!("{}.{name}", self.number))
    }

    fn plain(&self, file: &str, seed: u64, steps: u64, dropped: &[u64]) -> Result<Vec<u8>> {
        let mut command = limited();
        command.arg(&self.differ.program).env_remove("CARRIED").env_remove("LD_PRELOAD");
        self.output(command, file, seed, steps, dropped)
    }

    fn carried(&self, file: &str, seed: u64, steps: u64, dropped: &[u64]) -> Result<Vec<u8>> {
        let mut command = limited();
        command.arg(&self.differ.apus.path).arg("run").arg(&self.differ.program);
        command.env("CARRIED", "1");
        self.output(command, file, seed, steps, dropped)
    }

    /// Runs the program of a seed. Returns its lines and its status, which are also in the file.
    fn output(
        &self,
        mut command: Command,
        file: &str,
        seed: u64,
        steps: u64,
        dropped: &[u64],
    ) -> Result<Vec<u8>> {
        let path = self.file(file);
        // A file, because a process that is left behind would keep a pipe open.
        let stdout = File::create(&path).with_context(|| path.display().to_string())?;
        command.arg(seed.to_string()).arg(steps.to_string());
        command.args(dropped.iter().map(u64::to_string));
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        let status = command.status().context("timeout")?;
        let mut file = File::options().append(true).open(&path).context("an output")?;
        writeln!(file, "status {}", code(status)).context("an output")?;
        fs::read(&path).context("an output")
    }
}

/// The command that ends another command after 30 s.
fn limited() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "30"]);
    command
}

/// The exit code, as a shell reports it.
fn code(status: ExitStatus) -> i32 {
    let by_signal = || status.signal().map_or(-1, |signal| 128 + signal);
    status.code().unwrap_or_else(by_signal)
}

/// The number in a variable.
fn variable(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => {
            value.parse().map(Some).with_context(|| format!("{name}={value}"))
        }
        _ => Ok(None),
    }
}
