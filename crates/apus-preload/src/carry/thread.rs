//! Thread numbers that are unique on the host.

/// The number of this thread, made of its process and thread id.
#[inline]
pub(crate) fn thread() -> u64 {
    #[cfg(all(test, apus_model))]
    if let Some(thread) = super::sync::thread() {
        return thread;
    }
    thread_local! {
        // A `const` thread local without a destructor costs one load. A child of fork sees its parent's value, so the process is
        // compared too.
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
    #[cfg(all(test, apus_model))]
    if super::sync::thread().is_some() {
        return super::sync::has_ended(holder);
    }
    // A thread that this process cannot see may be alive.
    let Some(process) = super::process::visible((holder >> 32) as u32) else { return false };
    let (process, thread) = (i64::from(process), (holder & u64::from(u32::MAX)) as i64);
    // SAFETY: signal 0 is not sent; the call only checks that the thread exists.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0_i64) };
    result != 0 && crate::errno::current() == libc::ESRCH
}
