//! Tables and curves of `sockets`: one figure per table, with a line for each size and a column for each transport.

use apus_load::report::{self, Table};
use apus_load::{Row, Series, Size, stats};

use super::order::in_order;

/// The `bench` of rows of round trips.
pub(crate) const RR: &str = "sockets rr";

/// The `bench` of rows of streams.
pub(crate) const STREAM: &str = "sockets stream";

/// The figure of one table.
struct Figure {
    bench: &'static str,
    key: &'static str,
    heading: &'static str,
}

const FIGURES: [Figure; 4] = [
    Figure { bench: RR, key: "p50_us", heading: "TCP_RR · p50 µs" },
    Figure { bench: RR, key: "p99_us", heading: "TCP_RR · p99 µs" },
    Figure { bench: RR, key: "transactions_per_s", heading: "TCP_RR · transactions per s" },
    Figure { bench: STREAM, key: "goodput_gbps", heading: "TCP_STREAM · Gb/s" },
];

/// The transport that the last column compares with [`REFERENCE`].
pub(super) const OURS: &str = "apus-run";
/// The transport that it is compared with.
const REFERENCE: &str = "tcp";

/// Rows of one test with one placement of client and server.
pub(super) struct Sockets<'a> {
    rows: Vec<&'a Row>,
}

impl<'a> Sockets<'a> {
    pub(super) fn new(rows: &'a [Row], bench: &str, pin: &str) -> Self {
        let is_meant =
            |row: &&Row| row.text("bench") == Some(bench) && row.text("pin") == Some(pin);
        Self { rows: rows.iter().filter(is_meant).collect() }
    }

    /// The median of a figure over all runs; `None` if it was not measured.
    pub(super) fn median(&self, transport: &str, size: u64, key: &str) -> Option<f64> {
        stats::median(&self.runs(transport, size, key))
    }

    /// Sizes in bytes, in the order of first appearance.
    pub(super) fn sizes(&self) -> Vec<u64> {
        in_order(self.rows.iter().filter_map(|row| size_of(row)))
    }

    fn transports(&self) -> Vec<&'a str> {
        in_order(self.rows.iter().map(|row| row.transport()))
    }

    /// A figure of all runs, in order.
    fn runs(&self, transport: &str, size: u64, key: &str) -> Vec<f64> {
        let meant = self
            .rows
            .iter()
            .filter(|row| row.transport() == transport && size_of(row) == Some(size));
        meant.filter_map(|row| row.number(key)).collect()
    }

    /// The table of a figure; `None` without rows.
    fn table(&self, figure: &Figure, pin: &str) -> Option<Table> {
        let (transports, sizes) = (self.transports(), self.sizes());
        let runs = |transport, size| self.runs(transport, size, figure.key);
        let is_compared = transports.contains(&OURS) && transports.contains(&REFERENCE);
        let against = format!("{OURS} against {REFERENCE}");
        let mut heads = vec![("size", true)];
        heads.extend(transports.iter().map(|transport| (*transport, true)));
        heads.extend(is_compared.then_some((&against[..], false)));
        let line = |&size: &u64| {
            let medians = transports.iter().map(|transport| {
                let median = self.median(transport, size, figure.key);
                median.map_or_else(|| "—".to_owned(), report::figure)
            });
            let mut line: Vec<String> = [size_in_words(size)].into_iter().chain(medians).collect();
            if is_compared {
                let (ours, reference) = (runs(OURS, size), runs(REFERENCE, size));
                line.push(report::comparison(figure.key, &ours, &reference));
            }
            line
        };
        let title = format!("sockets · {} · pin {pin}", figure.heading);
        let lines: Vec<Vec<String>> = sizes.iter().map(line).collect();
        let note = self.note(figure.key);
        (!lines.is_empty()).then(|| Table::of_texts(&title, &note, &heads, lines))
    }

    /// The method of the figures, and the widest spread of runs.
    fn note(&self, key: &str) -> String {
        let mut spreads = Vec::new();
        let mut count = 0;
        for transport in self.transports() {
            for size in self.sizes() {
                let runs = self.runs(transport, size, key);
                count = count.max(runs.len());
                spreads.extend(stats::spread(&runs).map(|spread| (spread, transport, size)));
            }
        }
        let widest = spreads.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let Some((spread, transport, size)) = widest else { return "one run".to_owned() };
        let spread =
            if spread > 1.0 { "over 100 %".to_owned() } else { format!("{:.0} %", spread * 100.0) };
        let size = size_in_words(size);
        format!(
            "medians of {count} runs; half the distance between quartiles is {spread} where it is widest ({transport}, {size})"
        )
    }
}

