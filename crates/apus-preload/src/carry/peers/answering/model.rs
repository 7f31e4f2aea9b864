//! A thread waits in an epoll set for a connection whose peer writes and dies, while the connection becomes carried, is attached to
//! the set, and is removed from it and added again. No wake-up is lost: the waiting thread sees all bytes and their end. The set,
//! the member, the wait and the answering thread's turns are the real ones, as are the sockets.
//!
//! `RUSTFLAGS="--cfg apus_model" cargo test -p apus-preload --lib --target-dir target/model model`

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Once, PoisonError};

use apus_shm::{PeerSegment, Segment};
use apus_sockets::layout;
use libc::{epoll_event, iovec};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread as tasks};

use super::*;
use crate::carry::bytes::transfer;
use crate::carry::connection::holders;
use crate::carry::connection::side::SendCall;
use crate::carry::connection::slots::Use;
use crate::carry::inner::InnerChannel;
use crate::carry::leaving::closing;
use crate::carry::sets::control::{Control, control};
use crate::carry::sets::giving_up::closing_set;
use crate::carry::sets::table::{Set, made};
use crate::carry::sets::waiting::{Wait, wait};
use crate::carry::{holds, sync};
use crate::descriptors;

/// Upper bound on bytes that the peer writes.
const BYTES_MAX: usize = 6;

/// Both ends of a connection: their sockets and their sides.
fn ends(holders: holders::Holders, listener: &TcpListener) -> [(OwnedFd, Box<Side>); 2] {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let sockets = [client.into(), listener.accept().unwrap().0.into()];
    let pair = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (one, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        [one, other].map(|end| Some(InnerChannel::new(inner::keep(end).unwrap())))
    };
    let (mut bells, mut channels) = (pair(), pair());
    let segments = [0, 1].map(|_| Segment::create_inherited(layout::SIZE).unwrap());
    let views = [1, 0].map(|of| PeerSegment::open(segments[of].descriptor(), layout::SIZE));
    let mut parts = segments.into_iter().zip(views).zip(sockets).zip([0, 1]);
    let mut end = || {
        let (((own, view), socket), index) = parts.next().expect("there are two");
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let nudge = inner::keep(EventFd::from_value_and_flags(0, flags).unwrap().into()).unwrap();
        let sockets = [&mut bells, &mut channels].map(|ends| ends[index].take().expect("once"));
        for socket in &sockets {
            socket.refuse_descriptors();
            let _ = socket.check(); // Without descriptors in it, it is closed at once.
        }
        let [bell, channel] = sockets;
        let own = own.into_memory();
        let side = Side::new(own, view.unwrap(), holders, nudge, bell, channel, index == 1);
        (socket, Box::new(side))
    };
    [end(), end()]
}

/// Bytes that went through a ring.
static BY_RING: AtomicUsize = AtomicUsize::new(0);

/// Writes some bytes, mostly after the bytes before were read, and dies.
fn write_and_die(socket: OwnedFd, side: Box<Side>, written: &AtomicUsize, read: &AtomicUsize) {
    let fd = socket.as_raw_fd();
    for byte in 0..thread_rng().gen_range(0..=BYTES_MAX) as u8 {
        let mut part = [iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 }];
        let call = SendCall { fd, flags: 0, left: 1, continues: false };
        tasks::yield_now();
        // SAFETY: the part is a local variable.
        let sent = unsafe { side.send(call, &mut part, 1, || {}, || true) };
        assert_eq!(sent, Ok(1), "there is room");
        BY_RING.fetch_add(usize::from(!side.kernel_knows_room()), Ordering::Relaxed);
        let count = written.fetch_add(1, Ordering::Relaxed) + 1;
        let waits = thread_rng().gen_bool(0.8);
        while waits && read.load(Ordering::Relaxed) < count {
            tasks::yield_now();
        }
    }
    tasks::yield_now();
    // The kernel closes the descriptors of a dead process in any order.
    if thread_rng().gen_bool(0.5) {
        drop(socket);
        tasks::yield_now();
        drop(side);
    } else {
        drop(side);
        tasks::yield_now();
        drop(socket);
    }
}

