//! The table of a simulation's counters: a line for each counter.

use apus_load::Row;
use apus_load::report::{self, Table};

use super::order::in_order;

/// The `bench` of rows that have only counters.
pub(crate) const BENCH: &str = "sim counters";

/// The `bench` of a simulation's rows for single sizes. Only files have them: tables show deciles, and pages curves.
pub(crate) const SIZES: &str = "sim sizes";

/// Texts and settings of these rows, which are not counters.
const CONDITIONS: [&str; 3] = ["workload", "load", "point"];

/// A table for each load: counters of all transports side by side, without counters that are 0 everywhere.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let counted: Vec<&Row> = rows.iter().filter(|row| row.text("bench") == Some(BENCH)).collect();
    in_order(counted.iter().map(|row| title(row)))
        .into_iter()
        .filter_map(|title| table(&title, &counted))
        .collect()
}

fn title(row: &Row) -> String {
    let load = row.number("load").map(|load| format!("load {load}"));
    let texts = ["workload", "point"].map(|key| row.text(key).map(str::to_owned));
    let [workload, point] = texts;
    let has_load = point.as_ref().is_some_and(|point| point.contains("load = "));
    let parts = [Some(BENCH.to_owned()), workload, load.filter(|_| !has_load), point];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn table(name: &str, rows: &[&Row]) -> Option<Table> {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| title(row) == name).collect();
    // A value of the plan is not a counter.
    let is_counter = |key: &str| !CONDITIONS.contains(&key) && !key.contains('.') && key != "seed";
    let values = rows.iter().flat_map(|row| row.values());
    let keys = in_order(
        values.filter(|(key, value)| is_counter(key) && value.is_u64()).map(|(key, _)| key),
    );
    let nonzero =
        |key: &&str| rows.iter().any(|row| row.number(key).is_some_and(|value| value > 0.0));
    let (shown, zero): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(nonzero);
    if shown.is_empty() {
        return None;
    }
    let mut heads = vec![("counter", false)];
    heads.extend(rows.iter().map(|row| (row.transport(), true)));
    let line = |key: &str| {
        let values =
            rows.iter().map(|row| row.number(key).map_or_else(|| "—".to_owned(), report::figure));
        [key.to_owned()].into_iter().chain(values).collect::<Vec<_>>()
    };
    let note = match zero.len() {
        0 => String::new(),
        zero => {
            format!("{zero} counters are 0 in all rows and omitted here; the result file has them")
        }
    };
    Some(Table::of_texts(name, &note, &heads, shown.into_iter().map(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_counter_that_counted() {
        let row = |transport: &str| {
            Row::new(transport).set("bench", BENCH).set("workload", "w1").set("load", 0.8)
        };
        let rows = [
            row("apus").set("resends", 0).set("grants", 1234).set("homa.priorities", 4),
            row("pfabric").set("drops", 5),
        ];
        let tables = tables(&rows);
        assert_eq!(tables.len(), 1);
        assert_eq!(tables[0].title(), "sim counters · w1 · load 0.8");
        let lines: Vec<Vec<&str>> = tables[0].lines().collect();
        assert_eq!(lines, [["grants", "1,234", "—"], ["drops", "—", "5"]]);
        assert!(tables[0].note().starts_with("1 counters are 0"));
    }
}
