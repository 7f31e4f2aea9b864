//! The words of a segment that the other end reads, and their order.

use apus_sockets::layout;

/// How many there are.
pub(crate) const COUNT: usize = 12;

/// Where the words lie, in the order in which they are loaded: each tells that those behind it are at least as new as itself. The program
/// stores them in the opposite order, and so does a carrier that shows them to the program at the other end.
///
/// So whatever that program sees, a program of the same host could see that is slow between two loads: for each word, its value at some
/// moment, and the moments are in the order of the list.
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

/// Places of words that change with most messages, and of others that matter here.
pub(crate) const WRITTEN: usize = place(layout::WRITTEN);
pub(crate) const READ: usize = place(layout::READ);
pub(crate) const EPOCH: usize = place(layout::EPOCH);

/// Values of all words.
pub(crate) type Words = [u64; COUNT];
