//! The table of the demo: a line for each figure, in words that need no explanation elsewhere.

use apus_load::report::{self, Table};
use apus_load::{ResultFile, Row, stats};

/// A figure of Apus beside the same figure of TCP and of one more rival.
pub(super) struct Line {
    /// What was measured, in plain words.
    pub(super) name: &'static str,
    /// The key of the figure in a row.
    pub(super) key: &'static str,
    pub(super) unit: Unit,
    /// Whether a row has this figure of a transport.
    pub(super) is_in: fn(&Row, &str) -> bool,
    pub(super) contenders: Contenders,
    /// The machine was too busy: the figures are shown and not compared.
    pub(super) refused: bool,
}

/// The transports of a line. Of several of one kind the best counts.
#[derive(Clone, Copy)]
pub(super) struct Contenders {
    pub(super) apus: &'static str,
    pub(super) tcp: &'static [&'static str],
    pub(super) other: &'static [&'static str],
    /// Stands before the figure of the other rival where it is no unix socket.
    pub(super) other_name: &'static str,
}

/// How a figure is written and compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Less is better.
    Time,
    /// More is better; the name of the line has the unit.
    Rate,
    /// A time, as a multiple of the time on an idle network.
    Slowdown,
}

/// Whether a row of a benchmark is about a transport.
pub(super) fn is_of(row: &Row, bench: &str, transport: &str) -> bool {
    row.text("bench") == Some(bench) && row.transport() == transport
}

/// The lines of which there is a figure of Apus.
pub(super) fn table(result: &ResultFile, lines: &[Line]) -> Table {
    let heads = [("", false), ("Apus", true), ("TCP", true), ("unix", true), ("Apus is", false)];
    Table::of_texts("", NOTE, &heads, lines.iter().filter_map(|line| line.texts(result)))
}

/// What holds for all lines.
const NOTE: &str = "Typical: the median. Less is better, except for Gb/s. Apus is compared with the better rival; \
    TCP and unix sockets (unix) block or spin, whichever is better.";

impl Line {
    fn texts(&self, result: &ResultFile) -> Option<Vec<String>> {
        let Contenders { apus, tcp, other, other_name } = self.contenders;
        let ours = self.best(result, &[apus])?;
        let (tcp, other) = (self.best(result, tcp), self.best(result, other));
        let figure = |best: &Option<Best>, name: &str| {
            let text = best.as_ref().map_or_else(|| "—".into(), |best| self.figure(best.median));
            format!("{name} {text}").trim_start().to_owned()
        };
        let mut texts = vec![self.name.to_owned(), self.figure(ours.median)];
        texts.extend([figure(&tcp, ""), figure(&other, other_name)]);
        texts.push(match self.better(tcp, other) {
            _ if self.refused => "refused".to_owned(),
            rival => self.compared(&ours, rival.as_ref()),
        });
        Some(texts)
    }

    /// The best of some transports; `None` when none was measured.
    fn best(&self, result: &ResultFile, transports: &[&str]) -> Option<Best> {
        let one = |transport: &&str| {
            let rows = result.rows.iter().filter(|row| (self.is_in)(row, transport));
            let by_run: Vec<f64> = rows.filter_map(|row| row.number(self.key)).collect();
            Some(Best { median: stats::median(&by_run)?, by_run })
        };
        transports.iter().map(one).fold(None, |best, next| self.better(best, next))
    }

    fn better(&self, one: Option<Best>, other: Option<Best>) -> Option<Best> {
        let (Some(one), Some(other)) = (&one, &other) else { return one.or(other) };
        let first = (one.median < other.median) == (self.unit != Unit::Rate);
        Some(if first { one } else { other }.clone())
    }

    fn figure(&self, value: f64) -> String {
        match self.unit {
            Unit::Time => report::with_unit(self.key, value),
            Unit::Rate => report::figure(value),
            Unit::Slowdown => format!("{}×", report::figure(value)),
        }
    }

    fn compared(&self, ours: &Best, rival: Option<&Best>) -> String {
        // Multiples of one time compare as times do.
        let key = if self.unit == Unit::Slowdown { "p50_us" } else { self.key };
        report::comparison(key, &ours.by_run, rival.map_or(&[], |rival| &rival.by_run))
    }
}

/// The figures of the transport that was best.
#[derive(Clone)]
struct Best {
    by_run: Vec<f64>,
    median: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::Machine;
    use apus_load::report::Style;

    const LINE: Line = Line {
        name: "100-byte call, typical",
        key: "p50_us",
        unit: Unit::Time,
        is_in: |row, transport| is_of(row, "rtt", transport),
        contenders: Contenders {
            apus: "apus-udp",
            tcp: &["tcp-block", "tcp-poll"],
            other: &["unix-block"],
            other_name: "",
        },
        refused: false,
    };

    fn text(lines: &[Line], figures: &[(&str, f64)]) -> String {
        let mut result = ResultFile::new("apus demo", Machine::default());
        for &(transport, us) in figures {
            result.rows.push(Row::new(transport).set("bench", "rtt").set("p50_us", us));
        }
        table(&result, lines).text(Style::PLAIN)
    }

    #[test]
    fn apus_is_compared_with_the_best_rival() {
        let figures =
            [("apus-udp", 6.0), ("tcp-block", 54.0), ("tcp-poll", 7.0), ("unix-block", 3.0)];
        let text = text(&[LINE], &figures);
        assert!(text.contains("6 µs  7 µs  3 µs  2.0× slower"), "{text}");
    }

    #[test]
    fn more_of_a_rate_is_better() {
        let line = Line { unit: Unit::Rate, key: "p50_us", ..LINE };
        let text = text(&[line], &[("apus-udp", 6.0), ("tcp-block", 4.0), ("tcp-poll", 5.0)]);
        assert!(text.contains("   6    5     —"), "{text}");
    }

    #[test]
    fn the_words_follow_from_the_figures_beside_them() {
        let runs = [(9.0, 9.6), (22.0, 23.0), (30.0, 13.0)];
        let figures = runs.map(|(ours, theirs)| [("apus-udp", ours), ("tcp-block", theirs)]);
        let text = text(&[LINE], figures.as_flattened());
        assert!(text.contains("22 µs  13 µs     —  runs disagree"), "{text}");
    }

    #[test]
    fn a_refused_figure_is_shown_and_not_compared() {
        let line = Line { refused: true, ..LINE };
        let text = text(&[line], &[("apus-udp", 6.0), ("tcp-block", 54.0)]);
        assert!(text.contains("6 µs  54 µs     —  refused"), "{text}");
    }

    #[test]
    fn a_line_without_a_figure_of_apus_is_left_out() {
        assert!(!text(&[LINE], &[("tcp-block", 54.0)]).contains("54"));
    }
}
