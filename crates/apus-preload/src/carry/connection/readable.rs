//! Whether a read finds as many bytes as the program waits for.

use apus_sockets::layout;
use libc::c_int;

use crate::carry::connection::side::Side;
use crate::carry::connection::slots::Slot;
use crate::carry::kernel;

/// Whether a read finds as many bytes as the program waits for, or the end.
#[inline]
pub(crate) fn is_readable(slot: &Slot, side: &Side, fd: c_int) -> bool {
    match slot.least(fd) {
        1 => side.is_readable(),
        least => has_least(side, fd, least),
    }
}

#[cold]
fn has_least(side: &Side, fd: c_int, least: u64) -> bool {
    // A writer waits until a third of the ring is free. So a ring that is half full must be read, whatever the low-water mark.
    let least = least.min(layout::CAPACITY as u64 / 2);
    let in_ring = side.unread();
    // TCP bytes before or after those of the ring count too. The kernel does not know of the ring.
    let are_there = || in_ring > 0 && in_ring + kernel::unread(fd).unwrap_or(0) >= least;
    let ends = || side.has_input_ended() || side.peer_is_gone() || kernel::has_ended(fd);
    side.is_readable() && (!side.has_bytes() || ends()) || are_there()
}
