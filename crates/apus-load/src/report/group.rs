//! From flat rows to tables: groups of rows, headings, and the best lines.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::result::ResultFile;
use crate::row::{FLOOR, FLOOR_SAME, REFUSED, REFUSED_LATE, Row};
use crate::size::Size;
use crate::stats;

use super::column::{Better, Column, figure};
use super::comparison::Comparison;
use super::conventions::Conventions;
use super::table::{Claim, Head, Headline, Table, TableCell};

/// Keys that have the same values in all rows of a table.
const CONDITIONS: [&str; 11] = [
    "bench",
    "workload",
    "size_bytes",
    "outstanding",
    "load",
    "hosts",
    "link_mbps",
    "setting",
    "pin",
    "loss_pct",
    "point",
];

/// Numbers that describe the set-up of a transport.
const SETTINGS: [&str; 7] =
    ["connections", "priorities", "threads", "receivers", "ports", "calls_held", "peers"];

/// Prefix of keys of the offered load.
const OFFERED: &str = "offered";

/// Ratio up to which loads are the same.
const OFFERED_SAME: f64 = 1.01;

/// The usual heading of the first column.
const TRANSPORT: &str = "transport";

/// All tables of a result, in the order in which their first rows appear.
pub(crate) fn tables(result: &ResultFile, conventions: &Conventions) -> Vec<Table> {
    let mut groups: Vec<(Vec<Option<Value>>, Vec<&Row>)> = Vec::new();
    for row in result.rows.iter().filter(|row| !conventions.has_own_form(row)) {
        let conditions: Vec<Option<Value>> = CONDITIONS
            .iter()
            .map(|key| row.value(key).filter(|value| !value.is_null()).cloned())
            .collect();
        match groups.iter_mut().find(|(known, _)| *known == conditions) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((conditions, vec![row])),
        }
    }
    let groups =
        groups.iter().map(|(conditions, rows)| Group::new(rows, conventions).table(conditions));
    groups.chain((conventions.own_tables)(&result.rows)).collect()
}

/// Lines of one table, each with all its runs.
struct Group<'a> {
    conventions: &'a Conventions,
    /// Texts and settings that distinguish lines, without the transport.
    labels: Vec<String>,
    /// Labels with the same value in all lines: "delivery base".
    constants: Vec<String>,
    columns: Vec<Column>,
    lines: Vec<TransportResults>,
}

struct TransportResults {
    transport: String,
    /// Keys and values of all texts and settings except the transport.
    identity: Vec<(String, String)>,
    /// Values by key, then by run.
    values: BTreeMap<String, BTreeMap<u64, f64>>,
}

impl TransportResults {
    fn label(&self, key: &str) -> &str {
        self.identity.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }

    /// Values of all runs, in order.
    fn runs(&self, key: &str) -> Vec<f64> {
        self.values.get(key).map(|runs| runs.values().copied().collect()).unwrap_or_default()
    }

    fn median(&self, key: &str) -> Option<f64> {
        stats::median(&self.runs(key))
    }

    /// Compares this line's figure with the figure of `reference`.
    fn comparison(&self, reference: &Self, column: &Column) -> Comparison {
        let key = &column.key;
        if self.is_refused() || reference.is_refused() {
            return Comparison::Refused;
        }
        let (Some(ours), Some(theirs)) = (self.median(key), reference.median(key)) else {
            return Comparison::Missing;
        };
        if self.had_other_pace(reference) {
            return Comparison::OtherPace;
        }
        Comparison::of(column, ours, theirs, self.ratio_by_run(reference, key))
    }

    /// This line over `reference`, as the median over the runs; `None` if no run has both.
    fn ratio_by_run(&self, reference: &Self, key: &str) -> Option<f64> {
        let (ours, theirs) = (self.values.get(key)?, reference.values.get(key)?);
        let pairs = ours
            .iter()
            .filter(|(run, _)| self.has_same_pace(reference, **run) != Some(false))
            .filter_map(|(run, value)| Some((*value, *theirs.get(run)?)));
        let (values, references): (Vec<f64>, Vec<f64>) = pairs.unzip();
        stats::paired_ratio(&values, &references)
    }

