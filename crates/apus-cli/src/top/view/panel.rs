//! More about one process.

use apus_load::report::with_unit;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget};

use super::text::{Look, bar, wrapped};
use crate::top::column::{figure, state};
use crate::top::recorded::Recorded;
use crate::top::row::Row;
use crate::top::sample::RECORDED_FOR;

/// The lines of the panel.
pub(super) struct Panel {
    head: Vec<Line<'static>>,
    counters: Vec<Line<'static>>,
    by_length: Vec<Line<'static>>,
    by_priority: Vec<Line<'static>>,
    peers: Vec<Line<'static>>,
    is_wide: bool,
}

impl Panel {
    pub(super) fn of(row: &Row, look: Look, width: u16) -> Self {
        let is_wide = width >= WIDE;
        let [_, middle, right] = widths(width);
        let last = if is_wide { right } else { middle };
        Self {
            head: head(row, look, width),
            counters: counters(row, look),
            by_length: by_length(row, look, middle),
            by_priority: by_priority(row, look, last),
            peers: peers(row, look, last),
            is_wide,
        }
    }

    /// Lines that it needs to show everything.
    pub(super) fn height(&self) -> u16 {
        let beside = if self.is_wide {
            self.by_length.len().max(self.by_priority.len() + self.peers.len())
        } else {
            self.by_length.len() + self.by_priority.len() + self.peers.len()
        };
        let height = self.head.len() + self.counters.len().max(beside);
        u16::try_from(height).unwrap_or(u16::MAX)
    }

    /// Draws as much as there is room for.
    pub(super) fn draw(mut self, area: Rect, buffer: &mut Buffer) {
        let head_height = u16::try_from(self.head.len()).unwrap_or(u16::MAX);
        let [head, body] =
            Layout::vertical([Constraint::Max(head_height), Constraint::Fill(1)]).areas(area);
        Paragraph::new(self.head).render(head, buffer);
        let [left, middle, right] = widths(area.width);
        let at = |x: u16, width| {
            Rect { x: (body.x + x).min(body.right()), width, ..body }.intersection(body)
        };
        let [left, middle, right] =
            [at(0, left), at(left + GAP, middle), at(left + middle + 2 * GAP, right)];
        let height = usize::from(body.height);
        let draw = |lines, area, buffer: &mut Buffer| Paragraph::new(lines).render(area, buffer);
        draw(fitting(self.counters, height), left, buffer);
        self.by_priority.append(&mut self.peers);
        if self.is_wide {
            draw(fitting(self.by_length, height), middle, buffer);
            draw(fitting(self.by_priority, height), right, buffer);
        } else {
            let room = height.saturating_sub(self.by_priority.len()).max(height / 2);
            let mut lines = fitting(self.by_length, room);
            lines.extend(self.by_priority);
            draw(fitting(lines, height), middle, buffer);
        }
    }
}

/// Columns of the three parts; the third is empty on narrow terminals.
fn widths(width: u16) -> [u16; 3] {
    let rest = width.saturating_sub(COUNTERS + GAP);
    if width < WIDE {
        return [COUNTERS.min(width), rest, 0];
    }
    let right = (rest - GAP) * 2 / 5;
    [COUNTERS, rest - GAP - right, right]
}

/// The first of some lines, and how many more there are.
fn fitting(mut lines: Vec<Line<'static>>, height: usize) -> Vec<Line<'static>> {
    if lines.len() > height {
        let left_out = lines.len() - height.saturating_sub(1);
        lines.truncate(height.saturating_sub(1));
        lines.push(Line::raw(format!("… and {left_out} more")));
    }
    lines
}

fn head(row: &Row, look: Look, width: u16) -> Vec<Line<'static>> {
    let (pid, ..) = row.identity;
    let title = format!("{} (pid {pid})", row.program);
    let mut about = format!(" · Apus {} · {}", row.version, state(row));
    if let Some(user) = &row.user {
        about += &format!(" · user {user}");
    }
    let mut lines = vec![
        Line::default(),
        Line::from(vec![Span::styled(title, look.strong()), Span::raw(about)]),
    ];
    lines.extend(wrapped(&delivery(row), width.into()).into_iter().map(Line::raw));
    if let Some(recorded) = row.recorded.as_ref().filter(|it| it.calls > 0) {
        lines.extend(wrapped(&latency(recorded), width.into()).into_iter().map(Line::raw));
    }
    for warning in &row.warnings {
        let text = wrapped(&format!("warning: {warning}"), width.into());
        lines.extend(text.into_iter().map(|line| Line::styled(line, look.warning())));
    }
    lines.push(Line::default());
    lines
}

