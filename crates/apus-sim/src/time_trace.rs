//! The time trace of a simulation: events of the core on every host, stamped with virtual time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use apus_proto::{TraceEvent, TraceSink};
use apus_trace::{Anchor, Clock, EventInfo, RECORDS, Record, RingTrace, Trace};

/// The records of all hosts of a simulation: of each host the last ones, as many as a thread's ring holds.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Virtual time in picoseconds.
    now: Arc<AtomicU64>,
    hosts: Vec<Arc<Mutex<Ring>>>,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<Record>,
    frozen: bool,
    overwritten: u64,
}

/// The trace sink of one host.
struct HostTrace {
    now: Arc<AtomicU64>,
    ring: Arc<Mutex<Ring>>,
}

impl Recorder {
    pub(crate) fn new(hosts: usize) -> Self {
        let hosts = (0..hosts).map(|_| Arc::default()).collect();
        Self { now: Arc::default(), hosts }
    }

    /// The sink for the events of a host.
    pub(crate) fn sink(&self, host: usize) -> Box<dyn TraceSink> {
        Box::new(HostTrace { now: Arc::clone(&self.now), ring: Arc::clone(&self.hosts[host]) })
    }

    /// Sets the time of the following records.
    pub(crate) fn set_now(&self, picos: u64) {
        self.now.store(picos, Ordering::Relaxed);
    }

    /// The records of all hosts.
    pub(crate) fn finish(&self) -> Trace {
        let rings = self.hosts.iter().enumerate().map(|(host, ring)| {
            let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
            RingTrace {
                name: format!("host {host}"),
                thread: host as u32,
                records: std::mem::take(&mut ring.records).into(),
                overwritten: ring.overwritten,
            }
        });
        let table = TraceEvent::TABLE.iter().zip(0..);
        let events = table.map(|(&(name, arguments, text), number)| apus_trace::EventNames {
            number,
            ..EventInfo { name, arguments, text }.into()
        });
        let second = 1_000_000_000;
        Trace {
            clock: Clock::Virtual,
            program: "simulation".to_owned(),
            pid: 0,
            machine: [0; 16],
            realtime: 0,
            anchors: vec![Anchor::default(), Anchor { ticks: second, nanos: second }],
            events: events.collect(),
            rings: rings.collect(),
            without_ring: 0,
        }
    }
}

impl TraceSink for HostTrace {
    fn record(&mut self, event: TraceEvent, arguments: [u32; 4]) {
        let ticks = self.now.load(Ordering::Relaxed) / 1_000;
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.frozen {
            return;
        }
        if ring.records.len() == RECORDS {
            ring.records.pop_front();
            ring.overwritten += 1;
        }
        ring.records.push_back(Record { ticks, event: event as u16, arguments });
    }

    fn freeze(&mut self) {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).frozen = true;
    }
}