    /// Whether the floors of a run of both lines are the same; `None` if one is not known.
    fn has_same_pace(&self, reference: &Self, run: u64) -> Option<bool> {
        let floor = |line: &Self| line.values.get(FLOOR)?.get(&run).copied();
        Some(FLOOR_SAME.contains(&stats::ratio(floor(self)?, floor(reference)?)?))
    }

    /// Whether the floors of both lines differ in most of the runs.
    fn had_other_pace(&self, reference: &Self) -> bool {
        let Some(floors) = self.values.get(FLOOR) else { return false };
        let same: Vec<bool> =
            floors.keys().filter_map(|run| self.has_same_pace(reference, *run)).collect();
        same.iter().filter(|same| !**same).count() * 2 > same.len()
    }

    /// Whether the measurement was refused.
    fn is_refused(&self) -> bool {
        [REFUSED, REFUSED_LATE].contains(&self.label("verdict"))
    }
}

impl<'a> Group<'a> {
    fn new(rows: &[&Row], conventions: &'a Conventions) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        let mut lines: Vec<TransportResults> = Vec::new();
        let mut labels: Vec<String> = Vec::new();
        for row in rows {
            let identity = identity_of(row);
            for (key, _) in &identity {
                if !labels.contains(key) {
                    labels.push(key.clone());
                }
            }
            let known = lines
                .iter()
                .position(|line| line.transport == row.transport() && line.identity == identity);
            let place = known.unwrap_or_else(|| {
                lines.push(TransportResults {
                    transport: row.transport().to_owned(),
                    identity,
                    values: BTreeMap::new(),
                });
                lines.len() - 1
            });
            gather(row, &mut lines[place], &mut columns);
        }
        let (labels, constants) = set_constants_apart(labels, &lines);
        Self { conventions, labels, constants, columns, lines }.without_constant_columns()
    }

    /// Moves figures without a better direction that are the same in every line from the columns to the note.
    fn without_constant_columns(mut self) -> Self {
        let (lines, constants) = (&self.lines, &mut self.constants);
        self.columns.retain(|column| {
            let first = lines[0].median(&column.key);
            let same = lines.iter().all(|line| line.median(&column.key) == first);
            if let (true, Better::Neither, Some(value)) = (same, column.better, first) {
                constants.push(format!("{} {}", column.name, column.with_unit(value)));
                return false;
            }
            true
        });
        self
    }

    fn table(&self, conditions: &[Option<Value>]) -> Table {
        let first_head = self.first_head(conditions);
        let of_transports = first_head == TRANSPORT;
        let headline = self.headline(conditions).filter(|_| of_transports && self.has_one_load());
        let reference = headline.and_then(|column| self.reference(column));
        let runs = self
            .lines
            .iter()
            .flat_map(|line| line.values.values().map(BTreeMap::len))
            .max()
            .unwrap_or(0);
        let spread_of = headline.filter(|_| runs > 1);
        let text = |text: String| Head { text, right: false, kept: true };
        let number = |text: String, kept| Head { text, right: true, kept };
        let mut heads = vec![text(first_head.to_owned())];
        heads.extend(self.labels.iter().map(|label| text(label.replace('_', " "))));
        for column in self.in_order(headline) {
            heads.push(number(column.heading(self.unit(column)), headline == Some(column)));
            if spread_of == Some(column) {
                heads.push(number("±".to_owned(), true));
            }
            if let (true, Some(reference)) = (headline == Some(column), reference) {
                let against = format!("{} against {}", column.name, self.name(reference));
                heads.push(number(against, true));
            }
        }
        let lines = self
            .lines
            .iter()
            .map(|line| self.entries(line, headline, spread_of, reference))
            .collect();
        let texts = conditions.iter().flatten().filter_map(Value::as_str);
        Table {
            is_set_up: texts.into_iter().any(|text| self.conventions.is_set_up(text)),
            title: title(conditions),
            note: self.note(runs),
            heads,
            lines,
            headline: headline.map(|column| Headline {
                column: column.clone(),
                values: self.values(column),
                claims: self.claims(column, reference),
            }),
        }
    }

