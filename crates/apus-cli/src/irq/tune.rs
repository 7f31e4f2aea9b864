//! `apus irq tune`: parameters for a program and a target of latency, chosen by measurement.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use apus_irq::{
    Cycles, Device, EpollParameters, Goal, Mode, NapiParameters, ProcessId, Program, Sample, Slot,
    Target, Tuner, TuningAction, Watch,
};
use apus_load::misuse::Misuse;
use nix::net::if_::if_nameindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use procfs::process::Process;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::fd::AsFd;

use super::keeper;
use super::preset::Preset;
use super::session;
use super::set;
use super::state::StateArgs;
use crate::failure;
use crate::output;

/// Choose the parameters for a program and a target of latency, by measurement under load
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Run the command while the program is under its usual load. Each step sets parameters, measures the program's \
cycles through tracepoints, and reports the next change with its reason. At the end the command restores the values before, unless \
--keep is given, and saves the result as a preset for `--mode` and `--preset`. Needs root.

Without --p99-from, the 99th percentile is an estimate at the server: the wait for the timer, the wake-up if the program sleeps, \
and one cycle. It excludes the network and the queue of the client.

Examples:
  apus irq tune $(pidof memcached) --p99 200
  apus irq tune 4711 --p99 500 --device eth0:0 --save cache
  apus irq tune 4711 --p99 500 --p99-from \"./measure-p99 --seconds 2\"
  apus irq attach 4711 --mode cache eth0:0"
)]
pub(crate) struct TuneArgs {
    /// Process of the program
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// The 99th percentile of the latency in microseconds, at most: 1 to 1000000
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    p99: u64,
    /// Shell command that runs as long as each step and writes the 99th percentile in microseconds, as its last line, as a client sees it
    #[arg(long, value_name = "COMMAND")]
    p99_from: Option<String>,
    /// Devices, or receive queues of them [default: those that receive the program's packets]
    #[arg(long, value_name = "DEV[:QUEUE]")]
    device: Vec<Target>,
    /// Seconds of each step, 1 to 600; with --p99-from, each step is as long as the command
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Upper bound on steps, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    steps: u32,
    /// Longest suspension in milliseconds, 1 to 10000: the time that other programs may wait if the program does not return to epoll_wait
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    suspend_max: u64,
    /// Name of the preset [default: the program's name]
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// Leave the result on the devices until `apus irq restore`
    #[arg(long)]
    keep: bool,
    /// Also set queues that other programs use
    #[arg(long)]
    force: bool,
    /// Write the steps and the result as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

/// The result for `--json`: all steps.
#[derive(Debug, Serialize)]
struct Tuned {
    schema: &'static str,
    program: String,
    target_p99_us: u64,
    steps: Vec<StepDone>,
    napi: NapiParameters,
    epoll: EpollParameters,
    is_met: bool,
    preset: String,
}

#[derive(Debug, Serialize)]
struct StepDone {
    napi: NapiParameters,
    sample: Sample,
    p99_us: f64,
    reason: String,
}

/// The epoll parameters of `suspend:X`.
const EPOLL: EpollParameters =
    EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// Interval between two readings of the records, short enough that their rings do not fill up.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// Time limit of the command, which is then killed.
const COMMAND_MAX: Duration = Duration::from_secs(600);

/// Tunes a program.
///
/// # Errors
/// When the program or a device cannot be reached, root is missing, or the target was not met.
pub(crate) fn run(args: &TuneArgs) -> Result<()> {
    let pid = args.pid;
    let program = Program::open(pid).with_context(|| format!("process {pid}"))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot handle signals")?;
    }
    let places = args.places(&program)?;
    let goal =
        Goal { irq_suspend_max_ns: args.suspend_max * 1_000_000, ..Goal::p99_ns(args.p99 * 1_000) };
    let mut tuner = Tuner::new(goal);
    let suspension = Duration::from_nanos(tuner.parameters().irq_suspend_timeout_ns);
    let watch = Watch::open(suspension)?;
    let mut session = session::start(args.state.open()?, Mode::own(tuner.parameters(), EPOLL))?;
    let says = args.json.as_deref() != Some(Path::new("-"));
    if says {
        output::print(&heading(&program, &places, args.p99))?;
    }
    let mut steps = Vec::new();
    for number in 1..=args.steps {
        let napi = tuner.parameters();
        session.change(Mode::own(napi, EPOLL), &places)?;
        session.refresh(&program.id().with_descendants())?;
        watch.set_suspension(Duration::from_nanos(napi.irq_suspend_timeout_ns));
        let sample = args.measure(&program, &watch, &stop)?;
        let p99_us = sample.p99_ns(&napi) as f64 / 1e3;
        let decision = tuner.step(&sample);
        if says {
            output::print(&line(number, &napi, &sample, p99_us, &decision.reason))?;
        }
        steps.push(StepDone { napi, sample, p99_us, reason: decision.reason });
        if matches!(decision.action, TuningAction::Settled { .. }) {
            break;
        }
    }
    session.restore()?;
    let best = tuner.best().with_context(|| {
        format!(
            "no step has enough cycles: {} must be under load and wait with epoll_wait",
            program.name()
        )
    })?;
    args.conclude(&program, &places, best, steps)
}

