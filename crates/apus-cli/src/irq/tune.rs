//! `apus irq tune`: parameters for a program and a target of latency, chosen by measurement.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use apus_irq::{
    Device, EpollParameters, Error, Goal, Mode, NapiParameters, Period, Program, Slot, Target,
    Tuning, TuningStep, receiving_slots,
};
use apus_load::misuse::Misuse;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

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
    steps: Vec<TuningStep>,
    napi: NapiParameters,
    epoll: EpollParameters,
    is_met: bool,
    preset: String,
}

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
    let mut tuning = Tuning::open(&program, &places, goal)?;
    let mut session = session::start(args.state.open()?, tuning.mode())?;
    let has_table = args.json.as_deref() != Some(Path::new("-"));
    if has_table {
        output::print(&heading(&program, &places, args.p99))?;
    }
    let mut steps = Vec::new();
    for number in 1..=args.steps {
        let step = tuning.step(&mut session, args.period(), &stop).map_err(in_words)?;
        if step.sample.lost > 0 {
            failure::note(&format!("the kernel lost {} records in this step", step.sample.lost));
        }
        if has_table {
            output::print(&line(number, &step))?;
        }
        let is_last = step.is_last;
        steps.push(step);
        if is_last {
            break;
        }
    }
    session.restore()?;
    let best = tuning.best().with_context(|| {
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
        let mut places = Vec::new();
        for target in &self.device {
            let device = Device::named(&target.device)?;
            let slots = device.slots_of(target.queue)?;
            places.push((device, slots));
        }
        if places.is_empty() {
            let within = Duration::from_secs(self.seconds);
            places = receiving_slots(program, within).map_err(in_words)?;
        }
        let family = program.id().with_descendants().into_iter().collect();
        for (_, slots) in places.iter().filter(|_| !self.force) {
            set::refuse_shared(slots, &family, 1)?;
        }
        Ok(places)
    }

    /// The length of a step.
    fn period(&self) -> Period<'_> {
        let time = Period::Time(Duration::from_secs(self.seconds));
        self.p99_from.as_deref().map_or(time, Period::Command)
    }

    /// Saves and keeps the result, and prints it.
    fn conclude(
        &self,
        program: &Program,
        places: &Places,
        (napi, is_met): (NapiParameters, bool),
        steps: Vec<TuningStep>,
    ) -> Result<()> {
        let target = self.p99;
        let made =
            format!("apus irq tune {} --p99 {target}, {} steps", program.name(), steps.len());
        let name =
            self.save.clone().unwrap_or_else(|| program.name().replace([' ', '/', ':'], "-"));
        let path = Preset { made, napi, epoll: Tuning::EPOLL }.save(&name)?;
        let mut text = format!(
            "result: {}; saved as preset `{name}` in {}\n",
            Mode::own(napi, Tuning::EPOLL),
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
                epoll: Tuning::EPOLL,
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

/// The error with the name of the option.
fn in_words(error: Error) -> anyhow::Error {
    match error {
        Error::Client { command, why } => anyhow!("'--p99-from {command}': {why}"),
        Error::NoPackets => {
            Misuse(format!("{error}: put it under load, or use '--device DEV'")).into()
        }
        error => error.into(),
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

fn line(number: u32, step: &TuningStep) -> String {
    let TuningStep { napi, sample, p99_us, reason, .. } = step;
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
