//! `apus node client --unloaded`: how long calls of every length take when nothing else is under way.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apus::More;
use apus_load::{Latency, ResultFile, Size, Workload};

use super::client::{Args, row};
use super::recorder::Record;
use super::stopped;
use super::wire::{ApusWire, Wire};
use crate::bench::reply_length;
use crate::message::Header;
use crate::transport::Request;

/// Lengths taken of a workload that has very many, evenly spread over its calls.
const LENGTHS: u32 = 40;

/// Calls of each length before those that count.
const WARM_UP: u32 = 10;

/// A call that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes `samples` calls of every length, in turn over all servers; adds a row for each length.
///
/// # Errors
/// When a server cannot be reached or a reply is wrong.
pub(super) fn run(
    args: &Args,
    samples: u32,
    stop: &AtomicBool,
    result: &mut ResultFile,
) -> Result<Record> {
    let servers = args.apus_servers()?;
    let node = args.link.start((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let mut wire = ApusWire::new(node.socket()?, Arc::clone(&servers), More::Yes, None);
    let mut record = Record::new(super::recorder::DUMP_MAX);
    for length in lengths(&args.workload, args.longest) {
        let mut latency = Latency::new();
        let request = Request { tag: 0, length, reply: reply_length(args.one_way) };
        for sample in 0..samples + WARM_UP {
            if stopped(stop) {
                return Ok(record);
            }
            let start = Instant::now();
            let server = sample as usize % servers.len();
            let reply = call(&mut wire, server, request)
                .with_context(|| format!("server {}", servers[server]))?;
            let ns = start.elapsed().as_nanos() as u64;
            if sample >= WARM_UP {
                latency.record_ns(ns);
                record.note(length, reply, ns);
            }
        }
        let size = Size::new(length).map_or_else(String::new, |size| size.to_string());
        result
            .rows
            .push(row(args).set("load", "unloaded").set("length", size).set_latency(&latency));
    }
    Ok(record)
}

/// One call; returns the length of the reply.
fn call(wire: &mut ApusWire, server: usize, request: Request) -> Result<u32> {
    let mut replies = Vec::with_capacity(1);
    wire.send(server, request)?;
    wire.receive(PATIENCE, &mut replies)?;
    match replies.pop() {
        Some(reply) => Ok(reply.length),
        None => bail!("no reply within {PATIENCE:?}"),
    }
}

/// The lengths of a workload, short to long: all of them where they are few.
fn lengths(workload: &Workload, longest: u32) -> Vec<u32> {
    let places = (0..=LENGTHS).map(|place| f64::from(place) / f64::from(LENGTHS));
    workload.lengths_at(places, Header::LEN as u32..=longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lengths_are_all_taken_and_many_are_thinned() {
        assert_eq!(lengths(&Workload::Fixed(100), 1_000_000), [100]);
        assert_eq!(lengths(&"mix".parse().unwrap(), 1_000_000), [100, 10_000, 1_000_000]);
        let w4 = lengths(&Workload::W4, 1_000_000);
        assert!((20..=42).contains(&w4.len()) && w4.ends_with(&[1_000_000]), "{w4:?}");
        assert!(lengths(&Workload::W1, 1_000_000)[0] >= 16);
    }
}
