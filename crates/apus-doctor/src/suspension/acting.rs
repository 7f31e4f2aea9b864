//! Whether suspension acts: the kernel's timers and polls during a watch.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use apus_irq::{NapiCounts, Watch, WatchCounts, busy_poll_packets, threads, waits};
use serde::Serialize;

use super::kernel::{ProgramOrDevice, Suspension};
use crate::finding::{Finding, Subject};

const SUBJECT: Subject = Subject::Suspension;

/// The kernel's timers and polls during a watch.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Watched {
    /// Length of the watch in seconds.
    pub seconds: f64,
    /// Packets that applications of the network namespace took by busy polling (BusyPollRxPackets).
    pub busy_poll_packets: Option<u64>,
    /// Packets that the devices of interest received.
    pub received_packets: Option<u64>,
    /// Counts of the timers and polls; `None` if this process may not watch them.
    #[serde(flatten)]
    pub counts: Option<Counts>,
    /// The reason why there are no counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Counts of timers and polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Number of times that a thread of the programs suspended interrupts, or kept them suspended.
    pub long_rearms: u64,
    /// Number of times that the timer was armed otherwise.
    pub short_rearms: u64,
    /// Number of times that the timer expired.
    pub expiries: u64,
    /// Number of expiries of the long time.
    pub overruns: u64,
    /// Number of packets that softirqs took.
    pub softirq_packets: u64,
    /// Number of packets that threads took.
    pub task_packets: u64,
    /// Number of records that the kernel dropped.
    pub lost: u64,
}

impl Watched {
    /// Watches for this time, and meanwhile notes the waits of the programs' threads.
    pub(super) fn watch(suspension: &mut Suspension, time: Duration) -> Self {
        let suspensions =
            suspension.slots().filter_map(|(_, slot)| slot.napi.irq_suspend_timeout_ns);
        let shortest = suspensions.filter(|ns| *ns > 0).min().unwrap_or(0);
        let watch = Watch::open_without_softirqs(Duration::from_nanos(shortest));
        let pid = match suspension.inspected {
            ProgramOrDevice::Program { pid, .. } => Some(pid),
            ProgramOrDevice::Device(_) => None,
        };
        let packets = || busy_poll_packets(pid).ok();
        let devices: BTreeSet<String> = suspension.slots().map(|(it, _)| it.name.clone()).collect();
        let received = || received(&devices);
        let mut own = BTreeSet::new();
        let start = Instant::now();
        let (before, packets_before) = (watch.as_ref().map(Watch::counts), packets());
        let received_before = received();
        loop {
            for program in &mut suspension.programs {
                let pid = program.process.pid;
                own.extend(threads(pid).unwrap_or_default());
                // Without the right to trace the process, its waits are not known.
                program.waits.extend(waits(pid).unwrap_or_default());
            }
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
        let (after, received_after) = (packets(), received());
        let mut watched = Self {
            seconds: start.elapsed().as_secs_f64(),
            busy_poll_packets: packets_before.zip(after).map(|(before, after)| after - before),
            received_packets: received_before
                .zip(received_after)
                .map(|(before, after)| after.saturating_sub(before)),
            ..Self::default()
        };
        match (&watch, before) {
            (Ok(watch), Ok(before)) => {
                let since = watch.counts().since(&before);
                let own: Vec<_> = own.into_iter().collect();
                watched.counts = Some(Counts::of(&since, &own, &devices));
            }
            (Err(error), _) => watched.missing = Some(error.to_string()),
            _ => {}
        }
        watched
    }
}

impl Counts {
    /// The counts of the NAPI instances that these threads poll. If there are none, as while nothing is suspended, the counts of
    /// all devices of these names.
    fn of(since: &WatchCounts, own: &[i32], devices: &BTreeSet<String>) -> Self {
        let of_devices = || {
            let mut of = since.clone();
            of.napis.retain(|it| it.device.as_deref().is_some_and(|name| devices.contains(name)));
            of.total()
        };
        let polled = since.of_threads(own);
        let by_threads = polled != NapiCounts::default();
        let sum = if by_threads { polled } else { of_devices() };
        // Threads have other numbers in a PID namespace, where only the devices are known.
        let own_of = |count: fn(&apus_irq::ThreadCounts) -> u64| -> u64 {
            let mine =
                sum.threads.iter().filter(|(id, _)| !numbers_are_known() || own.contains(id));
            mine.map(|(_, counts)| count(counts)).sum()
        };
        Self {
            long_rearms: own_of(|it| it.long_rearms),
            short_rearms: sum.short_rearms,
            expiries: sum.expiries,
            overruns: if by_threads || !numbers_are_known() { sum.overruns } else { 0 },
            softirq_packets: sum.softirq_packets,
            task_packets: own_of(|it| it.packets),
            lost: since.lost,
        }
    }
}

/// Whether the kernel's numbers of threads are the numbers that this process sees: it is in the first PID namespace.
fn numbers_are_known() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|it| it.ino() == FIRST_PID_NAMESPACE)
}

