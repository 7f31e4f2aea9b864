//! Counts of the events of timers and polls of NAPI instances, from records of tracepoints.

use std::collections::BTreeMap;

use serde::Serialize;

/// The counts of a [`Watch`](crate::Watch) since it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct WatchCounts {
    /// Counts by NAPI instance, in the order in which the instances were first seen. They include the instances of all devices of
    /// all network namespaces.
    pub napis: Vec<NapiCounts>,
    /// Nanoseconds in softirqs of all kinds, by the number of the CPU; 0 for an offline CPU.
    pub softirq_ns: Vec<u64>,
    /// Number of records that the kernel dropped. The counts are exact if it is 0, and too small otherwise.
    pub lost: u64,
}

/// The counts of a NAPI instance and its timer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct NapiCounts {
    /// Name of its device, which may not be unique across network namespaces; `None` if the instance was not polled, or the kernel
    /// does not report the name.
    pub device: Option<String>,
    /// Number of times that a task armed the timer with the long time: interrupts were suspended, or stayed suspended.
    pub long_rearms: u64,
    /// Number of times that the timer was armed otherwise.
    pub short_rearms: u64,
    /// Number of times that the timer expired, after the long or the short time.
    pub expiries: u64,
    /// Number of times that the timer expired after the long time: the application did not come back in time.
    pub overruns: u64,
    /// Number of polls in a softirq, caused by an interrupt or the timer.
    pub softirq_polls: u64,
    /// Number of packets that these polls took.
    pub softirq_packets: u64,
    /// Number of polls by a task: an application that polls, or the instance's own kernel thread.
    pub task_polls: u64,
    /// Number of packets that these polls took.
    pub task_packets: u64,
    /// The share of each thread in the counts of tasks, by its number in the first PID namespace.
    pub threads: BTreeMap<i32, ThreadCounts>,
}

/// The counts of one thread with a NAPI instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ThreadCounts {
    /// Number of times that the thread armed the timer with the long time.
    pub long_rearms: u64,
    /// Number of polls of the instance.
    pub polls: u64,
    /// Number of packets that these polls took.
    pub packets: u64,
}

impl WatchCounts {
    /// The sum over all NAPI instances, without a device.
    pub fn total(&self) -> NapiCounts {
        self.sum(|_| true)
    }

    /// The sum over the NAPI instances that one of these threads has polled, or whose timer one of them has armed with the long
    /// time.
    pub fn of_threads(&self, threads: &[i32]) -> NapiCounts {
        self.sum(|napi| threads.iter().any(|thread| napi.threads.contains_key(thread)))
    }

    /// The sum over the NAPI instances of devices of this name.
    pub fn of_device(&self, device: &str) -> NapiCounts {
        self.sum(|napi| napi.device.as_deref() == Some(device))
    }

    fn sum(&self, which: impl Fn(&NapiCounts) -> bool) -> NapiCounts {
        let mut sum = NapiCounts::default();
        for napi in self.napis.iter().filter(|napi| which(napi)) {
            sum.add(napi);
        }
        sum
    }

    /// The difference to an earlier reading of the same watch.
    pub fn since(&self, earlier: &Self) -> Self {
        let none = NapiCounts::default();
        let napis = self.napis.iter().enumerate();
        let napis = napis.map(|(at, napi)| napi.since(earlier.napis.get(at).unwrap_or(&none)));
        let cpus = self.softirq_ns.iter().enumerate();
        let softirq_ns = cpus
            .map(|(cpu, ns)| ns.saturating_sub(earlier.softirq_ns.get(cpu).copied().unwrap_or(0)));
        Self {
            napis: napis.collect(),
            softirq_ns: softirq_ns.collect(),
            lost: self.lost - earlier.lost,
        }
    }
}

impl NapiCounts {
    /// Every count except those by thread, in a fixed order.
    fn numbers(&mut self) -> [&mut u64; 8] {
        [
            &mut self.long_rearms,
            &mut self.short_rearms,
            &mut self.expiries,
            &mut self.overruns,
            &mut self.softirq_polls,
            &mut self.softirq_packets,
            &mut self.task_polls,
            &mut self.task_packets,
        ]
    }

