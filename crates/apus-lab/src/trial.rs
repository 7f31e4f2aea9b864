//! What one run on all hosts came to, and what the idle network is like.

use crate::agent::Report;
use crate::ideal::Ideal;
use crate::plan::Contender;

/// What one run on all hosts came to.
#[derive(Debug)]
pub(crate) struct Trial {
    /// By host.
    pub(crate) reports: Vec<Report>,
    /// Share of the processors' time that was used in the time that counts, 0 to 1; on one machine only.
    pub(crate) busy: Option<f64>,
    /// Share of the looks (ten a second) between which no processor was idle.
    pub(crate) full: Option<f64>,
    /// Bytes held by each port at each look.
    pub(crate) held: Vec<u64>,
    /// Packets the switch dropped.
    pub(crate) dropped: Option<u64>,
    /// Bytes by class that left the switch.
    pub(crate) by_class: Option<[u64; 8]>,
}

/// The idle network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Idle {
    pub(crate) ideal: Ideal,
    /// Bytes and median µs, by transport.
    pub(crate) medians: Vec<(Contender, Vec<(u32, f64)>)>,
}
