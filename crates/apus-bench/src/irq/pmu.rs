//! Cycles and instructions of CPUs that have counters: cpq and ipq of the series. Most virtual machines have none.

use std::io;

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};

/// The counts of the server's CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    pub(super) cycles: u64,
    pub(super) instructions: u64,
}

/// Counters of cycles and instructions on some CPUs, including everything that runs there.
#[derive(Debug)]
pub(super) struct Pmu {
    cycles: OnCpus,
    instructions: OnCpus,
}

impl Pmu {
    /// Starts counting; `None` if the CPUs have no counters or this process may not use them.
    pub(super) fn open(cpus: &[usize]) -> Option<Self> {
        let cycles = OnCpus::open(Hardware::CPU_CYCLES, cpus).ok()?;
        let instructions = OnCpus::open(Hardware::INSTRUCTIONS, cpus).ok()?;
        Some(Self { cycles, instructions })
    }

    /// The counts so far.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn read(&mut self) -> io::Result<Counted> {
        Ok(Counted { cycles: self.cycles.read()?, instructions: self.instructions.read()? })
    }
}

/// One event on some CPUs.
#[derive(Debug)]
struct OnCpus(Vec<Counter>);

impl OnCpus {
    fn open(event: impl Event + Clone, cpus: &[usize]) -> io::Result<Self> {
        let open = |cpu: &usize| {
            let mut builder = Builder::new(event.clone());
            builder.any_pid().one_cpu(*cpu).include_kernel().include_hv();
            let mut counter = builder.build()?;
            counter.enable()?;
            Ok(counter)
        };
        cpus.iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    fn read(&mut self) -> io::Result<u64> {
        self.0.iter_mut().map(Counter::read).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use apus_net::cpu;
    use perf_event::events::Software;

    use super::*;

    #[test]
    fn an_event_is_counted_on_a_cpu() {
        // The clock of a CPU is an event that needs no hardware, but a privilege.
        let Ok(mut clock) = OnCpus::open(Software::CPU_CLOCK, &cpu::allowed()[..1]) else { return };
        let before = clock.read().unwrap();
        let until = Instant::now() + Duration::from_millis(2);
        while Instant::now() < until {}
        assert!(clock.read().unwrap() - before >= 1_000_000);
    }
}