type Places = Vec<(Device, Vec<Slot>)>;

impl TuneArgs {
    /// The NAPI instances to tune.
    fn places(&self, program: &Program) -> Result<Places> {
        let family: BTreeSet<ProcessId> = program.id().with_descendants().into_iter().collect();
        let mut places = Vec::new();
        for target in &self.device {
            let device = Device::named(&target.device)?;
            let slots = device.slots_of(target.queue)?;
            places.push((device, slots));
        }
        let began = Instant::now();
        // Connections come and go: a moment without any does not mean that the program has no load.
        while places.is_empty() {
            places = of_program(&family)?;
            ensure!(!ended(program)?, "{} has ended", program.name());
            if places.is_empty() && began.elapsed() > Duration::from_secs(self.seconds) {
                return Err(Misuse(
                    "the program received no packet from a NAPI instance of this network namespace: put it under load, or use \
                     '--device DEV'"
                        .to_owned(),
                )
                .into());
            }
        }
        for (_, slots) in places.iter().filter(|_| !self.force) {
            set::refuse_shared(slots, &family, 1)?;
        }
        Ok(places)
    }

    /// Measures for a step, with the command if there is one.
    fn measure(&self, program: &Program, watch: &Watch, stop: &AtomicBool) -> Result<Sample> {
        let threads = threads(program.id());
        let busy_ns = cpu_ns(&threads);
        let before = watch.counts();
        let mut cycles = Cycles::open(&threads.iter().map(|it| it.1).collect::<Vec<_>>())?;
        let mut client = self.p99_from.as_deref().map(LoadCommand::start).transpose()?;
        let began = Instant::now();
        loop {
            ensure!(!stop.load(Ordering::Relaxed), "stopped; the values before are restored");
            ensure!(!ended(program)?, "{} has ended", program.name());
            cycles.drain();
            let is_over = match &mut client {
                Some(client) => client.has_ended()?,
                None => began.elapsed() >= Duration::from_secs(self.seconds),
            };
            if is_over {
                break;
            }
        }
        let counts = watch.counts().since(&before);
        let numbers: Vec<i32> = threads.iter().map(|it| it.1).collect();
        let napi = counts.of_threads(&numbers);
        let sample = Sample {
            overruns: napi.overruns,
            expiries: napi.expiries,
            busy_ns: cpu_ns(&threads).saturating_sub(busy_ns),
            softirq_ns: counts.softirq_ns.iter().sum(),
            client_p99_ns: client.map(LoadCommand::p99_ns).transpose()?,
            ..cycles.finish()
        };
        if sample.lost > 0 {
            failure::note(&format!("the kernel lost {} records in this step", sample.lost));
        }
        Ok(sample)
    }

    /// Saves and keeps the result, and prints it.
    fn conclude(
        &self,
        program: &Program,
        places: &Places,
        (napi, is_met): (NapiParameters, bool),
        steps: Vec<StepDone>,
    ) -> Result<()> {
        let target = self.p99;
        let made =
            format!("apus irq tune {} --p99 {target}, {} steps", program.name(), steps.len());
        let name =
            self.save.clone().unwrap_or_else(|| program.name().replace([' ', '/', ':'], "-"));
        let path = Preset { made, napi, epoll: EPOLL }.save(&name)?;
        let mut text = format!(
            "result: {}; saved as preset `{name}` in {}\n",
            Mode::own(napi, EPOLL),
            path.display()
        );
        if self.keep {
            let state = self.state.open()?;
            for (device, slots) in places {
                state.set_device(device, slots, |_| napi, None)?;
                keeper::start(&state, device)?;
                text += &format!(
                    "{}: set; `apus irq restore` restores the values before\n",
                    device.name
                );
            }
        }
        if let Some(path) = &self.json {
            let tuned = Tuned {
                schema: "apus-irq-tune/1",
                program: program.name().to_owned(),
                target_p99_us: target,
                steps,
                napi,
                epoll: EPOLL,
                is_met,
                preset: name,
            };
            output::write_json(path, &tuned)?;
        }
        if self.json.as_deref() != Some(Path::new("-")) {
            output::print(&text)?;
        }
        if !is_met {
            bail!("no step met '--p99 {target}'; the result is the nearest step");
        }
        Ok(())
    }
}