    fn entries(
        &self,
        line: &TransportResults,
        headline: Option<&Column>,
        spread_of: Option<&Column>,
        reference: Option<&TransportResults>,
    ) -> Vec<TableCell> {
        let plain = |text: String| TableCell { text, best: false };
        let mut entries = vec![plain(self.title(line))];
        entries.extend(self.labels.iter().map(|label| plain(line.label(label).to_owned())));
        for column in self.in_order(headline) {
            let value = line.median(&column.key);
            let text = value.map(|value| match self.unit(column) {
                Some(_) => column.without_unit(value),
                None => column.with_unit(value),
            });
            let text = text.unwrap_or_else(|| "—".to_owned());
            // Without a comparison, no value is best.
            let best = headline.is_some() && self.is_best(line, column);
            entries.push(TableCell { text, best });
            if spread_of == Some(column) {
                let spread = stats::spread(&line.runs(&column.key));
                entries.push(plain(
                    spread.map(|share| format!("{:.0} %", share * 100.0)).unwrap_or_default(),
                ));
            }
            if let (true, Some(reference)) = (headline == Some(column), reference) {
                let words = match line.comparison(reference, column) {
                    Comparison::Refused => Comparison::Refused.in_words(column),
                    _ if std::ptr::eq(line, reference) => "reference".to_owned(),
                    comparison => comparison.in_words(column),
                };
                entries.push(plain(words));
            }
        }
        entries
    }

    /// The columns, the main figure first, so that every screen shows it and its comparison.
    fn in_order<'c>(&'c self, headline: Option<&'c Column>) -> impl Iterator<Item = &'c Column> {
        let others = self.columns.iter().filter(move |column| headline != Some(*column));
        headline.into_iter().chain(others)
    }

    /// Whether all lines had the same offered load. Figures under different loads are not compared.
    fn has_one_load(&self) -> bool {
        let offered = self.columns.iter().filter(|column| column.key.starts_with(OFFERED));
        offered.into_iter().all(|column| {
            let values = self.lines.iter().filter_map(|line| line.median(&column.key));
            let (least, most) = values
                .fold((f64::MAX, 0.0), |(least, most), value| (value.min(least), value.max(most)));
            most <= least * OFFERED_SAME
        })
    }

