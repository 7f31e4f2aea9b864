//! Messages from a file: time, sender, receiver and length.

use std::path::Path;

use crate::plan::PlanError;

/// A message of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// Time since the load began, in picoseconds.
    pub(crate) at: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) bytes: u32,
}

/// Reads a trace: lines of `time_ns,source,destination,bytes`, with hosts numbered from 0. Skips empty lines, lines that begin with
/// `#`, and a heading. Returns the messages in order of time.
///
/// # Errors
///
/// If the file cannot be read, or a line is not a message between two of `hosts` hosts.
pub(crate) fn read(path: &Path, hosts: u32) -> Result<Vec<Sent>, PlanError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| PlanError::File { path: path.to_owned(), source })?;
    parse(&text, hosts).map_err(|(line, text)| PlanError::Trace {
        path: path.to_owned(),
        line,
        text,
        hosts,
    })
}

fn parse(text: &str, hosts: u32) -> Result<Vec<Sent>, (usize, String)> {
    let mut messages = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "time_ns,source,destination,bytes" {
            continue;
        }
        let message = message(line).filter(|sent| {
            sent.from < hosts && sent.to < hosts && sent.from != sent.to && sent.bytes > 0
        });
        messages.push(message.ok_or_else(|| (index + 1, line.to_owned()))?);
    }
    messages.sort_by_key(|sent| sent.at);
    Ok(messages)
}

fn message(line: &str) -> Option<Sent> {
    let mut fields = line.split(',').map(str::trim);
    let at = fields.next()?.parse::<u64>().ok()?.checked_mul(1000)?;
    let mut number = || fields.next()?.parse::<u32>().ok();
    let sent = Sent { at, from: number()?, to: number()?, bytes: number()? };
    fields.next().is_none().then_some(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_of_time() {
        let text = "time_ns,source,destination,bytes\n# a remark\n20,1,0,300\n\n 5, 0, 1, 7\n";
        let first = Sent { at: 5_000, from: 0, to: 1, bytes: 7 };
        let second = Sent { at: 20_000, from: 1, to: 0, bytes: 300 };
        assert_eq!(parse(text, 2), Ok(vec![first, second]));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for line in ["1,0,2,5", "1,0,0,5", "1,0,1,0", "1,0,1", "1,0,1,5,6", "x,0,1,5"] {
            assert_eq!(parse(&format!("#\n{line}"), 2), Err((2, line.to_owned())), "{line}");
        }
    }
}
