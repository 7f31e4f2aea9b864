//! `apus report`: tables, a page and plots from result files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_bench::report::CONVENTIONS;
use apus_load::ResultFile;
use apus_load::report::{self, Style};

use crate::output;

/// Show result files as tables, or as one HTML page with plots
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus report rtt.json mix.json
  apus report *.json --html report.html
  apus report delivery.json --markdown delivery-table.md --svg images/
  apus report results/*.json --csv points.csv
  apus bench rtt --json - | apus report -")]
pub(crate) struct Args {
    /// Result files written by --json; - is standard input
    #[arg(value_name = "RESULT.json", required = true)]
    results: Vec<PathBuf>,
    /// Write one self-contained HTML page to FILE instead of tables to standard output; - is standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the tables in Markdown to FILE; - is standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write each plot as an SVG file into DIR, for light and dark pages
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write all rows, warnings and series as one JSON array to FILE; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the rows of all results as one CSV table to FILE, with a column for each key; - is standard output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Show all columns of the tables, even beyond 80 characters
    #[arg(long)]
    wide: bool,
}

/// Reads all files, then shows them.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<()> {
    output::different(&[
        ("--html", args.html.as_deref()),
        ("--markdown", args.markdown.as_deref()),
        ("--json", args.json.as_deref()),
        ("--csv", args.csv.as_deref()),
    ])?;
    let results =
        args.results.iter().map(|path| ResultFile::read(path)).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.html {
        output::write_html(path, &results)?;
    }
    if let Some(path) = &args.json {
        output::write_json(path, &results)?;
    }
    if let Some(path) = &args.csv {
        output::write_text(path, &report::csv(&results)?)?;
    }
    if let Some(path) = &args.markdown {
        let texts: Vec<String> =
            results.iter().map(|result| report::markdown(result, &CONVENTIONS)).collect();
        output::write_text(path, &texts.join("\n"))?;
    }
    if let Some(directory) = &args.svg {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create `{}`", directory.display()))?;
        for result in &results {
            for file in report::svg(result, &CONVENTIONS)? {
                output::write_text(&directory.join(&file.file_name), &file.text)?;
            }
        }
    }
    let to_file = [&args.html, &args.json, &args.csv, &args.markdown, &args.svg];
    if to_file.iter().all(|path| path.is_none()) {
        for result in &results {
            let style = Style::for_stdout().wide(args.wide);
            output::print(&report::text(result, &CONVENTIONS, style))?;
        }
    }
    Ok(())
}