/// Packets that these devices of this thread's network namespace have received.
fn received(devices: &BTreeSet<String>) -> Option<u64> {
    received_by(devices, &fs::read_to_string("/proc/thread-self/net/dev").ok()?)
}

/// Reads the packets from the text of `/proc/net/dev`: name, colon, bytes, packets.
fn received_by(devices: &BTreeSet<String>, text: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let packets = || numbers.split_whitespace().nth(1)?.parse::<u64>().ok();
        devices.contains(name.trim()).then(packets)?
    };
    (!devices.is_empty()).then(|| text.lines().filter_map(of_line).sum())
}

/// Whether suspension acts, and whether the application comes back in time.
pub(super) fn findings(suspension: &Suspension, watched: &Watched) -> Vec<Finding> {
    match &watched.counts {
        Some(counts) => vec![acts(suspension, watched, counts), overruns(counts)],
        None => {
            let why = watched.missing.as_deref().unwrap_or("suspension was not watched");
            let found = format!("{why}; {}", polled(watched));
            vec![Finding::not_known(SUBJECT, "acts", found).command_if(suspension.as_root())]
        }
    }
}

fn acts(suspension: &Suspension, watched: &Watched, counts: &Counts) -> Finding {
    let name = "acts";
    let Counts { long_rearms, short_rearms, expiries, lost, .. } = *counts;
    let lost = match lost {
        0 => String::new(),
        some => format!("; {some} records were lost, so the counts are too low"),
    };
    let found = format!(
        "in {:.1} s, threads suspended interrupts {long_rearms} times (long re-arms of the watchdog timer); {short_rearms} short \
         re-arms, {expiries} expiries; packets: {} by threads, {} by softirqs; {}{lost}",
        watched.seconds,
        counts.task_packets,
        counts.softirq_packets,
        polled(watched)
    );
    let defers = suspension
        .slots()
        .any(|(_, slot)| slot.napi.defer_hard_irqs > 0 && slot.napi.gro_flush_timeout_ns > 0);
    if long_rearms > 0 && defers {
        return Finding::good(SUBJECT, name, found);
    }
    if long_rearms > 0 {
        // The kernel arms the timer if prefer and irq-suspend are set, whatever the other parameters are.
        let why = "the timer was armed, but no interrupt is masked while defer or gro-flush is 0";
        return Finding::bad(SUBJECT, name, format!("{why}: {found}"), suspension.attach());
    }
    let received = watched.received_packets.unwrap_or(0);
    if received < PACKETS_MIN {
        return Finding::not_known(
            SUBJECT,
            name,
            format!("only {received} packets arrived, too few for a result; {found}"),
        )
        .command(format!("{} --watch 10 # under load", suspension.again()));
    }
    Finding::bad(
        SUBJECT,
        name,
        format!("no interrupts were suspended: {found}"),
        suspension.attach(),
    )
}

fn polled(watched: &Watched) -> String {
    match watched.busy_poll_packets {
        Some(packets) => format!(
            "{packets} packets by busy polling in the network namespace (BusyPollRxPackets)"
        ),
        None => "the counter BusyPollRxPackets cannot be read".to_owned(),
    }
}

fn overruns(counts: &Counts) -> Finding {
    let name = "in time";
    let Counts { long_rearms, overruns, .. } = *counts;
    let found = format!(
        "the application returned to epoll_wait after irq-suspend-timeout in {overruns} of {long_rearms} suspensions"
    );
    if long_rearms == 0 {
        return Finding::not_known(SUBJECT, name, "no interrupts were suspended");
    }
    if overruns * OVERRUNS_ONE_IN <= long_rearms {
        return Finding::good(SUBJECT, name, found);
    }
    Finding::bad(
        SUBJECT,
        name,
        found,
        "sudo apus irq set DEV --suspend 100 # or fewer events per epoll_wait",
    )
}

