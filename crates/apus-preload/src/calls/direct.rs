//! `syscall`, by which programs make system calls that their C library does not wrap, or wraps differently.
//!
//! In nearly every case the original function makes the call, so timeouts, signal masks and cancellation points are those of a
//! bare system call, not those of the C function with the same name. The work that our function of that name does before and
//! after the call is done here too. Connections return to TCP first. A connection cannot return if a peer that is gone left bytes
//! in the ring; our function then reads those bytes.
//!
//! `io_uring_setup` fails with `ENOSYS`, as on a kernel without it. libuv would register its interest in sockets through a ring
//! that this call creates, where this library would not see it. Without a ring, libuv uses epoll.

use libc::{c_int, c_long, c_uint, c_ulong, msghdr};

use super::{filters, lifecycle, options, process, readiness, send};
use crate::{carried, descriptors, errno, originals, polling, report, start};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_io_uring_setup {
        errno::set(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the caller's arguments are passed through.
    if let Some(result) = unsafe { around_own(number, [a, b, c]) } {
        return result.into();
    }
    // SAFETY: as above.
    unsafe { before(number, [a, b, c, d]) };
    if reads(number) && descriptors::is_carried(a as c_int) {
        // SAFETY: as above.
        return unsafe { read_rest(number, a, b, c, d, e, f) };
    }
    if changes_descriptors(number) {
        // SAFETY: as above.
        return unsafe { with_after(number, a, b, c, d, e, f) };
    }
    // SAFETY: as above.
    unsafe { originals::syscall(number, a, b, c, d, e, f) }
}

/// Handles calls that would close descriptors of this library or take their numbers. Returns `None` for any other call.
#[inline(always)]
unsafe fn around_own(number: c_long, [a, b, c]: [c_long; 3]) -> Option<c_int> {
    match number {
        libc::SYS_close if lifecycle::is_inner(a as c_int) => Some(lifecycle::unknown()),
        libc::SYS_close_range => {
            // SAFETY: the call takes no pointers.
            let close = |first: c_uint, last: c_uint| unsafe {
                originals::syscall(number, first.into(), last.into(), c, 0, 0, 0) as c_int
            };
            Some(lifecycle::close_around(a as c_uint, b as c_uint, c as c_int, close))
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the call takes no pointers.
        libc::SYS_dup2 => Some(unsafe { lifecycle::dup2(a as c_int, b as c_int) }),
        // SAFETY: as above.
        libc::SYS_dup3 => Some(unsafe { lifecycle::dup3(a as c_int, b as c_int, c as c_int) }),
        _ => None,
    }
}

/// Whether the call reads from its first descriptor.
#[inline(always)]
fn reads(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_preadv2
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_splice
    )
}

/// Reads by our function of the same name. The connection could not return to TCP, because a peer that is gone left bytes in the
/// ring.
#[cold]
unsafe extern "C-unwind" fn read_rest(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller's arguments are passed on with the types that the kernel expects.
    unsafe {
        match number {
            libc::SYS_read => libc::read(fd, b as *mut _, c as usize) as c_long,
            libc::SYS_readv => libc::readv(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_preadv2 => {
                libc::preadv2(fd, b as *const _, c as c_int, d, f as c_int) as c_long
            }
            libc::SYS_recvfrom => {
                let (from, length) = (e as *mut _, f as *mut _);
                libc::recvfrom(fd, b as *mut _, c as usize, d as c_int, from, length) as c_long
            }
            libc::SYS_recvmsg => libc::recvmsg(fd, b as *mut _, c as c_int) as c_long,
            libc::SYS_recvmmsg => {
                libc::recvmmsg(fd, b as *mut _, c as c_uint, d as _, e as *mut _).into()
            }
            libc::SYS_splice => {
                let (from, to) = (b as *mut i64, d as *mut i64);
                libc::splice(fd, from, c as c_int, to, e as usize, f as c_uint) as c_long
            }
            _ => originals::syscall(number, a, b, c, d, e, f),
        }
    }
}

/// A separate function, so that other system calls save no registers.
#[inline(never)]
unsafe extern "C-unwind" fn with_after(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { originals::syscall(number, a, b, c, d, e, f) };
    after(number, [a, b, c], result);
    result
}

/// Does the work that our function of the same name does before the original.
#[inline(always)]
unsafe fn before(number: c_long, [a, b, c, d]: [c_long; 4]) {
    let fd = a as c_int;
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_preadv2 => on_descriptor(fd),
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwritev2 => on_descriptor(fd),
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg | libc::SYS_sendto => {
            on_descriptor(fd)
        }
        libc::SYS_bind | libc::SYS_listen | libc::SYS_shutdown => on_descriptor(fd),
        libc::SYS_getsockopt | libc::SYS_setsockopt | libc::SYS_ioctl => on_descriptor(fd),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => readiness::before_direct_wait(fd),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => readiness::before_direct_wait(fd),
        // SAFETY: the caller passes a valid message.
        libc::SYS_sendmsg => unsafe {
            on_descriptor(fd);
            send::before_sendmsg(fd, b as *const msghdr)
        },
        // SAFETY: the caller passes valid messages.
        libc::SYS_sendmmsg => unsafe {
            on_descriptor(fd);
            send::before_sendmmsg(fd, b as *const _, c as c_uint)
        },
        libc::SYS_sendfile => send::before_two(fd, b as c_int),
        libc::SYS_splice => send::before_two(fd, c as c_int),
        // SAFETY: the caller passes valid members.
        libc::SYS_ppoll => unsafe { readiness::return_members(a as *const _, b as c_ulong) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller passes valid members.
        libc::SYS_poll => unsafe { readiness::return_members(a as *const _, b as c_ulong) },
        // SAFETY: the caller passes valid sets.
        libc::SYS_pselect6 => unsafe {
            readiness::before_select(fd, [b, c, d].map(|set| set as *mut _))
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller passes valid sets.
        libc::SYS_select => unsafe {
            readiness::before_select(fd, [b, c, d].map(|set| set as *mut _))
        },
        libc::SYS_epoll_ctl => readiness::before_direct_control(fd, c as c_int),
        libc::SYS_connect => lifecycle::before_connect(fd),
        libc::SYS_close => lifecycle::closing(fd),
        libc::SYS_fcntl if !lifecycle::duplicates(b as c_int) => on_descriptor(fd),
        libc::SYS_execve | libc::SYS_execveat => process::before_exec(),
        libc::SYS_exit_group => process::before_exit(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => start::before_this_thread_forks(),
        libc::SYS_clone if copies_memory(a) => start::before_this_thread_forks(),
        libc::SYS_prctl => filters::before_prctl(a as c_int, [b, c]),
        libc::SYS_seccomp => filters::before_seccomp([a, b, c]),
        _ => {}
    }
}

/// Whether `clone` with these flags creates a child with a copy of the memory.
fn copies_memory(flags: c_long) -> bool {
    flags & libc::CLONE_VM as c_long == 0
}

/// Whether our function of the same name does any work after the original.
#[inline(always)]
fn changes_descriptors(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    matches!(
        number,
        libc::SYS_socket
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_epoll_create1
            | libc::SYS_dup
            | libc::SYS_fcntl
            | libc::SYS_getsockopt
            | libc::SYS_clone
    )
}

/// Does the work that our function of the same name does after the original.
fn after(number: c_long, [a, b, c]: [c_long; 3], result: c_long) {
    let (fd, new) = (a as c_int, result as c_int);
    match number {
        libc::SYS_socket => lifecycle::opened(new),
        libc::SYS_epoll_create1 => {
            lifecycle::opened(new);
            polling::made(new);
        }
        libc::SYS_accept | libc::SYS_accept4 => lifecycle::accepted(new),
        libc::SYS_connect => lifecycle::after_connect(fd, new),
        libc::SYS_dup => lifecycle::duplicated(fd, new),
        libc::SYS_fcntl if lifecycle::duplicates(b as c_int) => lifecycle::duplicated(fd, new),
        libc::SYS_getsockopt if options::asks_for_outcome(fd, b as c_int, c as c_int) => {
            report::settle(fd)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => after_fork(result),
        libc::SYS_clone if copies_memory(a) => after_fork(result),
        _ => {}
    }
}

fn after_fork(child: c_long) {
    if child == 0 {
        start::in_child_of_fork(false);
    } else {
        start::after_this_thread_forked(child < 0);
    }
}

#[inline(always)]
fn on_descriptor(fd: c_int) {
    if descriptors::is_ours(fd) {
        carried::return_to_kernel(fd, "syscall");
    }
}
