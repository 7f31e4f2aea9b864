//! Holes that the fault campaign must find. Tests bring one back, by the feature `holes`, which no program has.

/// A rule that associations break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "holes"),
    allow(unreachable_pub, reason = "it is public with the feature")
)]
pub enum Hole {
    /// The number of a datagram is marked before its tag is tested (seal-14).
    MarkBeforeTag,
    /// An update of the key resets the numbers (seal-13).
    ResetNumbers,
    /// A hint ends the association (seal-9).
    HintEvicts,
    /// Datagrams from other addresses are marked in the window of the path's own address (seal-10).
    OneWindow,
}