    fn add(&mut self, other: &Self) {
        for (number, more) in self.numbers().into_iter().zip(other.clone().numbers()) {
            *number += *more;
        }
        for (thread, counts) in &other.threads {
            let sum = self.threads.entry(*thread).or_default();
            sum.long_rearms += counts.long_rearms;
            sum.polls += counts.polls;
            sum.packets += counts.packets;
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.clone();
        // A timer whose instance became known in between is missing from the earlier counts.
        for (number, less) in counts.numbers().into_iter().zip(earlier.clone().numbers()) {
            *number = number.saturating_sub(*less);
        }
        for (thread, counts) in &mut counts.threads {
            let earlier = earlier.threads.get(thread).copied().unwrap_or_default();
            counts.long_rearms -= earlier.long_rearms;
            counts.polls -= earlier.polls;
            counts.packets -= earlier.packets;
        }
        counts.threads.retain(|_, counts| *counts != ThreadCounts::default());
        counts
    }
}

/// The context in which the kernel made a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Context {
    /// In an interrupt or a softirq.
    Interrupt,
    /// In this thread.
    Task(i32),
}

/// A record of a tracepoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KernelEvent<'a> {
    /// A timer of a NAPI instance was armed.
    Armed { timer: u64, for_ns: u64, context: Context },
    /// The timer expired.
    Expired { timer: u64 },
    /// A NAPI instance was polled.
    Polled { napi: u64, device: Option<&'a str>, packets: u64, context: Context },
    /// A CPU began to handle softirqs of a kind.
    SoftirqEntry { at_ns: u64 },
    /// The CPU ended handling softirqs.
    SoftirqExit { at_ns: u64 },
}

/// The state of the counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Timers by address, in the order of addresses.
    timers: BTreeMap<u64, Timer>,
    /// NAPI instances by address.
    napis: BTreeMap<u64, NapiTally>,
    /// Number of instances and timers seen so far, which numbers the next one.
    seen: usize,
    softirqs: Vec<Softirqs>,
    pub(crate) lost: u64,
}

#[derive(Debug, Default)]
struct NapiTally {
    place: usize,
    counts: NapiCounts,
}

#[derive(Debug, Default)]
struct Timer {
    seen: NapiTally,
    /// Whether the timer is armed with the long time.
    is_long: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Softirqs {
    total_ns: u64,
    since_ns: Option<u64>,
}

impl Tally {
    /// Counts a record of a CPU. Times of `long_ns` or more are long; 0 makes no time long.
    pub(crate) fn count(&mut self, cpu: usize, event: KernelEvent<'_>, long_ns: u64) {
        match event {
            KernelEvent::Armed { timer, for_ns, context } => {
                let Some(timer) = self.timer(timer) else { return };
                let thread = match context {
                    Context::Task(thread) if long_ns > 0 && for_ns >= long_ns => Some(thread),
                    _ => None,
                };
                timer.is_long = thread.is_some();
                let counts = &mut timer.seen.counts;
                match thread {
                    Some(thread) => {
                        counts.long_rearms += 1;
                        if let Some(thread) = counts.thread(thread) {
                            thread.long_rearms += 1;
                        }
                    }
                    None => counts.short_rearms += 1,
                }
            }
            KernelEvent::Expired { timer } => {
                let Some(timer) = self.timer(timer) else { return };
                timer.seen.counts.expiries += 1;
                timer.seen.counts.overruns += u64::from(timer.is_long);
                timer.is_long = false;
            }
            KernelEvent::Polled { napi, device, packets, context } => {
                self.polled(napi, device, packets, context);
            }
            KernelEvent::SoftirqEntry { at_ns } => self.softirqs(cpu).since_ns = Some(at_ns),
            KernelEvent::SoftirqExit { at_ns } => {
                let softirqs = self.softirqs(cpu);
                if let Some(since_ns) = softirqs.since_ns.take() {
                    softirqs.total_ns += at_ns.saturating_sub(since_ns);
                }
            }
        }
    }

