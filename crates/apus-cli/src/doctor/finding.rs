//! What was found about one thing, and what to make of it.

use serde::Serialize;
use serde_json::{Map, Value};

/// What is looked at, in the order of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subject {
    UdpOffloads,
    SocketBuffers,
    Interface,
    Interrupts,
    BusyPolling,
    AfXdp,
    IrqSuspension,
    Clock,
    WakeUp,
    IdleStates,
    Processors,
    OtherLoad,
    DevShm,
    Limits,
    Privileges,
    Processes,
    /// The way to a peer.
    Path,
}

impl Subject {
    /// The heading of its findings.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::UdpOffloads => "UDP offloads",
            Self::SocketBuffers => "Socket buffers",
            Self::Interface => "Network interface",
            Self::Interrupts => "Interrupts and packet steering",
            Self::BusyPolling => "Busy polling in the kernel",
            Self::AfXdp => "AF_XDP",
            Self::IrqSuspension => "IRQ suspension in the kernel",
            Self::Clock => "Clock",
            Self::WakeUp => "Wake-ups",
            Self::IdleStates => "Idle states and frequency",
            Self::Processors => "Processors",
            Self::OtherLoad => "Other load",
            Self::DevShm => "/dev/shm",
            Self::Limits => "Limits of a process",
            Self::Privileges => "Privileges",
            Self::Processes => "Processes with Apus",
            Self::Path => "Path",
        }
    }
}

/// How good a finding is for Apus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Good,
    /// Apus works, and would work better with a change.
    CouldBeBetter,
    /// Apus does not work, or much worse than it could.
    Bad,
    /// It could not be found out.
    NotKnown,
}

impl Verdict {
    /// In words.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::CouldBeBetter => "could be better",
            Self::Bad => "bad",
            Self::NotKnown => "not known",
        }
    }

    /// [`Good`](Self::Good) where something holds, else [`CouldBeBetter`](Self::CouldBeBetter).
    pub(super) fn good_if(holds: bool) -> Self {
        if holds { Self::Good } else { Self::CouldBeBetter }
    }

    /// By a value of which less is better: good up to `good`, bad beyond `bad`.
    pub(super) fn by(value: f64, good: f64, bad: f64) -> Self {
        match value {
            value if value <= good => Self::Good,
            value if value <= bad => Self::CouldBeBetter,
            _ => Self::Bad,
        }
    }
}

/// One line of the report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) subject: Subject,
    /// What was looked at; unique within the subject.
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was found, with its value.
    pub(super) found: String,
    /// What Apus does with it, or why it does not use it.
    pub(super) apus: String,
    /// A command that changes it, to be pasted into a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<String>,
    /// What the change brings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) brings: Option<String>,
    /// The values as numbers, with the unit last in the name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) values: Map<String, Value>,
}

impl Finding {
    pub(super) fn new(
        subject: Subject,
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
    ) -> Self {
        Self {
            subject,
            name,
            verdict,
            found: found.into(),
            apus: String::new(),
            change: None,
            brings: None,
            values: Map::new(),
        }
    }

    /// For what could not be found out, and why.
    pub(super) fn not_known(subject: Subject, name: &'static str, why: impl Into<String>) -> Self {
        Self::new(subject, name, Verdict::NotKnown, why)
    }

    /// What Apus does with it, or why not.
    pub(super) fn apus(mut self, does: impl Into<String>) -> Self {
        self.apus = does.into();
        self
    }

    /// What to change, and what that brings. Left out where the finding is good.
    pub(super) fn change(mut self, command: impl Into<String>, brings: impl Into<String>) -> Self {
        if self.verdict != Verdict::Good {
            self.change = Some(command.into());
            self.brings = Some(brings.into());
        }
        self
    }

    pub(super) fn value(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_finding_needs_no_change() {
        let of = |verdict| {
            Finding::new(Subject::Clock, "source", verdict, "x").change("command", "speed").change
        };
        assert_eq!(of(Verdict::Good), None);
        assert_eq!(of(Verdict::Bad).as_deref(), Some("command"));
    }

    #[test]
    fn less_is_better() {
        let by = |value| Verdict::by(value, 1.0, 10.0);
        assert_eq!([1.0, 2.0, 10.0].map(by)[..2], [Verdict::Good, Verdict::CouldBeBetter]);
        assert_eq!(by(10.5), Verdict::Bad);
    }
}
