//! The table of the demo: a line for each figure, in words that need no explanation elsewhere.

use apus_load::report::{self, Table};
use apus_load::{ResultFile, Row, stats};

/// A figure of Apus beside the same figure of TCP and of one more rival.
pub(super) struct ComparedFigure {
    /// A name of the measurement in plain words.
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
    /// The name of the other rival in a sentence.
    pub(super) other_name: &'static str,
}

/// The format and the comparison of a figure.
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

/// Makes the table of the lines for which Apus has a figure.
pub(super) fn table(result: &ResultFile, lines: &[ComparedFigure]) -> Table {
    let heads = [
        ("", false),
        ("Apus", true),
        ("TCP", true),
        ("unix", true),
        ("Apus than TCP", false),
        ("Apus than unix", false),
    ];
    Table::of_texts("", NOTE, &heads, lines.iter().filter_map(|line| line.texts(result)))
}

/// The note for all lines.
const NOTE: &str = "p50: the typical call; p99: 99 of 100 calls take at most this long. Less is better, except for Gb/s. TCP and \
                    unix sockets (unix) either block or spin; the better result is shown.";

/// The conclusion for a reader: one or two sentences that follow from the table.
pub(super) fn conclusion(result: &ResultFile, lines: &[ComparedFigure]) -> String {
    let is_network = |line: &&ComparedFigure| line.name.starts_with("network: ");
    let alone = lines.first().and_then(|line| line.sentence(result, "Between two processes here"));
    let network = lines.iter().filter(is_network);
    let refused = network.clone().any(|line| line.refused);
    let network = match network.clone().find(|line| line.name == "network: 100 B, p99") {
        Some(_) if refused => Some(
            "This machine is too small or too busy to emulate a loaded network; `apus sim run --workload mix --html sim.html` \
             simulates one, which needs no quiet machine."
                .to_owned(),
        ),
        Some(line) => line.sentence(result, "In the loaded network"),
        None => None,
    };
    [alone, network].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

impl ComparedFigure {
    fn texts(&self, result: &ResultFile) -> Option<Vec<String>> {
        let Contenders { apus, tcp, other, .. } = self.contenders;
        let ours = self.best(result, &[apus]);
        if ours.is_none() && !result.rows.iter().any(|row| (self.is_in)(row, apus)) {
            return None;
        }
        let rivals = [self.best(result, tcp), self.best(result, other)];
        let figure = |best: Option<&Best>| {
            best.map_or_else(|| "—".to_owned(), |best| self.figure(best.median))
        };
        let mut texts = vec![self.name.to_owned(), figure(ours.as_ref())];
        texts.extend(rivals.iter().map(|rival| figure(rival.as_ref())));
        // A transport that was measured and has no figure was refused.
        let measured = [tcp, other].map(|kind| {
            kind.iter().any(|transport| result.rows.iter().any(|row| (self.is_in)(row, transport)))
        });
        texts.extend(rivals.iter().zip(measured).map(|(rival, measured)| match (&ours, rival) {
            _ if !measured => "—".to_owned(),
            (Some(ours), Some(rival)) if !self.refused => self.compared(ours, Some(rival)),
            _ => "refused".to_owned(),
        }));
        Some(texts)
    }

    /// "a 100 B call over Apus takes 2.0 µs: 5.0× faster than over TCP, 3.1× slower than over unix sockets."
    fn sentence(&self, result: &ResultFile, begin: &str) -> Option<String> {
        let Contenders { apus, tcp, other, other_name } = self.contenders;
        let ours = self.best(result, &[apus]).filter(|_| !self.refused)?;
        let against = |kind, name: &str| {
            let rival = self.best(result, kind)?;
            match &*self.compared(&ours, Some(&rival)) {
                "same" => Some(format!("as fast as over {name}")),
                words if words.ends_with("faster") || words.ends_with("slower") => {
                    Some(format!("{words} than over {name}"))
                }
                _ => None,
            }
        };
        let words = [against(tcp, "TCP"), against(other, other_name)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        let colon = if words.is_empty() { "" } else { ": " };
        let which = if self.key.starts_with("p99") || self.key.ends_with("p99_us") {
            "99 of 100 calls of 100 B over Apus take at most"
        } else {
            "a 100 B call over Apus takes"
        };
        let figure = match self.unit {
            Unit::Slowdown => format!("{} the time of an idle network", self.figure(ours.median)),
            _ => self.figure(ours.median),
        };
        Some(format!("{begin}, {which} {figure}{colon}{}.", words.join(", ")))
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

    const LINE: ComparedFigure = ComparedFigure {
        name: "100 B call, p50",
        key: "p50_us",
        unit: Unit::Time,
        is_in: |row, transport| is_of(row, "rtt", transport),
        contenders: Contenders {
            apus: "apus-udp",
            tcp: &["tcp-block", "tcp-poll"],
            other: &["unix-block"],
            other_name: "unix sockets",
        },
        refused: false,
    };

    fn text(lines: &[ComparedFigure], figures: &[(&str, f64)]) -> String {
        let mut result = ResultFile::new("apus demo", Machine::default());
        for &(transport, us) in figures {
            result.rows.push(Row::new(transport).set("bench", "rtt").set("p50_us", us));
        }
        table(&result, lines).text(Style::PLAIN)
    }

    #[test]
    fn apus_is_compared_with_each_rival() {
        let figures =
            [("apus-udp", 6.0), ("tcp-block", 54.0), ("tcp-poll", 7.0), ("unix-block", 3.0)];
        let text = text(&[LINE], &figures);
        assert!(text.contains("6 µs  7 µs  3 µs  1.2× faster    2.0× slower"), "{text}");
    }

    #[test]
    fn more_of_a_rate_is_better() {
        let line = ComparedFigure { unit: Unit::Rate, key: "p50_us", ..LINE };
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
        let line = ComparedFigure { refused: true, ..LINE };
        let text = text(&[line], &[("apus-udp", 6.0), ("tcp-block", 54.0)]);
        assert!(text.contains("6 µs  54 µs     —  refused"), "{text}");
    }

    #[test]
    fn a_rival_without_a_figure_is_refused() {
        let mut result = ResultFile::new("apus demo", Machine::default());
        let row = |transport: &str| Row::new(transport).set("bench", "rtt").set("p50_us", 6.0);
        result.rows = vec![row("apus-udp"), row("tcp-block").refused_as_late(), row("unix-block")];
        let text = table(&result, &[LINE]).text(Style::PLAIN);
        assert!(text.contains("6 µs    —  6 µs  refused"), "{text}");
    }

    #[test]
    fn a_line_without_a_figure_of_apus_is_left_out() {
        assert!(!text(&[LINE], &[("tcp-block", 54.0)]).contains("54"));
    }

    #[test]
    fn the_conclusion_says_no_more_than_the_table() {
        let mut result = ResultFile::new("apus demo", Machine::default());
        let figures = [("apus-udp", 6.0), ("tcp-block", 54.0), ("unix-block", 3.0)];
        for (transport, us) in figures {
            let row = Row::new(transport).set("bench", "rtt").set("p50_us", us);
            result.rows.push(row.set("p99_us", us));
        }
        let network = ComparedFigure { name: "network: 100 B, p99", key: "p99_us", ..LINE };
        let said = conclusion(&result, &[LINE, network]);
        let alone = "Between two processes here, a 100 B call over Apus takes 6 µs: 9.0× faster than over TCP, 2.0× slower than over \
            unix sockets.";
        assert!(said.starts_with(alone), "{said}");
        assert!(said.contains("In the loaded network, 99 of 100 calls"), "{said}");
        let refused = ComparedFigure { name: "network: 100 B, p99", refused: true, ..LINE };
        let said = conclusion(&result, &[LINE, refused]);
        assert!(said.contains("too small or too busy") && said.contains("apus sim run"), "{said}");
    }
}
