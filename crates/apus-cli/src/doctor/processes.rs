//! Processes of this host with Apus: a shared engine, and others that show counters.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::Path;

use apus_shm::CounterDirectory;

use super::files::Files;
use super::finding::{Finding, Subject, Verdict};
use crate::daemon;

const SUBJECT: Subject = Subject::Processes;

#[derive(Debug)]
pub(super) struct Facts {
    /// Whether a daemon answers at its usual place.
    daemon: bool,
    /// The setting `engine`, if it is set.
    engine: Option<String>,
    /// Name and number of each running process of this user that has a node.
    nodes: Vec<(String, u32)>,
}

impl Facts {
    pub(super) fn gather(files: &dyn Files, counters: &CounterDirectory) -> Self {
        let running = counters.list().unwrap_or_default();
        let running = running.into_iter().filter(|name| name.is_alive() == Some(true));
        let nodes = running.map(|name| {
            let program = files.text(&format!("/proc/{}/comm", name.pid));
            (program.unwrap_or_else(|| "a process".to_owned()), name.pid)
        });
        Self {
            daemon: UnixStream::connect(Path::new(daemon::SOCKET)).is_ok(),
            engine: env::var("APUS_ENGINE").ok().filter(|it| !it.is_empty()),
            nodes: nodes.collect(),
        }
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    vec![nodes(facts), engine(facts)]
}

fn nodes(facts: &Facts) -> Finding {
    let nodes: Vec<_> =
        facts.nodes.iter().take(LISTED).map(|(name, pid)| format!("{name} ({pid})")).collect();
    let more = facts.nodes.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = match facts.nodes.len() {
        0 => "no other process of this user has a node".to_owned(),
        count => format!("{count} processes of this user have a node: {}{more}", nodes.join(", ")),
    };
    Finding::new(SUBJECT, "nodes", Verdict::Good, found)
        .apus("nodes of one host call each other through shared memory; `apus stat` shows their counters")
        .value("nodes", facts.nodes.len())
}

fn engine(facts: &Facts) -> Finding {
    let at = daemon::SOCKET;
    let (verdict, found) = match (facts.daemon, &facts.engine) {
        (_, Some(engine)) => (
            Verdict::Good,
            format!("APUS_ENGINE is {engine}: programs started from here use that engine"),
        ),
        (true, None) => (
            Verdict::CouldBeBetter,
            format!("`apus daemon` runs at {at}, and APUS_ENGINE does not name it"),
        ),
        (false, None) if facts.nodes.len() > 1 => (
            Verdict::CouldBeBetter,
            format!("none runs at {at}, and {} processes have an engine each", facts.nodes.len()),
        ),
        (false, None) => (Verdict::Good, format!("none runs at {at}; a single process needs none")),
    };
    let change = match facts.daemon {
        true => format!("export APUS_ENGINE=unix:{at}"),
        false => "apus daemon --socket /tmp/engine.sock & export APUS_ENGINE=unix:/tmp/engine.sock"
            .to_owned(),
    };
    Finding::new(SUBJECT, "shared engine", verdict, found)
        .apus("processes with an engine each do not schedule their messages together (docs/engine.md)")
        .change(
            change,
            "where several processes send long and short messages by one link: with eight bulk senders, p99 of short calls 2.4 ms instead of \
             6.6 (docs/performance.md)",
        )
        .value("daemon", facts.daemon)
}

/// Processes that are named.
const LISTED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_could_share_an_engine() {
        let node = |pid| ("server".to_owned(), pid);
        let facts = Facts { daemon: false, engine: None, nodes: vec![node(7), node(8)] };
        let [nodes, engine] = findings(&facts).try_into().unwrap();
        assert_eq!(nodes.found, "2 processes of this user have a node: server (7), server (8)");
        assert!(engine.change.unwrap().starts_with("apus daemon --socket"));
        let daemon = Facts { daemon: true, ..facts };
        assert!(
            findings(&daemon)[1]
                .change
                .as_ref()
                .unwrap()
                .starts_with("export APUS_ENGINE=unix:/run")
        );
        let used = Facts { engine: Some("unix:/x".to_owned()), ..daemon };
        assert_eq!(findings(&used)[1].verdict, Verdict::Good);
        let alone = Facts { daemon: false, engine: None, nodes: Vec::new() };
        assert!(findings(&alone).iter().all(|it| it.verdict == Verdict::Good));
    }
}
