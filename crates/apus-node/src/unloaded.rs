//! `apus node client --unloaded`: latencies of calls of every length on an idle system.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use apus::Flush;
use apus_load::{Latency, ResultFile, Size, Workload};

use super::TICK;
use super::errors::Errors;
use super::load_profile::LoadProfile;
use super::recorder::Measurements;
use crate::message::reply_length;
use crate::transport::interface::{Client, Ended, Failed, NO_REPLY, Request};
use crate::transport::over_apus::{ApusClient, Body};
use apus_load::stop;

/// Number of lengths of a workload with many lengths, evenly spread over its calls.
const LENGTHS: u32 = 40;

/// Calls of each length before the counted ones.
const WARM_UP: u32 = 10;

/// Time after which a call has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Makes `samples` calls of every length, in turn over all servers, and adds a row for each length. Failed calls are counted.
///
/// # Errors
/// If the node cannot start; with `--fail-fast`, if a call fails.
pub(super) fn run(
    options: &LoadProfile,
    samples: u32,
    result: &mut ResultFile,
) -> Result<Measurements> {
    let servers = options.apus_servers()?;
    let node = options.link.start((Ipv4Addr::UNSPECIFIED, 0).into())?;
    let body = options.body();
    let client = ApusClient::new(node.client()?, Arc::clone(&servers), Flush::Later, body);
    let mut caller = Caller { client, body, ended: Vec::new() };
    let mut record = Measurements::new(super::recorder::DUMP_MAX);
    let mut tag = 0;
    for length in lengths(&options.workload, body.shortest()..=options.longest) {
        let (mut latency, mut errors) = (Latency::new(), Errors::default());
        for sample in 0..samples + WARM_UP {
            if stop::requested() {
                break;
            }
            tag += 1;
            let start = Instant::now();
            let server = sample as usize % servers.len();
            let request = Request { tag, length, reply: reply_length(options.one_way) };
            let reply = match caller.call(server, request)? {
                Ok(reply) => reply,
                Err(failed) if options.fail_fast => {
                    return Err(Error::new(failed).context(format!("server {}", servers[server])));
                }
                Err(failed) => {
                    errors.note(&servers[server].to_string(), &failed);
                    continue;
                }
            };
            let ns = start.elapsed().as_nanos() as u64;
            if sample >= WARM_UP {
                latency.record_ns(ns);
                record.note(length, reply, ns);
            }
        }
        if latency.is_empty() && errors.total() == 0 {
            break; // A stop was requested.
        }
        let size = Size::new(length).map_or_else(String::new, |size| size.to_string());
        let row = options.row().set("load", "unloaded").set("length", size).set_latency(&latency);
        result.rows.push(errors.set(row));
        record.errors.merge(&errors);
    }
    record.errors.warn(result);
    Ok(record)
}

/// Makes one call at a time.
struct Caller {
    client: ApusClient,
    body: Body,
    ended: Vec<Ended>,
}

impl Caller {
    /// Makes one call. Returns the length of the reply, or the failure of the call.
    ///
    /// # Errors
    /// If the transport fails.
    fn call(&mut self, server: usize, request: Request) -> Result<Result<u32, Failed>> {
        if let Err(failed) = self.client.send(server, request) {
            return Ok(Err(failed));
        }
        let end = Instant::now() + TIMEOUT;
        while Instant::now() < end && !stop::requested() {
            self.client.receive(TICK, &mut self.ended)?;
            for ended in self.ended.drain(..) {
                match ended {
                    Ok(reply) if reply.tag == request.tag => {
                        let expected = self.body.reply_length(request.length, request.reply);
                        if reply.length == expected {
                            return Ok(Ok(reply.length));
                        }
                        let why =
                            format!("a reply of {} bytes instead of {expected}", reply.length);
                        return Ok(Err(Failed::wrong(request.tag, why)));
                    }
                    Err(failed) if failed.key == request.tag => return Ok(Err(failed)),
                    // A late end of a call that was given up.
                    _ => {}
                }
            }
        }
        let why = format!("no reply within {TIMEOUT:?}");
        Ok(Err(Failed { key: request.tag, kind: NO_REPLY.to_owned(), why }))
    }
}

/// The lengths of a workload in rising order: all of them if they are few.
fn lengths(workload: &Workload, allowed: RangeInclusive<u32>) -> Vec<u32> {
    let places = (0..=LENGTHS).map(|place| f64::from(place) / f64::from(LENGTHS));
    workload.lengths_at(places, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lengths_are_all_taken_and_many_are_thinned() {
        assert_eq!(lengths(&Workload::Fixed(100), 12..=1_000_000), [100]);
        assert_eq!(lengths(&"mix".parse().unwrap(), 16..=1_000_000), [100, 10_000, 1_000_000]);
        let w4 = lengths(&Workload::W4, 16..=1_000_000);
        assert!((20..=42).contains(&w4.len()) && w4.ends_with(&[1_000_000]), "{w4:?}");
        assert!(lengths(&Workload::W1, 16..=1_000_000)[0] >= 16);
    }
}
