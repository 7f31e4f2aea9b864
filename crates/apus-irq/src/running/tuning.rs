//! The steps of a tuning: a step sets parameters, measures the program, and asks the [`Tuner`] for the next parameters.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::net::if_::if_nameindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use super::session::Session;
use crate::cycles::Cycles;
use crate::device::{Device, Slot};
use crate::epoll::EpollParameters;
use crate::error::Error;
use crate::mode::Mode;
use crate::netdev::NapiParameters;
use crate::program::{ProcessId, Program};
use crate::tune::{Goal, Sample, Tuner, TuningAction};
use crate::waiting;
use crate::watch::Watch;

/// The choice of parameters for a running program. The caller makes the session, calls [`step`](Self::step), and restores the
/// session.
#[derive(Debug)]
pub struct Tuning<'a> {
    program: &'a Program,
    places: &'a [(Device, Vec<Slot>)],
    tuner: Tuner,
    watch: Watch,
}

/// The length of a step.
#[derive(Clone, Copy, Debug)]
pub enum Period<'a> {
    /// A fixed time.
    Time(Duration),
    /// The run time of a shell command, at most ten minutes. The command measures as a client: its last line is the 99th percentile of
    /// the latency in microseconds.
    Command(&'a str),
}

/// A step and its result.
#[derive(Clone, Debug, Serialize)]
pub struct TuningStep {
    /// The parameters of the step.
    pub napi: NapiParameters,
    /// The measurements.
    pub sample: Sample,
    /// The 99th percentile that the target applies to, in microseconds.
    pub p99_us: f64,
    /// The reason for the next parameters, or for the end.
    pub reason: String,
    /// Whether the search has ended.
    #[serde(skip)]
    pub is_last: bool,
}

impl<'a> Tuning<'a> {
    /// The epoll parameters of every step: those of `suspend:X`.
    pub const EPOLL: EpollParameters =
        EpollParameters { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

    /// Begins to watch the kernel. `places` are the NAPI instances to set. Sets nothing yet.
    ///
    /// # Errors
    /// As [`Watch::open`].
    pub fn open(
        program: &'a Program,
        places: &'a [(Device, Vec<Slot>)],
        goal: Goal,
    ) -> Result<Self, Error> {
        let tuner = Tuner::new(goal);
        let suspension = Duration::from_nanos(tuner.parameters().irq_suspend_timeout_ns);
        Ok(Self { program, places, tuner, watch: Watch::open(suspension)? })
    }

    /// The mode of the next step.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::own(self.tuner.parameters(), Self::EPOLL)
    }

    /// Sets the next parameters, and measures the program for a period, or until `stop` is set.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Stopped`], [`Error::Client`], or when parameters cannot be set or measured.
    pub fn step(
        &mut self,
        session: &mut Session,
        period: Period<'_>,
        stop: &AtomicBool,
    ) -> Result<TuningStep, Error> {
        let napi = self.tuner.parameters();
        session.change(self.mode(), self.places)?;
        session.refresh(&self.program.id().with_descendants())?;
        self.watch.set_suspension(Duration::from_nanos(napi.irq_suspend_timeout_ns));
        let sample = self.measure(period, stop)?;
        let p99_us = sample.p99_ns(&napi) as f64 / 1e3;
        let decision = self.tuner.step(&sample);
        let is_last = matches!(decision.action, TuningAction::Settled { .. });
        Ok(TuningStep { napi, sample, p99_us, reason: decision.reason, is_last })
    }

    /// The best parameters so far, and whether they meet the target; `None` if no step had enough cycles.
    #[must_use]
    pub fn best(&self) -> Option<(NapiParameters, bool)> {
        self.tuner.best()
    }

    fn measure(&self, period: Period<'_>, stop: &AtomicBool) -> Result<Sample, Error> {
        let threads = threads(self.program.id());
        let numbers: Vec<i32> = threads.iter().map(|(_, thread)| *thread).collect();
        let busy_ns = cpu_ns(&threads);
        let before = self.watch.counts();
        let mut cycles = Cycles::open(&numbers)?;
        let began = Instant::now();
        let mut client = match period {
            Period::Time(_) => None,
            Period::Command(command) => Some(ClientCommand::start(command)?),
        };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            wait(self.program)?;
            cycles.drain();
            let is_over = match (&mut client, period) {
                (Some(client), _) => client.has_ended()?,
                (None, Period::Time(time)) => began.elapsed() >= time,
                (None, Period::Command(_)) => true,
            };
            if is_over {
                break;
            }
        }
        let counts = self.watch.counts().since(&before);
        let napi = counts.of_threads(&numbers);
        Ok(Sample {
            overruns: napi.overruns,
            expiries: napi.expiries,
            busy_ns: cpu_ns(&threads).saturating_sub(busy_ns),
            softirq_ns: counts.softirq_ns.iter().sum(),
            client_p99_ns: client.map(ClientCommand::p99_ns).transpose()?,
            ..cycles.finish()
        })
    }
}

/// The NAPI instances from which a program and its descendants receive packets, by device. Waits for the first packet.
///
/// # Errors
/// [`Error::NoPackets`] if none arrives within the time, [`Error::Ended`], or when sockets or devices cannot be read.
pub fn receiving_slots(
    program: &Program,
    within: Duration,
) -> Result<Vec<(Device, Vec<Slot>)>, Error> {
    let family = program.id().with_descendants();
    let began = Instant::now();
    // Connections come and go: a moment without any does not mean that the program has no load.
    loop {
        let slots = slots_of(&family)?;
        wait(program)?;
        if !slots.is_empty() {
            return Ok(slots);
        }
        if began.elapsed() > within {
            return Err(Error::NoPackets);
        }
    }
}

