//! `apus sim sweep`: a grid of simulations, in shards, resumable.

use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_sim::{results, sweep};

use crate::failure::Misuse;
use crate::output;

/// Runs every combination of a plan's [sweep] values; a point whose file exists is not run again
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim sweep plans/sim-priorities.toml --dir results
  apus sim sweep plans/sim-priorities.toml --dir results --shard 3/16
  apus report results/*.json --html priorities.html

The same command with a shard each runs as an array job; see deploy/.")]
pub(crate) struct Args {
    /// A plan with a [sweep] table
    #[arg(value_name = "PLAN.toml")]
    plan: PathBuf,
    /// Where the results go, one file a point
    #[arg(long, value_name = "DIR", default_value = "results")]
    dir: PathBuf,
    /// Which part of the points: I of N, I from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = parse_shard)]
    shard: (usize, usize),
}

fn parse_shard(text: &str) -> Result<(usize, usize), String> {
    let error = || format!("`{text}` is no shard such as 0/4");
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
    let points = sweep::points(&super::read(&args.plan)?)
        .map_err(|error| Misuse(format!("`{}`: {error}", args.plan.display())))?;
    let (shard, shards) = args.shard;
    let total = points.len();
    std::fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot make `{}`", args.dir.display()))?;
    for point in sweep::of_shard(points, shard, shards) {
        let path = args.dir.join(format!("{:05}.json", point.index));
        if path.exists() {
            continue;
        }
        let mut result = super::new_result();
        results::record(&super::simulate(&point.plan)?, &mut result);
        result.write(&path)?;
        output::print(&format!("{} of {total}: {}\n", point.index + 1, path.display()))?;
    }
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
