//! Descriptors whose `close` sleeps are closed on threads that no other work waits for, however many there are.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use apus_shm::Channel;
use apus_shm::closer::{QUEUE_MAX, THREADS_MAX, close_elsewhere, left_open, waiting};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork, pipe2};

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(60), "in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a TCP socket whose `close` sleeps until the other one is closed.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
    setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 3_600 }).unwrap();
    (socket.into(), other)
}

/// Returns the blocked signals of each closing thread.
fn threads() -> Vec<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let blocked = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        (field("Name:\t")? == "apus-closer").then_some(())?;
        u64::from_str_radix(field("SigBlk:\t")?, 16).ok()
    });
    blocked.collect()
}

/// Returns both ends of a pipe: the first reads the end as soon as the second is closed.
fn pipe() -> (fs::File, OwnedFd) {
    let (from, to) = pipe2(OFlag::O_CLOEXEC).unwrap();
    (from.into(), to)
}

/// Returns memory with a sealed, small size.
fn segment() -> OwnedFd {
    let memory = memfd_create(c"segment", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
    memory
}

#[test]
fn nothing_waits_for_a_descriptor_whose_close_sleeps() {
    close_elsewhere(segment());
    assert_eq!((waiting(), threads().len()), (0, 0), "memory needs no thread");
    let (mut end, to) = pipe();
    close_elsewhere(to);
    assert_eq!(end.read(&mut [0]).unwrap(), 0, "it is closed");

    let (first, others): (Vec<_>, Vec<_>) = (0..THREADS_MAX).map(|_| lingering()).unzip();
    let (mut end, to) = pipe();
    first.into_iter().for_each(close_elsewhere);
    // Each thread sleeps on one socket: the queue has no order, and a thread might close the pipe before it takes its socket.
    wait_until("each socket has its thread", || waiting() == 0);
    close_elsewhere(to);
    assert_eq!(waiting(), 1, "all threads sleep in close");
    let blocked = threads();
    assert_eq!(blocked.len(), THREADS_MAX as usize);
    // SIGKILL and SIGSTOP cannot be blocked, and the C library reserves two.
    let program = !(1 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
    assert!(blocked.iter().all(|mask| mask & program == program), "{blocked:x?}");

    // A child of fork has a thread of its own.
    // SAFETY: the child calls nothing but this library, the C library and the kernel, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(60);
            let (mut end, to) = pipe();
            close_elsewhere(to);
            let closed = end.read(&mut [0]).is_ok_and(|read| read == 0) && left_open() == 0;
            // SAFETY: the child must not run any of the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!closed)) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }

    // While all threads sleep, the queue fills up, and a descriptor without room stays open.
    let null = fs::File::open("/dev/null").unwrap();
    (1..QUEUE_MAX + 5).for_each(|_| close_elsewhere(null.as_fd().try_clone_to_owned().unwrap()));
    assert_eq!((waiting(), left_open()), (QUEUE_MAX, 5), "one was there");

    drop(others);
    assert_eq!(end.read(&mut [0]).unwrap(), 0, "it is closed at last");
    wait_until("the queue is empty", || waiting() == 0);
    wait_until("threads without work end", || threads().is_empty());
    descriptors_of_a_channel();
}

/// Runs in the same test, because the threads belong to the process.
fn descriptors_of_a_channel() {
    let flags = SockFlag::SOCK_CLOEXEC;
    let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    let (mine, theirs) = pair();
    let (mine, theirs) = (Channel::new(mine), Channel::new(theirs));
    let mut kept = Vec::new();
    let mut pass = |channel: &Channel, count: usize| {
        let (passed, other) = lingering();
        channel.send(b"x", &vec![passed.as_fd(); count]).unwrap();
        // The message has the last reference once this thread's reference is closed: no bytes are sent while another one exists.
        drop(passed);
        kept.push(other);
    };
    // A descriptor that is taken and dropped.
    pass(&theirs, 1);
    let taken = mine.take(&mut [0; 8], 1).unwrap();
    assert_eq!((taken.length, taken.descriptors.len()), (1, 1));
    drop(taken);
    // More descriptors than are taken.
    pass(&theirs, 3);
    assert_eq!(mine.take(&mut [0; 8], 1).unwrap_err().kind(), ErrorKind::InvalidData);
    drop((mine, theirs));
    // A descriptor for which the caller has no room.
    let (mine, theirs) = pair();
    let (mine, theirs) = (Channel::new(mine), Channel::new(theirs));
    pass(&theirs, 1);
    assert_eq!(mine.take(&mut [0; 8], 0).unwrap_err().kind(), ErrorKind::InvalidData);
    // A descriptor for which the process has no number.
    let low = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let used = nix::unistd::dup(mine.descriptor()).unwrap();
    let limit = used.as_raw_fd() as u64;
    drop(used);
    let set = |soft| {
        let resource = nix::sys::resource::Resource::RLIMIT_NOFILE;
        nix::sys::resource::setrlimit(resource, soft, low.1).unwrap();
    };
    set(limit);
    assert_eq!(mine.take(&mut [0; 8], 1).unwrap_err().kind(), ErrorKind::InvalidData);
    set(low.0);
    // A descriptor that is never read.
    drop((mine, theirs));
    wait_until("the threads have them", || waiting() == 0 && !threads().is_empty());
    drop(kept);
    wait_until("all are closed", || threads().is_empty());
}
