//! The clock of the machine, which continues during suspend.

/// Returns the nanoseconds since the machine booted, including suspended time (`CLOCK_BOOTTIME`).
///
/// [`std::time::Instant`] stops during suspend. A protocol that forgets a peer after some time needs a clock that does not, because
/// the peer's clock continued. Never runs backwards. The vDSO reads it within the process, for the cost of
/// [`std::time::Instant::now`], 20 to 70 ns; without a vDSO it is a system call.
#[inline]
pub fn boot_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kernel's uptime from `/proc`: seconds with two digits after the point, rounded down.
    fn uptime_nanos() -> u64 {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let (seconds, rest) = uptime.split_once('.').unwrap();
        let centis: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000_000 + centis * 10_000_000
    }

    /// `unshare --time --boottime 100000 cargo test -p apus-net clock` shows that it is this clock and not the monotonic one.
    #[test]
    fn time_since_boot_is_the_kernels_uptime() {
        let before = uptime_nanos();
        let now = boot_nanos();
        let after = uptime_nanos() + 10_000_000;
        assert!((before..=after).contains(&now), "{before} <= {now} <= {after}");
        assert!(boot_nanos() >= now);
    }
}
