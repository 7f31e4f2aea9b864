//! The columns of the table: their texts and their order.

use std::cmp::Ordering;

use super::row::{Liveness, Row};

/// A column of the table, in the order of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Pid,
    Program,
    User,
    Calls,
    Requests,
    MbitIn,
    MbitOut,
    Packets,
    Polling,
    Handoffs,
    Cpu,
    Drops,
    Warnings,
}

impl Column {
    pub(super) const ALL: [Self; 13] = [
        Self::Pid,
        Self::Program,
        Self::User,
        Self::Calls,
        Self::Requests,
        Self::MbitIn,
        Self::MbitOut,
        Self::Packets,
        Self::Polling,
        Self::Handoffs,
        Self::Cpu,
        Self::Drops,
        Self::Warnings,
    ];

    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::Program => "program",
            Self::User => "user",
            Self::Calls => "calls/s",
            Self::Requests => "requests/s",
            Self::MbitIn => "Mbit/s in",
            Self::MbitOut => "out",
            Self::Packets => "packets/s",
            Self::Polling => "poll/sleep",
            Self::Handoffs => "wakes/msg",
            Self::Cpu => "CPU %",
            Self::Drops => "drops/s",
            Self::Warnings => "warn",
        }
    }

    /// The explanation of the column in the help.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Pid => "process ID",
            Self::Program => "name of the program",
            Self::User => "user of the process",
            Self::Calls => "started calls",
            Self::Requests => "requests passed to the application",
            Self::MbitIn => "received from links and through shared memory",
            Self::MbitOut => "sent, likewise",
            Self::Packets => "Homa packets sent and received",
            Self::Polling => "shares of waiting time that threads polled and slept, in %",
            Self::Handoffs => "wake-ups per message: 0 if polling finds every message",
            Self::Cpu => "of one CPU",
            Self::Drops => "packets and datagrams that were dropped",
            Self::Warnings => "counters that should not move, in 10 intervals; Enter shows them",
        }
    }

    /// Least columns of the terminal that it takes.
    pub(super) fn width(self) -> u16 {
        match self {
            Self::Pid | Self::Calls | Self::Drops => 7,
            Self::Program => 10,
            Self::User | Self::MbitOut => 8,
            Self::Requests | Self::Polling => 10,
            Self::MbitIn | Self::Packets | Self::Handoffs => 9,
            Self::Cpu => 5,
            Self::Warnings => 4,
        }
    }

    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Program | Self::User)
    }

    /// The columns that fit into this width of the terminal, the most important ones first.
    pub(super) fn that_fit(width: u16) -> Vec<Self> {
        let mut left = width;
        let mut kept = Vec::new();
        for column in BY_IMPORTANCE {
            let needs = column.width() + u16::from(!kept.is_empty());
            if needs > left {
                break;
            }
            left -= needs;
            kept.push(column);
        }
        Self::ALL.into_iter().filter(|column| kept.contains(column)).collect()
    }

    /// The next one; the first follows the last.
    pub(super) fn next(self) -> Self {
        let mut following = Self::ALL.into_iter().cycle().skip_while(|it| *it != self).skip(1);
        following.next().expect("a cycle has no end")
    }

    /// The one before; the last is before the first.
    pub(super) fn previous(self) -> Self {
        let mut preceding =
            Self::ALL.into_iter().rev().cycle().skip_while(|it| *it != self).skip(1);
        preceding.next().expect("a cycle has no end")
    }

    /// The text of the column for a process.
    pub(super) fn text(self, row: &Row) -> String {
        let (pid, ..) = row.identity;
        match self {
            Self::Pid => return pid.to_string(),
            Self::Program => return row.program.clone(),
            Self::User => return row.user.clone().unwrap_or_else(|| "?".to_owned()),
            Self::Warnings => return count_or_empty(row.warnings.len()),
            Self::Calls if row.has_ended() => return "ended".to_owned(),
            _ => {}
        }
        match (self.value(row), self) {
            _ if row.has_ended() => String::new(),
            (None, _) => "-".to_owned(),
            (Some(value), Self::Polling) => {
                let polling = (value * 100.0).round();
                format!("{polling:.0}/{:.0}", 100.0 - polling)
            }
            (Some(value), Self::Handoffs) => format!("{value:.2}"),
            (Some(value), Self::Cpu) => format!("{:.0}", value * 100.0),
            (Some(value), _) => figure(value),
        }
    }

    /// Compares two processes by the column: the greatest number first, texts and pids in ascending order. Processes without a
    /// value come last.
    pub(super) fn compare(self, one: &Row, other: &Row) -> Ordering {
        let by_column = match self {
            Self::Pid => Ordering::Equal,
            Self::Program => one.program.cmp(&other.program),
            Self::User => one.user.cmp(&other.user),
            _ => {
                let value = |row| self.value(row).unwrap_or(-1.0);
                value(other).total_cmp(&value(one))
            }
        };
        by_column.then_with(|| one.identity.cmp(&other.identity))
    }

    /// The number that it shows; none where it is not known, and for texts.
    #[expect(clippy::cast_precision_loss, reason = "a handful of warnings")]
    fn value(self, row: &Row) -> Option<f64> {
        match self {
            Self::Pid | Self::Program | Self::User => None,
            Self::Cpu => row.cpu,
            Self::Warnings => Some(row.warnings.len() as f64),
            Self::Calls => Some(row.rates?.calls),
            Self::Requests => Some(row.rates?.requests),
            Self::MbitIn => Some(row.rates?.mbit_in),
            Self::MbitOut => Some(row.rates?.mbit_out),
            Self::Packets => Some(row.rates?.packets),
            Self::Polling => row.rates?.polling,
            Self::Handoffs => row.rates?.handoffs,
            Self::Drops => Some(row.rates?.drops),
        }
    }
}

