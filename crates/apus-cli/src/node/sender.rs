//! The threads of a sending port: one that sends, and with Apus others that receive.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use apus::net::cpu;
use apus_load::Workload;
use apus_load::arrival::{Random, seeded};
use rand::RngExt;

use super::port::{Call, Pace, Port, nanos_since};
use super::recorder::Recorder;
use super::wire::{Failed, Wire};
use super::{TICK, stopped};
use crate::transport::{Reply, Request};

/// How long after the stop replies may still come.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

/// Calls started in a row before replies are looked at.
const STARTS_PER_TURN: usize = 64;

/// A sleeping thread may wake so much too late; the rest of a wait is spent awake.
const OVERSLEEP: Duration = Duration::from_micros(60);

/// What is the same for all threads of a client.
#[derive(Debug)]
pub(super) struct Run<'a> {
    /// Ends the run.
    pub(super) stop: &'a AtomicBool,
    /// Times count from here.
    pub(super) start: Instant,
    /// Lengths of requests.
    pub(super) workload: Workload,
    /// Longer ones are cut to this.
    pub(super) longest: u32,
    /// As in [`Request::reply`].
    pub(super) reply: u32,
    /// Servers to choose from, by name.
    pub(super) servers: Vec<String>,
}

impl Run<'_> {
    /// The length of the next request.
    fn length(&self, random: &mut Random) -> u32 {
        let shortest = crate::message::Header::LEN as u32;
        self.workload.sample(random, Some(self.longest)).max(shortest)
    }
}

/// How it goes on after the calls that were due.
enum Next {
    /// The next call is due in this time.
    Due(Duration),
    /// As many calls are outstanding as allowed.
    NoRoom,
}

/// What one thread sends.
pub(super) struct Sender<'a> {
    run: &'a Run<'a>,
    port: &'a Port,
    recorder: &'a Recorder,
    pace: Pace,
    random: Random,
    /// Since when a call has been due that could not start.
    blocked_since_ns: Option<u64>,
}

impl<'a> Sender<'a> {
    /// A sender on `port` that draws lengths and servers from `seed`.
    pub(super) fn new(
        run: &'a Run<'a>,
        port: &'a Port,
        recorder: &'a Recorder,
        pace: Pace,
        seed: u64,
    ) -> Self {
        Self { run, port, recorder, pace, random: seeded(seed), blocked_since_ns: None }
    }

    /// Sends and receives in this thread until the end.
    ///
    /// # Errors
    /// When a call fails or a reply is wrong.
    pub(super) fn send_and_receive(mut self, wire: &mut dyn Wire) -> Result<()> {
        let mut replies = Vec::new();
        while !stopped(self.run.stop) {
            let patience = match self.start_due(wire)? {
                Next::Due(wait) => wait.min(TICK),
                Next::NoRoom => TICK,
            };
            receive_some(self.run, self.port, self.recorder, wire, patience, &mut replies)?;
        }
        self.port.end();
        receive_rest(self.run, self.port, self.recorder, wire)
    }

    /// Only sends, until the end; other threads [`receive`].
    ///
    /// # Errors
    /// When a call cannot start.
    pub(super) fn send(mut self, wire: &mut dyn Wire) -> Result<()> {
        cpu::sleep_precisely();
        while !stopped(self.run.stop) {
            match self.start_due(wire)? {
                Next::Due(wait) if wait > OVERSLEEP => thread::sleep((wait - OVERSLEEP).min(TICK)),
                Next::Due(_) => thread::yield_now(),
                Next::NoRoom => self.port.wait_for_room(TICK),
            }
        }
        self.port.end();
        Ok(())
    }

    /// Starts the calls whose time has come, as far as there is room.
    fn start_due(&mut self, wire: &mut dyn Wire) -> Result<Next> {
        for _ in 0..STARTS_PER_TURN {
            let now_ns = nanos_since(self.run.start);
            let wait = self.pace.wait(now_ns);
            if !wait.is_zero() {
                return Ok(Next::Due(wait));
            }
            let length = self.run.length(&mut self.random);
            let due_ns = self.pace.due_ns(now_ns);
            let server = self.random_server();
            let Some(key) = self.port.begin(Call { length, started_ns: due_ns, server }) else {
                self.blocked_since_ns.get_or_insert(now_ns);
                return Ok(Next::NoRoom);
            };
            self.note_start(due_ns, now_ns);
            wire.send(server, Request { tag: key, length, reply: self.run.reply })?;
            self.pace.advance();
        }
        Ok(Next::Due(Duration::ZERO))
    }

    /// Lateness that comes of a full port is lag, the rest the generator's own. A closed loop has neither.
    fn note_start(&mut self, due_ns: u64, now_ns: u64) {
        if matches!(self.pace, Pace::Closed) {
            return;
        }
        let mut record = self.recorder.lock();
        match self.blocked_since_ns.take() {
            Some(since_ns) => record.note_lag(now_ns - since_ns),
            None => record.lateness.record(due_ns, now_ns),
        }
    }

    fn random_server(&mut self) -> usize {
        match self.run.servers.len() {
            1 => 0,
            servers => self.random.random_range(0..servers),
        }
    }
}

/// Receives replies on a port until the end.
///
/// # Errors
/// When a call fails or a reply is wrong.
pub(super) fn receive(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    wire: &mut dyn Wire,
) -> Result<()> {
    let mut replies = Vec::with_capacity(64);
    while !stopped(run.stop) {
        receive_some(run, port, recorder, wire, TICK, &mut replies)?;
    }
    receive_rest(run, port, recorder, wire)
}

/// Receives what is outstanding at the end, for a while.
fn receive_rest(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    wire: &mut dyn Wire,
) -> Result<()> {
    let mut replies = Vec::new();
    let end = Instant::now() + DRAIN;
    while port.expects_replies() && Instant::now() < end {
        receive_some(run, port, recorder, wire, TICK, &mut replies)?;
    }
    Ok(())
}

/// Receives what has come, waiting up to `patience` for the first, and notes the calls that ended.
fn receive_some(
    run: &Run<'_>,
    port: &Port,
    recorder: &Recorder,
    wire: &mut dyn Wire,
    patience: Duration,
    replies: &mut Vec<Reply>,
) -> Result<()> {
    wire.receive(patience, replies).map_err(|error| name_server(run, port, error))?;
    if replies.is_empty() {
        return Ok(());
    }
    let now_ns = nanos_since(run.start);
    let mut record = recorder.lock();
    for reply in replies.drain(..) {
        let call = port.finish(reply.tag).context("a reply to no outstanding call")?;
        let expected = if run.reply == 0 { call.length } else { run.reply };
        ensure!(
            reply.length == expected && reply.request_length == call.length,
            "a wrong reply: {} bytes to a request of {} bytes, instead of {expected} bytes to {}",
            reply.length,
            reply.request_length,
            call.length
        );
        record.note(call.length, reply.length, now_ns.saturating_sub(call.started_ns));
    }
    Ok(())
}

/// Says which server a failed call was to.
fn name_server(run: &Run<'_>, port: &Port, error: Error) -> Error {
    let call = error.downcast_ref::<Failed>().and_then(|failed| port.finish(failed.key));
    match call {
        Some(call) => error.context(format!("server {}", run.servers[call.server])),
        None => error,
    }
}
