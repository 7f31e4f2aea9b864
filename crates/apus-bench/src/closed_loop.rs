//! Closed loops: the next call starts when one ends. `rtt` has one call outstanding, `rate` and `stream` many.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use apus_load::{Latency, Workload};
use apus_load::{Random, seeded};

use crate::slots::Slots;
use crate::stop;
use crate::transport::Transport;
use crate::transport::interface::{Client, Reply, Request};

/// A server that keeps its promises answers within this time, or the run fails.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A floor's single call counts as lost after this time.
const FLOOR_TIMEOUT: Duration = Duration::from_millis(200);

/// All calls a floor has outstanding count as lost after this time without any reply; late replies are told apart.
const FLOOR_SILENCE: Duration = Duration::from_millis(20);

/// Times in a row that everything outstanding may be lost before a floor gives up.
const STALLS_MAX: u32 = 100;

/// What a run of a closed loop came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Calls whose reply came.
    pub(crate) calls: u64,
    /// Bytes of their requests.
    pub(crate) request_bytes: u64,
    /// Calls given up for lost; only floors lose.
    pub(crate) lost: u64,
    /// How long the loop ran.
    pub(crate) elapsed: Duration,
}

impl Tally {
    /// Calls per second.
    pub(crate) fn calls_per_s(&self) -> f64 {
        self.calls as f64 / self.elapsed.as_secs_f64()
    }

    /// Request bytes in gigabits per second.
    pub(crate) fn goodput_gbps(&self) -> f64 {
        self.request_bytes as f64 * 8.0 / 1e9 / self.elapsed.as_secs_f64()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.request_bytes += other.request_bytes;
        self.lost += other.lost;
        self.elapsed += other.elapsed;
    }
}

/// Calls `request` again and again for `duration`, one at a time.
///
/// # Errors
/// When the transport fails or a reply is wrong.
pub(crate) fn ping_pong(
    transport: Transport,
    client: &mut dyn Client,
    request: Request,
    duration: Duration,
) -> Result<(Latency, Tally)> {
    let mut latency = Latency::new();
    let mut tally = Tally::default();
    let mut ended = Vec::with_capacity(64);
    let timeout = if transport.is_floor() { FLOOR_TIMEOUT } else { TIMEOUT };
    let start = Instant::now();
    let mut tag = 0;
    while start.elapsed() < duration {
        stop::check()?;
        tag += 1;
        let sent = Instant::now();
        match client.call(Request { tag, ..request }, timeout, &mut ended) {
            Ok(reply) => {
                latency.record_ns(sent.elapsed().as_nanos() as u64);
                check(reply, tag, request)?;
                tally.calls += 1;
                tally.request_bytes += u64::from(request.length);
            }
            Err(_) if transport.is_floor() && tally.lost < u64::from(STALLS_MAX) => tally.lost += 1,
            Err(e) => return Err(e),
        }
    }
    tally.elapsed = start.elapsed();
    Ok((latency, tally))
}

/// Keeps a number of calls outstanding; can be run several times in a row without a pause between.
pub(crate) struct Pipeline {
    workload: Workload,
    /// As in [`Request::reply`].
    reply: u32,
    lossy: bool,
    /// The request of each outstanding call; late replies to those given up for lost are told apart.
    calls: Slots<Request>,
    rng: Random,
}

impl Pipeline {
    /// A pipeline of `outstanding` calls with lengths from `workload`.
    pub(crate) fn new(
        transport: Transport,
        workload: &Workload,
        reply: u32,
        outstanding: usize,
    ) -> Self {
        Self {
            workload: workload.clone(),
            reply,
            lossy: transport.is_floor(),
            calls: Slots::new(u32::try_from(outstanding).expect("calls are counted in 32 bits")),
            rng: seeded(1),
        }
    }

