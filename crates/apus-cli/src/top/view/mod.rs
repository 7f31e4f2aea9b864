//! Draws the model.
//!
//! | file | |
//! |---|---|
//! | `table` | one line for each process |
//! | `panel` | more about the selected process |
//! | `help` | the keys and the columns |
//! | `text` | styles, wrapped lines, bars |

mod help;
mod panel;
mod table;
#[cfg(test)]
mod tests;
mod text;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

use super::column::figure;
use super::model::Model;
use panel::Panel;
pub(super) use text::Look;
use text::wrapped;

/// Draws the whole screen.
pub(super) fn draw(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    let trouble = model.trouble.as_deref().map(|why| wrapped(why, area.width.into()));
    let trouble = trouble.unwrap_or_default();
    let trouble_height = u16::try_from(trouble.len()).unwrap_or(u16::MAX).min(area.height / 4);
    let [head, body, status, keys] = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Fill(1),
        Constraint::Length(trouble_height),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(model, look, head, buffer);
    if model.is_help_open {
        Paragraph::new(help::lines(look)).render(body, buffer);
    } else {
        draw_body(model, look, body, buffer);
    }
    let trouble = trouble.into_iter().map(|line| Line::styled(line, look.trouble()));
    Paragraph::new(trouble.collect::<Vec<_>>()).render(status, buffer);
    key_line(model, look).render(keys, buffer);
}

/// The screen as text of this width, as long as it needs to be.
pub(super) fn text(model: &Model, width: u16) -> String {
    let look = Look::PLAIN;
    let body = body_heights(model, width);
    let height = (HEAD + body.table).saturating_add(body.below).min(TEXT_HEIGHT_MAX);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    let [head, body] =
        Layout::vertical([Constraint::Length(HEAD), Constraint::Fill(1)]).areas(area);
    draw_head(model, look, head, &mut buffer);
    draw_body(model, look, body, &mut buffer);
    let symbol = |x, y| buffer[(x, y)].symbol();
    let lines = (0..height).map(|y| (0..width).map(|x| symbol(x, y)).collect::<String>());
    let text: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
    text.join("\n").trim_end().to_owned() + "\n"
}

/// Two lines about the host, and an empty one.
fn draw_head(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    let host = &model.host;
    let mut parts = vec![Span::styled("apus top", look.strong())];
    if model.is_paused {
        parts.push(Span::raw(" "));
        parts.push(Span::styled("PAUSED", look.warning()));
    }
    let mut first = format!(" every {}", humantime::format_duration(model.interval));
    if let Some(cpus) = host.cpus {
        first += &format!(" · {}", count(cpus, "CPU", "CPUs"));
    }
    if let Some(busy) = host.busy {
        first += &format!(" {:.0} % busy", busy * 100.0);
    }
    if let Some([one, five, fifteen]) = host.load {
        first += &format!(" · load {one:.2} {five:.2} {fifteen:.2}");
    }
    first += &format!(" · {}", count(host.processes, "process", "processes"));
    parts.push(Span::raw(first));
    let mut lines = vec![Line::from(parts)];
    if let Some(rates) = host.rates {
        let figures = [
            ("calls/s", rates.calls),
            ("requests/s", rates.requests),
            ("Mbit/s in", rates.mbit_in),
            ("out", rates.mbit_out),
            ("drops/s", rates.drops),
        ];
        let mut parts = Vec::new();
        for (name, value) in figures {
            parts.push(Span::raw(format!("{name} ")));
            parts.push(Span::styled(figure(value), look.strong()));
            parts.push(Span::raw("   "));
        }
        lines.push(Line::from(parts));
    }
    Paragraph::new(lines).render(area, buffer);
}

/// The table, and below it the panel, or warnings of all processes.
fn draw_body(model: &Model, look: Look, area: Rect, buffer: &mut Buffer) {
    if model.rows.is_empty() {
        return Line::raw("No process publishes counters.").render(area, buffer);
    }
    let needed = body_heights(model, area.width);
    let table_height = if needed.table.saturating_add(needed.below) <= area.height {
        needed.table
    } else if model.is_panel_open {
        needed.table.min((area.height / 3).max(TABLE_MIN))
    } else {
        needed.table.min(area.height.saturating_sub(needed.below.min(area.height / 3)))
    };
    let [table, below] =
        Layout::vertical([Constraint::Length(table_height), Constraint::Fill(1)]).areas(area);
    table::draw(model, look, table, buffer);
    match model.selected_row().filter(|_| model.is_panel_open) {
        Some(row) => Panel::of(row, look, below.width).draw(below, buffer),
        None => Paragraph::new(warnings(model, look, below.width)).render(below, buffer),
    }
}

/// Lines that the parts of the body need to show everything.
struct BodyHeights {
    table: u16,
    below: u16,
}

fn body_heights(model: &Model, width: u16) -> BodyHeights {
    let height = |lines: usize| u16::try_from(lines).unwrap_or(u16::MAX);
    let below = match model.selected_row().filter(|_| model.is_panel_open) {
        Some(row) => Panel::of(row, Look::PLAIN, width).height(),
        None => height(warnings(model, Look::PLAIN, width).len()),
    };
    BodyHeights { table: height(model.rows.len().max(1)).saturating_add(1), below }
}

/// Warnings of all processes, below an empty line.
fn warnings(model: &Model, look: Look, width: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for row in &model.rows {
        for warning in &row.warnings {
            let text = format!("warning: {}: {warning}", row.identity.0);
            let text = wrapped(&text, width.into()).into_iter();
            lines.extend(text.map(|line| Line::styled(line, look.warning())));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, Line::default());
    }
    lines
}

fn key_line(model: &Model, look: Look) -> Line<'static> {
    let sort = format!("sort: {}", model.sort.heading());
    let panel = if model.is_panel_open { "close" } else { "open" };
    let keys: [(&str, &str); 7] = [
        ("q", "quit"),
        ("↑↓", "select"),
        ("Enter", panel),
        ("s", &sort),
        ("p", "pause"),
        ("+/-", "interval"),
        ("?", "help"),
    ];
    let mut parts = Vec::new();
    for (place, (key, does)) in keys.into_iter().enumerate() {
        parts.push(Span::raw(if place == 0 { "" } else { "  " }));
        parts.push(Span::styled(key.to_owned(), look.strong()));
        parts.push(Span::raw(format!(" {does}")));
    }
    Line::from(parts)
}

fn count(count: usize, one: &str, several: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {several}") }
}

/// Lines about the host.
const HEAD: u16 = 3;

/// Least lines of the table beside a panel: its heading, and some processes.
const TABLE_MIN: u16 = 4;

/// Most lines of the text.
const TEXT_HEIGHT_MAX: u16 = 500;

/// The narrowest text that has all columns.
pub(super) const TEXT_WIDTH: u16 = 80;
