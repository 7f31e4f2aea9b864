//! Lengths, transmissions and drops of the switch's queues.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::iproute::tc;
use crate::switch::CLASSES;

/// The queues of all ports of a switch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Queues {
    /// Queues by port and class.
    queues: BTreeMap<(String, u8), Queue>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Queue {
    held: u64,
    sent: u64,
    dropped: u64,
}

/// One queueing discipline in the output of `tc -j`.
#[derive(Deserialize)]
struct Discipline {
    kind: String,
    dev: String,
    handle: String,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    backlog: u64,
}

impl Queues {
    /// The current queues of the switch in that namespace.
    ///
    /// # Errors
    /// If `tc` fails or its output has another form.
    pub(crate) fn now(namespace: &str) -> Result<Self> {
        Self::parse(&tc(&["-n", namespace, "-s", "-j", "qdisc", "show"])?)
    }

    fn parse(text: &str) -> Result<Self> {
        let found: Vec<Discipline> =
            serde_json::from_str(text).context("cannot read the output of `tc -j`")?;
        let queue = |found: Discipline| {
            let class: u8 = found.handle.strip_suffix("0:")?.parse().ok()?;
            let queue = Queue { held: found.backlog, sent: found.bytes, dropped: found.drops };
            (found.kind == "bfifo").then_some(((found.dev, class.checked_sub(1)?), queue))
        };
        Ok(Self { queues: found.into_iter().filter_map(queue).collect() })
    }

    /// Bytes held by each port now, all classes together.
    pub(crate) fn held_by_port(&self) -> Vec<u64> {
        let mut ports: BTreeMap<&str, u64> = BTreeMap::new();
        for ((port, _), queue) in &self.queues {
            *ports.entry(port).or_default() += queue.held;
        }
        ports.into_values().collect()
    }

    /// Packets dropped since `earlier`.
    pub(crate) fn dropped_since(&self, earlier: &Self) -> u64 {
        self.sum(|queue| queue.dropped).saturating_sub(earlier.sum(|queue| queue.dropped))
    }

    /// Bytes sent by each class since `earlier`, all ports together.
    pub(crate) fn sent_by_class_since(&self, earlier: &Self) -> [u64; CLASSES as usize] {
        let sum = |queues: &Self, class| {
            let of_class =
                queues.queues.iter().filter(|((_, found), _)| usize::from(*found) == class);
            of_class.map(|(_, queue)| queue.sent).sum::<u64>()
        };
        std::array::from_fn(|class| sum(self, class).saturating_sub(sum(earlier, class)))
    }

    fn sum(&self, value: impl Fn(&Queue) -> u64) -> u64 {
        self.queues.values().map(value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read_by_port_and_class() {
        let one = |dev, handle, backlog, drops| {
            format!(
                r#"{{"kind":"bfifo","handle":"{handle}","dev":"{dev}","options":{{}},"bytes":10,"drops":{drops},"backlog":{backlog}}}"#
            )
        };
        let text = format!(
            r#"[{{"kind":"htb","handle":"1:","root":true,"dev":"p0","backlog":5}},{},{},{}]"#,
            one("p0", "10:", 100, 1),
            one("p0", "80:", 20, 0),
            one("p1", "10:", 7, 2),
        );
        let queues = Queues::parse(&text).unwrap();
        assert_eq!(queues.held_by_port(), [120, 7]);
        assert_eq!(queues.dropped_since(&Queues::default()), 3);
        assert_eq!(queues.sent_by_class_since(&Queues::default()), [20, 0, 0, 0, 0, 0, 0, 10]);
    }
}
