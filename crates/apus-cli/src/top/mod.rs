//! `apus top`: a live screen of the processes of a host.
//!
//! | file | |
//! |---|---|
//! | `sample` | one reading of the counters and of `/proc` |
//! | `rates` | main figures from the growth of counters |
//! | `recorded` | percentiles and peers of recent calls, from the time trace |
//! | `row`, `column` | a process in the table; the texts and the order of its columns |
//! | `model` | the state of the screen: samples and actions go in |
//! | `keys` | the meaning of keys |
//! | `view` | draws the model |
//! | `screen` | the terminal: the loop of samples, keys and signals |

mod column;
mod keys;
mod model;
mod rates;
mod recorded;
mod row;
mod sample;
mod screen;
#[cfg(test)]
mod script;
mod view;

use std::env;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_shm::CounterDirectory;

use crate::counters::Identity;
use crate::output::JsonArgs;
use model::Model;
use sample::{Reader, Sample};
use view::Look;

/// Watch the processes of this host that use Apus, as a live screen
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Shows the counters of `apus stat` as rates, with one line for each process and the load of the host above. Enter \
opens a panel for the selected process; ? lists all keys and explains the columns. If standard output is not a terminal, the \
command writes one screen as text.

Examples:
  apus top
  apus top 4711 --interval 0.5
  apus top --once
  apus top --once --json - | jq '.processes[] | {pid, program, rates}'
  sudo apus top --dir /dev/shm/apus-1000"
)]
pub(crate) struct Args {
    /// Process to select, with its panel open
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Time between two readings, in seconds, from 0.1 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Write one screen as text after one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// Directory of the files [default: /dev/shm/apus-UID of this user]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.1 to 60".to_owned())
}

/// Shows the screen until the user ends it, or one screen as text.
///
/// # Errors
/// When there is no such process, or the terminal cannot be used; as text, also when no process shows counters.
pub(crate) fn run(args: &Args) -> Result<()> {
    let directory =
        args.dir.as_deref().map_or_else(CounterDirectory::of_user, CounterDirectory::at);
    let mut reader = Reader::new(directory);
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if args.json.is_given() && !args.once {
        return Err(
            Misuse("'--json' needs '--once': a live screen has no result".to_owned()).into()
        );
    }
    if args.once || is_dumb || !stdout().is_terminal() {
        return once(args, &mut reader);
    }
    let selected = match args.pid {
        Some(pid) => Some(process(&take(&mut reader, Duration::ZERO, None)?, pid, &reader)?),
        None => None,
    };
    let colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    screen::run(&mut reader, Model::new(args.interval, selected), Look { colours })
}

/// Writes one screen, with the rates of one interval.
fn once(args: &Args, reader: &mut Reader) -> Result<()> {
    let start = Instant::now();
    let first = take(reader, Duration::ZERO, None)?;
    let selected = args.pid.map(|pid| process(&first, pid, reader)).transpose()?;
    let mut model = Model::new(args.interval, selected);
    model.take(first);
    thread::sleep(args.interval);
    let watched = model.watched();
    model.take(take(reader, start.elapsed(), watched)?);
    let width = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = width.unwrap_or(view::TEXT_WIDTH).clamp(80, 1_000);
    args.json.deliver_value(&model.as_json(), || view::text(&model, width))
}

fn take(reader: &mut Reader, at: Duration, watched: Option<Identity>) -> Result<Sample> {
    let directory = reader.directory();
    reader
        .take(at, watched)
        .with_context(|| format!("cannot read the counters of processes in '{directory}'"))
}

/// The process of this number that runs.
fn process(sample: &Sample, pid: u32, reader: &Reader) -> Result<Identity> {
    let mut known = sample.counters.processes.iter().filter(|it| it.pid == pid);
    let running = known.clone().find(|it| it.alive != Some(false)).map(|it| it.identity());
    running.with_context(|| {
        let directory = reader.directory();
        match known.next() {
            Some(_) => {
                format!("process {pid} has ended; `apus stat {pid}` shows its last counters")
            }
            None => format!("process {pid} publishes no counters in '{directory}'"),
        }
    })
}
