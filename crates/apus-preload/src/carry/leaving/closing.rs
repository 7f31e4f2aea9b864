//! Closed descriptors of connections.

use libc::c_int;

use crate::carry::connection::side::Side;
use crate::carry::connection::slots::{self, Use};
use crate::carry::kernel;
use crate::carry::leaving::children;
use crate::carry::peers::answering;
use crate::carry::sets::attaching;
use crate::errno;

/// Runs before a descriptor of a connection is closed.
pub(crate) fn close(fd: c_int) {
    end(fd, |side| {
        if side.close(fd) {
            kernel::reset_at_close(fd);
        }
    });
}

/// The program closed a connection's descriptor by a raw system call, and the number now refers to another file.
#[cold]
pub(crate) fn closed(fd: c_int) {
    end(fd, |side| _ = side.close(-1));
}

fn end(fd: c_int, close: impl FnOnce(&Side)) {
    errno::kept(|| {
        let Some(used) = Use::of(fd) else { return };
        let is_last = slots::begin_to_close(&used);
        if !attaching::closing(fd, is_last) {
            return slots::lose(&used, fd);
        }
        if is_last && let Some(side) = used.side().filter(|side| side.shared_since() != 0) {
            used.slot.is_no_program();
            children::look();
            children::follow(used.slot, side);
        }
        if is_last
            && used.slot.holders().remove()
            && let Some(side) = used.side()
        {
            close(side);
        }
        if slots::remove(used, fd, is_last) {
            answering::wake();
        }
    });
}