/// Reads all available bytes. Returns `true` at the end.
fn read_all(fd: c_int, read: &mut Vec<u8>) -> bool {
    loop {
        let mut byte = 0_u8;
        let part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let used = Use::of(fd).expect("the connection is known");
        // SAFETY: the part is a local variable.
        let got = unsafe {
            match used.side() {
                Some(side) => {
                    transfer::receive(&used, side, fd, &raw const part, 1, libc::MSG_DONTWAIT)
                }
                None => originals::recv(fd, part.iov_base, 1, libc::MSG_DONTWAIT),
            }
        };
        match got {
            1 => read.push(byte),
            0 => return true,
            _ => {
                assert_eq!(errno::current(), libc::EAGAIN, "a read");
                return false;
            }
        }
    }
}

fn change(set: c_int, operation: c_int, fd: c_int) {
    let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: 7 };
    let call = Control { set, operation, fd, event: &raw mut event };
    assert_eq!(control(&call), 0, "{}", errno::current());
}

/// Waits in a set until the end of the stream. Counts the bytes.
fn read_to_end(set: c_int, fd: c_int, count_read: &AtomicUsize) -> Vec<u8> {
    let mut read = Vec::new();
    let mut events = [epoll_event { events: 0, u64: 0 }; 2];
    loop {
        let (events, count) = (events.as_mut_ptr(), events.len() as c_int);
        let mask = std::ptr::null();
        let call = Wait { fd: set, events, count, timeout: None, mask, is_precise: false };
        // SAFETY: there is room for the events.
        let count = unsafe { wait(Set::of(set).expect("it is known"), &call) };
        assert_eq!(count, Some(1));
        if read_all(fd, &mut read) {
            return read;
        }
        count_read.store(read.len(), Ordering::Relaxed);
        if thread_rng().gen_bool(0.3) {
            change(set, libc::EPOLL_CTL_DEL, fd);
            change(set, libc::EPOLL_CTL_ADD, fd);
        }
    }
}

fn a_peer_writes_and_dies(listener: &TcpListener) {
    // SAFETY: the call takes no pointers.
    let set = unsafe { originals::epoll_create1(libc::EPOLL_CLOEXEC) };
    made(set);
    let holders = holders::Holders::one().unwrap();
    let [(socket, side), (its_socket, its_side)] = ends(holders, listener);
    let fd = socket.into_raw_fd();
    assert!(slots::add(fd, false, 0));
    let slot = slots::slot_of(descriptors::word(fd)).expect("it was added");
    assert!(slot.want() && slot.begin_meeting());
    change(set, libc::EPOLL_CTL_ADD, fd);

    let (counts, is_over) =
        (Arc::new([0, 0].map(AtomicUsize::new)), Arc::new(AtomicBool::new(false)));
    let its_counts = Arc::clone(&counts);
    let peer = tasks::spawn(move || {
        let [written, read] = &*its_counts;
        write_and_die(its_socket, its_side, written, read);
    });
    let ends = Arc::clone(&is_over);
    let answering = tasks::spawn(move || {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags).unwrap();
        let mut thread = Answering::new(inner::keep(wake.into()).unwrap());
        if carry(slot, side) {
            thread.carried.push(slot);
            begin(slot);
        }
        while !ends.load(Ordering::Relaxed) || slot.state() != State::Free {
            thread.answer();
            thread.reclaim();
            tasks::yield_now();
        }
    });
    let [written, read] = &*counts;
    let bytes = read_to_end(set, fd, read);
    assert_eq!(bytes, (0..written.load(Ordering::Relaxed) as u8).collect::<Vec<_>>());
    closing::close(fd);
    closing_set(set);
    // SAFETY: the descriptors are this function's.
    [fd, set].into_iter().for_each(|fd| _ = unsafe { originals::close(fd) });
    is_over.store(true, Ordering::Relaxed);
    peer.join().unwrap();
    answering.join().unwrap();
    holds::forget_all();
    sync::forget_ended();
    holders.remove();
}

fn run(scheduler: impl Scheduler + 'static) {
    static BEGUN: Once = Once::new();
    let _table = sync::ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    BEGUN.call_once(holders::begin);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    Runner::new(scheduler, config).run(move || a_peer_writes_and_dies(&listener));
    assert!(BY_RING.load(Ordering::Relaxed) > 0, "no connection was carried in time");
}

const RUNS: usize = 1_000;

#[test]
fn a_thread_that_waits_in_a_set_sees_all_that_its_peer_wrote() {
    run(RandomScheduler::new(RUNS));
}

#[test]
fn also_if_threads_stand_still_for_long() {
    run(PctScheduler::new(4, RUNS));
}
