//! Tables of a benchmark with several placements of client and server: a line for each placement, and a column for each transport.

use apus_load::report::{self, Table};
use apus_load::{Row, stats};

use super::order::in_order;

/// Benchmarks whose placements are compared, with the figure to compare.
const FIGURES: [(&str, &str, &str); 4] = [
    ("rtt", "p50_us", "p50 µs"),
    ("rate", "calls_per_s", "calls per s"),
    ("stream", "goodput_gbps", "Gb/s"),
    ("mix", "p99_us", "p99 µs of the shortest"),
];

/// Keys that have the same value in all rows of a table, besides the benchmark, with the unit of a number in its title.
const CONDITIONS: [(&str, &str); 3] =
    [("size_bytes", " B"), ("outstanding", " outstanding"), ("load", "")];

/// A table for each benchmark and load that has several placements.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let mut tables = Vec::new();
    for (bench, key, heading) in FIGURES {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.text("bench") == Some(bench) && row.number(key).is_some())
            .collect();
        for load in in_order(rows.iter().map(|row| load(row))) {
            let same: Vec<_> = rows.iter().copied().filter(|row| self::load(row) == load).collect();
            let title = format!("{bench}{load} · {heading} by placement");
            tables.extend(table(&title, key, &same));
        }
    }
    tables
}

/// The load of a row, for a title.
fn load(row: &Row) -> String {
    let of_key = |(key, unit): &(&str, &str)| match (row.number(key), row.text(key)) {
        (Some(number), _) => Some(format!(" · {number}{unit}")),
        (_, Some(text)) => Some(format!(" · {text}")),
        _ => None,
    };
    CONDITIONS.iter().filter_map(of_key).collect()
}

fn table(title: &str, key: &str, rows: &[&Row]) -> Option<Table> {
    let pins = in_order(rows.iter().filter_map(|row| row.text("pin")));
    let transports = in_order(rows.iter().map(|row| row.transport()));
    let runs = |pin: &str, transport: &str| {
        let meant =
            rows.iter().filter(|row| row.text("pin") == Some(pin) && row.transport() == transport);
        meant.filter_map(|row| row.number(key)).collect::<Vec<_>>()
    };
    let mut heads = vec![("client-server", false)];
    heads.extend(transports.iter().map(|transport| (*transport, true)));
    let lines = pins.iter().map(|pin| {
        let medians = transports.iter().map(|transport| {
            stats::median(&runs(pin, transport)).map_or_else(|| "—".to_owned(), report::figure)
        });
        [(*pin).to_owned()].into_iter().chain(medians).collect()
    });
    let lines: Vec<Vec<String>> = lines.collect();
    let note = "medians of the runs; numbers are those of the CPUs of client and server";
    (pins.len() > 1).then(|| Table::of_texts(title, note, &heads, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pin: &str, transport: &str, us: f64) -> Row {
        Row::new(transport)
            .set("bench", "rtt")
            .set("pin", pin)
            .set("size_bytes", 100)
            .set("p50_us", us)
    }

    #[test]
    fn a_line_for_each_placement() {
        let mut rows = vec![row("0-0", "tcp-block", 13.0), row("0-0", "tcp-block", 15.0)];
        assert!(tables(&rows).is_empty());
        rows.extend([row("0-1", "tcp-block", 30.0), row("0-1", "apus-udp", 9.0)]);
        let table = &tables(&rows)[0];
        assert_eq!(table.title(), "rtt · 100 B · p50 µs by placement");
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines, [["0-0", "14", "—"], ["0-1", "30", "9"]]);
    }
}
