//! The terms that a page explains.

use maud::{Markup, html};

use super::conventions::Conventions;
use super::table::Table;

/// Terms of any report: how they are written, and what they mean.
const TERMS: &[(&str, &str)] = &[
    ("p50", "The median: half of the calls took at most this long."),
    ("p95", "95 of 100 calls took at most this long."),
    ("p99", "The 99th percentile: 99 of 100 calls took at most this long."),
    ("p99.9", "999 of 1,000 calls took at most this long."),
    (
        "±",
        "How far the runs lie apart: half the distance between their quartiles, in percent of the median.",
    ),
    (
        "runs disagree",
        "The medians say one thing and the runs, taken one by one, the opposite; so no direction is stated.",
    ),
    ("reference", "The best of the rivals, which the other lines are compared with."),
    (
        "floor",
        "Does less than a transport must, and so shows what is possible at best. It is never marked as best.",
    ),
    (
        "refused",
        "The machine or the load generator was too busy, so the figure says nothing of the transport.",
    ),
    ("goodput", "Bytes of messages a second, without headers and repeats."),
    ("outstanding", "Calls or messages that are under way at the same time."),
    (
        "late",
        "Share of the calls that the load generator started more than 50 µs after their time.",
    ),
    ("slowdown", "Time of a call divided by the time that it takes on an idle network."),
    ("s50", "Median of the slowdown."),
    ("s99", "99th percentile of the slowdown."),
    (
        "pin",
        "Which CPUs the two sides ran on: split is one each, same is one for both, none leaves it to the system.",
    ),
];

/// The terms that some tables use.
pub(super) struct Glossary {
    terms: Vec<(&'static str, &'static str)>,
}

impl Glossary {
    /// Of all terms known, those in the titles, headings, names and notes of `tables`.
    pub(super) fn of<'a>(
        tables: impl Iterator<Item = &'a Table>,
        conventions: &Conventions,
    ) -> Self {
        let mut text = String::new();
        for table in tables {
            let heads = table.heads.iter().map(|head| head.text.as_str());
            let names = table.heads.iter().enumerate().filter(|(place, head)| {
                *place == 0 || !head.right || *place + 1 == table.heads.len()
            });
            let entries = names.flat_map(|(place, _)| {
                table.lines.iter().map(move |line| line[place].text.as_str())
            });
            for part in [&table.title, &table.note].into_iter().map(String::as_str) {
                text += &format!(" {}", spaced(part));
            }
            heads.chain(entries).for_each(|part| text += &spaced(part));
        }
        let known = conventions.terms.iter().chain(TERMS);
        let used = known.filter(|(term, _)| text.contains(&format!(" {term} ")));
        Self { terms: used.copied().collect() }
    }

    /// Terms and meanings.
    pub(super) fn terms(&self) -> &[(&'static str, &'static str)] {
        &self.terms
    }

    /// A heading in which a term shows its meaning.
    pub(super) fn mark(&self, heading: &str) -> Markup {
        let meaning = |word: &str| self.terms.iter().find(|(term, _)| *term == word);
        html! {
            @for (place, word) in heading.split(' ').enumerate() {
                @if place > 0 { " " }
                @if let Some((_, meaning)) = meaning(word) { abbr title=(meaning) { (word) } }
                @else { (word) }
            }
        }
    }
}

/// Words with a space on both sides; marks between words are spaces.
fn spaced(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "-.±".contains(c);
    let text: String = text.chars().map(|c| if is_part(c) { c } else { ' ' }).collect();
    format!(" {text} ")
}
