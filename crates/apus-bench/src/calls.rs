//! The calls of a load generator: requests of random lengths, each identified by the tag of its reply.
//!
//! Every generator with one thread begins and finishes its calls here, in closed and in open loops. The generator itself decides
//! when a call begins ([`Pace`](apus_node::pace::Pace)).

use anyhow::{Result, ensure};
use apus_load::{Random, Workload, seeded};
use rand::RngExt;

use apus_node::message::MessageHeader;
use apus_node::slots::Slots;
use apus_node::transport::interface::{Client, Reply, Request};

/// The choice among several servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// In turn, so that each has the same number of outstanding calls.
    InTurn,
    /// At random, with equal probabilities.
    Random,
}

/// A call in progress.
#[derive(Clone, Copy, Debug)]
pub struct OutstandingCall {
    /// The request.
    pub request: Request,
    /// Start of its latency, in nanoseconds since the start of the run.
    pub started_ns: u64,
}

/// Calls to servers, up to a number at a time.
#[derive(Debug)]
pub struct Calls {
    workload: Workload,
    longest: Option<u32>,
    /// Length of replies, as in [`Request::reply`].
    reply: u32,
    servers: usize,
    choice: Choice,
    slots: Slots<OutstandingCall>,
    random: Random,
    begun: usize,
}

impl Calls {
    /// Calls to one server with lengths from `workload`, at most `outstanding` at a time; `reply` as in [`Request::reply`]. `seed`
    /// determines the lengths.
    #[must_use]
    pub fn new(workload: Workload, reply: u32, outstanding: u32, seed: u64) -> Self {
        Self {
            workload,
            longest: None,
            reply,
            servers: 1,
            choice: Choice::InTurn,
            slots: Slots::new(outstanding),
            random: seeded(seed),
            begun: 0,
        }
    }

    /// Calls to this many servers, with this choice among them.
    #[must_use]
    pub fn among(self, servers: usize, choice: Choice) -> Self {
        Self { servers, choice, ..self }
    }

    /// Cuts longer requests to this many bytes.
    #[must_use]
    pub fn cut_to(self, longest: u32) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Begins a call whose latency starts at `started_ns`. Returns `false` if no more calls may be outstanding.
    ///
    /// # Errors
    /// If the transport refuses the call.
    pub fn begin(&mut self, client: &mut dyn Client, started_ns: u64) -> Result<bool> {
        if self.slots.free() == 0 {
            return Ok(false);
        }
        let length =
            self.workload.sample(&mut self.random, self.longest).max(MessageHeader::LEN as u32);
        let server = match (self.servers, self.choice) {
            (1, _) => 0,
            (servers, Choice::InTurn) => self.begun % servers,
            (servers, Choice::Random) => self.random.random_range(0..servers),
        };
        let mut request = Request { tag: 0, length, reply: self.reply };
        self.slots.begin(|tag| {
            request.tag = tag;
            OutstandingCall { request, started_ns }
        });
        self.begun += 1;
        client.send(server, request)?;
        Ok(true)
    }

    /// The call that a reply ends; `None` if no call has its tag.
    ///
    /// # Errors
    /// If a length in the reply is not the requested one.
    pub fn finish(&mut self, reply: Reply) -> Result<Option<OutstandingCall>> {
        let call = self.slots.finish(reply.tag);
        call.map_or(Ok(()), |call| check(reply, call.request))?;
        Ok(call)
    }

    /// Number of outstanding calls.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.outstanding()
    }

    /// Number of further calls that may begin.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.free()
    }

    /// Gives up all outstanding calls. A late reply to one of them ends no call.
    pub fn take_all(&mut self) -> Vec<OutstandingCall> {
        self.slots.take_all()
    }
}

/// Checks a reply's tag and lengths.
///
/// # Errors
/// If the tag or a length is not the requested one.
pub(crate) fn check(reply: Reply, request: Request) -> Result<()> {
    let Request { tag, length: request_length, .. } = request;
    let length = if request.reply == 0 { request_length } else { request.reply };
    let expected = Reply { tag, length: length.max(MessageHeader::LEN as u32), request_length };
    ensure!(reply == expected, "a wrong reply: {reply:?} instead of {expected:?}");
    Ok(())
}
