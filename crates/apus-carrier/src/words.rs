//! The words of a segment that the other end reads, and their order.

use apus_sockets::layout;

/// Number of words.
pub(crate) const COUNT: usize = 12;

/// Offsets of the words, in the order in which they are loaded: the words behind a word are at least as new as the word itself. The
/// program stores them in the opposite order, and so does a carrier that shows them to the program at the other end.
///
/// So the program at the other end sees only states that a program of the same host, slow between two loads, could see: for each
/// word, its value at some time, and the times are in the order of the list.
pub(crate) const ORDER: [usize; COUNT] = [
    layout::LEFT,
    layout::CLOSED,
    layout::SHUT,
    layout::REFILLED,
    layout::ENDED,
    layout::EPOCH,
    layout::WRITTEN,
    layout::OFFSET,
    layout::END,
    layout::RECALLED,
    layout::OFFERED,
    layout::READ,
];

/// The place of the word at `offset` in [`ORDER`].
pub(crate) const fn place(offset: usize) -> usize {
    let mut place = 0;
    while ORDER[place] != offset {
        place += 1;
    }
    place
}

/// Place of WRITTEN.
pub(crate) const WRITTEN: usize = place(layout::WRITTEN);
/// Place of READ.
pub(crate) const READ: usize = place(layout::READ);
/// Place of EPOCH.
pub(crate) const EPOCH: usize = place(layout::EPOCH);

/// Values of all words.
pub(crate) type Words = [u64; COUNT];
