//! `apus bench handoffs`: wake-ups per message on an idle system.
//!
//! A client calls a store in another process, one call at a time, both with the same delivery. A sleeping receiver is woken once
//! per message, a polling one never.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus::{Address, Client, Delivery, Node};
use apus_load::{Latency, ResultFile, Row};

use crate::delivery::server::{self, Snapshot, start_node};
use crate::delivery::store::{Query, key, value_of};
use crate::delivery::{CASES, Cases, testcase};
use crate::floor;
use crate::pin::{Pin, on_cpu};
use apus_load::progress::Progress;
use apus_load::stop;
use apus_node::transport::over_apus::PORT;

/// Calls before the counted ones.
const WARM_UP: u32 = 100;

/// Handoffs and wake-ups for each message: the delivery modes, the number of calls and their placement.
#[derive(Clone, Debug, clap::Args)]
pub struct HandoffCost {
    /// Delivery modes of client and server, with optional parameters: suspend20,budget=32
    #[arg(long, value_name = "LIST", default_value = CASES)]
    pub cases: Cases,
    /// Calls, one after the other
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub calls: u32,
    /// Microseconds between a response and the next call, so that servers stop polling and sleep
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub gap: u64,
    /// CPUs of client and server: split (the first two), same, none, or numbers like 0-3
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub pin: Pin,
}

/// Measures, and adds a row for each case.
///
/// # Errors
/// If a process fails.
pub fn measure(
    options: &HandoffCost,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let cases = options.cases.list();
    progress.lengthen(cases.len() as u64);
    for &case in cases {
        progress.begin(&format!("handoffs: {case}"));
        let row = floor::beside(options.pin, result, |_| measure_case(options, case));
        result.rows.push(row.with_context(|| testcase(case))?);
        progress.done();
    }
    Ok(())
}

fn measure_case(options: &HandoffCost, case: Delivery) -> Result<Row> {
    let (client_cpu, server_cpu) = options.pin.cpus();
    let store = server::StoreConfig { delivery: case, threads: 1, records: 1, cpu: server_cpu };
    let peer = server::start(&store)?;
    let to = Address::new(*peer.address(), PORT);
    let row = on_cpu(client_cpu, || {
        let node = start_node((Ipv4Addr::LOCALHOST, 0).into(), case)?;
        let caller = Caller { client: node.client()?, _node: node, to };
        caller.measure(options, case)
    })?;
    peer.finish()?;
    Ok(row)
}

struct Caller {
    client: Client,
    /// Keeps the node alive until the end of the measurement.
    _node: Node,
    to: Address,
}

impl Caller {
    fn measure(&self, options: &HandoffCost, case: Delivery) -> Result<Row> {
        let gap = Duration::from_micros(options.gap);
        self.call_many(WARM_UP, gap)?;
        let (server_before, client_before) = (self.server_counters()?, self.client.stats());
        let latency = self.call_many(options.calls, gap)?;
        let client = self.client.stats();
        // The query for its counters is a message to the server as well.
        let server = self.server_counters()? - server_before;
        let per_request = |count: u64| count as f64 / server.messages as f64;
        let per_response =
            |count: u64| count as f64 / (client.messages - client_before.messages) as f64;
        Ok(Row::new("apus-udp")
            .set("bench", "handoffs")
            .set("pin", &*options.pin.name())
            .set("testcase", testcase(case))
            .set("gap_us", options.gap)
            .set("calls", options.calls)
            .set("server_handoffs_per_message", per_request(server.handoffs))
            .set(
                "client_handoffs_per_message",
                per_response(client.handoffs - client_before.handoffs),
            )
            .set("server_sleeps_per_message", per_request(server.sleeps))
            .set("server_background_turns_per_message", per_request(server.background_turns))
            .set("p50_us", latency.p(50.0)))
    }

    fn call_many(&self, calls: u32, gap: Duration) -> Result<Latency> {
        let query = Query::Get { key: &key(0) }.encode();
        let mut latency = Latency::new();
        for _ in 0..calls {
            stop::check()?;
            let start = Instant::now();
            let response = self.client.call(self.to, query.clone()).wait()?;
            latency.record_ns(start.elapsed().as_nanos() as u64);
            ensure!(value_of(&response).is_ok(), "the server lost its only record");
            if !gap.is_zero() {
                thread::sleep(gap);
            }
        }
        Ok(latency)
    }

    fn server_counters(&self) -> Result<Snapshot> {
        let response = self.client.call(self.to, Query::Stats.encode()).wait()?;
        Ok(serde_json::from_slice(value_of(&response)?)?)
    }
}