    /// Counts records that were lost on a CPU.
    pub(crate) fn count_lost(&mut self, cpu: usize, records: u64) {
        self.lost += records;
        // The exit of the entered softirq may be among them.
        self.softirqs(cpu).since_ns = None;
    }

    fn polled(&mut self, napi: u64, device: Option<&str>, packets: u64, context: Context) {
        let Some(napi) =
            entry(&mut self.napis, &mut self.seen, napi, |it: &mut NapiTally| &mut it.place)
        else {
            return;
        };
        let counts = &mut napi.counts;
        if let Some(device) = device.filter(|name| counts.device.as_deref() != Some(name)) {
            counts.device = Some(device.to_owned());
        }
        match context {
            Context::Interrupt => {
                counts.softirq_polls += 1;
                counts.softirq_packets += packets;
            }
            Context::Task(thread) => {
                counts.task_polls += 1;
                counts.task_packets += packets;
                if let Some(thread) = counts.thread(thread) {
                    thread.polls += 1;
                    thread.packets += packets;
                }
            }
        }
    }

    fn timer(&mut self, address: u64) -> Option<&mut Timer> {
        entry(&mut self.timers, &mut self.seen, address, |it: &mut Timer| &mut it.seen.place)
    }

    fn softirqs(&mut self, cpu: usize) -> &mut Softirqs {
        if cpu >= self.softirqs.len() {
            self.softirqs.resize(cpu + 1, Softirqs::default());
        }
        &mut self.softirqs[cpu]
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> WatchCounts {
        let mut napis: BTreeMap<usize, NapiCounts> = BTreeMap::new();
        let offset = self.timer_offset();
        for (address, timer) in &self.timers {
            let napi = offset.and_then(|offset| self.napis.get(&(address - offset)));
            let place = napi.map_or(timer.seen.place, |napi| napi.place);
            napis.entry(place).or_default().add(&timer.seen.counts);
        }
        for napi in self.napis.values() {
            let counts = napis.entry(napi.place).or_default();
            counts.add(&napi.counts);
            counts.device.clone_from(&napi.counts.device);
        }
        // Places without counts belong to timers that were later assigned to an instance.
        let napis = (0..self.seen).map(|place| napis.remove(&place).unwrap_or_default()).collect();
        let softirq_ns = self.softirqs.iter().map(|it| it.total_ns).collect();
        WatchCounts { napis, softirq_ns, lost: self.lost }
    }

    /// The offset of the timer within a NAPI instance, which is the same in all of them. The next instance below a timer is its
    /// own, or another one that is farther away.
    fn timer_offset(&self) -> Option<u64> {
        let distances = self.timers.keys().filter_map(|timer| {
            let (napi, _) = self.napis.range(..timer).next_back()?;
            Some(timer - napi)
        });
        distances.min().filter(|distance| *distance < NAPI_BYTES_MAX)
    }
}

impl NapiCounts {
    /// The counts of a thread; `None` beyond the limit.
    fn thread(&mut self, thread: i32) -> Option<&mut ThreadCounts> {
        if self.threads.len() >= THREADS_MAX && !self.threads.contains_key(&thread) {
            return None;
        }
        Some(self.threads.entry(thread).or_default())
    }
}

/// The entry of an address. A new entry gets a number; `None` beyond the limit.
fn entry<'a, T: Default>(
    all: &'a mut BTreeMap<u64, T>,
    seen: &mut usize,
    address: u64,
    place: impl Fn(&mut T) -> &mut usize,
) -> Option<&'a mut T> {
    if !all.contains_key(&address) {
        if all.len() >= ADDRESSES_MAX {
            return None;
        }
        let mut new = T::default();
        *place(&mut new) = *seen;
        *seen += 1;
        all.insert(address, new);
    }
    all.get_mut(&address)
}

/// Upper bound on NAPI instances, and on timers, that are counted.
const ADDRESSES_MAX: usize = 8_192;

/// Upper bound on threads of a NAPI instance that are counted.
const THREADS_MAX: usize = 4_096;

