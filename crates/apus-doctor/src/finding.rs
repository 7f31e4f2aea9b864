//! A finding about one thing, and its verdict.

use serde::Serialize;
use serde_json::{Map, Value};

/// The subjects, in the order of the reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Subject {
    /// GSO and GRO on a UDP socket.
    UdpOffloads,
    /// Buffers of a node's socket, and the limits of the kernel.
    SocketBuffers,
    /// The interface that carries packets to other hosts.
    Interface,
    /// CPUs that handle packets of the interface.
    Interrupts,
    /// Busy polling in the kernel.
    BusyPolling,
    /// Sockets that bypass the kernel's network stack.
    AfXdp,
    /// IRQ suspension: whether the kernel supports it, and whether the interface is set for it.
    IrqSuspension,
    /// The clock source of the kernel.
    Clock,
    /// Times until a thread runs.
    WakeUp,
    /// Idle states and frequency of CPUs.
    IdleStates,
    /// CPUs, and limits of their use.
    Processors,
    /// Load of other programs.
    OtherLoad,
    /// The file system of shared memory.
    DevShm,
    /// Limits of a process.
    Limits,
    /// Rights of this process.
    Privileges,
    /// Other processes with Apus.
    Processes,
    /// Instructions for encryption, and the certificate of a node.
    Encryption,
    /// The path to a peer.
    Path,
    /// The kernel, and the rights of this process that suspension needs.
    SuspensionRights,
    /// A program: the waits of its threads, and the NAPI instances of its packets.
    Program,
    /// NAPI instances, the receive contexts of queues: their parameters and users.
    ReceiveQueues,
    /// Suspension during the watch.
    Suspension,
}

impl Subject {
    /// The heading of its findings.
    pub fn title(self) -> &'static str {
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
            Self::Encryption => "Encryption",
            Self::Path => "Path",
            Self::SuspensionRights => "Kernel and rights",
            Self::Program => "Program",
            Self::ReceiveQueues => "Receive queues",
            Self::Suspension => "Suspension",
        }
    }
}

/// The rating of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No change is necessary.
    Good,
    /// The subject works, and would work better after a change.
    CouldBeBetter,
    /// The subject does not work, or works much worse than it could.
    Bad,
    /// The state could not be determined.
    NotKnown,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::CouldBeBetter => "could be better",
            Self::Bad => "bad",
            Self::NotKnown => "not known",
        }
    }

    /// [`Good`](Self::Good) where something holds, else [`CouldBeBetter`](Self::CouldBeBetter).
    pub(crate) fn good_if(holds: bool) -> Self {
        if holds { Self::Good } else { Self::CouldBeBetter }
    }

    /// The verdict for a value that should be low: good up to `good`, bad beyond `bad`.
    pub(crate) fn by(value: f64, good: f64, bad: f64) -> Self {
        match value {
            value if value <= good => Self::Good,
            value if value <= bad => Self::CouldBeBetter,
            _ => Self::Bad,
        }
    }
}

/// One line of a report.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The subject of the finding.
    pub subject: Subject,
    /// The name of the finding, unique within the subject.
    pub name: &'static str,
    /// The rating.
    pub verdict: Verdict,
    /// The observation, with its value.
    pub found: String,
    /// The use that Apus makes of it, or the reason for none; empty where Apus is not concerned.
    pub apus: String,
    /// A shell command that changes it or finds out more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// The benefit of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brings: Option<String>,
    /// The values as numbers, with the unit last in the name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub values: Map<String, Value>,
}

impl Finding {
    pub(crate) fn new(
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

    pub(crate) fn good(subject: Subject, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(subject, name, Verdict::Good, found)
    }

    /// A bad finding, with the command that mends it.
    pub(crate) fn bad(
        subject: Subject,
        name: &'static str,
        found: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Self::new(subject, name, Verdict::Bad, found).command(command)
    }

    /// A finding that could not be determined, with the reason.
    pub(crate) fn not_known(subject: Subject, name: &'static str, why: impl Into<String>) -> Self {
        Self::new(subject, name, Verdict::NotKnown, why)
    }

    /// Adds the use that Apus makes of it, or the reason for none.
    pub(crate) fn apus(mut self, does: impl Into<String>) -> Self {
        self.apus = does.into();
        self
    }

    /// Adds a command and its benefit, unless the finding is good.
    pub(crate) fn change(mut self, command: impl Into<String>, brings: impl Into<String>) -> Self {
        if self.verdict != Verdict::Good {
            self.change = Some(command.into());
            self.brings = Some(brings.into());
        }
        self
    }

    /// Adds the command alone, where the name of the finding shows the benefit.
    pub(crate) fn command(mut self, command: impl Into<String>) -> Self {
        self.change = Some(command.into());
        self
    }

    /// Like [`command`](Self::command), if there is one.
    pub(crate) fn command_if(mut self, command: Option<String>) -> Self {
        self.change = command;
        self
    }

    pub(crate) fn value(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_finding_needs_no_change() {
        let change = |verdict| {
            Finding::new(Subject::Clock, "source", verdict, "x").change("command", "speed").change
        };
        assert_eq!(change(Verdict::Good), None);
        assert_eq!(change(Verdict::Bad).as_deref(), Some("command"));
    }

    #[test]
    fn less_is_better() {
        let by = |value| Verdict::by(value, 1.0, 10.0);
        assert_eq!([1.0, 2.0, 10.0].map(by)[..2], [Verdict::Good, Verdict::CouldBeBetter]);
        assert_eq!(by(10.5), Verdict::Bad);
    }
}
