//! The ordinary program: client and server of netperf's TCP_RR and TCP_STREAM, one process each.
//!
//! It uses sockets of the standard library, without Apus. The server prints its address as one line, serves one connection, prints
//! one line of JSON and exits. The client prints one line of JSON. Both exit when their standard input closes, so they never
//! outlive the benchmark.

use std::io::{self, Read, Write};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus_load::Latency;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::connection::{ConnectionEnd, Listener, SocketType};

/// The name of this role.
pub(crate) const ROLE: &str = "sockets";

/// Upper bound on bytes that the receiver of a stream reads at once: netperf's value on Linux, where it is the receive buffer's
/// initial size.
const READ: usize = 128 << 10;

/// Upper bound on short writes between two readings of the clock.
const WRITES: usize = 1024;

/// Upper bound on bytes between two readings of the clock.
const BYTES: usize = 64 << 10;

/// A test of netperf.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, IntoStaticStr, Serialize, Deserialize,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Test {
    /// Round trips: a request and a response of the same size, one at a time (TCP_RR)
    Rr,
    /// A stream: writes of one size, from the client to the server (TCP_STREAM)
    Stream,
}

/// Configuration of the client or the server of a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramConfig {
    pub(crate) test: Test,
    /// Bytes of request and response, or of each write; at least 1.
    pub(crate) size: u32,
    pub(crate) kind: SocketType,
    /// The address of the server; `None` for the server itself.
    pub(crate) server: Option<String>,
    /// Seconds of warm-up.
    pub(crate) warm_up_s: f64,
    /// Seconds of the measurement.
    pub(crate) seconds: f64,
}

/// The last line of both processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProgramResult {
    /// All bytes sent from the client to the server, including the warm-up.
    pub(crate) total_bytes: u64,
    /// The kernel TCP's share of the measured bytes, in percent; only known to a client of TCP.
    pub(crate) kernel_pct: Option<f64>,
    /// Results of the client of round trips.
    pub(crate) round_trips: Option<RoundTrips>,
    /// Result of the client of a stream, in Gb/s.
    pub(crate) goodput_gbps: Option<f64>,
}

/// Round trips after the warm-up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RoundTrips {
    pub(crate) count: u64,
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl RoundTrips {
    /// The results from recorded latencies and their total time.
    pub(super) fn new(latency: &Latency, elapsed: Duration) -> Self {
        let count = latency.count();
        Self {
            count,
            per_s: count as f64 / elapsed.as_secs_f64(),
            p50_us: latency.p(50.0),
            p99_us: latency.p(99.0),
            p99_9_us: latency.p(99.9),
            max_us: latency.max_us(),
        }
    }
}

/// Runs the client or the server.
///
/// # Errors
/// If the kernel refuses a socket, the connection breaks, or an answer is wrong.
pub(crate) fn run(options: &ProgramConfig, output: &mut dyn Write) -> Result<()> {
    thread::Builder::new().name("leader".to_owned()).spawn(end_with_leader)?;
    let report = match &options.server {
        None => serve(options, output)?,
        Some(address) => {
            let connection = ConnectionEnd::new(options.kind, address)
                .with_context(|| format!("connect to {address}"))?;
            MeasuringSide { options, connection, total_bytes: 0 }.run()?
        }
    };
    writeln!(output, "{}", serde_json::to_string(&report)?).context("the benchmark has ended")
}

/// Ends this process when standard input closes.
fn end_with_leader() {
    // An error of reading standard input also ends the process.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    process::exit(1);
}

fn serve(options: &ProgramConfig, output: &mut dyn Write) -> Result<ProgramResult> {
    let (listener, address) = Listener::new(options.kind)?;
    writeln!(output, "{address}")
        .and_then(|()| output.flush())
        .context("the benchmark has ended")?;
    let mut connection = listener.accept().context("accept")?;
    match options.test {
        Test::Rr => answer(&mut connection, options.size as usize),
        Test::Stream => receive(&mut connection),
    }
}

/// Answers requests until the client ends the connection.
fn answer(connection: &mut ConnectionEnd, size: usize) -> Result<ProgramResult> {
    connection.send_at_once().context("TCP_NODELAY")?;
    let mut bytes = vec![0; size];
    let mut total_bytes = 0;
    loop {
        let first = connection.read(&mut bytes).context("read")?;
        if first == 0 {
            return Ok(ProgramResult { total_bytes, ..ProgramResult::default() });
        }
        connection.read_exact(&mut bytes[first..]).context("read")?;
        connection.write_all(&bytes).context("write")?;
        total_bytes += size as u64;
    }
}

