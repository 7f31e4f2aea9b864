//! Closes descriptors on threads that no other work waits for.
//!
//! `close` may sleep: a TCP socket with `SO_LINGER` and unsent bytes sleeps until they are acknowledged, a file of a FUSE server
//! until that server answers. A process that receives descriptors from others (`SCM_RIGHTS`) must not close them on a thread that
//! other work waits for. The same holds for a unix socket that may hold such descriptors unread: they are closed with the socket.
//!
//! | bound | effect beyond |
//! |---|---|
//! | [`THREADS_MAX`] threads | descriptors wait in the queue while all threads sleep in `close` |
//! | [`QUEUE_MAX`] descriptors in the queue | a descriptor stays open, and is [counted](left_open) |
//!
//! The segments of a pair are an exception, because their `close` never waits. So a process that meets only honest ones starts no
//! thread, which would make system calls of a single-threaded program slower (the C library's cancellation).
//!
//! A thread ends after a second without work. It blocks all signals. A child of `fork` has none of the threads and begins with an
//! empty queue; descriptors of the parent's queue stay open there. No function of this module takes a lock. [`close_elsewhere`]
//! allocates memory if it must start a thread.

use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::stat::fstat;

/// Upper bound on threads that may sleep in `close` at a time.
pub const THREADS_MAX: u32 = 8;

/// Upper bound on descriptors that wait for a thread.
pub const QUEUE_MAX: usize = 256;

/// Time without work after which a thread ends.
const IDLE_FOR: Duration = Duration::from_secs(1);

/// Size of memory up to which a descriptor is closed at once, in bytes: a few segments of a pair.
const LITTLE: i64 = 4 << 20;

/// Size of a thread's stack in bytes.
const STACK: usize = 64 << 10;

/// Upper bound on checks of a queue that another thread is about to empty after a fork.
const LOOKS: usize = 1_000;

static CLOSER: Closer = Closer::new();

/// Closes a descriptor on another thread, or at once if it belongs to a few pages of memory. Never sleeps.
pub fn close_elsewhere(descriptor: OwnedFd) {
    if !is_little_memory(&descriptor) {
        CLOSER.take_over(descriptor.into_raw_fd());
    }
}

/// Returns whether a descriptor belongs to memory (`memfd_create`, tmpfs) that is and stays so small that the kernel frees it in a
/// moment. `close` of memory never waits.
fn is_little_memory(descriptor: &OwnedFd) -> bool {
    // Other files have no seals.
    let seals = fcntl(descriptor, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_GROW))
        && fstat(descriptor).is_ok_and(|file| file.st_size <= LITTLE)
}

/// Returns the number of descriptors of this process that wait for a thread to close them. It is above 0 for long only if all
/// threads sleep in `close`.
#[must_use]
pub fn waiting() -> usize {
    if CLOSER.is_of(std::process::id()) { CLOSER.queued.load(Ordering::Relaxed) } else { 0 }
}

/// Returns the number of descriptors that this process has left open because the queue was full.
#[must_use]
pub fn left_open() -> u64 {
    CLOSER.left_open.load(Ordering::Relaxed)
}

/// Prepares for exec: keeps the queued descriptors open across it, because closing them would sleep. The new program inherits them
/// without knowing their numbers. Allocates no memory.
pub fn spare_from_exec() {
    if !CLOSER.is_of(std::process::id()) {
        return;
    }
    for place in &CLOSER.queue {
        let fd = place.load(Ordering::SeqCst) - 1;
        if fd >= 0 {
            // SAFETY: the command has a number as its argument. A number that a thread has closed meanwhile may be reused; a
            // program that shares its table of descriptors must set the flag of such a descriptor again at exec anyway.
            unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        }
    }
}

#[derive(Debug)]
struct Closer {
    /// The process that owns the threads and the queue, shifted left by one. The lowest bit is set once they are ready.
    process: AtomicU64,
    /// Descriptors plus one; 0 is an empty slot.
    queue: [AtomicI32; QUEUE_MAX],
    /// Number of occupied slots, including slots about to be occupied.
    queued: AtomicUsize,
    /// Number of descriptors ever queued. Idle threads sleep on this word.
    came: AtomicU32,
    threads: AtomicU32,
    /// Number of threads that sleep without work and are not claimed for a descriptor.
    idle: AtomicU32,
    left_open: AtomicU64,
}

impl Closer {
    const fn new() -> Self {
        Self {
            process: AtomicU64::new(0),
            queue: [const { AtomicI32::new(0) }; QUEUE_MAX],
            queued: AtomicUsize::new(0),
            came: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            left_open: AtomicU64::new(0),
        }
    }

