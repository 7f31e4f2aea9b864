//! The process's clock, in the core's terms.

#[cfg(not(all(test, apus_model)))]
pub(crate) use real::now;

#[cfg(all(test, apus_model))]
pub(crate) use crate::sync::now;

#[cfg(not(all(test, apus_model)))]
mod real {
    use std::sync::OnceLock;
    use std::time::Instant;

    use apus_proto::Time;

    /// Time since the first call in this process: all nodes of a process share one clock, so that
    /// moments of one can be compared with moments of another. About 25 ns (one vDSO call).
    #[inline]
    pub(crate) fn now() -> Time {
        static START: OnceLock<Instant> = OnceLock::new();
        let nanos = START.get_or_init(Instant::now).elapsed().as_nanos();
        Time::from_nanos(u64::try_from(nanos).expect("a process runs for less than 584 years"))
    }
}
