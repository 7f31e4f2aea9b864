//! Records of runs of seeds: files with lines that begin with `seeds FIRST to LAST,`.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::output;

/// The last seed of the last line.
pub(crate) fn last_seed(record: &str) -> Option<u64> {
    record.lines().rev().find_map(|line| {
        line.strip_prefix("seeds ")?.split_once(" to ")?.1.split_once(',')?.0.parse().ok()
    })
}

/// Prints a line, and appends it to a record.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn append(path: &str, line: &str) -> Result<()> {
    println!("{line}");
    let file = File::options().append(true).create(true).open(Path::new(path));
    writeln!(file.context(path.to_owned())?, "{line}").context(path.to_owned())
}

/// The date of today, as in records.
///
/// # Errors
/// If `date` cannot be started.
pub(crate) fn today() -> Result<String> {
    output(Command::new("date").arg("-I"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_with_seeds_counts() {
        assert_eq!(last_seed(""), None);
        assert_eq!(
            last_seed("seeds 1 to 2000010, 9\nseeds 1 to 1000009, 9\nnote\n"),
            Some(1_000_009)
        );
        let differ = include_str!("../../docs/measurements/sockets-differ.txt");
        let checker = include_str!("../../docs/measurements/sockets-checker.txt");
        assert!(last_seed(differ) > Some(1_000_000) && last_seed(checker) > Some(500_000));
    }
}
