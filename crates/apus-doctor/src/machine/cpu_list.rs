//! CPUs in the kernel's notation: lists as `0-3,8`, masks as `ff,00000003`.

use std::collections::BTreeSet;

/// The CPUs of a list; empty if the text is not a list, or names an absurd number.
pub(super) fn of_list(text: &str) -> BTreeSet<usize> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(CPUS_MAX))
    });
    ranges.flatten().collect()
}

/// The CPUs of a mask in groups of 32 bits, the highest first.
pub(super) fn of_mask(text: &str) -> BTreeSet<usize> {
    let words = text.trim().rsplit(',').enumerate();
    let bits = words.flat_map(|(place, word)| {
        let word = u32::from_str_radix(word, 16).unwrap_or(0);
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * place + bit)
    });
    bits.collect()
}

/// The list in the kernel's notation.
pub(super) fn text(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let ranges = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    ranges.collect::<Vec<_>>().join(",")
}

/// Upper bound on the CPUs of any kernel.
const CPUS_MAX: usize = 8_192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_are_read() {
        assert_eq!(of_list("0-2,8\n"), [0, 1, 2, 8].into());
        assert_eq!(of_list(""), [].into());
        assert_eq!(of_list("0-99999999999").len(), CPUS_MAX + 1);
        assert_eq!(of_mask("1,00000003"), [0, 1, 32].into());
        assert_eq!(of_mask("0"), [].into());
        assert_eq!(text(&[0, 1, 2, 8].into()), "0-2,8");
    }
}