    /// The common unit of all values of a column, if there is one.
    fn unit(&self, column: &Column) -> Option<&'static str> {
        column.common_unit(self.lines.iter().filter_map(|line| line.median(&column.key)))
    }

    /// The heading of the first column.
    fn first_head(&self, conditions: &[Option<Value>]) -> &'static str {
        self.conventions.first_head(bench_of(conditions)).unwrap_or(TRANSPORT)
    }

    /// The main figure: the benchmark's own, or the first with a better direction.
    fn headline(&self, conditions: &[Option<Value>]) -> Option<&Column> {
        let usual = self.conventions.main_figure(bench_of(conditions));
        self.columns
            .iter()
            .find(|column| Some(column.key.as_str()) == usual)
            .or_else(|| self.columns.iter().find(|column| is_result(column)))
    }

    /// The best of the rivals, if there is another line to compare with it. It is a refused one only if there is no other.
    fn reference(&self, column: &Column) -> Option<&TransportResults> {
        self.best_valid(column, |line| self.is_rival(line)).filter(|_| self.lines.len() > 1)
    }

    /// The best line of a kind. Refused lines count only if there are no others.
    fn best_valid(
        &self,
        column: &Column,
        is_meant: impl Fn(&TransportResults) -> bool,
    ) -> Option<&TransportResults> {
        let meant = || self.lines.iter().filter(|line| is_meant(line));
        self.best(meant().filter(|line| !line.is_refused()), column)
            .or_else(|| self.best(meant(), column))
    }

    fn best<'l>(
        &self,
        lines: impl Iterator<Item = &'l TransportResults>,
        column: &Column,
    ) -> Option<&'l TransportResults> {
        let valued = lines.filter_map(|line| Some((line, line.median(&column.key)?)));
        valued
            .reduce(|best, line| if column.beats(line.1, best.1) { line } else { best })
            .map(|(line, _)| line)
    }

    /// Whether `line` has the best value of `column` among at least two different contenders.
    fn is_best(&self, line: &TransportResults, column: &Column) -> bool {
        let contends = |line: &&TransportResults| !self.is_floor(line) && !line.is_refused();
        let Some(value) = line.median(&column.key).filter(|_| contends(&line)) else {
            return false;
        };
        let others: Vec<f64> = self
            .lines
            .iter()
            .filter(contends)
            .filter_map(|other| other.median(&column.key))
            .collect();
        others.iter().all(|other| !column.beats(*other, value))
            && others.iter().any(|other| column.beats(value, *other))
    }

    fn is_floor(&self, line: &TransportResults) -> bool {
        self.conventions.is_floor(&line.transport)
    }

    fn is_rival(&self, line: &TransportResults) -> bool {
        self.conventions.is_rival(&line.transport)
    }

    fn title(&self, line: &TransportResults) -> String {
        let floor = if self.is_floor(line) { " (floor)" } else { "" };
        format!("{}{floor}", line.transport)
    }

    /// The transport, and its differences from other lines of the same transport.
    fn name(&self, line: &TransportResults) -> String {
        let same = self.lines.iter().filter(|other| other.transport == line.transport).count();
        let details = self.labels.iter().filter(|label| same > 1 && !line.label(label).is_empty());
        let details = details.map(|label| match line.label(label) {
            value if SETTINGS.contains(&label.as_str()) => format!(", {value} {label}"),
            value @ ("yes" | "no") => format!(", {} {value}", label.replace('_', " ")),
            value => format!(", {value}"),
        });
        self.title(line) + &details.collect::<String>()
    }

    fn values(&self, column: &Column) -> Vec<(String, String, f64)> {
        let valued = self.lines.iter().filter_map(|line| Some((line, line.median(&column.key)?)));
        valued.map(|(line, value)| (self.name(line), line.transport.clone(), value)).collect()
    }

    /// One claim against the best rival of each name. The best of all rivals is the first.
    fn claims(&self, column: &Column, reference: Option<&TransportResults>) -> Vec<Claim> {
        let Some(reference) = reference else { return Vec::new() };
        let name_of =
            |line: &TransportResults| self.conventions.name_of(&line.transport).to_owned();
        let mut names = vec![name_of(reference)];
        let mut references = vec![reference];
        for line in self.lines.iter().filter(|line| self.is_rival(line)) {
            let name = name_of(line);
            if !names.contains(&name) {
                let best = self.best_valid(column, |it| self.is_rival(it) && name_of(it) == name);
                references.extend(best);
                names.push(name);
            }
        }
        references.into_iter().filter_map(|line| self.claim(column, line)).collect()
    }

    fn claim(&self, column: &Column, reference: &TransportResults) -> Option<Claim> {
        let subject =
            self.lines.iter().find(|line| !self.is_floor(line) && !self.is_rival(line))?;
        let ours = self.best_valid(column, |line| line.transport == subject.transport)?;
        let spelled = |line: &TransportResults| {
            Some(format!("{} {}", self.name(line), column.with_unit(line.median(&column.key)?)))
        };
        let comparison = ours.comparison(reference, column);
        if comparison == Comparison::Missing {
            return None;
        }
        let named = |line: &TransportResults| self.conventions.name_of(&line.transport).to_owned();
        Some(Claim {
            headline: comparison.sentence(column, &named(ours), &named(reference)),
            standing: comparison.standing(column),
            subject: ours.transport.clone(),
            rival: reference.transport.clone(),
            ours: spelled(ours)?,
            reference: spelled(reference)?,
        })
    }

    fn note(&self, runs: usize) -> String {
        let mut parts = self.constants.clone();
        if !self.has_one_load() {
            parts.push("the loads differ, so results are not compared".to_owned());
        }
        if runs > 1 {
            parts.push(format!(
                "medians of {runs} runs, ± half the distance between quartiles, ratios of the medians"
            ));
        }
        parts.join(" · ")
    }
}

/// Whether a figure may be the main one. Figures of lateness describe the generator.
fn is_result(column: &Column) -> bool {
    column.better != Better::Neither && !column.key.starts_with("late")
}

