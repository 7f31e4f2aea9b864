//! The calls that the threads of a program wait in, from `/proc/PID/task/TID/syscall`.

use std::fs;
use std::io;

use serde::Serialize;

/// The state of a thread at a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    /// The thread runs, or is about to.
    Running,
    /// The thread waits in `epoll_wait` or a call like it, on this descriptor.
    Epoll(i32),
    /// The thread waits in `poll` or `ppoll`.
    Poll,
    /// The thread waits in `select` or `pselect`.
    Select,
    /// The thread waits in a call that receives or accepts, on this descriptor.
    Receive(i32),
    /// The thread waits in `io_uring_enter`.
    IoUring,
    /// The thread waits for something else, such as a lock.
    Other,
}

/// The present states of the threads of a process, with their numbers. Threads that end meanwhile are left out.
///
/// # Errors
/// When there is no such process, or it may not be traced.
pub fn waits(pid: i32) -> io::Result<Vec<(i32, ThreadState)>> {
    let mut waits = Vec::new();
    for thread in threads(pid)? {
        match fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")) {
            Ok(text) => waits.push((thread, parse(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(waits)
}

/// The numbers of a process's threads.
///
/// # Errors
/// When there is no such process.
pub fn threads(pid: i32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?.take(THREADS_MAX);
    Ok(entries.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Parses `running`, or the number of a system call and its arguments.
fn parse(text: &str) -> ThreadState {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap_or_default();
    let Ok(call) = first.parse::<libc::c_long>() else {
        return ThreadState::Running;
    };
    let argument =
        words.next().and_then(|it| u64::from_str_radix(it.trim_start_matches("0x"), 16).ok());
    let fd = argument.and_then(|it| i32::try_from(it).ok()).unwrap_or(-1);
    match call {
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => ThreadState::Epoll(fd),
        libc::SYS_ppoll => ThreadState::Poll,
        libc::SYS_pselect6 => ThreadState::Select,
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => ThreadState::Receive(fd),
        libc::SYS_io_uring_enter => ThreadState::IoUring,
        _ => older(call, fd),
    }
}

/// Classifies calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn older(call: libc::c_long, fd: i32) -> ThreadState {
    match call {
        libc::SYS_epoll_wait => ThreadState::Epoll(fd),
        libc::SYS_poll => ThreadState::Poll,
        libc::SYS_select => ThreadState::Select,
        _ => ThreadState::Other,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: libc::c_long, _: i32) -> ThreadState {
    ThreadState::Other
}

const THREADS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_distinguished() {
        let wait = |call: libc::c_long, first: &str| {
            parse(&format!("{call} {first} 0x7ffd 0x20 0xffffffff 0x0 0x8 0x7ffd 0x7f2a\n"))
        };
        assert_eq!(parse("running\n"), ThreadState::Running);
        assert_eq!(parse("-1 0x7ffe7d2d98c0 0x7fe8a0c6c31b\n"), ThreadState::Other);
        assert_eq!(wait(libc::SYS_epoll_pwait, "0x5"), ThreadState::Epoll(5));
        assert_eq!(wait(libc::SYS_ppoll, "0x7ffd9a"), ThreadState::Poll);
        assert_eq!(wait(libc::SYS_pselect6, "0x9"), ThreadState::Select);
        assert_eq!(wait(libc::SYS_recvfrom, "0x1f"), ThreadState::Receive(31));
        assert_eq!(wait(libc::SYS_io_uring_enter, "0x4"), ThreadState::IoUring);
        assert_eq!(wait(libc::SYS_futex, "0x4"), ThreadState::Other);
    }

    #[test]
    fn threads_of_this_process_are_listed() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(threads(pid).unwrap().contains(&own));
        let waits = waits(pid).unwrap();
        // This thread reads the file itself meanwhile.
        let this = waits.iter().find(|(thread, _)| *thread == own);
        assert!(
            matches!(this, Some((_, ThreadState::Running | ThreadState::Receive(_)))),
            "{waits:?}"
        );
        assert!(threads(i32::MAX).is_err());
    }
}