/// A table for each figure and placement of client and server.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let mut tables = Vec::new();
    for figure in &FIGURES {
        for pin in pins(rows, figure.bench) {
            tables.extend(Sockets::new(rows, figure.bench, pin).table(figure, pin));
        }
    }
    tables
}

/// Curves of the medians against size, with one plot for the median round trip and one for streams.
pub(crate) fn curves(rows: &[Row]) -> Vec<Series> {
    let mut curves = Vec::new();
    for (bench, key, name, y_label) in [
        (RR, "p50_us", "Round trips by size", "p50 of a round trip (µs)"),
        (STREAM, "goodput_gbps", "Streams by size of the writes", "throughput (Gb/s)"),
    ] {
        for pin in pins(rows, bench) {
            let sockets = Sockets::new(rows, bench, pin);
            for transport in sockets.transports() {
                let point = |size| Some((size as f64, sockets.median(transport, size, key)?));
                let mut points: Vec<(f64, f64)> =
                    sockets.sizes().into_iter().filter_map(point).collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                curves.push(Series::by_size(name, transport, y_label.to_owned(), points));
            }
        }
    }
    curves
}

fn pins<'a>(rows: &'a [Row], bench: &str) -> Vec<&'a str> {
    let meant = rows.iter().filter(|row| row.text("bench") == Some(bench));
    in_order(meant.filter_map(|row| row.text("pin")))
}

fn size_of(row: &Row) -> Option<u64> {
    row.number("size_bytes").map(|size| size as u64)
}

/// `1000` is "1 kB".
fn size_in_words(bytes: u64) -> String {
    let size = u32::try_from(bytes).ok().and_then(Size::new);
    let text = size.map_or_else(|| bytes.to_string(), |size| size.to_string());
    match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(unit) => format!("{} {}", &text[..unit], &text[unit..]),
        None => format!("{text} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(transport: &str, size: u32, run: u32, p50_us: f64) -> Row {
        Row::new(transport)
            .set("bench", RR)
            .set("pin", "split")
            .set("run", run)
            .set("size_bytes", size)
            .set("p50_us", p50_us)
    }

    fn rows() -> Vec<Row> {
        vec![
            row("tcp", 1, 1, 20.0),
            row("apus-run", 1, 1, 1.0),
            row("tcp", 1000, 1, 24.0),
            row("apus-run", 1000, 1, 2.0),
            row("raw-shm", 1000, 1, 0.5),
            row("tcp", 1, 2, 30.0),
            row("apus-run", 1, 2, 1.0),
        ]
    }

    #[test]
    fn a_line_for_each_size_and_a_column_for_each_transport() {
        let rows = rows();
        let table = &tables(&rows)[0];
        assert_eq!(table.title(), "sockets · TCP_RR · p50 µs · pin split");
        let lines: Vec<Vec<&str>> = table.lines().collect();
        assert_eq!(lines[0], ["1 B", "25", "1", "—", "25× faster"]);
        assert_eq!(lines[1], ["1 kB", "24", "2", "0.500", "12× faster"]);
        assert_eq!(
            table.note(),
            "medians of 2 runs; half the distance between quartiles is 10 % where it is widest (tcp, 1 B)"
        );
    }

    #[test]
    fn curves_rise_with_the_size() {
        let mut rows = rows();
        rows.reverse();
        let curves = curves(&rows);
        let tcp = curves.iter().find(|curve| curve.transport == "tcp").unwrap();
        assert_eq!(tcp.points, [(1.0, 25.0), (1000.0, 24.0)]);
        assert_eq!(curves.len(), 3);
    }

    #[test]
    fn nothing_measured_is_no_table_and_no_curve() {
        assert!(tables(&[]).is_empty() && curves(&[]).is_empty());
    }
}
