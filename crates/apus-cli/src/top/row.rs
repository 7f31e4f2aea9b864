//! One process in the table.

use std::collections::VecDeque;

use serde_json::json;

use super::rates::{self, LengthClass, Rates};
use super::recorded::Recorded;
use crate::counters::{Counters, Identity, Process, ProcessChange, state_warnings, warnings};

/// A process, with its figures of the last interval.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) identity: Identity,
    pub(super) program: String,
    /// Its version of Apus.
    pub(super) version: String,
    pub(super) state: Liveness,
    /// None for processes of other pid namespaces.
    pub(super) user: Option<String>,
    /// Share of one CPU, from 0; beyond 1 with several threads. None where it is not known.
    pub(super) cpu: Option<f64>,
    /// None until the process was seen twice, and after it has ended.
    pub(super) rates: Option<Rates>,
    pub(super) by_length: Vec<LengthClass>,
    pub(super) by_priority: Vec<(u8, f64)>,
    pub(super) most_active: Vec<(String, f64)>,
    /// Recent calls, if its panel is open and it has a time trace.
    pub(super) recorded: Option<Recorded>,
    /// Warnings of the last [`WARNED_INTERVALS`] intervals, and of the present state.
    pub(super) warnings: Vec<String>,
    /// The growth of its counters in these intervals.
    recent: VecDeque<Counters>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Liveness {
    Runs,
    /// The process ended this number of intervals ago.
    Ended(u32),
    /// Whether it runs cannot be known.
    OtherNamespace,
}

impl Row {
    /// A process that is new to the table. It has no figures of the last interval.
    pub(super) fn new(process: &Process, user: Option<&str>) -> Self {
        let mut row = Self {
            identity: process.identity(),
            program: process.program.clone(),
            version: process.version.clone(),
            state: Liveness::Runs,
            user: None,
            cpu: None,
            rates: None,
            by_length: Vec::new(),
            by_priority: Vec::new(),
            most_active: Vec::new(),
            recorded: None,
            warnings: Vec::new(),
            recent: VecDeque::new(),
        };
        row.look(process.alive, user);
        row
    }

    pub(super) fn as_json(&self) -> serde_json::Value {
        json!({
            "pid": self.identity.0,
            "program": self.program,
            "version": self.version,
            "user": self.user,
            "runs": match self.state {
                Liveness::Runs => Some(true),
                Liveness::Ended(_) => Some(false),
                Liveness::OtherNamespace => None,
            },
            "cpu_share": self.cpu,
            "rates": self.rates.map(|rates| rates.as_json()),
            "warnings": self.warnings,
        })
    }

    /// Takes the figures of an interval of this length in seconds; `None` if they are unknown. `cpu` is the share of a CPU that it
    /// used.
    pub(super) fn take(
        &mut self,
        change: &ProcessChange,
        user: Option<&str>,
        cpu: Option<f64>,
        seconds: Option<f64>,
    ) {
        self.look(change.process.alive, user);
        let Some(seconds) = seconds.filter(|_| !self.has_ended()) else {
            return self.forget_rates();
        };
        self.cpu = cpu;
        let grown = &change.grown;
        self.rates = Some(Rates::of(grown, seconds));
        self.by_length = rates::by_length(grown, seconds);
        self.by_priority = rates::by_priority(grown, seconds);
        self.most_active = rates::most_active(grown, seconds);
        self.recent.push_back(grown.clone());
        if self.recent.len() > WARNED_INTERVALS {
            self.recent.pop_front();
        }
        self.warnings = warnings(&sum(&self.recent));
        self.warnings.extend(state_warnings(&change.process));
    }

    /// The process has ended: its file is gone, or it says so.
    pub(super) fn end(&mut self) {
        self.state = match self.state {
            Liveness::Ended(intervals) => Liveness::Ended(intervals + 1),
            Liveness::Runs | Liveness::OtherNamespace => Liveness::Ended(0),
        };
        self.forget_rates();
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, Liveness::Ended(_))
    }

    fn look(&mut self, alive: Option<bool>, user: Option<&str>) {
        match alive {
            Some(true) => self.state = Liveness::Runs,
            Some(false) => self.end(),
            None => self.state = Liveness::OtherNamespace,
        }
        if let Some(user) = user {
            self.user = Some(user.to_owned());
        }
    }

    /// Keeps the warnings: they may show why the process has ended.
    fn forget_rates(&mut self) {
        (self.rates, self.cpu) = (None, None);
        self.by_length.clear();
        self.by_priority.clear();
        self.most_active.clear();
        self.recorded = None;
    }
}

fn sum(parts: &VecDeque<Counters>) -> Counters {
    let mut sum = Counters::new();
    for (name, grown) in parts.iter().flatten() {
        *sum.entry(name.clone()).or_insert(0) += grown;
    }
    sum
}

/// Intervals for which a warning is shown.
pub(super) const WARNED_INTERVALS: usize = 10;
