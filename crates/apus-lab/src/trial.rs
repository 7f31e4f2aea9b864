//! Results of one run on all hosts, and of the idle network.

use crate::agent::HostResult;
use crate::ideal::Ideal;
use crate::plan::Contender;

/// The results of one run on all hosts.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Reports by host.
    pub(crate) reports: Vec<HostResult>,
    /// Share of the processors' time that was used in the counted time, 0 to 1; only on one machine.
    pub(crate) busy: Option<f64>,
    /// Share of samples (ten per second) without an idle processor.
    pub(crate) full: Option<f64>,
    /// Bytes held by each port in each sample.
    pub(crate) held: Vec<u64>,
    /// Packets that the switch dropped.
    pub(crate) dropped: Option<u64>,
    /// Bytes that the switch sent, by class.
    pub(crate) by_class: Option<[u64; 8]>,
}

/// The idle network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Idle {
    pub(crate) ideal: Ideal,
    /// Bytes and median in µs, by transport.
    pub(crate) medians: Vec<(Contender, Vec<(u32, f64)>)>,
}
