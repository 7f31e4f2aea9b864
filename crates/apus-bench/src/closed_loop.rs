//! Closed loops: the next call starts at the end of another. `rtt` has one outstanding call, `rate` and `stream` have many.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use apus_load::Latency;
use derive_more::AddAssign;

use crate::calls::{Calls, check};
use crate::transport::Transport;
use apus_load::stop;
use apus_node::transport::interface::{Client, Request};

/// Upper bound on the time of a reply from a reliable server, after which the run fails.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a floor's single call counts as lost.
const FLOOR_TIMEOUT: Duration = Duration::from_millis(200);

/// Time without a reply after which all outstanding calls of a floor count as lost. Late replies are recognised.
const FLOOR_SILENCE: Duration = Duration::from_millis(20);

/// Upper bound on consecutive losses of all outstanding calls before a floor gives up.
const STALLS_MAX: u32 = 100;

/// The result of a loop's run.
#[derive(Clone, Copy, Debug, Default, AddAssign)]
pub(crate) struct Tally {
    /// Calls with a reply.
    pub(crate) calls: u64,
    /// Bytes of their requests.
    pub(crate) request_bytes: u64,
    /// Calls that were given up; only floors lose calls.
    pub(crate) lost: u64,
    /// Duration of the run.
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

/// Repeats `request` for `duration`, one call at a time, each after a `pause`.
///
/// # Errors
/// If the transport fails or a reply is wrong.
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

/// Keeps a number of calls outstanding. It may run several times in a row without a pause.
pub(crate) struct Pipeline {
    calls: Calls,
    /// Whether calls may be lost. Late replies to lost calls are recognised.
    lossy: bool,
}

impl Pipeline {
    /// Keeps as many calls outstanding as `calls` allows. A floor's calls may be lost.
    pub(crate) fn new(transport: Transport, calls: Calls) -> Self {
        Self { calls, lossy: transport.may_lose() }
    }

    /// Runs for `duration`, and until at least `enough` calls have ended. Outstanding calls remain for the next run.
    ///
    /// # Errors
    /// If the transport fails, a reply is wrong, or no reply arrives for seconds.
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
                    ensure!(self.lossy, "a reply with tag {tag:#x} belongs to no outstanding call");
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

    /// Begins as many calls as may be outstanding, `batch` at a time with a `pause` after each batch, so that the server's receive
    /// buffer holds them while the server answers none. Begins one more for each call that ends in the meantime.
    ///
    /// # Errors
    /// If the transport fails or a reply is wrong.
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

    /// Gives up all outstanding calls after a silence. Returns their number. Only a floor may lose calls.
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

    /// Answers at once, except calls whose number is a multiple of `loses`.
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
