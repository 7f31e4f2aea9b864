//! `apus node probe`: finds the node at an address, and the way to call it.

use std::time::Duration;

use anyhow::Result;
use apus::{Address, Config, Presence, Scheme};
use apus_load::Row;
use apus_load::misuse::Misuse;
use apus_node::arguments;
use apus_node::capture::CaptureOptions;

use crate::output::{OutputArgs, different, measured};

/// Find out whether a host speaks Homa (IP protocol 146, as the Linux module) or Apus over UDP
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus node probe 10.0.0.2:4000
  apus node probe homa://10.0.0.2:4000 --seconds 0.2
  apus node probe 10.0.0.2:4000 --capture probe.pcapng

The probe leaves no state at the host. Without homa:// or apus://, the command tries both; homa:// needs CAP_NET_RAW. The exit \
status is 1 if no answer arrives.")]
pub(crate) struct Args {
    /// Address: HOST:PORT, apus://HOST:PORT@UDPPORT or homa://HOST:PORT
    #[arg(value_name = "ADDR")]
    address: String,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = arguments::seconds)]
    seconds: f64,
    #[command(flatten)]
    capture: CaptureOptions,
    #[command(flatten)]
    output: OutputArgs,
}

/// Probes and shows the answer.
///
/// # Errors
/// When the address is malformed, no link can be opened, or no answer came.
pub(super) fn run(args: &Args) -> Result<()> {
    let [json, html, csv] = args.output.paths();
    different(&[json, html, csv, ("--capture", args.capture.file())])?;
    let output = args.output.open()?;
    let mut config = Config::new();
    args.capture.apply(&mut config)?;
    let mut found = false;
    let result = measured(|_, result| {
        for text in candidates(&args.address) {
            let to = apus::resolve(&text).map_err(|error| Misuse(error.to_string()))?;
            let (answer, rtt) = ask(to, Duration::from_secs_f64(args.seconds), &config);
            found |= answer == ANSWERED || answer == NOT_SERVED;
            let mut row = Row::new(&scheme_of(&text)).set("address", text.as_str());
            row.put("answer", answer.as_str());
            if let Some(rtt) = rtt {
                row.put("rtt_us", rtt.as_secs_f64() * 1e6);
            }
            result.rows.push(row);
        }
        Ok(())
    })?;
    output.deliver(&result)?;
    if found { Ok(()) } else { Err(anyhow::anyhow!("no answer from {}", args.address)) }
}

const ANSWERED: &str = "answered";
const NOT_SERVED: &str = "answers, but no service listens at the port";

/// The address as it was given, or in both forms.
fn candidates(text: &str) -> Vec<String> {
    if text.contains("://") {
        return vec![text.to_owned()];
    }
    let native = (!text.contains('@')).then(|| format!("{}{text}", Scheme::HOMA));
    std::iter::once(format!("{}{text}", Scheme::APUS)).chain(native).collect()
}

fn scheme_of(text: &str) -> String {
    text.split("://").next().unwrap_or_default().to_owned()
}

fn ask(to: Address, timeout: Duration, config: &Config) -> (String, Option<Duration>) {
    match apus::probe_with(to, timeout, config) {
        Ok(Presence::Answered(after)) => (ANSWERED.to_owned(), Some(after)),
        Ok(Presence::PortNotServed) => (NOT_SERVED.to_owned(), None),
        Ok(Presence::Unreachable(error)) => (error.to_string(), None),
        Ok(_) => ("silent".to_owned(), None),
        Err(error) => (error.to_string(), None),
    }
}
