//! Connections return to TCP before a call that only the kernel can answer.
//!
//! A direction whose ring is empty returns at once. Otherwise its receiver recalls, and its sender puts what was not read into TCP. If
//! the peer does not do its part in time, what this side has written stays in its ring, where the peer reads it, and what the peer has
//! written is out of reach: the connection is reset.

use std::time::Duration;

use libc::c_int;

use super::children;
use super::rest;
use crate::carry::connection::side::Side;
use crate::carry::connection::slots::{State, Use};
use crate::carry::holds;
use crate::carry::kernel;
use crate::carry::sets::attaching;
use crate::carry::spin::Clock;
use crate::{descriptors, errno, originals, report};

/// Peers answer within this time, for all connections of a call together, whatever keeps them from running. A connection whose peer
/// does not is reset, since bytes would be lost in silence.
const RETURN_MAX: Duration = Duration::from_millis(500);

/// What is left of all connections of a call is put into sockets within this time, if nothing is left of [`RETURN_MAX`].
const REST_MAX: Duration = Duration::from_millis(100);

/// All bytes of a connection are in the kernel's stream when this returns, and stay there. `call` needs that.
#[cold]
pub(crate) fn return_to_kernel(fd: c_int, call: &'static str) {
    errno::kept(|| return_by(fd, call, Clock::now() + RETURN_MAX));
}

/// The same before the descriptor is used past this library, by another process or by the C library: nothing is left in a ring.
#[cold]
pub(crate) fn give_away(fd: c_int, call: &'static str) {
    errno::kept(|| {
        let until = Clock::now() + RETURN_MAX;
        return_by(fd, call, until);
        leave_nothing(fd, rest_until(until));
    });
}

/// By when what is left is in new sockets, for all connections of a call together. The kernel has it already, so this takes no time but
/// for its own work.
fn rest_until(until: Duration) -> Duration {
    until.max(Clock::now() + REST_MAX)
}

/// What only this process could read is put into the socket. If that cannot be, the connection is reset: bytes would be lost in silence.
fn leave_nothing(fd: c_int, until: Duration) {
    if descriptors::is_carried(fd) && !rest::put_into_socket(fd, until) {
        errno::kept(|| {
            let Some(used) = Use::of(fd) else { return };
            used.slot.give_up();
            attaching::detach(used.slot);
            used.slot.uncarry();
            kernel::reset(fd);
        });
    }
}

/// Before the process starts another one that may have its connections: everything is the kernel's. All connections return at the same
/// time.
#[cold]
pub(crate) fn return_all(call: &'static str) {
    children::before_program();
    errno::kept(|| return_these(ours, call));
}

/// Before this process becomes another program: connections that the program has are the kernel's. Until this process or the program
/// ends, if other processes have them as well.
#[cold]
pub(crate) fn return_inherited(call: &'static str) {
    children::before_program();
    errno::kept(|| {
        let outlives = |fd: &c_int| !is_closed_by_exec(*fd);
        let is_shared = |fd: &c_int| {
            let used = Use::of(*fd);
            used.is_some_and(|used| used.side().is_some_and(Side::is_shared))
        };
        if let Some(fork) = children::own_fork() {
            let until = Clock::now() + RETURN_MAX;
            let shared = || ours().filter(outlives).filter(is_shared);
            begin_to_return(shared(), |side| side.begin_to_share(fork));
            shared().filter_map(Use::of).for_each(|used| used.slot.become_program());
            shared().for_each(|fd| share_by(fd, until));
            let until = rest_until(until);
            shared().filter(has_rest).for_each(|fd| _ = rest::put_into_socket(fd, until));
            return_these(|| ours().filter(outlives).filter(|fd| !is_shared(fd)), call);
        } else {
            return_these(|| ours().filter(outlives), call);
        }
        let until = rest_until(Clock::now());
        ours().filter(outlives).filter(|fd| !is_shared(fd)).for_each(|fd| leave_nothing(fd, until));
    });
}

/// Whether bytes are left that a peer which is gone has written, and only this process can read.
fn has_rest(fd: &c_int) -> bool {
    let used = Use::of(*fd);
    used.is_some_and(|used| {
        used.side().is_some_and(|side| side.peer_is_gone() && side.keeps_rest(*fd))
    })
}

