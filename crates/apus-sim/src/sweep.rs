//! Grids of plans: one simulation for every combination of values, in shards.

use apus_load::ResultFile;
use toml::{Table, Value};

use crate::plan::{Plan, PlanError, set};

/// Upper bound on points of a grid.
const POINTS_MAX: usize = 100_000;

/// One point of a grid.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Its index in the grid, from 0; independent of shards.
    pub index: usize,
    /// The plan to simulate.
    pub plan: Plan,
    /// Its value on each axis of the grid, in the order of the axes.
    pub axes: Vec<(String, Value)>,
}

impl Point {
    /// Its values as text: "load = 0.5, homa.priorities = 4". Empty without axes.
    #[must_use]
    pub fn name(&self) -> String {
        let words = self.axes.iter().map(|(name, value)| match value {
            Value::String(text) => format!("{name} = {text}"),
            value => format!("{name} = {value}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Adds the point to a result: the complete plan, and a column for each axis to each row.
    pub fn label(&self, result: &mut ResultFile) {
        result.plan = Some(self.plan.to_json());
        for row in &mut result.rows {
            for (name, value) in &self.axes {
                // Rows have the transport, the workload and the load already.
                if row.value(name).is_none() {
                    row.put(name, in_json(value));
                }
            }
            row.put("point", self.name());
        }
    }
}

/// A value of a plan as a flat value of a row.
fn in_json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.clone().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(flag) => (*flag).into(),
        other => other.to_string().into(),
    }
}

/// The points of a plan whose `[sweep]` table has lists of values, as in
///
/// ```toml
/// workload = "w4"
/// [sweep]
/// load = [0.5, 0.8]
/// "homa.priorities" = [1, 2, 4, 8]
/// ```
///
/// The last name varies fastest. Names are in alphabetical order. A plan without `[sweep]` is one point.
///
/// # Errors
///
/// If the text is not a plan, or one of its points is not.
pub fn points(text: &str) -> Result<Vec<Point>, PlanError> {
    let toml = |source| PlanError::Toml(Box::new(source));
    let mut base: Table = toml::from_str(text).map_err(toml)?;
    let axes = match base.remove("sweep") {
        None => Table::new(),
        Some(Value::Table(axes)) => axes,
        Some(other) => return Err(wrong("sweep", &other, "a table of lists")),
    };
    let mut tables = vec![(base, Vec::new())];
    for (name, values) in &axes {
        let Some(values) = values.as_array().filter(|values| !values.is_empty()) else {
            return Err(wrong("an axis of [sweep]", values, "a list of values"));
        };
        let count = tables.len() * values.len();
        if count > POINTS_MAX {
            let count = Value::Integer(count as i64);
            return Err(wrong("points of the grid", &count, "up to 100000"));
        }
        let mut next = Vec::with_capacity(tables.len() * values.len());
        for (table, known) in &tables {
            for value in values {
                let (mut table, mut known) = (table.clone(), known.clone());
                set(&mut table, name, value.clone())?;
                known.push((name.clone(), value.clone()));
                next.push((table, known));
            }
        }
        tables = next;
    }
    let point = |(index, (table, axes)): (usize, (Table, Vec<_>))| {
        let plan: Plan = Value::Table(table).try_into().map_err(toml)?;
        plan.validate()?;
        Ok(Point { index, plan, axes })
    };
    tables.into_iter().enumerate().map(point).collect()
}

/// The points of shard `shard` of `shards`: every `shards`th.
pub fn of_shard(points: Vec<Point>, shard: usize, shards: usize) -> Vec<Point> {
    points.into_iter().filter(|point| point.index % shards.max(1) == shard).collect()
}

fn wrong(what: &'static str, value: &Value, allowed: &'static str) -> PlanError {
    PlanError::Value { what, value: value.to_string(), allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: &str =
        "workload = \"w3\"\n[sweep]\nload = [0.5, 0.8]\n\"homa.priorities\" = [1, 8]\n";

    #[test]
    fn every_combination_is_a_point() {
        let points = points(GRID).unwrap();
        let seen: Vec<_> = points
            .iter()
            .map(|point| (point.index, point.plan.load, point.plan.homa.priorities))
            .collect();
        assert_eq!(
            seen,
            [(0, 0.5, Some(1)), (1, 0.8, Some(1)), (2, 0.5, Some(8)), (3, 0.8, Some(8))]
        );
    }

    #[test]
    fn a_result_names_its_point() {
        let point = points(GRID).unwrap().remove(1);
        let mut result = ResultFile::new("apus", apus_load::Machine::default());
        result.rows.push(apus_load::Row::new("apus").set("load", 0.8));
        point.label(&mut result);
        let row = &result.rows[0];
        assert_eq!(row.number("homa.priorities"), Some(1.0));
        assert_eq!(row.text("point"), Some(&*point.name()));
        let plan = result.plan.unwrap();
        assert_eq!((plan["load"].as_f64(), plan["seed"].as_u64()), (Some(0.8), Some(1)));
        assert_eq!(plan["homa"]["priorities"].as_u64(), Some(1));
    }

    #[test]
    fn shards_share_the_points() {
        let all = points(GRID).unwrap();
        let halves: Vec<usize> = (0..2)
            .flat_map(|shard| of_shard(all.clone(), shard, 2))
            .map(|point| point.index)
            .collect();
        assert_eq!(halves, [0, 2, 1, 3]);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(points("[sweep]\nload = 0.5").is_err());
        assert!(points("[sweep]\nloda = [0.5]").is_err());
        assert_eq!(points("").unwrap().len(), 1);
    }
}
