//! `apus demo`: Apus beside its rivals, in about a minute.
//!
//! `local` measures calls between two processes of this machine, `network` measures or simulates calls in a loaded network; `table`
//! puts both into one table.

mod local;
mod network;
mod table;

use std::path::PathBuf;

use anyhow::Result;
use apus_load::report::{Style, short_warnings, wrap};
use apus_load::stop;

use self::local::RunLength;
use self::table::conclusion;
use crate::output::{OutputArgs, conclude_whole, measured, print};

pub(crate) use self::network::{LAB_COMMAND, lab};

/// Compare Apus with TCP and unix sockets on this machine, and with TCP in a network, in about a minute
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus demo
  apus demo --html /tmp/demo.html
  apus demo --no-html --json demo.json

The network is emulated if the command can create network namespaces (as root, or in a user namespace), and simulated otherwise; \
the output names the method. See docs/demo.md.")]
pub(crate) struct Args {
    /// Write the HTML report to FILE
    #[arg(long, value_name = "FILE", default_value = "apus-demo.html")]
    html: PathBuf,
    /// Write no HTML report
    #[arg(long, conflicts_with = "html")]
    no_html: bool,
    /// Write the result as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    options: RunLength,
}

/// Measures and shows.
///
/// # Errors
/// When a measurement fails or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let html = (!args.no_html).then(|| args.html.clone());
    let output = OutputArgs { json: args.json.clone(), html, ..OutputArgs::default() };
    let (quiet, files) = (output.stdout_is_taken(), output.open()?);
    let mut result = measured(|progress, result| local::measure(&args.options, progress, result))?;
    let (mut lines, mut notes) = (Vec::from(local::lines()), vec![local::description(&result)]);
    if !stop::requested() {
        let network = network::measure(args.options.seconds, &mut result)?;
        lines.extend(network.lines);
        notes.push(network.description);
    }
    if !quiet {
        let style = Style::for_stdout();
        let notes: Vec<String> = notes.iter().map(|note| wrapped(note)).collect();
        let (table, notes) = (table::table(&result, &lines).text(style), notes.concat());
        let warnings = short_warnings(&result, style);
        let conclusion = wrapped(&conclusion(&result, &lines));
        print(&format!("{}\n\n{table}{notes}{warnings}\n{conclusion}", result.machine))?;
    }
    files.write(&result)?;
    if !quiet && !args.no_html {
        print(&format!("Everything, with plots: {}\n", args.html.display()))?;
    }
    conclude_whole(&result)
}

/// A text in lines that fit a terminal.
fn wrapped(words: &str) -> String {
    let mut text = String::new();
    wrap("", words, &mut text);
    text
}
