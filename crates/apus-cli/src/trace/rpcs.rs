//! `apus trace rpcs`: the calls of a trace.

use std::fmt::Write as _;

use anyhow::Result;
use apus_trace::{TracedCall, calls};
use serde_json::json;

use super::files::{Files, micros};
use crate::output::JsonArgs;

/// List the RPCs of traces: when each began, how long it took, and its disturbances
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace rpcs client.4711.trace server.4712.trace
  apus trace rpcs --slowest 20 --json - *.trace

Records: whether the traces have all stages of the call at both ends, or only some. Disturbed: packets that were retransmitted, \
requested again, or answered with BUSY or UNKNOWN.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// Show only the N slowest calls, the slowest first
    #[arg(long, value_name = "N")]
    slowest: Option<usize>,
    #[command(flatten)]
    json: JsonArgs,
}

/// Lists the calls.
///
/// # Errors
/// When a file cannot be read, or standard output cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut calls = calls(&args.files.merged()?);
    if let Some(most) = args.slowest {
        calls.sort_by_key(|call| std::cmp::Reverse(call.round_trip()));
        calls.truncate(most);
    }
    let json = || {
        let rows: Vec<_> = calls.iter().map(row).collect();
        format!("{:#}\n", json!({ "rpcs": rows }))
    };
    args.json.deliver(json, || as_text(&calls))
}

fn as_text(calls: &[TracedCall]) -> String {
    let mut text = format!(
        "{:>10}  {:8}  {:>12}  {:>12}  {:>9}  {:>9}  {:>9}  records\n",
        "id", "pair", "begun us", "took us", "request", "response", "disturbed"
    );
    let number =
        |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    for call in calls {
        let took = call.round_trip().map(|nanos| format!("{:.3}", micros(nanos as f64)));
        let _ = writeln!(
            text,
            "{:>10}  {:08x}  {:>12.3}  {:>12}  {:>9}  {:>9}  {:>9}  {}",
            call.id,
            call.pair,
            micros(call.first as f64),
            took.unwrap_or_else(|| "-".to_owned()),
            number(call.request),
            number(call.response),
            call.disturbances,
            records(call)
        );
    }
    text
}

fn records(call: &TracedCall) -> &'static str {
    match call {
        _ if call.failed.is_some() => "failed",
        _ if call.all_stages().is_some() => "all",
        _ => "part",
    }
}

fn row(call: &TracedCall) -> serde_json::Value {
    json!({
        "id": call.id,
        "pair": format!("{:08x}", call.pair),
        "begun_us": micros(call.first as f64),
        "round_trip_us": call.round_trip().map(|nanos| micros(nanos as f64)),
        "request_bytes": call.request,
        "response_bytes": call.response,
        "disturbances": call.disturbances,
        "failure_cause": call.failed,
        "records": records(call),
    })
}
