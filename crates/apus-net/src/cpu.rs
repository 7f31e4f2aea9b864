//! Processors: the current and the allowed CPUs of this thread, and its CPU time.

use std::cell::Cell;
use std::io;
use std::time::Duration;

/// Returns the CPU of this thread. May be outdated on return, unless the thread is pinned. Costs a few nanoseconds.
pub fn current() -> u32 {
    // SAFETY: takes no argument and touches no memory of this process.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

/// Returns how often the kernel has preempted the calling thread. Preemption of the virtual CPU by a hypervisor does not count.
pub fn involuntary_switches() -> u64 {
    // SAFETY: a block of integers, for which all zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live block.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if result == 0 { u64::try_from(usage.ru_nivcsw).unwrap_or(0) } else { 0 }
}

/// Returns whether the kernel has preempted the calling thread since its last call. Preemption of the virtual CPU by a hypervisor
/// does not count. Costs a system call.
pub fn was_preempted() -> bool {
    thread_local! {
        static SEEN: Cell<i64> = const { Cell::new(0) };
    }
    // SAFETY: a block of integers, for which all zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live block.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    // Without an answer of the kernel, the thread counts as preempted.
    result != 0 || SEEN.replace(usage.ru_nivcsw) != usage.ru_nivcsw
}

/// Makes the kernel prefer other threads to the calling one (nice 5). Has no effect if the process may not have it.
pub fn lower_priority() {
    // SAFETY: takes integers. Linux applies a call for process 0 to the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
}

/// Pins the calling thread to one CPU. Fails with `InvalidInput` if the CPU does not exist or this process may not use it (see
/// [`allowed`]).
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no CPU {cpu}")));
    }
    let mut set = empty_set();
    // SAFETY: `cpu` is within the set, by the check above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer and the length are those of a live set; thread 0 is the calling one.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Schedules the calling thread before all threads of the ordinary scheduling classes, whenever it is awake. For threads that block
/// a processor on purpose. Fails with `PermissionDenied` without CAP_SYS_NICE.
pub fn run_before_others() -> io::Result<()> {
    // The function of musl always fails.
    let priority: libc::c_int = 1;
    // SAFETY: the kernel's parameters are one integer, and the pointer is to a live one; thread 0 is the calling one.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the CPUs that the calling thread may run on, in ascending order. Never empty: `[0]` without an answer of the kernel.
pub fn allowed() -> Vec<usize> {
    let mut set = empty_set();
    // SAFETY: the pointer and the length are those of a live set; thread 0 is the calling one.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if result != 0 {
        return vec![0];
    }
    // SAFETY: every number is within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: the set is an array of integers, for which all zeroes are valid and mean the empty set.
    unsafe { std::mem::zeroed() }
}

/// Returns the CPU time of the calling thread since its start, user and system.
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of all threads of this process since its start, user and system.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    assert_eq!(result, 0, "Linux has had CPU time clocks since 2.6.12");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}

/// Makes the calling thread's sleeps end on time. Linux lets a sleeping thread oversleep by 50 µs to save wake-ups; this call sets
/// 1 ns. A thread should only call it for itself: the setting lasts for its life, and its child threads inherit it.
pub fn sleep_precisely() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of this process.
    let result = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    debug_assert_eq!(result, 0, "documented to succeed always");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_where_it_is_put() {
        let cpus = allowed();
        assert!(!cpus.is_empty());
        for &cpu in &cpus {
            std::thread::spawn(move || {
                pin_current_thread(cpu).unwrap();
                assert_eq!(current() as usize, cpu);
                assert_eq!(allowed(), [cpu]);
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_refused() {
        assert_eq!(pin_current_thread(1_000_000).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(pin_current_thread(libc::CPU_SETSIZE as usize - 1).is_err());
    }

    #[test]
    fn used_time_grows_with_work() {
        sleep_precisely();
        let (thread, process) = (thread_time(), process_time());
        while thread_time() == thread {
            std::hint::spin_loop();
        }
        assert!(process_time() > process);
    }
}
