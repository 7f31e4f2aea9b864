//! Busy polling of the kernel's epoll sets: parameters for the program's sets, and waits without long sleeps.
//!
//! The environment is read once, when the library is loaded, because programs clear it later (nginx in its workers). Children of
//! fork inherit the values.
//!
//! | variable | effect |
//! |---|---|
//! | `APUS_EPOLL=USECS,BUDGET,PREFER` | each new epoll set gets these parameters (Linux 6.9 and newer) |
//! | `APUS_EPOLL_REPEAT=1` | a wait of more than 0 consists of repeated waits of 1 ms |
//!
//! Waits of 1 ms in a set that polls for 1 ms never sleep. This is the case `fullbusy` of the kernel's IRQ suspension series.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{c_int, epoll_event, epoll_params, sigset_t, timespec};

use crate::carry::Clock;
use crate::{errno, originals, report};

/// The parameters in one word, with [`GIVEN`]. 0 for none.
static PARAMETERS: AtomicU64 = AtomicU64::new(0);
/// Marks the word as set.
const GIVEN: u64 = 1 << 63;

static REPEATS: AtomicBool = AtomicBool::new(false);

/// The duration of one kernel wait when waits repeat.
const SLICE: Duration = Duration::from_millis(1);

/// Reads the environment.
pub(crate) fn begin() {
    if let Some(text) = variable(c"APUS_EPOLL") {
        match parse(text) {
            Some(word) => PARAMETERS.store(word, Ordering::Relaxed),
            None => report::say(format_args!(
                "ignoring APUS_EPOLL = '{text}': expected USECS,BUDGET,PREFER, up to 2147483647, 65535 and 1"
            )),
        }
    }
    match variable(c"APUS_EPOLL_REPEAT") {
        None | Some("0") => {}
        Some("1") => REPEATS.store(true, Ordering::Relaxed),
        Some(text) => {
            report::say(format_args!("ignoring APUS_EPOLL_REPEAT = '{text}': expected 0 or 1"))
        }
    }
}

/// Leaves waits and sets as they are without this library.
pub(crate) fn end() {
    PARAMETERS.store(0, Ordering::Relaxed);
    REPEATS.store(false, Ordering::Relaxed);
}

/// The value of a variable, if set and not empty.
fn variable(name: &CStr) -> Option<&'static str> {
    // SAFETY: the name ends with a zero byte. No other code changes the environment before `main`.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a value ends with a zero byte.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })?;
    let text = value.to_str().unwrap_or("(no text)");
    (!text.is_empty()).then_some(text)
}

fn parse(text: &str) -> Option<u64> {
    let mut parts = text.split(',');
    let mut number = |max: u64| {
        let part = parts.next()?;
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        u64::from_str(part).ok().filter(|number| is_number && *number <= max)
    };
    let word = GIVEN | number(0x7fff_ffff)? | number(0xffff)? << 32 | number(1)? << 48;
    parts.next().is_none().then_some(word)
}

/// Whether waits repeat.
#[inline(always)]
pub(crate) fn repeats() -> bool {
    REPEATS.load(Ordering::Relaxed)
}

/// Runs after the program has created an epoll set, or has failed to.
#[inline(always)]
pub(crate) fn made(set: c_int) {
    let word = PARAMETERS.load(Ordering::Relaxed);
    if word != 0 && set >= 0 {
        errno::kept(|| give(set, word));
    }
}

/// Gives a set the parameters. A kernel before Linux 6.9 refuses them, and the set stays as it is.
#[cold]
fn give(set: c_int, word: u64) {
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    // SAFETY: all zeros are a valid value.
    let mut parameters: epoll_params = unsafe { std::mem::zeroed() };
    parameters.busy_poll_usecs = word as u32;
    parameters.busy_poll_budget = (word >> 32) as u16;
    parameters.prefer_busy_poll = (word >> 48) as u8 & 1;
    let argument = (&raw const parameters) as u64;
    // SAFETY: the request reads the parameters, which live until it returns.
    let result = unsafe { originals::ioctl(set, libc::EPIOCSPARAMS, argument) };
    if result != 0 && errno::current() == libc::EPERM && !IS_REFUSED.swap(true, Ordering::Relaxed) {
        report::say(format_args!(
            "the kernel refuses the budget of APUS_EPOLL: a budget above 64 needs CAP_NET_ADMIN"
        ));
    }
}

/// The arguments of `epoll_wait` and its relatives.
pub(crate) struct Wait {
    pub(crate) set: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) count: c_int,
    /// The timeout. `None` to wait without a limit.
    pub(crate) timeout: Option<Duration>,
    pub(crate) mask: *const sigset_t,
}

/// Waits in slices until there is an event, an error such as a signal, or the timeout expires.
///
/// Between two slices all signals are blocked, so that a signal ends the next slice, as it ends a wait of the kernel. Before the
/// first slice they are not: such a signal comes before the wait.
///
/// # Safety
///
/// There is room for the events, and the mask is null or valid.
pub(crate) unsafe fn wait(call: &Wait) -> c_int {
    let until = call.timeout.map(|timeout| Clock::now() + timeout);
    // SAFETY: guaranteed by the caller.
    let first = unsafe { slice(call, call.mask, call.timeout) };
    if first != 0 || call.timeout.is_some_and(|timeout| timeout <= SLICE) {
        return first;
    }
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: the buffers have room for both sets. The calls cannot fail.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let mask = if call.mask.is_null() { before.as_ptr() } else { call.mask };
    let result = loop {
        let left = until.map(|until| until.saturating_sub(Clock::now()));
        if left == Some(Duration::ZERO) {
            break 0;
        }
        // SAFETY: guaranteed by the caller; the old mask is initialized.
        let result = unsafe { slice(call, mask, left) };
        if result != 0 {
            break result;
        }
    };
    errno::kept(|| {
        // SAFETY: the set was initialized above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) }
    });
    result
}

/// One kernel wait, of a slice or of the remaining time.
unsafe fn slice(call: &Wait, mask: *const sigset_t, left: Option<Duration>) -> c_int {
    let (set, events, count) = (call.set, call.events, call.count);
    if let Some(left) = left.filter(|left| *left < SLICE) {
        let time = timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let before = errno::current();
        // SAFETY: guaranteed by the caller.
        let result = unsafe { originals::epoll_pwait2(set, events, count, &raw const time, mask) };
        if result >= 0 || errno::current() != libc::ENOSYS {
            return result;
        }
        errno::set(before); // An older C library rounds the rest up.
    }
    // SAFETY: guaranteed by the caller.
    unsafe { originals::epoll_pwait(set, events, count, SLICE.as_millis() as c_int, mask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_and_other_texts_refused() {
        assert_eq!(parse("0,64,1"), Some(GIVEN | 64 << 32 | 1 << 48));
        assert_eq!(parse("2147483647,65535,0"), Some(GIVEN | 0x7fff_ffff | 0xffff << 32));
        for text in [
            "",
            "1",
            "0,64",
            "0,64,2",
            "0,65536,1",
            "2147483648,1,1",
            "0,64,1,",
            "+1,2,1",
            " 0,64,1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
