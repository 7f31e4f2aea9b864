//! Closed loops: the next call starts when one ends. `rtt` has one call outstanding, `rate` and `stream` many.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use apus_load::Latency;
use derive_more::AddAssign;

use crate::calls::{Calls, check};
use crate::transport::Transport;
use apus_load::stop;
use apus_node::transport::interface::{Client, Request};

/// A server that keeps its promises answers within this time, or the run fails.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A floor's single call counts as lost after this time.
const FLOOR_TIMEOUT: Duration = Duration::from_millis(200);

/// All calls a floor has outstanding count as lost after this time without any reply; late replies are told apart.
const FLOOR_SILENCE: Duration = Duration::from_millis(20);

/// Times in a row that everything outstanding may be lost before a floor gives up.
const STALLS_MAX: u32 = 100;

/// What a run of a loop came to.
#[derive(Clone, Copy, Debug, Default, AddAssign)]
pub(crate) struct Tally {
    /// Calls whose reply came.
    pub(crate) calls: u64,
    /// Bytes of their requests.
    pub(crate) request_bytes: u64,
    /// Calls given up for lost; only floors lose.
    pub(crate) lost: u64,
    /// How long it ran.
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

/// Calls `request` again and again for `duration`, one at a time, each after a `pause`.
///
/// # Errors
/// When the transport fails or a reply is wrong.
pub(crate) fn ping_pong(
    transport: Transport,
    client: &mut dyn Client,
    request: Request,
    pause: Duration,
    duration: Duration,
) -> Result<(Latency, Tally)> {
    let mut latency = Latency::new();
    let mut tally = Tally::default();
    let mut ended = Vec::with_capacity(64);
    let timeout = if transport.may_lose() { FLOOR_TIMEOUT } else { TIMEOUT };
    let start = Instant::now();
    let mut tag = 0;
    while start.elapsed() < duration {
        stop::check()?;
        tag += 1;
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        let sent = Instant::now();
        let request = Request { tag, ..request };
        match client.call(request, timeout, &mut ended) {
            Ok(reply) => {
                latency.record_ns(sent.elapsed().as_nanos() as u64);
                check(reply, request)?;
                tally.calls += 1;
                tally.request_bytes += u64::from(request.length);
            }
            Err(_) if transport.may_lose() && tally.lost < u64::from(STALLS_MAX) => tally.lost += 1,
            Err(e) => return Err(e),
        }
    }
    tally.elapsed = start.elapsed();
    Ok((latency, tally))
}

/// Keeps a number of calls outstanding; can be run several times in a row without a pause between.
pub(crate) struct Pipeline {
    calls: Calls,
    /// Calls may be lost; late replies to those given up are told apart.
    lossy: bool,
}

impl Pipeline {
    /// As many calls outstanding as `calls` allows. Those of a floor may be lost.
    pub(crate) fn new(transport: Transport, calls: Calls) -> Self {
        Self { calls, lossy: transport.may_lose() }
    }

    /// Runs for `duration`, and until at least `enough` calls have ended. Calls that are outstanding at the end stay so for
    /// the next run.
    ///
    /// # Errors
    /// When the transport fails, a reply is wrong, or none comes for seconds.
    pub(crate) fn run(
        &mut self,
        client: &mut dyn Client,
        duration: Duration,
        enough: u64,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut ended = Vec::with_capacity(64);
        let mut stalls = 0;
        let timeout = if self.lossy { FLOOR_SILENCE } else { TIMEOUT };
        let start = Instant::now();
        self.fill(client)?;
        while tally.elapsed < duration || tally.calls < enough {
            stop::check()?;
            client.receive(timeout, &mut ended)?;
            if ended.is_empty() {
                stalls += 1;
                tally.lost += self.give_up(stalls, timeout)?;
                self.fill(client)?;
            }
            for reply in ended.drain(..) {
                let reply = reply?;
                let Some(call) = self.calls.finish(reply)? else {
                    let tag = reply.tag;
                    ensure!(self.lossy, "a reply with tag {tag:#x} answers no outstanding call");
                    continue;
                };
                tally.calls += 1;
                tally.request_bytes += u64::from(call.request.length);
                stalls = 0;
                self.fill(client)?;
            }
            tally.elapsed = start.elapsed();
        }
        Ok(tally)
    }

    /// Begins as many calls as may be outstanding, `batch` at a time with a `pause` after each, so that a server's receive buffer
    /// holds them when the server answers none of the first; and one more for each that ends meanwhile.
    ///
    /// # Errors
    /// When the transport fails or a reply is wrong.
    pub(crate) fn fill_slowly(
        &mut self,
        client: &mut dyn Client,
        batch: usize,
        pause: Duration,
    ) -> Result<()> {
        let mut ended = Vec::new();
        let mut left = self.calls.room();
        while left > 0 {
            stop::check()?;
            let now = batch.min(left);
            left -= now;
            for _ in 0..now {
                self.calls.begin(client, 0)?;
            }
            client.receive(pause, &mut ended)?;
            for reply in ended.drain(..) {
                self.calls.finish(reply?)?;
                self.calls.begin(client, 0)?;
            }
        }
        Ok(())
    }

    fn fill(&mut self, client: &mut dyn Client) -> Result<()> {
        while self.calls.begin(client, 0)? {}
        Ok(())
    }

    /// Takes all calls for lost after a silence; returns how many. Only a floor may lose calls.
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

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::Workload;
    use apus_node::transport::interface::{Ended, Failed, Reply};

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

    fn pipeline(transport: Transport) -> Pipeline {
        Pipeline::new(transport, Calls::new(Workload::Fixed(100), 0, 4, 1))
    }

    const SHORT: Duration = Duration::from_millis(2);

    #[test]
    fn a_floor_may_lose_and_goes_on() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: 3, grows: 0 };
        let mut pipeline = pipeline(Transport::RawUdp);
        let tally = pipeline.run(&mut client, SHORT, 0).unwrap();
        assert!(tally.calls > 0 && tally.lost > 0, "{tally:?}");
        assert_eq!(tally.request_bytes, tally.calls * 100);
    }

    #[test]
    fn a_transport_that_promises_delivery_may_not() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: 1, grows: 0 };
        let mut pipeline = pipeline(Transport::TcpEpoll);
        let error = pipeline.run(&mut client, SHORT, 0).unwrap_err().to_string();
        assert_eq!(error, "no reply for 5s with 4 calls outstanding");
    }

    #[test]
    fn filling_slowly_ends_although_every_call_is_answered_at_once() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: u64::MAX, grows: 0 };
        let mut pipeline = pipeline(Transport::ApusUdp);
        pipeline.fill_slowly(&mut client, 3, SHORT).unwrap();
        assert_eq!(pipeline.calls.room(), 0);
        assert_eq!(client.sent, 11, "four, and one for each that ended in two pauses");
    }

    #[test]
    fn a_reply_of_a_wrong_length_is_noticed() {
        let mut client = Mirror { queue: vec![], sent: 0, loses: u64::MAX, grows: 1 };
        let request = Request { tag: 0, length: 100, reply: 0 };
        assert!(
            ping_pong(Transport::TcpPoll, &mut client, request, Duration::ZERO, SHORT).is_err()
        );
        let mut pipeline = pipeline(Transport::RawUdp);
        assert!(pipeline.run(&mut client, SHORT, 0).is_err());
    }
}
