//! Whether a read finds something: in the ring, and as much as the program waits for.

use apus_sockets::layout;
use libc::c_int;

use crate::carry::connection::side::Side;
use crate::carry::connection::slots::Slot;
use crate::carry::kernel;

/// Whether a read finds as many bytes as the program waits for, or the end.
#[inline]
pub(crate) fn is_readable(slot: &Slot, side: &Side, fd: c_int) -> bool {
    side.is_readable() && (slot.blocking.least(fd) == 1 || has_least(slot, side, fd))
}

#[cold]
fn has_least(slot: &Slot, side: &Side, fd: c_int) -> bool {
    // A writer waits until a third of the ring is free. So one that is half full has to be read, however many bytes are waited for.
    let least = slot.blocking.least(fd).min(layout::CAPACITY as u64 / 2);
    let ends = || side.peer_has_shut() || side.peer_is_gone() || kernel::has_ended(fd);
    !side.has_bytes() || side.readable() >= least || ends()
}
