//! The threads of a sending port: one that sends, and with Apus also some that receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use apus::net::cpu;
use apus_load::Workload;
use apus_load::{Random, seeded};
use rand::RngExt;

use super::TICK;
use super::port::{Call, Port};
use super::recorder::{Measurements, Recorder};
use crate::pace::{Next, Pace, nanos_since};
use crate::transport::interface::{Client, Ended, Failed, Reply, Request};
use crate::transport::over_apus::Body;

/// Time after the stop in which replies may arrive.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// Pause of a closed loop after a failed call, in nanoseconds.
const REST_NS: u64 = 10_000_000;

/// Upper bound on calls started in a row before replies are taken.
const STARTS_PER_TURN: usize = 64;

/// Upper bound on the lateness of a wake-up; the rest of a wait is spent awake.
const OVERSLEEP: Duration = Duration::from_micros(60);

/// Error of a transport that ends an unknown call.
const STRAY: &str = "a reply without an outstanding call";

/// State common to all threads of a client.
#[derive(Debug)]
pub(super) struct Run<'a> {
    /// Flag that ends the run.
    pub(super) stop: &'a AtomicBool,
    /// Origin of all times.
    pub(super) start: Instant,
    /// Lengths of requests.
    pub(super) workload: Workload,
    /// Upper bound to which longer requests are cut.
    pub(super) longest: u32,
    /// Length of replies, as in [`Request::reply`].
    pub(super) reply: u32,
    /// The format of messages.
    pub(super) body: Body,
    /// Whether the first failed call ends the run.
    pub(super) fail_fast: bool,
    /// Whether calls start as soon as there is room.
    pub(super) is_closed_loop: bool,
    /// Names of the servers.
    pub(super) servers: Vec<String>,
}

impl Run<'_> {
    /// The length of the next request.
    fn length(&self, random: &mut Random) -> u32 {
        self.workload.sample(random, Some(self.longest)).max(self.body.shortest())
    }

    /// Checks the lengths in a reply.
    fn check(&self, call: Call, reply: Reply) -> Result<()> {
        let expected = self.body.reply_length(call.length, self.reply);
        let requested = if self.body == Body::CpNode { call.length } else { reply.request_length };
        ensure!(
            reply.length == expected && requested == call.length,
            "a wrong reply: {} bytes to a request of {requested} bytes, instead of {expected} bytes to {}",
            reply.length,
            call.length
        );
        Ok(())
    }

    /// Records a failed call.
    ///
    /// # Errors
    /// If that ends the run, or the call is unknown.
    fn note_failure(&self, port: &Port, record: &mut Measurements, failed: Failed) -> Result<()> {
        let rest_ns = if self.is_closed_loop { REST_NS } else { 0 };
        let call = port.fail(failed.key, nanos_since(self.start) + rest_ns);
        let server = &self.servers[call.context(STRAY)?.server];
        record.note_failure(server, &failed);
        if self.fail_fast {
            return Err(Error::new(failed).context(format!("server {server}")));
        }
        Ok(())
    }
}

/// The sending part of a thread.
pub(super) struct Sender<'a> {
    run: &'a Run<'a>,
    port: &'a Port,
    recorder: &'a Recorder,
    pace: Pace,
    random: Random,
}

impl<'a> Sender<'a> {
    /// A sender on `port` with random lengths and servers from `seed`.
    pub(super) fn new(
        run: &'a Run<'a>,
        port: &'a Port,
        recorder: &'a Recorder,
        pace: Pace,
        seed: u64,
    ) -> Self {
        Self { run, port, recorder, pace, random: seeded(seed) }
    }

    /// Sends and receives in this thread until the end.
    ///
    /// # Errors
    /// If the transport fails, or a failed call ends the run.
    pub(super) fn send_and_receive(mut self, client: &mut dyn Client) -> Result<()> {
        let mut ended = Vec::new();
        while !is_set(self.run.stop) {
            let timeout = match self.start_due(client)? {
                Next::Due(wait) => wait.min(TICK),
                Next::NoRoom => TICK,
            };
            receive_some(self.run, self.port, self.recorder, client, timeout, &mut ended)?;
        }
        self.port.end();
        receive_rest(self.run, self.port, self.recorder, client)
    }