/// Reads until the client ends the connection.
fn receive(connection: &mut ConnectionEnd) -> Result<ProgramResult> {
    let mut bytes = vec![0; READ];
    let mut total_bytes = 0;
    loop {
        match connection.read(&mut bytes).context("read")? {
            0 => return Ok(ProgramResult { total_bytes, ..ProgramResult::default() }),
            count => total_bytes += count as u64,
        }
    }
}

/// The side that measures round trips and writes streams.
struct MeasuringSide<'a> {
    options: &'a ProgramConfig,
    connection: ConnectionEnd,
    total_bytes: u64,
}

impl MeasuringSide<'_> {
    fn run(mut self) -> Result<ProgramResult> {
        let duration = Duration::from_secs_f64(self.options.seconds);
        let warm_up = Duration::from_secs_f64(self.options.warm_up_s);
        let mut bytes = vec![0; self.options.size as usize];
        let mut report = ProgramResult::default();
        match self.options.test {
            Test::Rr => {
                self.connection.send_at_once().context("TCP_NODELAY")?;
                self.round_trips(&mut bytes, warm_up)?;
                let (round_trips, share) =
                    self.measured(2, |client| client.round_trips(&mut bytes, duration))?;
                (report.round_trips, report.kernel_pct) = (Some(round_trips), share);
                self.finish()?;
            }
            Test::Stream => {
                self.stream(&bytes, warm_up)?;
                let (start, before) = (Instant::now(), self.total_bytes);
                ((), report.kernel_pct) =
                    self.measured(1, |client| client.stream(&bytes, duration))?;
                // The warm-up has filled all buffers, so the server reads as much in this time as the client writes.
                let (seconds, bytes) = (start.elapsed().as_secs_f64(), self.total_bytes - before);
                report.goodput_gbps = Some(bytes as f64 * 8.0 / 1e9 / seconds);
                self.finish()?;
            }
        }
        report.total_bytes = self.total_bytes;
        Ok(report)
    }

    /// Ends the connection, and waits until the server has read everything.
    fn finish(&mut self) -> Result<()> {
        self.connection.end().context("shutdown")?;
        let after = self.connection.read(&mut [0]).context("read")?;
        ensure!(after == 0, "the server sent more than the requested bytes");
        Ok(())
    }

    /// The result of `work`, and the kernel TCP's share of its bytes, in percent. For each byte that the client sends, `moved`
    /// bytes go over the connection.
    fn measured<T>(
        &mut self,
        moved: u64,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, Option<f64>)> {
        let (sent, carried) = (self.total_bytes, self.connection.bytes_in_kernel()?);
        let result = work(self)?;
        let sent = (self.total_bytes - sent) * moved;
        let carried = self.connection.bytes_in_kernel()?.zip(carried);
        let share = carried.map(|(after, before)| (after - before) as f64 * 100.0 / sent as f64);
        Ok((result, share))
    }

    /// Makes round trips in turn, at least one. A round trip begins at the end of the previous one.
    fn round_trips(&mut self, bytes: &mut [u8], duration: Duration) -> Result<RoundTrips> {
        let mut latency = Latency::new();
        let start = Instant::now();
        let (mut begin, mut mark) = (start, 0_u8);
        loop {
            mark = mark.wrapping_add(1);
            let last = bytes.len() - 1;
            (bytes[0], bytes[last]) = (mark, mark);
            self.connection.write_all(bytes).context("write")?;
            self.connection.read_exact(bytes).context("read")?;
            ensure!((bytes[0], bytes[last]) == (mark, mark), "the server sent a wrong answer");
            let end = Instant::now();
            latency.record_ns((end - begin).as_nanos() as u64);
            begin = end;
            if end - start >= duration {
                break;
            }
        }
        self.total_bytes += latency.count() * bytes.len() as u64;
        Ok(RoundTrips::new(&latency, begin - start))
    }

    /// Makes writes in turn.
    fn stream(&mut self, bytes: &[u8], duration: Duration) -> Result<()> {
        let writes = (BYTES / bytes.len()).clamp(1, WRITES);
        let start = Instant::now();
        while start.elapsed() < duration {
            for _ in 0..writes {
                self.connection.write_all(bytes).context("write")?;
            }
            self.total_bytes += (writes * bytes.len()) as u64;
        }
        Ok(())
    }
}
