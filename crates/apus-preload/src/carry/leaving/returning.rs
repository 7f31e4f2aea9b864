//! Connections return to TCP before a call that only the kernel can handle.
//!
//! A direction with an empty ring returns at once. Otherwise the receiver recalls, and the sender puts the unread bytes into TCP.
//! If the peer does not answer in time, the bytes of this side stay in its ring, where the peer reads them. The bytes of the peer
//! are out of reach, and the connection is reset.

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

/// Upper bound on the time in which peers must answer, for all connections of a call together, whatever keeps the peers from
/// running. A connection whose peer does not answer is reset rather than lose bytes silently.
const RETURN_MAX: Duration = Duration::from_millis(500);

/// Minimum time for moving the rest of a call's connections into sockets, if [`RETURN_MAX`] is used up.
const REST_MAX: Duration = Duration::from_millis(100);

/// Returns with all bytes of the connection in the kernel's stream for good. `call` requires that.
#[cold]
pub(crate) fn return_to_kernel(fd: c_int, call: &'static str) {
    errno::kept(|| return_by(fd, call, Clock::now() + RETURN_MAX));
}

/// The same for a descriptor that will be used without this library, by another process or by the C library. Leaves no bytes in a
/// ring.
#[cold]
pub(crate) fn give_away(fd: c_int, call: &'static str) {
    errno::kept(|| {
        let until = Clock::now() + RETURN_MAX;
        return_by(fd, call, until);
        leave_nothing(fd, rest_until(until));
    });
}

/// Leaves a connection that has ended in the kernel, with its unread bytes, which the kernel drops as well.
#[cold]
pub(crate) fn disconnected(fd: c_int) {
    let Some(used) = Use::of(fd) else { return };
    used.slot.give_up();
    attaching::detach(used.slot);
    used.slot.uncarry();
}

/// Deadline for moving the rest into new sockets, for all connections of a call together. The kernel has the bytes already, so
/// only its own work takes time.
fn rest_until(until: Duration) -> Duration {
    until.max(Clock::now() + REST_MAX)
}

/// Moves bytes that only this process could read into the socket. If that fails, resets the connection rather than lose bytes
/// silently.
fn leave_nothing(fd: c_int, until: Duration) {
    if descriptors::is_carried(fd) && !rest::put_into_socket(fd, until, true) {
        errno::kept(|| {
            disconnected(fd);
            kernel::reset(fd);
        });
    }
}

/// Runs before the process starts a process that may have its connections: all of them return to the kernel, at the same time.
#[cold]
pub(crate) fn return_all(call: &'static str) {
    children::before_program();
    errno::kept(|| return_these(ours, call));
}

/// Runs before this process becomes another program: connections that the program keeps return to the kernel. If other processes
/// have a connection too, it returns only until this process or the program ends.
#[cold]
pub(crate) fn return_inherited(call: &'static str) {
    children::before_program();
    errno::kept(|| {
        let outlives = |fd: &c_int| !is_closed_by_exec(*fd);
        let is_shared = |fd: &c_int| {
            let used = Use::of(*fd);
            used.is_some_and(|used| used.side().is_some_and(Side::is_shared))
        };
        let until = Clock::now() + RETURN_MAX;
        if let Some(fork) = children::own_fork() {
            let shared = || ours().filter(outlives).filter(is_shared);
            begin_to_return(shared(), |side| side.begin_to_share(fork));
            shared().filter_map(Use::of).for_each(|used| used.slot.become_program());
            shared().for_each(|fd| share_by(fd, until));
            let until = rest_until(until);
            shared().filter(has_rest).for_each(|fd| _ = rest::put_into_socket(fd, until, false));
            return_these(|| ours().filter(outlives).filter(|fd| !is_shared(fd)), call);
        } else {
            return_these(|| ours().filter(outlives), call);
        }
        let until = rest_until(until);
        ours().filter(outlives).filter(|fd| !is_shared(fd)).for_each(|fd| leave_nothing(fd, until));
    });
}

/// Whether bytes are left that only this process can read, from a peer that is gone.
fn has_rest(fd: &c_int) -> bool {
    let used = Use::of(*fd);
    used.is_some_and(|used| {
        used.side().is_some_and(|side| side.finds_peer_gone() && side.keeps_rest(*fd))
    })
}

/// Runs before a fork: connections between hosts return, because the carrier knows one process only.
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

/// Makes the peers of all these connections begin to answer.
fn begin_to_return(these: impl Iterator<Item = c_int>, begin: impl Fn(&Side)) {
    for fd in these {
        let used = Use::of(fd);
        if let Some(side) = used.as_ref().and_then(Use::side) {
            begin(side);
            // Relatives that share the connection read no bytes before the peer has answered.
            if !side.step_back(fd) || side.is_shared() {
                side.ask_peer();
            }
        }
    }
}

/// Another process of this side keeps the connection, so it is not reset. Bytes that the peer has not put into TCP follow once it
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
        // Another thread is returning it.
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

/// Waits until TCP has all bytes that this side has not read. Returns `false` if bytes that only this process can read stay in
/// the ring. If other bytes do not reach TCP, the connection is reset rather than lose them silently.
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

/// Waits for the peer's answer. Returns `false` if bytes are left because it is late or will never come.
fn wait_for_peer(side: &Side, fd: c_int, until: Duration) -> bool {
    let mut wait = FIRST_WAIT;
    while !side.step_back(fd) {
        // No thread of this process may have noticed yet that the peer has died.
        if side.finds_peer_gone() || side.is_spilled() {
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