    fn take_over(&'static self, fd: RawFd) {
        if !self.enter(std::process::id()) || !self.push(fd) {
            self.left_open.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.came.fetch_add(1, Ordering::SeqCst);
        wake(&self.came);
        if !self.claim_idle() {
            self.start_thread();
        }
    }

    /// Claims an idle thread, which then has a descriptor to close, or ends. Returns `false` if there is none.
    fn claim_idle(&self) -> bool {
        let less = |idle: u32| idle.checked_sub(1);
        self.idle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    fn is_of(&self, process: u32) -> bool {
        self.process.load(Ordering::Acquire) == ready(process)
    }

    /// Empties the queue if the caller is the first of a new process. Returns `false` if another thread has not finished that.
    fn enter(&self, process: u32) -> bool {
        let mut found = self.process.load(Ordering::Acquire);
        if found == ready(process) {
            return true;
        }
        if found != begun(process) {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            let entered = self.process.compare_exchange(found, begun(process), acquire, relaxed);
            if entered.is_ok() {
                self.queue.iter().for_each(|place| place.store(0, Ordering::Relaxed));
                self.queued.store(0, Ordering::Relaxed);
                self.threads.store(0, Ordering::Relaxed);
                self.idle.store(0, Ordering::Relaxed);
                self.left_open.store(0, Ordering::Relaxed);
                self.process.store(ready(process), Ordering::Release);
                return true;
            }
        }
        for _ in 0..LOOKS {
            found = self.process.load(Ordering::Acquire);
            if found == ready(process) {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    /// Queues a descriptor. Returns `false` if there is no room.
    fn push(&self, fd: RawFd) -> bool {
        if self.queued.fetch_add(1, Ordering::Relaxed) < QUEUE_MAX {
            let (sequential, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
            let put =
                |place: &AtomicI32| place.compare_exchange(0, fd + 1, sequential, relaxed).is_ok();
            // A slot is free, unless a removed descriptor is still counted for a moment.
            if self.queue.iter().any(put) {
                return true;
            }
        }
        self.queued.fetch_sub(1, Ordering::Relaxed);
        false
    }

    fn pop(&self) -> Option<RawFd> {
        let taken = |place: &AtomicI32| {
            let is_free = place.load(Ordering::SeqCst) == 0;
            let fd = if is_free { 0 } else { place.swap(0, Ordering::SeqCst) };
            (fd != 0).then(|| fd - 1)
        };
        let fd = self.queue.iter().find_map(taken)?;
        self.queued.fetch_sub(1, Ordering::Relaxed);
        Some(fd)
    }

    fn start_thread(&'static self) {
        if !self.count_thread() {
            return;
        }
        // The thread inherits the mask, so no handler of the program runs in it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let builder = thread::Builder::new().name("apus-closer".to_owned()).stack_size(STACK);
        if builder.spawn(|| self.work()).is_err() {
            // The descriptor stays in the queue, and the next one makes another attempt.
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
    }

    /// Counts one more thread. Returns `false` at the limit.
    fn count_thread(&self) -> bool {
        let more = |threads| (threads < THREADS_MAX).then_some(threads + 1);
        self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn work(&self) {
        loop {
            let seen = self.came.load(Ordering::SeqCst);
            while let Some(fd) = self.pop() {
                // Any result means that the descriptor is gone.
                let _ = nix::unistd::close(fd);
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
            let came = sleep_on(&self.came, seen);
            let is_meant = !self.claim_idle();
            if came || is_meant || !self.is_empty() {
                continue;
            }
            self.threads.fetch_sub(1, Ordering::SeqCst);
            // A descriptor that was queued before the thread was counted out has started no other thread.
            if self.is_empty() || !self.count_thread() {
                return;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.queue.iter().all(|place| place.load(Ordering::SeqCst) == 0)
    }
}

fn begun(process: u32) -> u64 {
    u64::from(process) << 1
}

fn ready(process: u32) -> u64 {
    begun(process) | 1
}

/// Sleeps until the word differs from `seen`, at most for [`IDLE_FOR`]. Returns `false` after that time.
fn sleep_on(word: &AtomicU32, seen: u32) -> bool {
    let timeout = libc::timespec { tv_sec: IDLE_FOR.as_secs().cast_signed(), tv_nsec: 0 };
    let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time live during the call, which reads them.
    let slept =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, seen, &raw const timeout) };
    slept == 0 || word.load(Ordering::SeqCst) != seen
}

/// Wakes one thread that sleeps on the word.
fn wake(word: &AtomicU32) {
    let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let none = ptr::null::<libc::timespec>();
    // SAFETY: the word lives as long as the process, and the call does not access it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wake, 1, none) };
}
