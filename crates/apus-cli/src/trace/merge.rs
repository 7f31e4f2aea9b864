//! `apus trace merge` and `apus trace export`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_trace::{Merged, calls};
use serde_json::{Value, json};

use super::files::{Files, micros};

/// Write one trace that has the records of several, on one clock
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  apus trace merge client.4711.trace server.4712.trace --to both.trace")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// File to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Write traces in the JSON format of Chrome's trace viewer, which Perfetto reads as well
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:
  apus trace export client.4711.trace server.4712.trace --to calls.json

Open the file at https://ui.perfetto.dev. A record is an instant event of its thread, and a call is a separate span.")]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    files: Files,
    /// File to write
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Merges.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn run(args: &Args) -> Result<()> {
    let merged = args.files.merged()?;
    write(&args.to, |file| merged.to_trace().write(file))
}

/// Exports.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn export(args: &ExportArgs) -> Result<()> {
    let merged = args.files.merged()?;
    write(&args.to, |mut file| {
        writeln!(file, "{{\"displayTimeUnit\": \"ns\", \"traceEvents\": [")?;
        let values = names(&merged).into_iter().chain(spans(&merged)).chain(instants(&merged));
        for (index, value) in values.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            writeln!(file, "{comma}{value}")?;
        }
        writeln!(file, "]}}")?;
        file.flush()
    })
}

fn write(path: &Path, write: impl FnOnce(BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    let written = File::create(path).and_then(|file| write(BufWriter::new(file)));
    written.with_context(|| format!("cannot write '{}'", path.display()))
}

/// The names of processes and threads.
fn names(merged: &Merged) -> Vec<Value> {
    let names = merged.rings.iter().enumerate().flat_map(|(tid, source)| {
        let process = format!("{} ({})", source.program, source.pid);
        let name = |what: &str, name: &str| json!({ "name": what, "ph": "M", "pid": source.trace, "tid": tid, "args": { "name": name } });
        [name("process_name", &process), name("thread_name", &source.name)]
    });
    names.collect()
}

/// The calls that have both a beginning and an end at the client.
fn spans(merged: &Merged) -> Vec<Value> {
    let spans = calls(merged).into_iter().filter_map(|call| {
        let (begun, took) = (call.reached[0]?, call.round_trip()?);
        Some([("b", begun), ("e", begun + took)].map(|(phase, at)| {
            json!({
                "name": format!("rpc {}", call.id), "cat": "rpc", "ph": phase, "pid": 0, "tid": 0,
                "id": format!("{}-{}", call.pair, call.id), "ts": micros(at as f64),
                "args": { "request_bytes": call.request, "response_bytes": call.response },
            })
        }))
    });
    spans.flatten().collect()
}

fn instants(merged: &Merged) -> impl Iterator<Item = Value> {
    merged.moments.iter().map(|moment| {
        json!({
            "name": merged.name(moment), "ph": "i", "s": "t", "ts": micros(moment.nanos as f64),
            "pid": merged.rings[moment.ring].trace, "tid": moment.ring,
            "args": { "text": merged.text(moment) },
        })
    })
}