/// A number of at most six characters: "0", "0.52", "12345", "1.23M".
pub(super) fn figure(value: f64) -> String {
    match value {
        value if value >= 999.5e6 => format!("{:.2}G", value / 1e9),
        value if value >= 999_999.5 => format!("{:.2}M", value / 1e6),
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value if value >= 0.005 => format!("{value:.2}"),
        _ => "0".to_owned(),
    }
}

/// The state of a process in words.
pub(super) fn state(row: &Row) -> &'static str {
    match row.state {
        Liveness::Runs => "runs",
        Liveness::Ended(_) => "ended",
        Liveness::OtherNamespace => "in another pid namespace",
    }
}

fn count_or_empty(count: usize) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

const BY_IMPORTANCE: [Column; 13] = [
    Column::Pid,
    Column::Program,
    Column::Calls,
    Column::Requests,
    Column::Cpu,
    Column::MbitIn,
    Column::MbitOut,
    Column::Warnings,
    Column::Drops,
    Column::Polling,
    Column::Packets,
    Column::Handoffs,
    Column::User,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        assert_eq!(Column::that_fit(27), [Column::Pid, Column::Program, Column::Calls]);
        assert_eq!(Column::that_fit(120), Column::ALL);
        assert_eq!(Column::that_fit(3), []);
        let all: u16 = Column::ALL.iter().map(|column| column.width() + 1).sum();
        assert!(all <= 121, "{all}");
    }

    #[test]
    fn figures_are_short() {
        let figures = [0.0, 0.004, 0.5, 9.99, 12.34, 99.96, 12_345.6, 999_999.4, 1_234_567.0, 2e9];
        let texts = figures.map(figure);
        let expected =
            ["0", "0", "0.50", "9.99", "12.3", "100", "12346", "999999", "1.23M", "2.00G"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_last_column_is_followed_by_the_first() {
        assert_eq!(Column::Pid.next(), Column::Program);
        assert_eq!(Column::Warnings.next(), Column::Pid);
        assert_eq!(Column::Pid.previous(), Column::Warnings);
        assert_eq!(Column::Calls.previous(), Column::User);
    }
}