/// Upper bound on the size of the kernel's `struct napi_struct`.
const NAPI_BYTES_MAX: u64 = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_NS: u64 = 15_000_000;
    const NAPI: u64 = 0xffff_8881_0000_1000;
    const TIMER: u64 = NAPI + 0x130;

    fn armed(timer: u64, for_ns: u64, context: Context) -> KernelEvent<'static> {
        KernelEvent::Armed { timer, for_ns, context }
    }

    fn polled(napi: u64, device: &str, packets: u64, context: Context) -> KernelEvent<'_> {
        KernelEvent::Polled { napi, device: Some(device), packets, context }
    }

    #[test]
    fn arms_and_expiries_are_long_or_short() {
        let mut tally = Tally::default();
        for event in [
            armed(TIMER, 20_000_000, Context::Task(7)),
            armed(TIMER, 20_000_000, Context::Task(7)),
            KernelEvent::Expired { timer: TIMER },
            armed(TIMER, 20_000, Context::Interrupt),
            KernelEvent::Expired { timer: TIMER },
            armed(TIMER, 20_000, Context::Task(7)),
            // The short time may have the same length; then a softirq arms the timer.
            armed(TIMER, 20_000_000, Context::Interrupt),
            KernelEvent::Expired { timer: TIMER },
        ] {
            tally.count(0, event, LONG_NS);
        }
        let total = tally.counts().total();
        assert_eq!((total.long_rearms, total.short_rearms), (2, 3));
        assert_eq!((total.expiries, total.overruns), (3, 1));
        assert_eq!(total.threads[&7].long_rearms, 2);
        tally.count(0, armed(TIMER, 20_000_000, Context::Task(7)), 0);
        assert_eq!(tally.counts().total().long_rearms, 2, "without suspension none is long");
    }

    #[test]
    fn timers_belong_to_the_instances_around_them() {
        let mut tally = Tally::default();
        let (other, far) = (NAPI + 0x1000, NAPI + 0x9000);
        for event in [
            armed(TIMER, 20_000_000, Context::Task(7)),
            polled(NAPI, "eth0", 3, Context::Task(7)),
            polled(other, "eth1", 5, Context::Interrupt),
            armed(other + 0x130, 20_000, Context::Interrupt),
            armed(far + 0x130, 20_000, Context::Interrupt),
        ] {
            tally.count(0, event, LONG_NS);
        }
        let counts = tally.counts();
        let (first, second) = (counts.of_device("eth0"), counts.of_device("eth1"));
        assert_eq!((first.long_rearms, first.task_polls, first.task_packets), (1, 1, 3));
        assert_eq!((second.short_rearms, second.softirq_packets), (1, 5));
        assert_eq!(counts.total().short_rearms, 2, "that of an instance that was not polled, too");
        assert_eq!(counts.of_threads(&[7]), first);
        assert_eq!(counts.of_threads(&[8]), NapiCounts::default());
    }

    #[test]
    fn later_counts_have_their_difference() {
        let mut tally = Tally::default();
        tally.count(1, KernelEvent::SoftirqEntry { at_ns: 100 }, LONG_NS);
        tally.count(1, KernelEvent::SoftirqExit { at_ns: 250 }, LONG_NS);
        tally.count(0, armed(TIMER, 20_000_000, Context::Task(7)), LONG_NS);
        let before = tally.counts();
        assert_eq!(before.softirq_ns, [0, 150]);
        tally.count(0, polled(NAPI, "eth0", 1, Context::Task(8)), LONG_NS);
        tally.count(1, KernelEvent::SoftirqEntry { at_ns: 300 }, LONG_NS);
        tally.count_lost(1, 4);
        tally.count(1, KernelEvent::SoftirqExit { at_ns: 900 }, LONG_NS);
        let since = tally.counts().since(&before);
        assert_eq!((since.lost, &since.softirq_ns[..]), (4, &[0, 0][..]));
        let total = since.total();
        assert_eq!((total.task_polls, total.threads.get(&8).map(|it| it.packets)), (1, Some(1)));
    }
}
