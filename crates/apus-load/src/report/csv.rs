//! All rows as one table of values, for other programs.

use anyhow::Result;
use serde_json::Value;

use crate::result::ResultFile;

/// The rows of all results as CSV (RFC 4180), with a heading. Every key of any row has a column, in the order in which keys appear.
/// Missing values are empty.
///
/// # Errors
/// The errors of writing CSV, which do not occur in memory.
pub fn csv(results: &[ResultFile]) -> Result<String> {
    let rows = || results.iter().flat_map(|result| &result.rows);
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in rows().flat_map(|row| row.values()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !keys.is_empty() {
        writer.write_record(&keys)?;
    }
    for row in rows() {
        let value = |key: &&str| match row.value(key) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        writer.write_record(keys.iter().map(value))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::row::Row;

    #[test]
    fn every_key_of_any_row_is_a_column() {
        let mut result = ResultFile::new("apus", Machine::default());
        result.rows.push(Row::new("apus").set("p50_us", 1.5).set("name", "a, \"b\""));
        result.rows.push(Row::new("tcp").set("lost", None::<u64>).set("p50_us", 2));
        let text = csv(&[result]).unwrap();
        assert_eq!(text, "transport,p50_us,name,lost\napus,1.5,\"a, \"\"b\"\"\",\ntcp,2,,\n");
        assert_eq!(csv(&[]).unwrap(), "");
    }
}