fn delivery(row: &Row) -> String {
    let Some(rates) = &row.rates else { return "no rates".to_owned() };
    let waits = rates.polling.map_or_else(
        || "no wait of a thread ended".to_owned(),
        |polling| {
            let polling = (polling * 100.0).round();
            format!("waiting threads polled {polling:.0} % and slept {:.0} %", 100.0 - polling)
        },
    );
    let handoffs = rates.handoffs.map_or_else(
        || "no messages".to_owned(),
        |handoffs| format!("{handoffs:.2} wake-ups per message"),
    );
    format!("{waits} · {handoffs}")
}

fn latency(recorded: &Recorded) -> String {
    let [p50, p99] =
        [recorded.p50, recorded.p99].map(|time| with_unit("latency_us", time.as_secs_f64() * 1e6));
    let calls = match recorded.calls {
        1 => "1 recorded call".to_owned(),
        calls => format!("{calls} recorded calls"),
    };
    format!("p50 {p50} · p99 {p99} of {calls} in {} s", RECORDED_FOR.as_secs())
}

fn counters(row: &Row, look: Look) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(format!("{:<35}{:>8}", "counter", "per s"), look.strong())];
    let shown = row.most_active.iter().take(COUNTERS_MAX);
    lines.extend(shown.map(|(name, rate)| Line::raw(format!("{name:<35}{:>8}", figure(*rate)))));
    if row.most_active.is_empty() {
        lines.push(Line::raw("all counters are zero"));
    }
    lines
}

fn by_length(row: &Row, look: Look, width: u16) -> Vec<Line<'static>> {
    let heading = format!("{:<12}{:>8}{:>8}", "message B/s", "in", "out");
    let mut lines = vec![Line::styled(heading, look.strong())];
    let most = row.by_length.iter().map(|it| it.received + it.sent).fold(0.0, f64::max);
    for it in &row.by_length {
        let (received, sent) = (figure(it.received), figure(it.sent));
        let text = format!("{:<12}{received:>8}{sent:>8} ", it.label);
        lines.push(with_bar(text, (it.received + it.sent) / most, look, width));
    }
    if row.by_length.is_empty() {
        lines.push(Line::raw("no complete message"));
    }
    lines
}

/// Nothing if no packet was sent: messages through shared memory have no packets.
fn by_priority(row: &Row, look: Look, width: u16) -> Vec<Line<'static>> {
    if row.by_priority.is_empty() {
        return Vec::new();
    }
    let mut lines =
        vec![Line::styled(format!("{:<12}{:>8}", "priority B/s", "out"), look.strong())];
    let most = row.by_priority.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    for (level, rate) in &row.by_priority {
        let text = format!("{:<12}{:>8} ", format!("priority {level}"), figure(*rate));
        lines.push(with_bar(text, rate / most, look, width));
    }
    lines
}

/// The peers of recorded calls. Counters do not distinguish peers.
fn peers(row: &Row, look: Look, width: u16) -> Vec<Line<'static>> {
    let peers = row.recorded.as_ref().map_or(&[][..], |recorded| &recorded.peers);
    let Some(most) = peers.iter().map(|peer| peer.bytes).max() else { return Vec::new() };
    let mut lines = vec![Line::styled(format!("{:<12}{:>8}", "recorded B", "both"), look.strong())];
    for peer in peers.iter().take(PEERS_MAX) {
        let name = format!("pair {:x}", peer.pair);
        let text = format!("{name:<12}{:>8} ", figure(peer.bytes as f64));
        lines.push(with_bar(text, peer.bytes as f64 / most.max(1) as f64, look, width));
    }
    lines
}

fn with_bar(text: String, share: f64, look: Look, width: u16) -> Line<'static> {
    let room = usize::from(width).saturating_sub(text.chars().count());
    Line::from(vec![Span::raw(text), Span::styled(bar(share, room), look.bar())])
}

/// Columns for counters: the longest name, and a figure.
const COUNTERS: u16 = 43;

/// Columns between the parts.
const GAP: u16 = 2;

/// From this width on, bytes by priority stand beside bytes by length.
const WIDE: u16 = 110;

/// Most peers that are shown.
const PEERS_MAX: usize = 8;

/// Most counters that are shown.
const COUNTERS_MAX: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_counter_has_room() {
        let name = |it: &apus_metrics::Metric| it.group.len() + 1 + it.name.len();
        let longest = apus_metrics::metrics().map(name).max();
        assert!(longest < Some(36), "{longest:?}");
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let lines: Vec<_> = ["a", "b", "c"].map(Line::raw).into();
        assert_eq!(fitting(lines.clone(), 3), lines);
        assert_eq!(fitting(lines, 2), [Line::raw("a"), Line::raw("… and 2 more")]);
    }
}