/// Interval between two looks at the threads.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Lower bound on the received packets from which a conclusion is possible.
const PACKETS_MIN: u64 = 20;

/// Upper bound on overruns: one in this number of suspensions.
const OVERRUNS_ONE_IN: u64 = 20;

/// `PROC_PID_INIT_INO` of linux/proc_ns.h.
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

#[cfg(test)]
mod tests {
    use super::super::kernel::made::suspension;
    use super::*;
    use crate::finding::Verdict;

    fn watched(counts: Counts) -> Watched {
        Watched {
            seconds: 1.0,
            busy_poll_packets: Some(77),
            received_packets: Some(counts.softirq_packets + counts.task_packets),
            counts: Some(counts),
            missing: None,
        }
    }

    fn found(counts: Counts) -> [(Verdict, String); 2] {
        let findings = findings(&suspension(), &watched(counts));
        let each = |it: &Finding| (it.verdict, it.found.clone());
        [each(&findings[0]), each(&findings[1])]
    }

    #[test]
    fn long_rearms_are_the_proof() {
        let counts =
            Counts { long_rearms: 400, expiries: 9, task_packets: 400, ..Counts::default() };
        let [acts, in_time] = found(counts);
        assert_eq!((acts.0, in_time.0), (Verdict::Good, Verdict::Good));
        for words in ["400 times", "9 expiries", "77 packets"] {
            assert!(acts.1.contains(words), "{words} in {}", acts.1);
        }
        let [acts, in_time] = found(Counts { overruns: 21, lost: 3, ..counts });
        assert_eq!((acts.0, in_time.0), (Verdict::Good, Verdict::Bad));
        assert!(acts.1.contains("3 records were lost"));
    }

    #[test]
    fn without_deferral_a_long_rearm_proves_nothing() {
        let mut suspension = suspension();
        suspension.devices[0].slots[0].napi.defer_hard_irqs = 0;
        let counts = Counts { long_rearms: 400, task_packets: 400, ..Counts::default() };
        let acts = &findings(&suspension, &watched(counts))[0];
        assert!(acts.verdict == Verdict::Bad && acts.found.contains("no interrupt is masked"));
    }

    #[test]
    fn without_packets_nothing_is_known() {
        let [acts, in_time] = found(Counts::default());
        assert_eq!((acts.0, in_time.0), (Verdict::NotKnown, Verdict::NotKnown));
        let [acts, _] = found(Counts { softirq_packets: 50, ..Counts::default() });
        assert_eq!(acts.0, Verdict::Bad);
    }

    #[test]
    fn packets_of_the_devices_are_counted() {
        let text = "Inter-|   Receive\n face |bytes    packets errs\n    lo: 840 10 0\n  eth0: 9000 42 0 0\n";
        let of = |name: &str| received_by(&[name.to_owned()].into(), text);
        assert_eq!((of("eth0"), of("lo"), of("eth1")), (Some(42), Some(10), Some(0)));
        assert_eq!(received_by(&BTreeSet::new(), text), None);
    }

    #[test]
    fn a_missing_right_is_reported_and_the_counter_still_shown() {
        let missing = Some("perf_event_open needs CAP_PERFMON".to_owned());
        let watched = Watched { counts: None, missing, ..watched(Counts::default()) };
        let [finding] = &findings(&suspension(), &watched)[..] else { panic!("one finding") };
        assert_eq!(finding.verdict, Verdict::NotKnown);
        assert!(finding.found.contains("CAP_PERFMON") && finding.found.contains("77 packets"));
    }

    #[test]
    fn instances_of_the_threads_count_before_those_of_the_name() {
        let thread = apus_irq::ThreadCounts { long_rearms: 5, polls: 9, packets: 6 };
        let own = NapiCounts {
            device: Some("eth0".to_owned()),
            long_rearms: 5,
            expiries: 2,
            threads: [(7, thread)].into(),
            ..NapiCounts::default()
        };
        let other = NapiCounts { expiries: 100, threads: [].into(), ..own.clone() };
        let since = WatchCounts { napis: vec![own, other], ..WatchCounts::default() };
        let counts = Counts::of(&since, &[7], &["eth0".to_owned()].into());
        assert_eq!((counts.long_rearms, counts.expiries, counts.task_packets), (5, 2, 6));
        let counts = Counts::of(&since, &[8], &["eth0".to_owned()].into());
        assert_eq!(counts.expiries, 102);
    }
}
