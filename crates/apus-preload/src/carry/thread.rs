//! Threads by numbers that no other thread of the host has.

/// This thread: process and thread number.
#[inline]
pub(crate) fn thread() -> u64 {
    thread_local! {
        // A `const` thread local without a destructor is a load; a child of fork sees the value of its parent, so the process is
        // looked at as well.
        static THREAD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    let process = crate::carry::process::id();
    let known = THREAD.get();
    if known >> 32 == u64::from(process) {
        return known;
    }
    // SAFETY: the call takes no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    let word = u64::from(process) << 32 | thread;
    THREAD.set(word);
    word
}

/// Whether a thread has ended.
pub(crate) fn is_dead(holder: u64) -> bool {
    // One that this process cannot see may live.
    let Some(process) = super::process::visible((holder >> 32) as u32) else { return false };
    let (process, thread) = (i64::from(process), (holder & u64::from(u32::MAX)) as i64);
    // SAFETY: signal 0 is not sent; the call only checks that the thread exists.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0_i64) };
    result != 0 && crate::errno::current() == libc::ESRCH
}
