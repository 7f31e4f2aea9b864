//! `apus report`: tables and a page from result files.

use std::path::PathBuf;

use anyhow::Result;
use apus_load::ResultFile;
use apus_load::report::{self, Style};

use crate::output;

/// Show result files as tables, or as one HTML page with plots
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus report rtt.json mix.json
  apus report *.json --html report.html
  apus bench rtt --json - | apus report -")]
pub(crate) struct Args {
    /// Result files written by --json; - is standard input
    #[arg(value_name = "RESULT.json", required = true)]
    results: Vec<PathBuf>,
    /// Write one self-contained HTML page to FILE instead of tables to standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write all rows, warnings and series as one JSON array to FILE; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Reads all files, then shows them.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let results =
        args.results.iter().map(|path| ResultFile::read(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.html {
        output::write_html(path, &results)?;
    }
    if let Some(path) = &args.json {
        output::write_json(path, &results)?;
    }
    if args.html.is_none() && args.json.is_none() {
        for result in &results {
            output::print(&report::text(result, Style::for_stdout()))?;
        }
    }
    Ok(())
}
