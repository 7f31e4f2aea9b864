//! Records as lines of text: `apus trace show`, `grep`, `range` and `rpcid`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use apus_load::misuse::Misuse;
use apus_trace::{Merged, Moment, STAGES, TracedCall, calls};
use serde_json::{Value, json};

use super::files::{Files, micros};
use super::page::page;
use crate::output::{self, JsonArgs};

/// Show all records as lines of text, in the order of time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace show client.4711.trace server.4712.trace | less
  apus trace show --json - sim.trace

A line has the time since the first record, the time since the previous line, the number of the thread, and the text. Threads are \
listed first.")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    json: JsonArgs,
}

/// Show the records whose text contains a text; times are those between such records
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  apus trace grep 'sendmsg request' client.4711.trace")]
pub(crate) struct GrepArgs {
    /// Text to look for
    text: String,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    json: JsonArgs,
}

/// Show the records of a time range
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  apus trace range --from 1500 --to 1600 client.4711.trace server.4712.trace")]
pub(crate) struct RangeArgs {
    /// First time to show, in µs since the first record
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0.0)]
    from: f64,
    /// Last time to show, in µs since the first record [default: the time of the last record]
    #[arg(long, value_name = "MICROSECONDS")]
    to: Option<f64>,
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    json: JsonArgs,
}

/// Show everything about one RPC: its records at both ends, and the time of each stage
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace rpcid 128 client.4711.trace server.4712.trace
  apus trace rpcid 128 --html call.html *.trace")]
pub(crate) struct RpcidArgs {
    /// Lower half of the id at the client or the server, as `apus trace rpcs` lists it
    id: u32,
    #[command(flatten)]
    files: Files,
    /// Number of the pair of nodes, in hexadecimal, if several clients have the id
    #[arg(long, value_name = "HEX", value_parser = hexadecimal)]
    pair: Option<u32>,
    #[command(flatten)]
    json: JsonArgs,
    /// Write a self-contained HTML page to FILE instead, with the client and the server side by side; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

pub(super) fn hexadecimal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "it must be a number of up to 8 hexadecimal digits".to_owned())
}

/// Shows a trace.
///
/// # Errors
/// When a file cannot be read, or standard output cannot be written.
pub(super) fn show(args: &ShowArgs) -> Result<()> {
    let merged = args.files.merged()?;
    print(&merged, &args.json, |_, _| true)
}

/// Shows records with a text.
///
/// # Errors
/// As [`show`].
pub(super) fn grep(args: &GrepArgs) -> Result<()> {
    let merged = args.files.merged()?;
    print(&merged, &args.json, |_, text| text.contains(&args.text))
}

/// Shows records of a time.
///
/// # Errors
/// As [`show`]; when the range ends before it begins.
pub(super) fn range(args: &RangeArgs) -> Result<()> {
    let (from, to) = (args.from, args.to.unwrap_or(f64::INFINITY));
    if to < from {
        return Err(
            Misuse(format!("'--to {to}': expected at least the value of --from, {from}")).into()
        );
    }
    let merged = args.files.merged()?;
    let inside = |moment: &Moment| (from..=to).contains(&micros(moment.nanos as f64));
    print(&merged, &args.json, |moment, _| inside(moment))
}

/// Shows one RPC.
///
/// # Errors
/// As [`show`]; when the traces do not have it.
pub(super) fn rpcid(args: &RpcidArgs) -> Result<()> {
    let merged = args.files.merged()?;
    let pair = args.pair;
    let is_it = |call: &(u32, u32)| call.0 == args.id & !1 && pair.is_none_or(|it| it == call.1);
    let calls = calls(&merged);
    let found: Vec<_> = calls.iter().filter(|call| is_it(&(call.id, call.pair))).collect();
    anyhow::ensure!(!found.is_empty(), "the traces have no RPC with the id {}", args.id);
    if let Some(path) = &args.html {
        return output::write_text(path, &page(&merged, &found));
    }
    let is_about = |moment: &Moment| {
        let names = &merged.events[moment.event].arguments;
        let [id, pair, ..] = moment.arguments;
        names.first().is_some_and(|name| name == "id") && is_it(&(id & !1, pair))
    };
    let wanted = |moment: &Moment, _: &str| is_about(moment);
    let text = || records_text(&merged, wanted) + &stages_text(&found);
    args.json.deliver(|| records_json(&merged, wanted), text)
}

/// When a call reached each stage.
fn stages_text(found: &[&TracedCall]) -> String {
    let mut text = String::new();
    for call in found {
        let _ = writeln!(text, "\nrpc {}, pair {:08x}", call.id, call.pair);
        let mut before = None;
        for (stage, reached) in STAGES.iter().zip(call.reached) {
            let Some(at) = reached else {
                let _ = writeln!(text, "  {:18}  not in the traces", stage.name);
                continue;
            };
            let delta = at as f64 - before.replace(at).unwrap_or(at) as f64;
            let _ = writeln!(text, "  {:18}  +{:.3} us", stage.name, micros(delta));
        }
    }
    text
}

/// Prints the records that are wanted.
fn print(
    merged: &Merged,
    json: &JsonArgs,
    wanted: impl Fn(&Moment, &str) -> bool + Copy,
) -> Result<()> {
    json.deliver(|| records_json(merged, wanted), || records_text(merged, wanted))
}

/// The records that are wanted, a value a line.
fn records_json(merged: &Merged, wanted: impl Fn(&Moment, &str) -> bool) -> String {
    let moments = merged.moments.iter();
    let moments = moments.filter(|moment| wanted(moment, &merged.text(moment)));
    moments.map(|moment| format!("{}\n", as_json(merged, moment))).collect()
}

fn records_text(merged: &Merged, wanted: impl Fn(&Moment, &str) -> bool) -> String {
    let mut lines = String::new();
    for (number, source) in merged.rings.iter().enumerate() {
        let (program, pid, name) = (&source.program, source.pid, &source.name);
        let _ = writeln!(lines, "# C{number:02} is {name} of {program}, process {pid}");
    }
    if merged.without_ring > 0 {
        let count = merged.without_ring;
        let _ = writeln!(
            lines,
            "# {count} threads have no ring, because all rings of their process were in use"
        );
    }
    for offset in &merged.offsets {
        let (trace, micros) = (offset.trace + 1, micros(offset.nanos as f64));
        let _ = writeln!(lines, "# the clock of file {trace} was moved by {micros:.3} us");
    }
    let mut before = None;
    for moment in &merged.moments {
        let text = merged.text(moment);
        if !wanted(moment, &text) {
            continue;
        }
        let at = micros(moment.nanos as f64);
        let delta = at - before.replace(at).unwrap_or(at);
        let _ = writeln!(lines, "{at:12.3} us (+{delta:9.3} us) [C{:02}] {text}", moment.ring);
    }
    lines
}

fn as_json(merged: &Merged, moment: &Moment) -> Value {
    let source = &merged.rings[moment.ring];
    let names = &merged.events[moment.event].arguments;
    let named = names.iter().filter(|name| !name.is_empty()).zip(moment.arguments);
    let arguments: serde_json::Map<_, _> =
        named.map(|(name, value)| (name.clone(), value.into())).collect();
    json!({
        "us": micros(moment.nanos as f64),
        "program": source.program,
        "pid": source.pid,
        "thread": source.name,
        "event": merged.name(moment),
        "arguments": arguments,
    })
}
