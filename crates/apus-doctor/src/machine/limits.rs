//! Limits of this process: descriptors, locked memory and the length of files.

use rustix::process::{Resource, Rlimit, getrlimit};

use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Limits;

#[derive(Debug)]
pub(super) struct Limits {
    files: Rlimit,
    locked: Rlimit,
    length: Rlimit,
}

impl Limits {
    pub(super) fn gather() -> Self {
        Self {
            files: getrlimit(Resource::Nofile),
            locked: getrlimit(Resource::Memlock),
            length: getrlimit(Resource::Fsize),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![files(self), locked(self), length(self)]
    }
}

fn length(limits: &Limits) -> Finding {
    let Rlimit { current, maximum } = limits.length;
    let (verdict, missing) = match current.unwrap_or(u64::MAX) {
        ..COUNTERS => (Verdict::Bad, ": no counters, no time trace, no memory between processes"),
        COUNTERS..MEMORY => (Verdict::Bad, ": no time trace, no memory between processes"),
        MEMORY..TRACE => (Verdict::CouldBeBetter, ": no time trace"),
        _ => (Verdict::Good, ""),
    };
    let found = match current {
        Some(limit) => format!("files of at most {limit} bytes{missing}"),
        None => "unlimited".to_owned(),
    };
    let may_raise = maximum.is_none_or(|maximum| maximum >= TRACE);
    let change = match may_raise {
        true => "ulimit -f unlimited",
        false => "sudo prlimit --pid $$ --fsize=unlimited:unlimited",
    };
    Finding::new(SUBJECT, "RLIMIT_FSIZE", verdict, found)
        .apus("needs a few kB for counters, 64 MiB for the time trace (mostly untouched), and 1 MiB at a time for memory between \
               processes; it omits the files that exceed the limit")
        .change(change, "counters, traces and shared memory")
        .value("soft_bytes", current)
        .value("hard_bytes", maximum)
}

fn files(limits: &Limits) -> Finding {
    let Rlimit { current, maximum } = limits.files;
    let now = current.unwrap_or(u64::MAX);
    let verdict = match now {
        ..FILES_BAD => Verdict::Bad,
        now => Verdict::good_if(now >= FILES_GOOD),
    };
    let found =
        format!("{} descriptors, which a process may raise to {}", text(current), text(maximum));
    let raised = maximum.map_or(FILES_GOOD, |maximum| maximum.min(FILES_GOOD));
    let change = match raised > now {
        true => format!("ulimit -n {raised}"),
        false => format!("sudo prlimit --pid $$ --nofile={FILES_GOOD}:{FILES_GOOD}"),
    };
    Finding::new(SUBJECT, "RLIMIT_NOFILE", verdict, found)
        .apus("uses several descriptors for each process that shares memory with a node, and five for each connection of `apus \
               run`")
        .change(change, "more neighbours; beyond the limit, calls to them use UDP, and connections of `apus run` stay with TCP \
                         (docs/sockets.md)")
        .value("soft", current)
        .value("hard", maximum)
}

fn locked(limits: &Limits) -> Finding {
    let found = format!("{} bytes", text(limits.locked.current));
    Finding::new(SUBJECT, "RLIMIT_MEMLOCK", Verdict::Good, found)
        .apus("locks no memory, so this limit has no effect")
        .value("soft_bytes", limits.locked.current)
}

fn text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// Enough descriptors for hundreds of neighbours.
const FILES_GOOD: u64 = 4_096;

/// Bytes of the counters of a process with an engine, with a margin.
const COUNTERS: u64 = 16 << 10;

/// Bytes of a segment of memory between processes.
const MEMORY: u64 = 1 << 20;

/// Bytes of the file of a time trace, with a margin.
const TRACE: u64 = 80 << 20;

/// Enough descriptors for hardly more than a node beside the program's own files.
const FILES_BAD: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_one_may() {
        let of = |current, maximum| {
            let limit = Rlimit { current, maximum };
            (Limits { files: limit, locked: limit, length: limit }).findings().remove(0)
        };
        assert_eq!(of(None, None).verdict, Verdict::Good);
        assert_eq!(of(Some(1_024), Some(1 << 20)).change.unwrap(), "ulimit -n 4096");
        assert_eq!(of(Some(1_024), Some(2_048)).change.unwrap(), "ulimit -n 2048");
        assert!(of(Some(1_024), Some(1_024)).change.unwrap().starts_with("sudo prlimit"));
        assert_eq!(of(Some(20), Some(20)).verdict, Verdict::Bad);
    }

    #[test]
    fn low_limits_for_files_are_reported() {
        let of = |current| {
            let limit = Rlimit { current, maximum: None };
            length(&Limits { files: limit, locked: limit, length: limit })
        };
        assert_eq!(of(None).verdict, Verdict::Good);
        assert_eq!(of(Some(2 << 20)).verdict, Verdict::CouldBeBetter);
        assert_eq!(of(Some(4_096)).verdict, Verdict::Bad);
        assert!(of(Some(0)).found.contains("no counters"));
    }
}
