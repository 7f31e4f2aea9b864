//! Tables for a terminal.

use std::env;
use std::io::{self, IsTerminal};

use crate::result::ResultFile;

use super::conventions::Conventions;
use super::group::tables;
use super::table::{Entry, Table};

/// Whether to use bold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    bold: bool,
}

impl Style {
    /// Plain text, for files and pipes.
    pub const PLAIN: Self = Self { bold: false };

    /// Headings and best values in bold.
    pub const BOLD: Self = Self { bold: true };

    /// Bold when standard output is a terminal that can, and `NO_COLOR` is not set (<https://no-color.org>).
    #[must_use]
    pub fn for_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { bold: io::stdout().is_terminal() && !refused && !dumb }
    }

    fn strong(self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The whole result as text that reads at a glance: command and machine, warnings, then a table for each set of
/// rows that can be compared. Ends with a newline. Control characters in the data are replaced, so that a
/// result file cannot take over a terminal.
#[must_use]
pub fn text(result: &ResultFile, conventions: &Conventions, style: Style) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(style.strong(&clean(&result.command)));
    line(clean(&format!("{} · {}", result.machine, result.started)));
    if !result.warnings.is_empty() {
        line(String::new());
        line(style.strong("What may be wrong with this run"));
        for warning in &result.warnings {
            line(format!("  ! {}", clean(warning)));
        }
    }
    for table in tables(result, conventions) {
        line(String::new());
        for text in lines_of(&table, style) {
            line(text);
        }
    }
    out
}

fn lines_of(table: &Table, style: Style) -> Vec<String> {
    let widths: Vec<usize> = table
        .heads
        .iter()
        .enumerate()
        .map(|(place, head)| {
            let entries = table.lines.iter().map(|line| width(&line[place].text));
            entries.chain([width(&head.text)]).max().unwrap_or(0)
        })
        .collect();
    let lay_out = |entries: &mut dyn Iterator<Item = Entry>| {
        let cells = entries.zip(&table.heads).zip(&widths).map(|((entry, head), width_wanted)| {
            let text = clean(&entry.text);
            let gap = " ".repeat(width_wanted - width(&entry.text));
            let text = if entry.best { style.strong(&text) } else { text };
            if head.right { gap + &text } else { text + &gap }
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    let mut lines = vec![style.strong(&clean(&table.title))];
    lines.push(lay_out(
        &mut table.heads.iter().map(|head| Entry { text: head.text.clone(), best: false }),
    ));
    lines.push(widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("  "));
    lines.extend(table.lines.iter().map(|line| lay_out(&mut line.iter().cloned())));
    if !table.note.is_empty() {
        lines.push(clean(&table.note));
    }
    lines
}

/// Places taken on the screen; everything reports write is one place wide, and [`clean`] keeps the number of
/// characters.
fn width(text: &str) -> usize {
    text.chars().count()
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use proptest::prelude::*;

    #[test]
    fn the_whole_text() {
        let wanted = "\
apus bench rtt --runs 2
AMD EPYC · 2 cores · 2026-11-20T18:40:00Z

What may be wrong with this run
  ! the generator was late

rtt · 100 B
transport        p50 µs    ±  p50 against tcp-busy
───────────────  ──────  ───  ────────────────────
apus-udp           4.90  0 %           1.3× faster
tcp-busy           6.60  0 %             reference
raw-udp (floor)    4.30  0 %           1.5× faster
medians of 2 runs, ± half the distance between quartiles, ratios of the medians

stream · 8 outstanding
transport        goodput Gb/s    ±  goodput against tcp-busy
───────────────  ────────────  ───  ────────────────────────
apus-udp                   40  0 %                 1.5× less
tcp-busy                   60  0 %                 reference
raw-udp (floor)            50  0 %                 1.2× less
medians of 2 runs, ± half the distance between quartiles, ratios of the medians
";
        assert_eq!(text(&sample::result(), &sample::CONVENTIONS, Style::PLAIN), wanted);
    }

    #[test]
    fn bold_marks_the_best_and_moves_nothing() {
        let bold = text(&sample::result(), &sample::CONVENTIONS, Style::BOLD);
        assert!(bold.contains("\x1b[1m4.90\x1b[0m") && !bold.contains("\x1b[1m4.30"), "{bold}");
        let stripped = bold.replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(stripped, text(&sample::result(), &sample::CONVENTIONS, Style::PLAIN));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = text(&sample::hostile(), &sample::CONVENTIONS, Style::PLAIN);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    }

    proptest! {
        #[test]
        fn any_result_has_a_text(result in sample::any_result()) {
            prop_assert!(text(&result, &sample::CONVENTIONS, Style::PLAIN).ends_with('\n'));
        }
    }
}