    /// Runs for `duration`. Calls that are outstanding at the end stay so for the next run.
    ///
    /// # Errors
    /// When the transport fails, a reply is wrong, or none comes for seconds.
    pub(crate) fn run(&mut self, client: &mut dyn Client, duration: Duration) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut ended = Vec::with_capacity(self.calls.free());
        let mut stalls = 0;
        let timeout = if self.lossy { FLOOR_SILENCE } else { TIMEOUT };
        let start = Instant::now();
        self.fill(client)?;
        while tally.elapsed < duration {
            stop::check()?;
            client.receive(timeout, &mut ended)?;
            if ended.is_empty() {
                stalls += 1;
                tally.lost += self.give_up(stalls, timeout)?;
                self.fill(client)?;
            }
            for reply in ended.drain(..) {
                let reply = reply?;
                if self.take(reply, &mut tally)? {
                    stalls = 0;
                    self.fill(client)?;
                }
            }
            tally.elapsed = start.elapsed();
        }
        Ok(tally)
    }

    /// Starts a call in each free place.
    fn fill(&mut self, client: &mut dyn Client) -> Result<()> {
        while self.calls.free() > 0 {
            let length = self.workload.sample(&mut self.rng, None);
            let mut request = Request { tag: 0, length, reply: self.reply };
            self.calls.begin(|tag| {
                request.tag = tag;
                request
            });
            client.send(0, request)?;
        }
        Ok(())
    }

    /// Notes a reply; false when it answers a call that was given up before.
    fn take(&mut self, reply: Reply, tally: &mut Tally) -> Result<bool> {
        let Some(request) = self.calls.finish(reply.tag) else {
            ensure!(self.lossy, "a reply with tag {:#x} answers no outstanding call", reply.tag);
            return Ok(false);
        };
        check(reply, request.tag, request)?;
        tally.calls += 1;
        tally.request_bytes += u64::from(request.length);
        Ok(true)
    }

    /// Empties all slots after a silence; returns how many calls were lost. Only a floor may lose calls.
    fn give_up(&mut self, stalls: u32, timeout: Duration) -> Result<u64> {
        if !self.lossy || stalls > STALLS_MAX {
            bail!(
                "no reply for {:?} with {} calls outstanding",
                timeout * stalls,
                self.calls.outstanding()
            );
        }
        Ok(self.calls.take_all().len() as u64)
    }
}

/// Checks what a reply says of itself and of its request.
///
/// # Errors
/// When the tag or one of the lengths is not what was asked for.
pub(crate) fn check(reply: Reply, tag: u64, request: Request) -> Result<()> {
    let length = if request.reply == 0 { request.length } else { request.reply };
    let expected = Reply { tag, length, request_length: request.length };
    ensure!(reply == expected, "a wrong reply: {reply:?} instead of {expected:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::interface::{Ended, Failed};

    /// Answers at once, except that it swallows every call whose number is a multiple of `loses`.
    struct Mirror {
        queue: Vec<Ended>,
        sent: u64,
        loses: u64,
        grows: u32,
    }

    impl Client for Mirror {
        fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
            self.sent += 1;
            if !self.sent.is_multiple_of(self.loses) {
                let length = if request.reply == 0 { request.length } else { request.reply };
                let length = length + self.grows;
                self.queue.push(Ok(Reply {
                    tag: request.tag,
                    length,
                    request_length: request.length,
                }));
            }
            Ok(())
        }

        fn receive(&mut self, _: Duration, ended: &mut Vec<Ended>) -> Result<()> {
            ended.append(&mut self.queue);
            Ok(())
        }
    }

    const SHORT: Duration = Duration::from_millis(2);

    #[test]
    fn a_floor_may_lose_and_goes_on() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: 3, grows: 0 };
        let mut pipeline = Pipeline::new(Transport::RawUdp, &Workload::Fixed(100), 0, 4);
        let tally = pipeline.run(&mut client, SHORT).unwrap();
        assert!(tally.calls > 0 && tally.lost > 0, "{tally:?}");
        assert_eq!(tally.request_bytes, tally.calls * 100);
    }

    #[test]
    fn a_transport_that_promises_delivery_may_not() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: 1, grows: 0 };
        let mut pipeline = Pipeline::new(Transport::TcpEpoll, &Workload::Fixed(100), 0, 4);
        let error = pipeline.run(&mut client, SHORT).unwrap_err().to_string();
        assert_eq!(error, "no reply for 5s with 4 calls outstanding");
    }

    #[test]
    fn a_reply_of_a_wrong_length_is_noticed() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: u64::MAX, grows: 1 };
        let request = Request { tag: 0, length: 100, reply: 0 };
        assert!(ping_pong(Transport::TcpPoll, &mut client, request, SHORT).is_err());
        let mut pipeline = Pipeline::new(Transport::RawUdp, &Workload::Fixed(100), 0, 4);
        assert!(pipeline.run(&mut client, SHORT).is_err());
    }
}
