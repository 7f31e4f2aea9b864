//! Terms that a page explains.

use maud::{Markup, html};

use super::conventions::Conventions;
use super::table::Table;

/// Terms of all reports.
const TERMS: &str = include_str!("terms.txt");

/// The terms that some tables use.
pub(super) struct Glossary {
    terms: Vec<(&'static str, &'static str)>,
}

impl Glossary {
    /// The known terms in the titles, headings, names and notes of `tables`.
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
        let lines = conventions.terms.lines().chain(TERMS.lines());
        let known = lines.filter_map(|line| line.split_once(": "));
        let used = known.filter(|(term, _)| text.contains(&format!(" {term} ")));
        Self { terms: used.collect() }
    }

    /// Terms and meanings.
    pub(super) fn terms(&self) -> &[(&'static str, &'static str)] {
        &self.terms
    }

    /// A heading whose terms show their meanings.
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

/// Words with a space on both sides. Other characters become spaces.
fn spaced(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "-.±".contains(c);
    let text: String = text.chars().map(|c| if is_part(c) { c } else { ' ' }).collect();
    format!(" {text} ")
}
