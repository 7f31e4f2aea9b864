//! Connections return to TCP before a call that only the kernel can answer.

use std::time::Duration;

use libc::c_int;

use super::side::Side;
use super::slots::{State, Use};
use super::spin::Clock;
use super::{children, kernel, sets};
use crate::{descriptors, errno, report};

/// The peer answers within this time unless it is stopped, or hardly runs on a machine with too much to do.
pub(super) const RETURN_MAX: Duration = Duration::from_secs(2);

/// How much longer a peer is waited for that is not stopped.
const SLOW_MAX: Duration = Duration::from_secs(28);

/// All bytes of a connection are in the kernel's stream when this returns, and stay there. `call` needs that.
#[cold]
pub(crate) fn return_to_kernel(fd: c_int, call: &'static str) {
    errno::kept(|| return_by(fd, call, Clock::now() + RETURN_MAX));
}

/// Before the process starts another one, or becomes one: everything is the kernel's. All connections return at the same time.
#[cold]
pub(crate) fn return_all(call: &'static str) {
    children::before_program();
    errno::kept(|| {
        begin_to_return(Side::begin_to_leave);
        let until = Clock::now() + RETURN_MAX;
        ours().for_each(|fd| return_by(fd, call, until));
    });
}

/// Before a fork: everything is the kernel's until its children have ended.
#[cold]
pub(crate) fn share_all(fork: u32) {
    errno::kept(|| {
        for used in ours().filter_map(Use::of) {
            used.slot.share(fork);
        }
        begin_to_return(Side::begin_to_share);
        let until = Clock::now() + RETURN_MAX;
        ours().for_each(|fd| share_by(fd, until));
    });
}

fn ours() -> impl Iterator<Item = c_int> {
    descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::is_ours(*fd))
}

/// Has the peers of all connections begin to answer.
fn begin_to_return(begin: impl Fn(&Side)) {
    for fd in ours() {
        let used = Use::of(fd);
        if let Some(side) = used.as_ref().and_then(Use::side) {
            begin(side);
            if !side.step_back(fd) {
                side.ask_peer();
            }
        }
    }
}

fn share_by(fd: c_int, until: Duration) {
    let Some(used) = Use::of(fd) else { return };
    match used.side() {
        Some(side) if !side.is_between_hosts && used.slot.state() == State::Carried => {
            report::returned(fd, "fork");
            step_back(side, fd, until);
            sets::detach_for_a_while(used.slot);
        }
        // Another thread has it return, or it is between hosts, where it does for good.
        Some(_) => return_by(fd, "fork", until),
        // It may come to be carried, but begins when no child has it.
        None => report::returned(fd, "fork"),
    }
}

fn return_by(fd: c_int, call: &'static str, until: Duration) {
    let Some(used) = Use::of(fd) else { return };
    report::returned(fd, call);
    match used.side() {
        Some(side) if used.slot.end_carrying() => {
            side.begin_to_leave();
            step_back(side, fd, until);
            sets::detach(used.slot);
            used.slot.uncarry();
            side.leave();
        }
        // Another thread has it return.
        Some(_) if descriptors::is_carried(fd) => {
            let step = kernel::spec(Duration::from_micros(50));
            while descriptors::is_carried(fd) && Clock::now() < until {
                let _ = kernel::wait(&mut [], Some(step));
            }
        }
        _ => {
            used.slot.give_up();
            sets::detach(used.slot);
            used.slot.uncarry();
        }
    }
}

/// Waits until TCP has all bytes. If it does not get them, the connection is reset: they would be lost in silence.
fn step_back(side: &Side, fd: c_int, until: Duration) {
    let mut wait = Duration::from_micros(5);
    while !side.step_back(fd) {
        let nobody_answers = side.peer_is_gone();
        if nobody_answers && side.readable() == 0 {
            break;
        }
        let now = Clock::now();
        let is_too_late = now > until + SLOW_MAX || now > until && side.peer_is_stopped();
        if nobody_answers || is_too_late {
            return kernel::reset(fd);
        }
        side.ask_peer();
        let _ = kernel::wait(&mut [], Some(kernel::spec(wait)));
        wait = (wait * 2).min(Duration::from_millis(5));
    }
    let _ = side.finish_shut(fd);
    while side.may_get_rest(fd) && Clock::now() < until {
        let _ = kernel::wait(&mut [], Some(kernel::spec(wait)));
    }
    if side.has_rest(fd) {
        kernel::reset(fd);
    }
}
