//! Tables for a terminal.

use std::env;
use std::io::{self, IsTerminal};

use comfy_table::{
    Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, TableComponent, Width,
    presets,
};
use unicode_width::UnicodeWidthStr;

use crate::result::ResultFile;

use super::conventions::Conventions;
use super::group::tables;
use super::table::{Table, TableCell};
use super::warnings::by_kind;

/// Upper bound on the width of tables and texts, in columns of the terminal.
pub const WIDTH: usize = 80;

/// Length above which texts may be wrapped.
const PROSE_MIN: usize = 24;

/// Whether to use bold, and whether to show all columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    bold: bool,
    wide: bool,
}

impl Style {
    /// Plain text, for files and pipes.
    pub const PLAIN: Self = Self { bold: false, wide: false };

    /// Headings and best values in bold.
    pub const BOLD: Self = Self { bold: true, wide: false };

    /// Bold if standard output is a capable terminal and `NO_COLOR` is not set (<https://no-color.org>).
    #[must_use]
    pub fn for_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { bold: io::stdout().is_terminal() && !refused && !dumb, wide: false }
    }

    /// With all columns at any width of the table, and without wrapped texts.
    #[must_use]
    pub fn wide(self, wide: bool) -> Self {
        Self { wide, ..self }
    }

    fn strong(self, text: &str) -> String {
        if self.bold { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The whole result as text: command and machine, a table for each set of comparable rows, and warnings, one for each kind. Ends
/// with a newline. Control characters in the data are replaced, so that a result file cannot control a terminal.
#[must_use]
pub fn text(result: &ResultFile, conventions: &Conventions, style: Style) -> String {
    let mut text = style.strong(&clean(&result.command)) + "\n";
    text += &wrapped("", &format!("{} · {}", result.machine, result.started), style);
    for table in tables(result, conventions) {
        text += "\n";
        text += &table.text(style);
    }
    text + &warnings(result, style)
}

/// The warnings of a run, below an empty line. Empty without warnings.
fn warnings(result: &ResultFile, style: Style) -> String {
    list_warnings(result, style, |text| wrapped("  !", text, style))
}

/// The warnings of a run, below an empty line: each in one line of at most [`WIDTH`] columns, cut between words if longer. Empty
/// without warnings.
#[must_use]
pub fn short_warnings(result: &ResultFile, style: Style) -> String {
    list_warnings(result, style, |text| format!("  ! {}\n", cut(&clean(text), WIDTH - 4)))
}

fn list_warnings(result: &ResultFile, style: Style, show: impl Fn(&str) -> String) -> String {
    if result.warnings.is_empty() {
        return String::new();
    }
    let one = |(kind, texts): (String, Vec<&str>)| match texts[..] {
        [text] => show(text),
        _ => show(&format!("{} × {kind}", texts.len())),
    };
    let list: String = by_kind(&result.warnings).into_iter().map(one).collect();
    format!("\n{}\n{list}", style.strong("Warnings for this run"))
}

/// The first words of a text that fit `width` columns, followed by an ellipsis if any are left out.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for word in text.split(' ') {
        if shown.width() + word.width() + 2 > width {
            break;
        }
        shown += word;
        shown.push(' ');
    }
    shown.trim_end().to_owned() + "…"
}

