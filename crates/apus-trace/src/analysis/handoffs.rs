//! Handoffs: from the complete message to the application that takes it.

use std::collections::BTreeMap;

use super::{WORST, thread};
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::nodes::{CallKey, Nodes};
use crate::report::{Cell, Report};

/// A message that the application took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Take {
    call: CallKey,
    is_request: bool,
    complete: u64,
    taken: u64,
    /// The thread in which the message became complete.
    from: usize,
    /// The thread that took it.
    by: usize,
    /// Time at which that thread woke, if it slept in between.
    woken: Option<u64>,
    /// Requests queued behind it, if recorded.
    waiting: u32,
}

impl Take {
    pub(super) fn wait(&self) -> u64 {
        self.taken - self.complete
    }

    /// Time from the complete message until the thread that takes it runs.
    pub(super) fn wake_up(&self) -> Option<u64> {
        Some(self.woken? - self.complete)
    }

    fn way(&self) -> &'static str {
        match self.woken {
            _ if self.by == self.from => "same thread",
            Some(_) => "woken thread",
            None => "other thread, awake",
        }
    }
}

/// All messages that the application took, in that order.
pub(super) fn takes(merged: &Merged) -> Vec<Take> {
    let (nodes, mut complete, mut takes) = (Nodes::of(merged), BTreeMap::new(), Vec::new());
    let mut woken = vec![None; merged.rings.len()];
    for moment in &merged.moments {
        let (name, by, taken) = (merged.name(moment), moment.ring, moment.nanos);
        if name == "wake_up" {
            woken[by] = Some(taken);
        }
        let Some(call) = nodes.call(merged, moment) else { continue };
        match name {
            "request_complete" | "response_complete" => {
                complete.insert(call, (taken, by));
            }
            "recvmsg_request" | "recvmsg_response" => {
                let Some((complete, from)) = complete.remove(&call) else { continue };
                let woken = woken[by].filter(|&woken| woken >= complete);
                let (is_request, waiting) = (name == "recvmsg_request", moment.arguments[3]);
                takes.push(Take {
                    call: call.0,
                    is_request,
                    complete,
                    taken,
                    from,
                    by,
                    woken,
                    waiting,
                });
            }
            _ => {}
        }
    }
    takes
}

const WAYS: [&str; 3] = ["same thread", "woken thread", "other thread, awake"];

/// Waits of complete messages for the application, by the state of the thread that takes them.
#[must_use]
pub fn handoffs(merged: &Merged) -> Report {
    let (takes, mut report) = (takes(merged), Report::default());
    let columns = [&["message", "taken_by"][..], &Distribution::TIMES].concat();
    let table = report.table("handoffs", &columns);
    for (message, is_request) in [("request", true), ("response", false)] {
        for way in WAYS {
            let same = takes.iter().filter(|it| it.is_request == is_request && it.way() == way);
            let times: Distribution = same.map(Take::wait).collect();
            table.row([message.into(), way.into()].into_iter().chain(times.times()));
        }
    }
    let columns = [&["stage"][..], &Distribution::TIMES].concat();
    let table = report.table("wake_ups", &columns);
    let runs = takes.iter().filter(|it| it.by != it.from).filter_map(Take::wake_up).collect();
    let after = takes.iter().filter(|it| it.by != it.from);
    let after = after.filter_map(|it| Some(it.taken - it.woken?)).collect();
    for (name, times) in [("complete to thread woken", runs), ("thread woken to taken", after)] {
        let times: Distribution = times;
        table.row([name.into()].into_iter().chain(times.times()));
    }
    of_threads(&mut report, merged, &takes);
    let columns = ["message", "id", "pair", "taken_by", "complete_us", "waited_us"];
    let table = report.table("longest", &columns);
    let mut longest: Vec<_> = takes.iter().collect();
    longest.sort_by_key(|take| std::cmp::Reverse(take.wait()));
    for take in longest.into_iter().take(WORST) {
        let message = if take.is_request { "request" } else { "response" };
        let (begun, waited) = (Cell::nanos(take.complete), Cell::nanos(take.wait()));
        let (id, pair) = (take.call.id.into(), Cell::hex(take.call.pair));
        table.row([message.into(), id, pair, take.way().into(), begun, waited]);
    }
    report
}

fn of_threads(report: &mut Report, merged: &Merged, takes: &[Take]) {
    let columns = [&["thread"][..], &Distribution::TIMES].concat();
    let table = report.table("threads", &columns);
    for ring in 0..merged.rings.len() {
        let times: Distribution = takes.iter().filter(|it| it.by == ring).map(Take::wait).collect();
        if times.count() > 0 {
            table.row([thread(merged, ring).into()].into_iter().chain(times.times()));
        }
    }
}

/// Number of requests queued behind one that the application takes, by the service's port.
#[must_use]
pub fn sockqs(merged: &Merged) -> Report {
    let (nodes, mut ports) = (Nodes::of(merged), BTreeMap::new());
    for moment in merged.moments.iter().filter(|it| merged.name(it) == "sendmsg_request") {
        ports.extend(nodes.call(merged, moment).map(|(call, _)| (call, moment.arguments[3])));
    }
    let mut queues: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for take in takes(merged).into_iter().filter(|take| take.is_request) {
        let port = ports.get(&take.call).copied();
        let process = thread(merged, take.by);
        let process = process.rsplit_once('/').map_or(&*process, |(process, _)| process);
        queues.entry((process.to_owned(), port)).or_default().push(take);
    }
    let mut report = Report::default();
    let columns = [
        "process",
        "port",
        "requests",
        "waiting_mean",
        "waiting_p50",
        "waiting_p99",
        "waiting_most",
        "waited_p99_us",
    ];
    let table = report.table("queues", &columns);
    for ((process, port), takes) in queues {
        let waiting: Distribution = takes.iter().map(|take| take.waiting.into()).collect();
        let waited: Distribution = takes.iter().map(Take::wait).collect();
        let numbers = [waiting.median(), waiting.percentile(99), waiting.most()].map(Cell::from);
        let start = [process.into(), port.into(), waiting.count().into(), waiting.mean().into()];
        let waited = Cell::nanos(waited.percentile(99));
        table.row(start.into_iter().chain(numbers).chain([waited]));
    }
    report
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    const CALLS: &str = "0 c.a sendmsg_request 2 9 100 4000
        1 c.b sleep 2
        10 s request_complete 3 9 100
        15 s recvmsg_request 3 9 100 4
        20 c.a response_complete 2 9 100
        27 c.b wake_up 2
        30 c.b recvmsg_response 2 9 100";

    #[test]
    fn the_threads_that_take_messages_are_distinguished() {
        let takes = takes(&script(CALLS));
        let found = takes.iter().map(|take| (take.way(), take.wait(), take.wake_up()));
        let found: Vec<_> = found.collect();
        assert_eq!(found, [("same thread", 5, None), ("woken thread", 10, Some(7))]);
        let report = handoffs(&script(CALLS));
        assert_eq!(report.cell("handoffs", 0, "count"), Some(&Cell::Count(1)));
        assert_eq!(report.cell("longest", 0, "taken_by"), Some(&Cell::from("woken thread")));
    }

    #[test]
    fn queues_are_those_of_ports() {
        let report = sockqs(&script(CALLS));
        assert_eq!(report.cell("queues", 0, "port"), Some(&Cell::Count(4000)));
        assert_eq!(report.cell("queues", 0, "waiting_most"), Some(&Cell::Count(4)));
    }
}