/// Before a fork: connections between hosts return, since the carrier knows one process only.
#[cold]
pub(crate) fn return_between_hosts() {
    let is_between_hosts = |fd: &c_int| {
        let used = Use::of(*fd);
        used.is_some_and(|used| used.side().is_some_and(|side| side.is_between_hosts))
    };
    errno::kept(|| return_these(|| ours().filter(is_between_hosts), "fork"));
}

fn return_these<I: Iterator<Item = c_int>>(these: impl Fn() -> I, call: &'static str) {
    let until = Clock::now() + RETURN_MAX;
    begin_to_return(these(), Side::begin_to_leave);
    these().for_each(|fd| return_by(fd, call, until));
}

fn ours() -> impl Iterator<Item = c_int> {
    descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::is_ours(*fd))
}

/// Whether `exec` closes the descriptor.
pub(crate) fn is_closed_by_exec(fd: c_int) -> bool {
    // SAFETY: the command takes no argument.
    let flags = unsafe { originals::fcntl(fd, libc::F_GETFD, 0) };
    flags < 0 || flags & libc::FD_CLOEXEC != 0
}

/// Has the peers of all these connections begin to answer.
fn begin_to_return(these: impl Iterator<Item = c_int>, begin: impl Fn(&Side)) {
    for fd in these {
        let used = Use::of(fd);
        if let Some(side) = used.as_ref().and_then(Use::side) {
            begin(side);
            // Relatives that have the connection as well read nothing before the peer has answered.
            if !side.step_back(fd) || side.is_shared() {
                side.ask_peer();
            }
        }
    }
}

/// Another process of this side goes on with the connection, so it is not reset: what the peer has not put into TCP follows once it
/// does.
fn share_by(fd: c_int, until: Duration) {
    let Some(used) = Use::of(fd) else { return };
    report::returned(fd, "exec");
    if let Some(side) = used.side().filter(|_| used.slot.state() == State::Carried)
        && !wait_for_peer(side, fd, until)
    {
        side.spill();
    }
}

fn return_by(fd: c_int, call: &'static str, until: Duration) {
    let Some(used) = Use::of(fd) else { return };
    report::returned(fd, call);
    match used.side() {
        Some(side) if side.refuses_rest() && used.slot.state() == State::Carried => {
            side.spill();
        }
        Some(side) if used.slot.end_carrying() => {
            let _hold = holds::Hold::returning(used.slot.number());
            side.begin_to_leave();
            if !step_back(side, fd, until) {
                return used.slot.carry_on();
            }
            used.slot.give_up();
            attaching::detach(used.slot);
            used.slot.uncarry();
            side.leave();
        }
        // Another thread has it return.
        Some(_) if descriptors::is_carried(fd) => {
            let step = kernel::spec(Duration::from_micros(50));
            while used.slot.state() == State::Returning && Clock::now() < until {
                let _ = kernel::wait(&mut [], Some(step));
            }
        }
        _ => {
            used.slot.give_up();
            attaching::detach(used.slot);
            used.slot.uncarry();
        }
    }
}

/// Waits until TCP has all bytes that this side has not read. False if bytes stay in the ring that only this process can read. If TCP
/// does not get the others, the connection is reset: they would be lost in silence.
fn step_back(side: &Side, fd: c_int, until: Duration) -> bool {
    if !wait_for_peer(side, fd, until) {
        side.spill();
        if side.keeps_rest(fd) {
            return false;
        }
        if !side.step_back(fd) {
            kernel::reset(fd);
            return true;
        }
    }
    let _ = side.finish_shut(fd);
    let mut wait = FIRST_WAIT;
    while side.may_get_rest(fd) && Clock::now() < until {
        let _ = kernel::wait(&mut [], Some(kernel::spec(wait)));
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    !side.has_rest(fd)
}

/// False if the peer has not answered in time, or never will, and bytes are left.
fn wait_for_peer(side: &Side, fd: c_int, until: Duration) -> bool {
    let mut wait = FIRST_WAIT;
    while !side.step_back(fd) {
        if side.peer_is_gone() || side.is_spilled() {
            return side.unread() == 0;
        }
        if Clock::now() > until {
            return false;
        }
        side.ask_peer();
        let _ = kernel::wait(&mut [], Some(kernel::spec(wait)));
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    true
}

const FIRST_WAIT: Duration = Duration::from_micros(5);
const LONGEST_WAIT: Duration = Duration::from_millis(5);