/// The NAPI instances of the packets of some processes.
fn slots_of(family: &[ProcessId]) -> Result<Vec<(Device, Vec<Slot>)>, Error> {
    let mut napis = BTreeSet::new();
    for process in family {
        let Ok(program) = Program::open(process.pid) else { continue };
        let sockets = program.sockets_by_napi();
        napis.extend(
            sockets.map_err(|error| Error::io("the program's sockets", error))?.into_keys(),
        );
    }
    let interfaces = if_nameindex().map_err(|error| Error::io("network devices", error.into()))?;
    let mut places = Vec::new();
    for interface in &interfaces {
        let device = Device::named(&interface.name().to_string_lossy())?;
        let mut slots = device.slots()?;
        slots.retain(|slot| napis.contains(&slot.napi.id));
        if !slots.is_empty() {
            places.push((device, slots));
        }
    }
    Ok(places)
}

/// The threads of a process and its descendants, each after the PID of its process.
fn threads(process: ProcessId) -> Vec<(i32, i32)> {
    let of_process = |it: ProcessId| {
        let threads = waiting::threads(it.pid).unwrap_or_default();
        threads.into_iter().map(move |thread| (it.pid, thread))
    };
    process.with_descendants().into_iter().flat_map(of_process).collect()
}

/// CPU time that threads have used. Ended threads are left out.
fn cpu_ns(threads: &[(i32, i32)]) -> u64 {
    let of_thread = |(pid, thread): &(i32, i32)| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.iter().filter_map(of_thread).sum()
}

/// Waits until the records have to be read. Fails if the program has ended.
fn wait(program: &Program) -> Result<(), Error> {
    let mut fds = [PollFd::new(program.pidfd().as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(DRAIN_EVERY).expect("it is short")) {
        Ok(0) | Err(Errno::EINTR) => Ok(()),
        Ok(_) => Err(Error::Ended(program.name().to_owned())),
        Err(error) => Err(Error::io("wait for the program", error.into())),
    }
}

/// A running [`Period::Command`]. Killed when it is dropped.
#[derive(Debug)]
struct ClientCommand<'a> {
    command: &'a str,
    child: Child,
    began: Instant,
}

impl<'a> ClientCommand<'a> {
    fn start(command: &'a str) -> Result<Self, Error> {
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io("cannot start sh", error))?;
        Ok(Self { command, child, began: Instant::now() })
    }

    fn has_ended(&mut self) -> Result<bool, Error> {
        if self.began.elapsed() >= COMMAND_MAX {
            return Err(self.failed(format!("still running after {COMMAND_MAX:?}")));
        }
        let ended = self.child.try_wait().map_err(|error| self.failed(error.to_string()))?;
        Ok(ended.is_some())
    }

    /// The number in its last line.
    fn p99_ns(mut self) -> Result<u64, Error> {
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().expect("it is a pipe");
        let read = stdout.read_to_string(&mut text);
        let ended = read.and_then(|_| self.child.wait());
        let status = ended.map_err(|error: io::Error| self.failed(error.to_string()))?;
        if !status.success() {
            return Err(self.failed(format!("failed: {status}")));
        }
        p99_ns(&text).map_err(|last| {
            self.failed(format!("its last line is '{last}'; expected a number of microseconds"))
        })
    }

    fn failed(&self, why: String) -> Error {
        Error::Client { command: self.command.to_owned(), why }
    }
}

impl Drop for ClientCommand<'_> {
    fn drop(&mut self) {
        // Both calls fail when the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The microseconds of the last line, in nanoseconds; the line itself if it is no such number.
fn p99_ns(output: &str) -> Result<u64, &str> {
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match last.parse::<f64>() {
        Ok(us) if us > 0.0 && us.is_finite() => Ok((us * 1e3) as u64),
        _ => Err(last),
    }
}

/// Interval between two readings of the records, short enough that their rings do not fill up.
const DRAIN_EVERY: Duration = Duration::from_millis(20);

/// Time limit of a command, which is then killed.
const COMMAND_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_the_last_line_of_the_command() {
        assert_eq!(p99_ns("measuring\n 250.5 \n\n"), Ok(250_500));
        for (output, last) in [("1\nfast\n", "fast"), ("", ""), ("-3", "-3"), ("inf", "inf")] {
            assert_eq!(p99_ns(output), Err(last));
        }
    }

    #[test]
    fn a_failed_command_is_named_with_the_reason() {
        let run = |command| {
            let mut client = ClientCommand::start(command).unwrap();
            while !client.has_ended().unwrap() {}
            client.p99_ns().map_err(|error| error.to_string())
        };
        assert_eq!(run("echo 20"), Ok(20_000));
        assert_eq!(run("exit 3"), Err("`exit 3`: failed: exit status: 3".to_owned()));
        assert!(run("echo fast").unwrap_err().contains("its last line is 'fast'"));
    }

    #[test]
    fn the_threads_of_this_process_have_used_cpu_time() {
        let threads = threads(ProcessId::own().unwrap());
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(threads.iter().any(|(_, thread)| *thread == own));
        assert!(cpu_ns(&threads) > 0);
    }
}
