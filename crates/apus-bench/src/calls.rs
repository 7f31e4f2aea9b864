//! The calls of a load generator: requests of drawn lengths, each found again by the tag of its reply.
//!
//! Every generator with one thread begins and finishes its calls here, in a closed loop and in an open one; when a call
//! begins is its own affair ([`Pace`](apus_node::pace::Pace)).

use anyhow::{Result, ensure};
use apus_load::{Random, Workload, seeded};
use rand::RngExt;

use apus_node::message::Header;
use apus_node::slots::Slots;
use apus_node::transport::interface::{Client, Reply, Request};

/// Which of several servers is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One after the other, so that as many calls are outstanding with each.
    InTurn,
    /// Any, equally.
    Random,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What was sent.
    pub request: Request,
    /// From when its time counts, in nanoseconds since the start of the run.
    pub started_ns: u64,
}

/// Calls to some servers, a limited number at a time.
#[derive(Debug)]
pub struct Calls {
    workload: Workload,
    longest: Option<u32>,
    /// As in [`Request::reply`].
    reply: u32,
    servers: usize,
    choice: Choice,
    slots: Slots<Call>,
    random: Random,
    begun: usize,
}

impl Calls {
    /// Calls to one server with lengths from `workload`, at most `outstanding` of them at a time; `reply` as in
    /// [`Request::reply`]. Lengths follow from `seed`.
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

    /// As many servers, chosen so.
    #[must_use]
    pub fn among(self, servers: usize, choice: Choice) -> Self {
        Self { servers, choice, ..self }
    }

    /// Longer requests are cut to this many bytes.
    #[must_use]
    pub fn cut_to(self, longest: u32) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Begins a call whose time counts from `started_ns`; false when as many are outstanding as allowed.
    ///
    /// # Errors
    /// When the transport refuses it.
    pub fn begin(&mut self, client: &mut dyn Client, started_ns: u64) -> Result<bool> {
        if self.slots.free() == 0 {
            return Ok(false);
        }
        let length = self.workload.sample(&mut self.random, self.longest).max(Header::LEN as u32);
        let server = match (self.servers, self.choice) {
            (1, _) => 0,
            (servers, Choice::InTurn) => self.begun % servers,
            (servers, Choice::Random) => self.random.random_range(0..servers),
        };
        let mut request = Request { tag: 0, length, reply: self.reply };
        self.slots.begin(|tag| {
            request.tag = tag;
            Call { request, started_ns }
        });
        self.begun += 1;
        client.send(server, request)?;
        Ok(true)
    }

    /// The call that a reply ends; `None` when there is none of its tag.
    ///
    /// # Errors
    /// When one of the lengths that the reply tells is not what was asked for.
    pub fn finish(&mut self, reply: Reply) -> Result<Option<Call>> {
        let call = self.slots.finish(reply.tag);
        call.map_or(Ok(()), |call| check(reply, call.request))?;
        Ok(call)
    }

    /// Calls outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.outstanding()
    }

    /// How many more may begin.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.free()
    }

    /// Takes back all calls that are outstanding; a late reply to one of them ends none.
    pub fn take_all(&mut self) -> Vec<Call> {
        self.slots.take_all()
    }
}

/// Checks what a reply says of itself and of its request.
///
/// # Errors
/// When the tag or one of the lengths is not what was asked for.
pub(crate) fn check(reply: Reply, request: Request) -> Result<()> {
    let Request { tag, length: request_length, .. } = request;
    let length = if request.reply == 0 { request_length } else { request.reply };
    let expected = Reply { tag, length: length.max(Header::LEN as u32), request_length };
    ensure!(reply == expected, "a wrong reply: {reply:?} instead of {expected:?}");
    Ok(())
}
