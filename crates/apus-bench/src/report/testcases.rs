//! The form of the published tables of the kernel's IRQ suspension: a table for each load, and a line for each test case.
//!
//! Each figure has its aggregation over the runs of a line: in the series, latencies are medians over the runs and other figures
//! are means. Refused runs have no figures.

use apus_load::report::Table;
use apus_load::{Row, Scale, Series, stats};

use super::order::in_order;

/// The aggregation of a line's runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Median,
    Mean,
    Sum,
}

/// A column of the table: key, heading, digits after the point.
pub(super) struct Figure {
    pub(super) key: &'static str,
    pub(super) heading: &'static str,
    over: Over,
    digits: usize,
}

pub(super) const fn figure(
    key: &'static str,
    heading: &'static str,
    over: Over,
    digits: usize,
) -> Figure {
    Figure { key, heading, over, digits }
}

/// Differences between the tables of benchmarks that share this form.
pub(super) struct Form {
    /// The `bench` of the rows.
    pub(super) bench: &'static str,
    /// Columns after case and load. Columns without values are left out.
    pub(super) figures: &'static [Figure],
    /// Key and heading of a last column of texts, if some rows have one.
    pub(super) words: Option<(&'static str, &'static str)>,
    /// The setting that distinguishes tables of the same load, as text.
    pub(super) setting: fn(&Row) -> String,
}

/// The results of one case at one load.
pub(super) struct CaseResults<'a> {
    pub(super) testcase: &'a str,
    pub(super) load: &'a str,
    pub(super) setting: String,
    pub(super) runs: Vec<&'a Row>,
    form: &'static Form,
}

impl CaseResults<'_> {
    /// A figure over all valid runs; `None` without valid runs.
    pub(super) fn value(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|row| row.number(key)).collect();
        let over = self.form.figures.iter().find(|figure| figure.key == key)?.over;
        let sum: f64 = values.iter().sum();
        match over {
            _ if values.is_empty() => None,
            Over::Median => stats::median(&values),
            Over::Mean => Some(sum / values.len() as f64),
            Over::Sum => Some(sum),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.runs.iter().find_map(|row| row.text(key))
    }

    /// Number of runs, including those without figures.
    fn count(&self) -> usize {
        self.runs.iter().filter(|row| row.number("run").is_some()).count()
    }
}

impl Form {
    /// The lines of all tables, in the order of first appearance.
    pub(super) fn lines<'a>(&'static self, rows: &'a [Row]) -> Vec<CaseResults<'a>> {
        let mut lines: Vec<CaseResults<'a>> = Vec::new();
        for row in rows.iter().filter(|row| row.text("bench") == Some(self.bench)) {
            // These runs determine the rate of 100 %.
            if row.text("load") == Some("base") {
                continue;
            }
            let (Some(testcase), Some(load)) = (row.text("testcase"), row.text("load")) else {
                continue;
            };
            let setting = (self.setting)(row);
            let known = lines.iter_mut().find(|line| {
                line.testcase == testcase && line.load == load && line.setting == setting
            });
            match known {
                Some(line) => line.runs.push(row),
                None => {
                    lines.push(CaseResults { testcase, load, setting, runs: vec![row], form: self })
                }
            }
        }
        lines
    }

    /// A table for each load and setting.
    pub(super) fn tables(&'static self, rows: &[Row]) -> Vec<Table> {
        let lines = self.lines(rows);
        let places = in_order(lines.iter().map(|line| (line.load, line.setting.as_str())));
        let table_at = |(load, setting): &(&str, &str)| {
            let is_here = |line: &&CaseResults<'_>| line.load == *load && line.setting == *setting;
            let title = format!("{} · {} · {setting}", self.bench, title(load));
            table(&title, &lines.iter().filter(is_here).collect::<Vec<_>>())
        };
        places.iter().map(table_at).collect()
    }

    /// Curves against load in percent, with a plot for each of `plots`: title, key, label and scale of its values.
    pub(super) fn curves(
        &'static self,
        rows: &[Row],
        plots: &[(&str, &str, &str, Scale)],
    ) -> Vec<Series> {
        let lines = self.lines(rows);
        let several = lines.iter().any(|line| line.setting != lines[0].setting);
        let percents = lines.iter().filter(|line| line.load.parse::<u32>().is_ok());
        let subjects = in_order(percents.map(|line| (line.testcase, line.setting.as_str())));
        let mut curves = Vec::new();
        for (name, key, y_label, y_scale) in plots {
            for &(testcase, setting) in &subjects {
                let mine = lines.iter().filter(|l| l.testcase == testcase && l.setting == setting);
                let point =
                    |line: &CaseResults<'_>| Some((line.load.parse().ok()?, line.value(key)?));
                let mut points: Vec<(f64, f64)> = mine.filter_map(point).collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                let transport =
                    if several { format!("{testcase}, {setting}") } else { testcase.to_owned() };
                curves.push(Series {
                    name: (*name).to_owned(),
                    transport,
                    x_label: "load (% of the most that base serves)".to_owned(),
                    x_scale: Scale::Linear,
                    y_label: (*y_label).to_owned(),
                    y_scale: *y_scale,
                    points,
                });
            }
        }
        curves
    }
}

fn title(load: &str) -> String {
    match load {
        "MAX" => "MAX, closed loop".to_owned(),
        "callgrind" => "instructions per query, under callgrind at a low rate".to_owned(),
        percent => format!("{percent} %"),
    }
}

fn table(title: &str, lines: &[&CaseResults<'_>]) -> Table {
    let figures = lines.first().map_or(&[][..], |line| line.form.figures);
    let shown: Vec<&Figure> = figures
        .iter()
        .filter(|figure| lines.iter().any(|line| line.value(figure.key).is_some()))
        .collect();
    let words = lines.first().and_then(|line| line.form.words);
    let words = words.filter(|(key, _)| lines.iter().any(|line| line.text(key).is_some()));
    let heads = ["testcase", "load"].into_iter().chain(shown.iter().map(|f| f.heading));
    let mut heads: Vec<(&str, bool)> = heads.map(|head| (head, head != "testcase")).collect();
    heads.extend(words.map(|(_, heading)| (heading, false)));
    let texts = lines.iter().map(|line| {
        let texts = [line.testcase.to_owned(), load_in_words(line.load)];
        let values = shown.iter().map(|figure| match line.value(figure.key) {
            Some(value) => format!("{value:.*}", figure.digits),
            None => "—".to_owned(),
        });
        let words = words.map(|(key, _)| line.text(key).unwrap_or("—").to_owned());
        texts.into_iter().chain(values).chain(words).collect()
    });
    let runs = lines.iter().map(|line| line.count()).max().unwrap_or(0);
    let source = lines.iter().find_map(|line| line.text("source"));
    let note = match source {
        Some(source) => format!("from {source}: latencies in µs, medians; all else means"),
        None if runs > 1 => format!("{runs} runs: latencies in µs, their medians; all else means"),
        None => "one run: latencies in µs".to_owned(),
    };
    Table::of_texts(title, &note, &heads, texts)
}

fn load_in_words(load: &str) -> String {
    if load.bytes().all(|b| b.is_ascii_digit()) { format!("{load}%") } else { load.to_owned() }
}
