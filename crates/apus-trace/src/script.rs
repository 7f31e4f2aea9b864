//! Traces for tests, written as text.

use std::collections::BTreeMap;

use crate::file::EventNames;
use crate::merged::{Merged, Moment, Source};

/// Events without a call.
const OF_THREADS: [&str; 5] = ["link_recv", "link_flush", "sleep", "wake_up", "lock_wait"];

/// Parses one record a line: nanoseconds, node, event, arguments. Each node has its own process. A thread may follow the node's
/// name after a dot.
pub(crate) fn script(lines: &str) -> Merged {
    let (mut merged, mut rings, mut events) = (Merged::default(), BTreeMap::new(), BTreeMap::new());
    for line in lines.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [nanos, ring, event, ref numbers @ ..] = words[..] else { panic!("too short: {line}") };
        let ring = *rings.entry(ring.to_owned()).or_insert_with(|| {
            merged.rings.push(source(ring));
            merged.rings.len() - 1
        });
        let event = *events.entry(event.to_owned()).or_insert_with(|| {
            merged.events.push(names(event));
            merged.events.len() - 1
        });
        let mut arguments = [0; 4];
        for (to, number) in arguments.iter_mut().zip(numbers) {
            *to = number.parse().expect("arguments are numbers");
        }
        let nanos = nanos.parse().expect("the time is a number");
        merged.moments.push(Moment { nanos, ring, event, arguments });
    }
    merged.moments.sort_by_key(|moment| moment.nanos);
    merged
}

fn source(ring: &str) -> Source {
    let (program, name) = ring.split_once('.').unwrap_or((ring, "main"));
    let (program, name) = (program.to_owned(), name.to_owned());
    Source { trace: 0, program, pid: 1, name, overwritten: 0 }
}

fn names(event: &str) -> EventNames {
    let arguments = if OF_THREADS.contains(&event) { ["", ""] } else { ["id", "pair"] };
    let arguments = arguments.map(str::to_owned).to_vec();
    EventNames { number: 0, name: event.to_owned(), arguments, text: event.to_owned() }
}
