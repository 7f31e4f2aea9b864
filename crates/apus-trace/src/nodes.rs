//! Nodes and their rings: the threads of a process, or a simulated host.

use std::collections::BTreeMap;

use crate::merged::{Merged, Moment, Source};

/// A call, with the same key at both ends. Two nodes that call each other use the same ids, so the client is a part of the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct CallKey {
    /// Lower half of its id, in the client's form.
    pub(crate) id: u32,
    pub(crate) pair: u32,
    /// Whether its client is the first node of the pair in the trace.
    from_first: bool,
}

/// The nodes of a trace. Several nodes of one process count as one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Nodes {
    /// The node of each ring.
    of_ring: Vec<usize>,
    nodes: Vec<TracedNode>,
    /// The nodes of each pair, in the order of their first records.
    of_pair: BTreeMap<u32, Vec<usize>>,
    /// The node at the client's end of a call, and at its server's.
    of_call: BTreeMap<(CallKey, bool), usize>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct TracedNode {
    name: String,
    /// Start of the time in which all its records are present.
    from: u64,
    /// End of that time.
    until: u64,
}

impl Nodes {
    pub(crate) fn of(merged: &Merged) -> Self {
        let (mut nodes, mut numbers): (Vec<TracedNode>, _) = (Vec::new(), BTreeMap::new());
        let of_ring = merged.rings.iter().map(|source| {
            *numbers.entry(name(source)).or_insert_with_key(|name| {
                nodes.push(TracedNode { name: name.clone(), from: 0, until: 0 });
                nodes.len() - 1
            })
        });
        let of_ring = of_ring.collect();
        let (of_pair, of_call) = Default::default();
        let mut all = Self { of_ring, nodes, of_pair, of_call };
        let mut begun = vec![false; merged.rings.len()];
        for moment in &merged.moments {
            let number = all.of_ring[moment.ring];
            let node = &mut all.nodes[number];
            node.until = moment.nanos;
            let is_first = !std::mem::replace(&mut begun[moment.ring], true);
            if is_first && merged.rings[moment.ring].overwritten > 0 {
                node.from = node.from.max(moment.nanos);
            }
            if let Some((_, pair)) = merged.call_of(moment) {
                let nodes = all.of_pair.entry(pair).or_default();
                if !nodes.contains(&number) {
                    nodes.push(number);
                }
                if let Some((call, at_client)) = all.call(merged, moment) {
                    all.of_call.entry((call, at_client)).or_insert(number);
                }
            }
        }
        all
    }

    /// The call of a record, and whether its client recorded it.
    pub(crate) fn call(&self, merged: &Merged, moment: &Moment) -> Option<(CallKey, bool)> {
        let (id, pair) = merged.call_of(moment)?;
        let at_client = id & 1 == 0;
        // A raw link has no pairs.
        let is_first = pair == 0
            || self.of_pair.get(&pair).is_some_and(|nodes| nodes[0] == self.of_ring[moment.ring]);
        let from_first = pair == 0 || is_first == at_client;
        Some((CallKey { id: id & !1, pair, from_first }, at_client))
    }

    /// The node at one end of a call, if that node has recorded the call.
    pub(crate) fn end(&self, call: CallKey, at_client: bool) -> Option<usize> {
        self.of_call.get(&(call, at_client)).copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn of_ring(&self, ring: usize) -> usize {
        self.of_ring[ring]
    }

    pub(crate) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// The node to which a packet about a call is sent: the call's other end. `None` if no trace belongs to that node.
    pub(crate) fn receiver(
        &self,
        call: CallKey,
        from_client: bool,
        sender: usize,
    ) -> Option<usize> {
        if let Some(&node) = self.of_call.get(&(call, !from_client)) {
            return Some(node);
        }
        let mut nodes = self.of_pair.get(&call.pair).filter(|_| call.pair != 0)?.iter();
        nodes.find(|&&node| node != sender).copied()
    }

    /// Whether all events of a node at this time were recorded and are present.
    pub(crate) fn knows(&self, node: usize, nanos: u64) -> bool {
        (self.nodes[node].from..=self.nodes[node].until).contains(&nanos)
    }
}

/// A node's name: the process, or the simulated host. A merged file has the process before the name of a ring.
fn name(source: &Source) -> String {
    let is_host = |name: &str| name.starts_with("host ");
    let (process, ring) = match source.name.split_once('/') {
        Some((process, ring)) if source.program == "merged" => (process.to_owned(), ring),
        _ => (format!("{}.{}", source.program, source.pid), &*source.name),
    };
    if process.starts_with("simulation.") && is_host(ring) { ring.to_owned() } else { process }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn threads_of_a_process_are_one_node_and_simulated_hosts_are_many() {
        let mut merged = script("0 a sendmsg_request 2 9 100\n5 b data_received 3 9 0 100");
        assert_eq!(Nodes::of(&merged).count(), 2);
        for (source, name) in merged.rings.iter_mut().zip(["a", "b"]) {
            (source.program, source.pid, source.name) = ("p".into(), 3, name.into());
        }
        assert_eq!(Nodes::of(&merged).count(), 1);
        assert_eq!(Nodes::of(&Merged::of(&[merged.to_trace()])).name(0), "p.3");
        for (source, name) in merged.rings.iter_mut().zip(["host 0", "host 1"]) {
            (source.program, source.name) = ("simulation".into(), name.into());
        }
        assert_eq!(Nodes::of(&merged).name(1), "host 1");
        assert_eq!(Nodes::of(&Merged::of(&[merged.to_trace()])).count(), 2);
    }

    #[test]
    fn the_receiver_is_the_other_end_of_the_call_or_of_the_pair() {
        let merged = script(
            "0 a sendmsg_request 2 9 100
             5 b data_received 3 9 0 100
             7 a sendmsg_request 4 9 100
             8 a sendmsg_request 6 8 100",
        );
        let nodes = Nodes::of(&merged);
        let receivers = [0, 2, 3].map(|at| {
            let (call, at_client) = nodes.call(&merged, &merged.moments[at]).unwrap();
            nodes.receiver(call, at_client, 0)
        });
        assert_eq!(receivers, [Some(1), Some(1), None]);
        assert!(nodes.knows(1, 5) && !nodes.knows(1, 6));
    }

    #[test]
    fn calls_in_both_directions_with_the_same_id_are_two() {
        let merged = script(
            "0 a sendmsg_request 2 9 100
             1 b sendmsg_request 2 9 100
             5 b data_received 3 9 0 100
             6 a data_received 3 9 0 100",
        );
        let nodes = Nodes::of(&merged);
        let of = |at: usize| nodes.call(&merged, &merged.moments[at]).unwrap().0;
        assert!(of(0) == of(2) && of(1) == of(3) && of(0) != of(1));
    }
}
