//! `apus trace timeline`: the mean time to each stage of a call.

use std::fmt::Write as _;

use anyhow::Result;
use apus_trace::{Timeline, TimelineStage, calls};
use serde_json::json;

use super::files::{Files, micros};
use crate::output::JsonArgs;

/// Show how long calls of one length take to each stage, as tthoma's analyzer of this name does
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace timeline client.4711.trace server.4712.trace
  apus trace timeline --length 100 --json - *.trace
  apus trace timeline --length 100-1500 *.trace

Only calls with all stages at both ends count. The stages are those of requests and responses of one packet; for longer messages, \
the first packet counts.")]
pub(crate) struct Args {
    #[command(flatten)]
    files: Files,
    /// Length of the requests in bytes, or a range such as 100-1500 [default: the most frequent length]
    #[arg(long, value_name = "BYTES[-BYTES]", value_parser = lengths)]
    length: Option<(u32, u32)>,
    #[command(flatten)]
    json: JsonArgs,
}

fn lengths(text: &str) -> Result<(u32, u32), String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse().ok();
    let both = number(least).zip(number(most)).filter(|(least, most)| least <= most);
    both.ok_or_else(|| "it must be a number of bytes, or a range such as 100-1500".to_owned())
}

/// "100", or "100 to 1500".
fn span((least, most): (u32, u32)) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Shows the stages.
///
/// # Errors
/// When a file cannot be read, no call has all stages, or standard output cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let calls = calls(&args.files.merged()?);
    let Some(timeline) = Timeline::of(&calls, args.length) else {
        let of = args.length.map_or(String::new(), |length| format!(" of {} bytes", span(length)));
        anyhow::bail!(
            "none of the {} calls in the traces{of} has all stages: give the traces of both ends",
            calls.len()
        );
    };
    args.json.deliver(|| format!("{:#}\n", as_json(&timeline)), || as_text(&timeline))
}

fn as_text(timeline: &Timeline) -> String {
    let mut text = format!(
        "{} calls with requests of {} bytes\n\n{:18}  {:6}  {:>10}  {:>10}  {:>10}  {:>10}\n",
        timeline.calls,
        span(timeline.requests),
        "stage",
        "at",
        "mean us",
        "+mean us",
        "+p50 us",
        "+p99 us"
    );
    for stage in &timeline.stages {
        let _ = writeln!(
            text,
            "{:18}  {:6}  {:>10.3}  {:>10.3}  {:>10.3}  {:>10.3}",
            stage.name,
            side(stage),
            micros(stage.mean),
            micros(stage.delta),
            micros(stage.p50 as f64),
            micros(stage.p99 as f64)
        );
    }
    text
}

fn side(stage: &TimelineStage) -> &'static str {
    if stage.at_client { "client" } else { "server" }
}

fn as_json(timeline: &Timeline) -> serde_json::Value {
    let stages = timeline.stages.iter().map(|stage| {
        json!({
            "stage": stage.name,
            "at": side(stage),
            "mean_us": micros(stage.mean),
            "delta_mean_us": micros(stage.delta),
            "delta_p50_us": micros(stage.p50 as f64),
            "delta_p99_us": micros(stage.p99 as f64),
        })
    });
    let stages: Vec<_> = stages.collect();
    let round_trip = timeline.stages.last().map_or(0.0, |stage| micros(stage.mean));
    json!({
        "calls": timeline.calls,
        "request_bytes": timeline.requests.0,
        "request_bytes_most": timeline.requests.1,
        "round_trip_mean_us": round_trip,
        "stages": stages,
    })
}
