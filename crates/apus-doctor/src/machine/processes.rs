//! Processes of this host with Apus: a shared engine, and processes that show counters.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use apus_shm::CounterDirectory;

use crate::files::Files;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Processes;

#[derive(Debug)]
pub(super) struct Processes {
    /// The socket at which a daemon would answer.
    socket: PathBuf,
    daemon: bool,
    /// The setting `engine`, if it is set.
    engine: Option<String>,
    /// Name and number of each running process of this user that has a node.
    nodes: Vec<(String, u32)>,
}

impl Processes {
    pub(super) fn gather(files: &dyn Files, counters: &CounterDirectory, engine: &Path) -> Self {
        let running = counters.list().unwrap_or_default();
        let running = running.into_iter().filter(|name| name.is_alive() == Some(true));
        let nodes = running.map(|name| {
            let program = files.text(&format!("/proc/{}/comm", name.pid));
            (program.unwrap_or_else(|| "a process".to_owned()), name.pid)
        });
        Self {
            socket: engine.to_owned(),
            daemon: UnixStream::connect(engine).is_ok(),
            engine: env::var("APUS_ENGINE").ok().filter(|it| !it.is_empty()),
            nodes: nodes.collect(),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![nodes(self), engine(self)]
    }
}

fn nodes(processes: &Processes) -> Finding {
    let nodes: Vec<_> =
        processes.nodes.iter().take(LISTED).map(|(name, pid)| format!("{name} ({pid})")).collect();
    let more = processes.nodes.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = match processes.nodes.len() {
        0 => "no other process of this user has a node".to_owned(),
        count => format!("{count} processes of this user have a node: {}{more}", nodes.join(", ")),
    };
    Finding::new(SUBJECT, "nodes", Verdict::Good, found)
        .apus("nodes of one host call each other through shared memory; `apus stat` shows their counters")
        .value("nodes", processes.nodes.len())
}

fn engine(processes: &Processes) -> Finding {
    let at = processes.socket.display();
    let (verdict, found) = match (processes.daemon, &processes.engine) {
        (_, Some(engine)) => (
            Verdict::Good,
            format!("APUS_ENGINE is {engine}: programs started from this shell use that engine"),
        ),
        (true, None) => (
            Verdict::CouldBeBetter,
            format!("`apus daemon` runs at {at}, and APUS_ENGINE does not name it"),
        ),
        (false, None) if processes.nodes.len() > 1 => (
            Verdict::CouldBeBetter,
            format!(
                "no daemon runs at {at}, and {} processes have an engine each",
                processes.nodes.len()
            ),
        ),
        (false, None) => {
            (Verdict::Good, format!("no daemon runs at {at}; a single process needs none"))
        }
    };
    let change = match processes.daemon {
        true => format!("export APUS_ENGINE=unix:{at}"),
        false => "apus daemon --socket /tmp/engine.sock & export APUS_ENGINE=unix:/tmp/engine.sock"
            .to_owned(),
    };
    Finding::new(SUBJECT, "shared engine", verdict, found)
        .apus("schedules the messages of each engine separately (docs/engine.md)")
        .change(
            change,
            "for processes that send long and short messages over one link: with eight bulk senders, the p99 of short calls was \
             2.4 ms instead of 6.6 ms (docs/performance.md)",
        )
        .value("daemon", processes.daemon)
}

/// Upper bound on the processes that are named.
const LISTED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_processes_could_share_an_engine() {
        let node = |pid| ("server".to_owned(), pid);
        let processes = Processes {
            socket: "/run/apus/engine.sock".into(),
            daemon: false,
            engine: None,
            nodes: vec![node(7), node(8)],
        };
        let [nodes, engine] = processes.findings().try_into().unwrap();
        assert_eq!(nodes.found, "2 processes of this user have a node: server (7), server (8)");
        assert!(engine.change.unwrap().starts_with("apus daemon --socket"));
        let daemon = Processes { daemon: true, ..processes };
        assert!(
            daemon.findings()[1]
                .change
                .as_ref()
                .unwrap()
                .starts_with("export APUS_ENGINE=unix:/run")
        );
        let used = Processes { engine: Some("unix:/x".to_owned()), ..daemon };
        assert_eq!(used.findings()[1].verdict, Verdict::Good);
        let alone = Processes { daemon: false, engine: None, nodes: Vec::new(), ..used };
        assert!(alone.findings().iter().all(|it| it.verdict == Verdict::Good));
    }
}
