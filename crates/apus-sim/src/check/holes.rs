//! Holes in sealing that the campaign must find. A test brings one back, by the feature `holes`, which no program has.

/// A rule of sealing that all nodes of a run break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "holes"),
    allow(unreachable_pub, dead_code, reason = "tests name them, with the feature")
)]
#[cfg_attr(feature = "holes", non_exhaustive)]
pub enum Hole {
    /// The number of a datagram is marked before its tag is tested (seal-14).
    MarkBeforeTag,
    /// A message gets the bytes of a datagram before its tag is tested (seal-16).
    LengthBeforeTag,
    /// An update of the key resets the numbers (seal-13).
    ResetNumbers,
    /// A hint ends the association (seal-9).
    HintEvicts,
    /// Datagrams from other addresses are marked in the window of the path's own address (seal-10).
    OneWindow,
    /// A refresh forgets which requests were taken (seal-7, once-1).
    HistoryDropped,
    /// A refresh gives a path the keys of another name (seal-7).
    NameNotCompared,
    /// A handshake gives the path of an address to the node that answers there, whatever its name (seal-5).
    PathKept,
    /// A packet that is sent again takes the last number of its lane (seal-13).
    NumberKept,
    /// A path that the other side has made has every right (seal-6).
    RightsOfAll,
}

/// The hole of `apus-seal` that is one of this crate.
#[cfg(feature = "holes")]
pub(super) fn of_associations(hole: Hole) -> Option<apus_seal::Hole> {
    match hole {
        Hole::MarkBeforeTag => Some(apus_seal::Hole::MarkBeforeTag),
        Hole::ResetNumbers => Some(apus_seal::Hole::ResetNumbers),
        Hole::HintEvicts => Some(apus_seal::Hole::HintEvicts),
        Hole::OneWindow => Some(apus_seal::Hole::OneWindow),
        _ => None,
    }
}