/// Texts, flags and settings of a row that are not conditions: they identify the line.
fn identity_of(row: &Row) -> Vec<(String, String)> {
    let of_interest =
        row.values().filter(|(key, _)| *key != "transport" && !CONDITIONS.contains(key));
    let text = |(key, value): (&str, &Value)| {
        let text = match value {
            Value::Bool(flag) => if *flag { "yes" } else { "no" }.to_owned(),
            Value::Number(_) if !SETTINGS.contains(&key) => return None,
            value => in_words(value)?,
        };
        Some((key.to_owned(), text))
    };
    of_interest.filter_map(text).collect()
}

/// A value of a row as text; `None` for missing values.
fn in_words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() => Some(number.to_string()),
        Value::Number(number) => number.as_f64().map(figure),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Adds the measured values of `row` to its line, as the named run or the next one.
fn gather(row: &Row, line: &mut TransportResults, columns: &mut Vec<Column>) {
    for (key, value) in row.values() {
        if key == "run" || CONDITIONS.contains(&key) || SETTINGS.contains(&key) {
            continue;
        }
        let Some(value) = value.as_f64() else { continue };
        if !columns.iter().any(|column| column.key == key) {
            columns.push(Column::of(key));
        }
        let runs = line.values.entry(key.to_owned()).or_default();
        let next = runs.last_key_value().map_or(1, |(run, _)| run.saturating_add(1));
        let run = row.value("run").and_then(Value::as_u64);
        let run = run.filter(|run| !runs.contains_key(run)).unwrap_or(next);
        runs.insert(run, value);
    }
}

/// Splits labels into those that distinguish lines and, as "key value", those with the same value in all lines.
fn set_constants_apart(
    labels: Vec<String>,
    lines: &[TransportResults],
) -> (Vec<String>, Vec<String>) {
    let (constant, telling): (Vec<String>, Vec<String>) = labels
        .into_iter()
        .partition(|label| lines.iter().all(|line| line.label(label) == lines[0].label(label)));
    let constants = constant
        .iter()
        .map(|label| format!("{} {}", label.replace('_', " "), lines[0].label(label)));
    let constants = constants.collect();
    (telling, constants)
}

fn bench_of(conditions: &[Option<Value>]) -> &str {
    conditions[0].as_ref().and_then(Value::as_str).unwrap_or_default()
}

/// The conditions as a title: "rtt · 100 B · 8 outstanding".
fn title(conditions: &[Option<Value>]) -> String {
    let bench = conditions[0].as_ref();
    let point = conditions.iter().zip(CONDITIONS).find(|(_, key)| *key == "point");
    let point = point.and_then(|(value, _)| value.as_ref()?.as_str()).unwrap_or_default();
    let names_load = point.split(", ").any(|value| value.starts_with("load = "));
    let parts: Vec<String> = CONDITIONS
        .iter()
        .zip(conditions)
        // The benchmark `mix` has the workload `mix`, which is shown once.
        .filter(|(key, value)| **key != "workload" || value.as_ref() != bench)
        // A point of a sweep may have the load among its values.
        .filter(|(key, _)| **key != "load" || !names_load)
        .filter_map(|(key, value)| {
            let text = in_words(value.as_ref()?)?;
            Some(match *key {
                "size_bytes" => size_in_words(&text),
                "outstanding" => format!("{text} outstanding"),
                "workload" => format!("workload {text}"),
                // A share of the links. Text values are shown as they are.
                "load" => match value {
                    Some(Value::Number(share)) => format!("load {share}"),
                    _ => text,
                },
                "pin" => format!("pin {text}"),
                "hosts" => format!("{text} hosts"),
                "link_mbps" => format!("{text} Mb/s links"),
                "loss_pct" => format!("{text} % loss"),
                _ => text,
            })
        })
        .collect();
    if parts.is_empty() { "results".to_owned() } else { parts.join(" · ") }
}

/// `10000` is "10 kB".
fn size_in_words(count: &str) -> String {
    let spelled = count.parse::<Size>().map_or_else(|_| count.to_owned(), |size| size.to_string());
    match spelled.find(|c: char| c.is_ascii_alphabetic()) {
        Some(unit) => format!("{} {}", &spelled[..unit], &spelled[unit..]),
        None => format!("{spelled} B"),
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
