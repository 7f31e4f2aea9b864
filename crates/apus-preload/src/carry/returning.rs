//! Connections return to TCP before a call that only the kernel can answer.

use std::time::Duration;

use libc::c_int;

use super::slots::{State, Use};
use super::spin::Clock;
use super::{kernel, sets};
use crate::{descriptors, errno, report};

/// All bytes of a connection are in the kernel's stream when this returns, and stay there. `call` needs that.
#[cold]
pub(crate) fn return_to_kernel(fd: c_int, call: &'static str) {
    let Some(used) = Use::of(fd) else { return };
    errno::kept(|| {
        report::returned(fd, call);
        let was_carried = used.slot.state() == State::Carried;
        used.slot.give_up();
        let Some(side) = used.side().filter(|_| was_carried) else {
            sets::detach(used.slot);
            return used.slot.uncarry();
        };
        side.begin_to_leave();
        let until = Clock::now() + RETURN_MAX;
        let mut wait = Duration::from_micros(5);
        while !side.step_back(fd) {
            let nobody_answers = side.peer_is_gone();
            if nobody_answers && side.readable() == 0 {
                break;
            }
            if nobody_answers || Clock::now() > until {
                kernel::reset(fd); // Bytes would be lost in silence.
                break;
            }
            side.ask_peer();
            let _ = kernel::wait(&mut [], Some(kernel::spec(wait)));
            wait = (wait * 2).min(Duration::from_millis(5));
        }
        let _ = side.finish_shut(fd);
        if side.has_rest(fd) {
            kernel::reset(fd); // As above.
        }
        sets::detach(used.slot);
        used.slot.uncarry();
        side.leave();
    });
}

/// The peer answers within this time unless it is stopped.
pub(super) const RETURN_MAX: Duration = Duration::from_secs(2);

/// Before the process starts another one, or becomes one: everything is the kernel's.
#[cold]
pub(crate) fn return_all(call: &'static str) {
    for fd in descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::is_ours(*fd)) {
        return_to_kernel(fd, call);
    }
}