impl Table {
    /// The table as text, at most [`WIDTH`] columns wide unless the style is [wide](Style::wide): headings and long texts are
    /// wrapped, and columns that do not fit are left out and named in the last line. Ends with a newline.
    #[must_use]
    pub fn text(&self, style: Style) -> String {
        let shown = self.columns_that_fit(if style.wide { usize::MAX } else { WIDTH });
        let mut drawn = layout(style);
        drawn.set_header(shown.iter().map(|&place| cell(&self.heads[place].text)));
        for line in &self.lines {
            drawn.add_row(shown.iter().map(|&place| {
                let cell = cell(&line[place].text);
                if line[place].best { cell.add_attribute(Attribute::Bold) } else { cell }
            }));
        }
        for (column, &place) in drawn.column_iter_mut().zip(&shown) {
            let head = &self.heads[place];
            column.set_padding((0, 1));
            if head.right {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if !style.wide {
                let width = self.narrowest(place) as u16 + 1;
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
            }
        }
        let mut text = drawn.to_string() + "\n";
        if !self.title.is_empty() {
            text.insert_str(0, &(style.strong(&clean(&self.title)) + "\n"));
        }
        text += &wrapped("", &self.note, style);
        let left_out = self.heads.iter().enumerate().filter(|(place, _)| !shown.contains(place));
        let left_out: Vec<&str> = left_out.map(|(_, head)| head.text.as_str()).collect();
        if !left_out.is_empty() {
            text += &wrapped("", &format!("more with --wide: {}", left_out.join(", ")), style);
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Leaves out columns until the others fit: first columns of zeros and missing values, then the last ones.
    fn columns_that_fit(&self, width: usize) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.heads.len()).collect();
        let is_nothing = |text: &str| matches!(text, "0" | "—" | "");
        let is_empty = |place: usize| self.lines.iter().all(|line| is_nothing(&line[place].text));
        while shown.iter().map(|&place| self.narrowest(place) + 2).sum::<usize>()
            > width.saturating_add(1)
        {
            let may_go = |place: &&usize| !self.heads[**place].kept;
            let empty = shown.iter().filter(may_go).rfind(|place| is_empty(**place));
            let Some(&out) = empty.or_else(|| shown.iter().rfind(may_go)) else { break };
            shown.retain(|&place| place != out);
        }
        shown
    }

    /// The least width of a column: headings and prose are wrapped between words.
    fn narrowest(&self, place: usize) -> usize {
        let longest_word = |text: &str| text.split(' ').map(str::width).max().unwrap_or(0);
        let entries = self.lines.iter().map(|line| &line[place].text);
        let widest = if self.is_prose(place) {
            entries.map(|text| text.width().min(PROSE_MIN).max(longest_word(text))).max()
        } else {
            entries.map(|text| text.width()).max()
        };
        widest.unwrap_or(0).max(longest_word(&self.heads[place].text))
    }

    /// Whether a column has texts that may be wrapped.
    fn is_prose(&self, place: usize) -> bool {
        let is_long = |line: &Vec<TableCell>| line[place].text.width() > PROSE_MIN;
        !self.heads[place].right && self.lines.iter().any(is_long)
    }
}

/// A text on one or several lines, each behind `margin` and a space, or as many spaces. Empty for an empty text.
fn wrapped(margin: &str, text: &str, style: Style) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut drawn = layout(style);
    drawn.add_row([margin, text].into_iter().filter(|text| !text.is_empty()).map(cell));
    for column in drawn.column_iter_mut() {
        column.set_padding((0, 0));
    }
    drawn.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// An empty table without a frame, with a rule below the headings.
fn layout(style: Style) -> comfy_table::Table {
    let mut drawn = comfy_table::Table::new();
    drawn.load_preset(presets::NOTHING).set_style(TableComponent::VerticalLines, ' ');
    drawn.set_style(TableComponent::HeaderLines, '─');
    drawn.set_style(TableComponent::MiddleHeaderIntersections, ' ');
    if style.bold {
        drawn.enforce_styling();
    } else {
        drawn.force_no_tty();
    }
    if !style.wide {
        drawn.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    }
    drawn
}

fn cell(text: &str) -> Cell {
    Cell::new(clean(text))
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
        let wanted = "apus bench rtt --runs 2
AMD EPYC · 2 cores · 2026-11-20T18:40:00Z

rtt · 100 B
transport        p50 µs    ±  p50 against tcp-busy
──────────────── ─────── ──── ─────────────────────
apus-udp           4.90  0 %           1.3× faster
tcp-busy           6.60  0 %             reference
raw-udp (floor)    4.30  0 %           1.5× faster
medians of 2 runs, ± half the distance between quartiles, ratios of the medians

stream · 8 outstanding
transport        goodput Gb/s    ±  goodput against tcp-busy
──────────────── ───────────── ──── ─────────────────────────
apus-udp                   40  0 %                 1.5× less
tcp-busy                   60  0 %                 reference
raw-udp (floor)            50  0 %                 1.2× less
medians of 2 runs, ± half the distance between quartiles, ratios of the medians

Warnings for this run
  ! the generator was late
";
        assert_eq!(text(&sample::result(), &sample::CONVENTIONS, Style::PLAIN), wanted);
    }

    #[test]
    fn bold_marks_the_best_and_moves_nothing() {
        let bold = text(&sample::result(), &sample::CONVENTIONS, Style::BOLD);
        assert!(bold.contains("\x1b[1m  4.90") && !bold.contains("\x1b[1m  4.30"), "{bold}");
        let stripped = bold.replace("\x1b[1m", "").replace("\x1b[0m", "");
        let lines = stripped.lines().map(str::trim_end);
        let plain = text(&sample::result(), &sample::CONVENTIONS, Style::PLAIN);
        assert!(lines.eq(plain.lines()), "{stripped}");
    }

    #[test]
    fn columns_that_do_not_fit_are_named() {
        let heads: Vec<String> = (0..12).map(|n| format!("figure {n} of all")).collect();
        let heads: Vec<(&str, bool)> =
            [("name", false)].into_iter().chain(heads.iter().map(|h| (&h[..], true))).collect();
        let line = |name: &str| {
            let figures = (0..12).map(|n| if n == 3 { "0".into() } else { format!("{n}23456789") });
            [name.to_owned()].into_iter().chain(figures).collect::<Vec<String>>()
        };
        let prose = "a name of many words that is wrapped between them";
        let table = Table::of_texts("title", "", &heads, [line("short"), line(prose)]);
        let narrow = table.text(Style::PLAIN);
        assert!(narrow.lines().all(|line| line.width() <= WIDTH), "{narrow}");
        let (drawn, more) = narrow.split_once("more with --wide: ").unwrap();
        assert!(more.starts_with("figure 3 of all, figure"), "empty columns go first: {more}");
        let shown = drawn.lines().filter(|line| line.contains("023456789")).count();
        assert_eq!(shown, 2, "{drawn}");
        assert!(narrow.contains("a name of many words") && narrow.contains("wrapped"), "{narrow}");
        let wide = table.text(Style::PLAIN.wide(true));
        assert!(!wide.contains("--wide") && wide.contains(prose), "{wide}");
        assert_eq!(wide.lines().count(), 5, "{wide}");
    }

    #[test]
    fn a_short_warning_takes_one_line() {
        let mut result = sample::result();
        result.warnings = vec!["words ".repeat(30), "one \n two".to_owned()];
        let text = short_warnings(&result, Style::PLAIN);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].ends_with("words…") && lines[0].width() <= WIDTH, "{text}");
        assert_eq!(lines[1..], ["  ! one \u{fffd} two"]);
        result.warnings = vec!["a: late by 1.5 %".to_owned(), "b: late by 20 %".to_owned()];
        let text = short_warnings(&result, Style::PLAIN);
        assert!(text.ends_with("\n  ! 2 × late by … %\n"), "one line for a kind: {text}");
        result.warnings.clear();
        assert_eq!(short_warnings(&result, Style::PLAIN), "");
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