    /// Sends until the end, while other threads [`receive`].
    ///
    /// # Errors
    /// If a failed call ends the run.
    pub(super) fn send(mut self, client: &mut dyn Client) -> Result<()> {
        cpu::sleep_precisely();
        while !is_set(self.run.stop) {
            match self.start_due(client)? {
                Next::Due(wait) if wait > OVERSLEEP => thread::sleep((wait - OVERSLEEP).min(TICK)),
                Next::Due(_) => thread::yield_now(),
                Next::NoRoom => self.port.wait_for_room(TICK),
            }
        }
        self.port.end();
        Ok(())
    }

    /// Starts the due calls, as far as there is room.
    fn start_due(&mut self, client: &mut dyn Client) -> Result<Next> {
        let (run, port) = (self.run, self.port);
        self.pace.start_due(STARTS_PER_TURN, run.start, |due| {
            let length = run.length(&mut self.random);
            let server = match run.servers.len() {
                1 => 0,
                servers => self.random.random_range(0..servers),
            };
            let call = Call { length, started_ns: due.at_ns, server };
            let Some(key) = port.begin(call, due.now_ns) else { return Ok(false) };
            if due.is_open {
                let mut record = self.recorder.lock();
                let lag_ns = due.note_start(&mut record.lateness);
                record.note_lag(lag_ns);
            }
            let request = Request { tag: key, length, reply: run.reply };
            if let Err(failed) = client.send(server, request) {
                run.note_failure(port, &mut self.recorder.lock(), failed)?;
            }
            Ok(true)
        })
    }
}

/// Receives replies on a port until the end.
///
/// # Errors
/// If the transport fails, or a failed call ends the run.
pub(super) fn receive(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    client: &mut dyn Client,
) -> Result<()> {
    let mut ended = Vec::with_capacity(64);
    while !is_set(run.stop) {
        receive_some(run, port, recorder, client, TICK, &mut ended)?;
    }
    receive_rest(run, port, recorder, client)
}

/// Receives outstanding replies after the end, up to a time limit.
fn receive_rest(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    client: &mut dyn Client,
) -> Result<()> {
    let mut ended = Vec::new();
    let end = Instant::now() + DRAIN;
    while port.expects_replies() && Instant::now() < end {
        receive_some(run, port, recorder, client, TICK, &mut ended)?;
    }
    Ok(())
}

/// Receives replies, waiting up to `timeout` for the first, and records the ended calls.
fn receive_some(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    client: &mut dyn Client,
    timeout: Duration,
    ended: &mut Vec<Ended>,
) -> Result<()> {
    let received = client.receive(timeout, ended);
    if ended.is_empty() && received.is_ok() {
        return Ok(());
    }
    let now_ns = nanos_since(run.start);
    let mut record = recorder.lock();
    for ended in ended.drain(..) {
        let reply = match ended {
            Ok(reply) => reply,
            Err(failed) => {
                run.note_failure(port, &mut record, failed)?;
                continue;
            }
        };
        let call = port.call(reply.tag).context(STRAY)?;
        match run.check(call, reply) {
            Ok(()) => {
                port.finish(reply.tag);
                record.note(call.length, reply.length, now_ns.saturating_sub(call.started_ns));
            }
            Err(wrong) => {
                run.note_failure(port, &mut record, Failed::wrong(reply.tag, wrong))?;
            }
        }
    }
    let Err(error) = received else { return Ok(()) };
    for call in port.take_all() {
        let failed = Failed::connection_lost(0, format!("{error:#}"));
        record.note_failure(&run.servers[call.server], &failed);
    }
    if run.fail_fast { Err(error) } else { client.recover(error) }
}

pub(super) fn is_set(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}
