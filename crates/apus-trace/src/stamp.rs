//! Time stamps of records.

use std::sync::OnceLock;

use nix::time::{ClockId, clock_gettime};

/// The unit of a trace's time stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Cycles of the x86-64 time stamp counter, which all cores of a host share.
    Tsc,
    /// Ticks of the aarch64 virtual counter.
    Cntvct,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Monotonic,
    /// Nanoseconds of a simulator.
    Virtual,
}

impl Clock {
    /// The unit of [`ticks`] on this host.
    #[must_use]
    pub fn of_host() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(find)
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Tsc => 0,
            Self::Cntvct => 1,
            Self::Monotonic => 2,
            Self::Virtual => 3,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [Self::Tsc, Self::Cntvct, Self::Monotonic, Self::Virtual]
            .into_iter()
            .find(|clock| clock.number() == number)
    }
}

/// Chooses the CPU's counter if it has the same rate in all states of the CPU. If the kernel has found that cores disagree, it uses
/// another clock source itself.
#[cfg(target_arch = "x86_64")]
fn find() -> Clock {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let distrusted = ["hpet", "acpi_pm", "jiffies"];
    let source = std::fs::read_to_string(SOURCE).unwrap_or_default();
    if distrusted.contains(&source.trim()) { Clock::Monotonic } else { Clock::Tsc }
}

#[cfg(target_arch = "aarch64")]
fn find() -> Clock {
    Clock::Cntvct
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find() -> Clock {
    Clock::Monotonic
}

/// The current time stamp, in the unit of `clock`, which [`Clock::of_host`] returned. A simulator has its own.
#[inline]
#[must_use]
pub fn ticks(clock: Clock) -> u64 {
    match clock {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction exists on every x86-64, reads a counter and changes nothing else.
        Clock::Tsc => unsafe { core::arch::x86_64::_rdtsc() },
        #[cfg(target_arch = "aarch64")]
        Clock::Cntvct => {
            let ticks: u64;
            // SAFETY: the register can be read in user space under Linux, and reading it changes nothing.
            unsafe {
                core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
            }
            ticks
        }
        _ => monotonic_nanos(),
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_nanos() -> u64 {
    nanos(ClockId::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn realtime_nanos() -> u64 {
    nanos(ClockId::CLOCK_REALTIME)
}

fn nanos(clock: ClockId) -> u64 {
    clock_gettime(clock)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
