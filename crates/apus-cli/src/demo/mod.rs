//! `apus demo`.

mod local;

use std::path::PathBuf;

use anyhow::Result;
use apus_load::report::Style;

use self::local::{Options, glance, measure};
use crate::output::{OutputArgs, conclude, measured, print};

/// Compare Apus with TCP on this machine, in under a minute
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus demo
  apus demo --html /tmp/demo.html
  apus demo --no-html --json demo.json")]
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
    options: Options,
}

/// Measures and shows.
///
/// # Errors
/// When a measurement fails or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let html = (!args.no_html).then(|| args.html.clone());
    let output = OutputArgs { json: args.json.clone(), html, wide: false };
    let (quiet, files) = (output.stdout_is_taken(), output.open()?);
    let result = measured(|progress, result| measure(&args.options, progress, result))?;
    if !quiet {
        print(&glance(&result, Style::for_stdout()))?;
    }
    files.write(&result)?;
    if !quiet && !args.no_html {
        print(&format!("\nEverything, with plots: {}\n", args.html.display()))?;
    }
    conclude(&result)
}
