//! Fewer steps of a program that still shows a difference.

use anyhow::Result;

/// Drops steps in blocks whose size halves, as long as the rest differs. `differs` takes the dropped steps. Ends early when the time
/// is over. Returns the dropped steps.
pub(super) fn shrunk(
    steps: u64,
    differs: impl Fn(&[u64]) -> Result<bool>,
    is_over: impl Fn() -> bool,
) -> Result<Vec<u64>> {
    let mut dropped = Vec::new();
    let mut kept: Vec<u64> = (0..steps).collect();
    let mut size = kept.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < kept.len() {
            if is_over() {
                return Ok(dropped);
            }
            let block = at..kept.len().min(at + size);
            let candidate: Vec<u64> = [&dropped[..], &kept[block.clone()]].concat();
            if differs(&candidate)? {
                dropped = candidate;
                kept.drain(block);
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    Ok(dropped)
}

/// The number of the first step in the output of `diff`: its lines begin with `<` or `>` and the number of their step.
pub(super) fn first_difference(diff: &str) -> Option<u64> {
    diff.lines().find_map(|line| {
        let line = line.strip_prefix("< ").or_else(|| line.strip_prefix("> "))?;
        line.split_once(' ')?.0.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_of_two_steps_keeps_these_two() {
        let needs = |dropped: &[u64]| Ok(!dropped.contains(&3) && !dropped.contains(&11));
        let mut dropped = shrunk(16, needs, || false).unwrap();
        dropped.sort_unstable();
        assert_eq!(dropped, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15]);
        let never = |_: &[u64]| Ok(false);
        assert!(shrunk(16, never, || false).unwrap().is_empty());
        assert!(shrunk(16, needs, || true).unwrap().is_empty(), "there is no time");
    }

    #[test]
    fn the_first_step_of_a_diff_is_that_of_its_first_line() {
        let diff = "3c3\n< 38 recv = 5\n---\n> 38 recv = 4\n> 39 poll = 1\n";
        assert_eq!(first_difference(diff), Some(38));
        assert_eq!(first_difference("9a10\n> status 124\n"), None);
        assert_eq!(first_difference(""), None);
    }
}