/// The NAPI instances of the packets of some processes.
fn of_program(family: &BTreeSet<ProcessId>) -> Result<Places> {
    let mut napis = BTreeSet::new();
    for process in family {
        let Ok(program) = Program::open(process.pid) else { continue };
        napis.extend(program.sockets_by_napi().context("the program's sockets")?.into_keys());
    }
    let mut places = Vec::new();
    for interface in &if_nameindex().context("network devices")? {
        let device = Device::named(&interface.name().to_string_lossy())?;
        let mut slots = device.slots()?;
        slots.retain(|slot| napis.contains(&slot.napi.id));
        if !slots.is_empty() {
            places.push((device, slots));
        }
    }
    Ok(places)
}

/// The threads of a process and its descendants, each after its process.
fn threads(process: ProcessId) -> Vec<(i32, i32)> {
    let of_process = |it: ProcessId| {
        let tasks = Process::new(it.pid).and_then(|process| process.tasks());
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.map(|task| (task.pid, task.tid)).collect::<Vec<_>>()
    };
    process.with_descendants().into_iter().flat_map(of_process).collect()
}

/// CPU time that threads have used. Ended threads are left out.
fn cpu_ns(threads: &[(i32, i32)]) -> u64 {
    let of_thread = |(pid, tid): &(i32, i32)| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.iter().filter_map(of_thread).sum()
}

/// Waits a little. Returns whether the program has ended.
fn ended(program: &Program) -> Result<bool> {
    let mut fds = [PollFd::new(program.pidfd().as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(DRAIN_EVERY).expect("it is short")) {
        Ok(ready) => Ok(ready > 0),
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(error) => Err(error).context("wait for the program"),
    }
}

/// A command that measures as a client.
struct LoadCommand {
    child: Child,
    command: String,
    began: Instant,
}

impl LoadCommand {
    fn start(command: &str) -> Result<Self> {
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start sh")?;
        Ok(Self { child, command: command.to_owned(), began: Instant::now() })
    }

    fn has_ended(&mut self) -> Result<bool> {
        ensure!(
            self.began.elapsed() < COMMAND_MAX,
            "'--p99-from {}': still running after {COMMAND_MAX:?}",
            self.command
        );
        Ok(self.child.try_wait().context("the command of --p99-from")?.is_some())
    }

    /// The number in its last line.
    fn p99_ns(mut self) -> Result<u64> {
        let stdout = self.child.stdout.take().expect("it is a pipe");
        let text = std::io::read_to_string(stdout).context("the command of --p99-from")?;
        let status = self.child.wait().context("the command of --p99-from")?;
        let command = &self.command;
        ensure!(status.success(), "'--p99-from {command}' failed: {status}");
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        match last.parse::<f64>() {
            Ok(us) if us > 0.0 && us.is_finite() => Ok((us * 1e3) as u64),
            _ => bail!(
                "'--p99-from {command}': its last line is '{last}'; expected a number of microseconds"
            ),
        }
    }
}

impl Drop for LoadCommand {
    fn drop(&mut self) {
        // Both calls fail when the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn heading(program: &Program, places: &Places, p99_us: u64) -> String {
    let names = places.iter().flat_map(|(device, slots)| {
        slots.iter().map(move |slot| format!("{} of {}", slot.name, device.name))
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let (name, pid) = (program.name(), program.id().pid);
    format!(
        "{name} (pid {pid}), {names}: p99 of at most {p99_us} us\n\
         step  defer  gro-flush us  irq-suspend us   cycles/s  interrupted %  overruns  busy ns/event    p99 us  \n"
    )
}

fn line(number: u32, napi: &NapiParameters, sample: &Sample, p99_us: f64, reason: &str) -> String {
    format!(
        "{number:>4}  {:>5}  {:>12}  {:>14}  {:>9.0}  {:>13.1}  {:>8}  {:>13.0}  {p99_us:>8.1}  {reason}\n",
        napi.defer_hard_irqs,
        napi.gro_flush_timeout_ns / 1_000,
        napi.irq_suspend_timeout_ns / 1_000,
        sample.cycles as f64 / sample.seconds.max(1e-9),
        sample.interference() * 100.0,
        sample.overruns,
        sample.busy_per_event_ns(),
    )
}
