//! `apus trace explain`: the history of single calls.

use std::cmp::Reverse;
use std::str::FromStr;

use anyhow::{Result, ensure};
use apus_proto::FAILURE_CAUSES;
use apus_trace::analysis::explain;
use apus_trace::{Report, TracedCall, calls};
use serde_json::json;

use super::analysis::{as_json, as_text};
use super::files::Files;
use super::lines::hexadecimal;
use crate::output::JsonArgs;

/// Calls that are explained at once.
const MOST: usize = 10;

/// Explain calls: how they ended, how far they came, the events for which they waited, and where their time went
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace explain 5762 client.4711.trace server.4712.trace
  apus trace explain failed *.trace
  apus trace explain slowest --json - *.trace

If a deadline or a silent peer ends a call, the error names the id: \"deadline exceeded after 20ms: RPC 5762 waited for ...\". \
Traces have all records of one call in 64, or of more with APUS_TRACE_CALLS or `apus trace record --calls`; of other calls they \
have only the failure. Give the traces of both ends.")]
pub(crate) struct Args {
    /// Lower half of the id at the client or the server; or `failed`: the last failed calls, at most 10; or `slowest`: the slowest call
    #[arg(value_name = "RPCID")]
    which: Which,
    #[command(flatten)]
    files: Files,
    /// Number of the pair of nodes, in hexadecimal, if several clients have the id
    #[arg(long, value_name = "HEX", value_parser = hexadecimal)]
    pair: Option<u32>,
    #[command(flatten)]
    json: JsonArgs,
}

/// Which calls are explained.
#[derive(Clone, Copy, Debug)]
enum Which {
    Id(u32),
    Failed,
    Slowest,
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "failed" => Ok(Self::Failed),
            "slowest" => Ok(Self::Slowest),
            _ => text
                .parse()
                .map(Self::Id)
                .map_err(|_| "expected an id of up to 32 bits, 'failed' or 'slowest'".to_owned()),
        }
    }
}

impl Which {
    /// The calls among all of a trace.
    fn of(self, calls: &[TracedCall]) -> Vec<&TracedCall> {
        match self {
            Self::Id(id) => calls.iter().filter(|call| call.id == id & !1).collect(),
            Self::Failed => {
                let mut failed: Vec<_> = calls.iter().filter(|it| it.failed.is_some()).collect();
                failed.sort_by_key(|call| Reverse(call.last));
                failed.truncate(MOST);
                failed
            }
            Self::Slowest => {
                calls.iter().max_by_key(|call| call.round_trip()).into_iter().collect()
            }
        }
    }

    fn none(self) -> String {
        match self {
            Self::Id(id) => format!("the traces have no RPC with the id {id}"),
            Self::Failed => "the traces have no failed call".to_owned(),
            Self::Slowest => "the traces have no call".to_owned(),
        }
    }
}

/// Explains the calls.
///
/// # Errors
/// When a file cannot be read, the traces have no such call, or standard output cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let merged = args.files.merged()?;
    let mut calls = calls(&merged);
    calls.retain(|call| args.pair.is_none_or(|pair| call.pair == pair));
    let found = args.which.of(&calls);
    ensure!(!found.is_empty(), args.which.none());
    let reports: Vec<Report> =
        found.into_iter().map(|call| explain(&merged, call, FAILURE_CAUSES)).collect();
    let json = || {
        let reports: Vec<_> = reports.iter().map(as_json).collect();
        format!("{:#}\n", json!({ "calls": reports }))
    };
    args.json.deliver(json, || reports.iter().map(as_text).collect::<Vec<_>>().join("\n"))
}
