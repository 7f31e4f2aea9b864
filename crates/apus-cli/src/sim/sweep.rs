//! `apus sim sweep`: a grid of simulations, in shards, resumable.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress as _;
use apus_load::record::read_kept;
use apus_sim::sweep::Point;
use apus_sim::{SimulationResult, results, sweep};
use serde_json::Value;
use toml::Table;

use super::simulate::{STEPS, simulate};
use crate::output;
use crate::progress::Bar;

/// Run every combination of a plan's [sweep] values; skip points whose file exists
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim sweep plans/sim-priorities.toml --dir results
  apus sim sweep plans/sim-priorities.toml --dir results --jobs 4
  apus sim sweep plans/sim-priorities.toml --dir results --shard 3/16
  apus report results/*.json --html priorities.html --csv priorities.csv

Each file contains the plan of its point, and each row a column for each axis. A file of another plan in DIR is an error, unless \
--anew is given.

Each job of an array runs the same command with its own shard; see deploy/.")]
pub(crate) struct Args {
    /// A plan with a [sweep] table
    #[arg(value_name = "PLAN.toml")]
    plan: PathBuf,
    /// Directory of the results, one file per point
    #[arg(long, value_name = "DIR", default_value = "results")]
    dir: PathBuf,
    /// Part of the points: I of N, with I from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = parse_shard)]
    shard: (usize, usize),
    /// Simultaneous simulations, each on its own core
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Measure points again whose file belongs to another plan, and remove files of points that are not in the plan
    #[arg(long)]
    anew: bool,
}

fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let error = || format!("shard `{text}`: expected I/N, such as 0/4, with I from 0 to N - 1");
    let (shard, of) = text.split_once('/').ok_or_else(error)?;
    let shard: (usize, usize) =
        (shard.parse().map_err(|_| error())?, of.parse().map_err(|_| error())?);
    if shard.0 < shard.1 { Ok(shard) } else { Err(error()) }
}

/// Runs the points of the shard.
///
/// # Errors
/// When the plan cannot be read, a point cannot be run, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let text = super::simulate::read(&args.plan)?;
    let points =
        sweep::points(&text).map_err(|error| super::simulate::misuse(&args.plan, error))?;
    if !toml::from_str::<Table>(&text).is_ok_and(|plan| plan.contains_key("sweep")) {
        let plan = args.plan.display();
        let instead = format!("'apus sim run {plan}' runs it");
        return Err(
            Misuse(format!("`{plan}` has no [sweep] table and thus one point: {instead}")).into()
        );
    }
    let (shard, shards) = args.shard;
    let total = points.len();
    std::fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot create `{}`", args.dir.display()))?;
    let others = others(&args.dir, total)?;
    if let (Some(path), false) = (others.first(), args.anew) {
        let path = path.display();
        return Err(Misuse(format!(
            "`{path}` belongs to another plan, because this plan has {total} points: --anew removes it, another --dir keeps it"
        ))
        .into());
    }
    let path_of = |point: &Point| args.dir.join(format!("{:05}.json", point.index));
    let mut left = Vec::new();
    for point in sweep::of_shard(points, shard, shards) {
        if !is_kept(&point, &path_of(&point), args.anew)? {
            left.push(point);
        }
    }
    for path in others {
        std::fs::remove_file(&path)
            .with_context(|| format!("cannot remove `{}`", path.display()))?;
    }
    let progress = Bar::new();
    progress.lengthen(left.len() as u64 * STEPS);
    if args.jobs == 1 {
        for point in &left {
            finish(point, &path_of(point), total, simulate(&point.plan, &progress)?)?;
        }
        return Ok(());
    }
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(point) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = apus_sim::run(&point.plan, &mut |_| {})?;
            (0..STEPS).for_each(|_| progress.done());
            finish(point, &path_of(point), total, outcome)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a simulation does not panic"))
    })
}

/// Files of points that a grid of `total` points has not.
fn others(directory: &Path, total: usize) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read `{}`", directory.display());
    let mut others = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
        let index = name.filter(|name| name.len() >= 5 && name.bytes().all(|b| b.is_ascii_digit()));
        if index.is_some_and(|index| index.parse::<usize>().is_ok_and(|index| index >= total)) {
            others.push(path);
        }
    }
    others.sort();
    Ok(others)
}

/// Whether the result of a point exists. With `anew`, the result of another plan does not count.
///
/// # Errors
/// When the file is no result, or the result of another plan.
fn is_kept(point: &Point, path: &Path, anew: bool) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let kept = read_kept(path)?.plan;
    if kept == Some(point.plan.to_json()) {
        return Ok(true);
    }
    if anew {
        return Ok(false);
    }
    let why = match kept {
        None => "does not name its plan".to_owned(),
        Some(kept) => {
            format!("belongs to another plan ({})", difference(&point.plan.to_json(), &kept))
        }
    };
    let path = path.display();
    Err(Misuse(format!("`{path}` {why}: --anew measures it again, another --dir keeps it")).into())
}

/// The first value in which two plans differ: "load = 0.5 there, 0.8 here".
fn difference(here: &Value, there: &Value) -> String {
    let (Some(ours), Some(theirs)) = (here.as_object(), there.as_object()) else {
        return format!("{there} in the file, {here} in the plan");
    };
    let differs = ours.iter().find(|(name, value)| theirs.get(*name) != Some(value));
    let null = Value::Null;
    match differs {
        Some((name, value)) => {
            let nested = difference(value, theirs.get(name).unwrap_or(&null));
            let separator = if value.is_object() { "." } else { " = " };
            format!("{name}{separator}{nested}")
        }
        None => "it has more values".to_owned(),
    }
}

/// Writes a point's result; the file exists only when it is complete.
fn finish(point: &Point, path: &Path, total: usize, outcome: SimulationResult) -> Result<()> {
    let mut result = super::simulate::new_result();
    results::record(&outcome, &mut result);
    point.label(&mut result);
    result.write(path)?;
    output::print(&format!("{} of {total}: {}\n", point.index + 1, path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_read() {
        assert_eq!(parse_shard("3/16"), Ok((3, 16)));
        assert!(parse_shard("4/4").is_err() && parse_shard("4").is_err());
    }
}
