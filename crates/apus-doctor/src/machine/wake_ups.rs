//! The cost of a handoff from one thread to another: with a wake-up, and with a thread that spins on a cache line.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus::net::{Sleeper, cpu, only};

use crate::files::Files;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::WakeUp;

#[derive(Clone, Debug)]
pub(super) struct WakeUps {
    /// The CPUs of the two threads; `None` if this process may use only one.
    cpus: Option<(usize, usize)>,
    sleeping: Option<Handoffs>,
    spinning: Option<Handoffs>,
}

/// Measured handoffs of one kind.
#[derive(Clone, Copy, Debug)]
struct Handoffs {
    count: usize,
    /// Median time of a handoff, in nanoseconds.
    median_ns: f64,
}

impl WakeUps {
    pub(super) fn gather(files: &dyn Files, allowed: &[usize]) -> Self {
        let cpus = two_cores(files, allowed);
        let measured = cpus.map(|cpus| (sleeping(cpus), spinning(cpus)));
        let (sleeping, spinning) = measured.unwrap_or_default();
        Self { cpus, sleeping, spinning }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let Some((one, other)) = self.cpus else {
            let why = "this process may use only one CPU";
            return vec![
                Finding::not_known(SUBJECT, "sleeping thread", why),
                Finding::not_known(SUBJECT, "spinning thread", why),
            ];
        };
        let cpus = format!("between CPU {one} and CPU {other}");
        let finding = |name, handoffs: Option<Handoffs>, good_us, bad_us| {
            let Some(Handoffs { count, median_ns }) = handoffs else {
                return Finding::not_known(SUBJECT, name, "no file descriptor is left");
            };
            let median_us = median_ns / 1e3;
            let found = format!("{median_us:.2} µs for a handoff {cpus}, median of {count}");
            Finding::new(SUBJECT, name, Verdict::by(median_us, good_us, bad_us), found)
                .value("median_us", (median_us * 1e3).round() / 1e3)
                .value("handoffs", count)
        };
        vec![
            finding("sleeping thread", self.sleeping, SLEEPING_GOOD_US, SLEEPING_BAD_US)
                .apus("polls while polling pays, so most messages need no wake-up (setting delivery)")
                .change(
                    "export APUS_DELIVERY=fullbusy # takes a core for each waiting thread",
                    "no wake-ups: the p50 of a 100 B call is 6.0 µs, that of blocking TCP 49.9 µs (docs/performance.md)",
                ),
            finding("spinning thread", self.spinning, SPINNING_GOOD_US, SPINNING_BAD_US)
                .apus("calls a node of the same host through such cache lines while both poll")
                .change(
                    "lscpu --extended # lists caches; run both programs on CPUs of one cache with `taskset -c`",
                    "calls within the host stay in one cache; not measured here",
                ),
        ]
    }
}

/// The first CPU, and another one, on a different core if there is one.
fn two_cores(files: &dyn Files, allowed: &[usize]) -> Option<(usize, usize)> {
    let (&first, others) = allowed.split_first()?;
    let path = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    let siblings = files.text(&path).map(|it| super::cpu_list::of_list(&it)).unwrap_or_default();
    let other = others.iter().find(|cpu| !siblings.contains(cpu)).or_else(|| others.first())?;
    Some((first, *other))
}

/// Measures two threads that each sleep in `ppoll` until the other one writes to its eventfd, as a thread of Apus does.
fn sleeping((one, other): (usize, usize)) -> Option<Handoffs> {
    let [here, there] = [Sleeper::new().ok()?, Sleeper::new().ok()?];
    let done = AtomicBool::new(false);
    let wait = |sleeper: &Sleeper| {
        sleeper.sleep(only(-1), Some(SLEEP_TIMEOUT));
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin_current_thread(other); // On failure, the two threads may share a CPU, which is acceptable.
            loop {
                wait(&there);
                here.wake();
                if done.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        let measured = scope.spawn(|| {
            let _ = cpu::pin_current_thread(one);
            let times = measure(ROUNDS_SLEEPING, |_| {
                there.wake();
                wait(&here);
            });
            done.store(true, Ordering::Release);
            there.wake();
            times
        });
        measured.join().ok()
    })
}

/// Measures two threads that each spin until the other one has written to a word.
fn spinning((one, other): (usize, usize)) -> Option<Handoffs> {
    let turn = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    // The other thread may have lost its CPU for good, so both also check whether the test is done.
    let wait = |number: u32| {
        while turn.load(Ordering::Acquire) != number && !done.load(Ordering::Relaxed) {
            spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = cpu::pin_current_thread(other);
            let mut number = 1;
            while !done.load(Ordering::Relaxed) {
                wait(number);
                turn.store(number + 1, Ordering::Release);
                number += 2;
            }
        });
        let measured = scope.spawn(|| {
            let _ = cpu::pin_current_thread(one);
            let times = measure(ROUNDS_SPINNING, |round| {
                turn.store(2 * round + 1, Ordering::Release);
                wait(2 * round + 2);
            });
            done.store(true, Ordering::Relaxed);
            times
        });
        measured.join().ok()
    })
}

/// Half of the median time of a round, which is two handoffs. Makes `rounds` rounds, or fewer once [`TIME_MAX`] is over.
fn measure(rounds: u32, mut round: impl FnMut(u32)) -> Handoffs {
    let start = Instant::now();
    let mut times = Vec::with_capacity(rounds as usize);
    let mut last = start;
    for number in 0..rounds {
        round(number);
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / 2.0);
        last = now;
        if last - start > TIME_MAX {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Handoffs { count: 2 * times.len(), median_ns: times[times.len() / 2] }
}

/// A wake-up takes 2 to 10 µs on a dedicated machine, and 25 to 40 µs on the machine of docs/delivery.md.
const SLEEPING_GOOD_US: f64 = 10.0;
const SLEEPING_BAD_US: f64 = 200.0;

const SPINNING_GOOD_US: f64 = 0.5;
/// A slower handoff means that the two threads share a CPU, or lose theirs all the time.
const SPINNING_BAD_US: f64 = 50.0;

const ROUNDS_SLEEPING: u32 = 2_000;
const ROUNDS_SPINNING: u32 = 20_000;

/// Time limit of a measurement. All rounds may take seconds on a machine with other load.
const TIME_MAX: Duration = Duration::from_millis(300);

/// Time limit for a missing wake-up, which is a fault.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    #[test]
    fn the_two_cpus_are_of_different_cores() {
        let files =
            FakeFiles(&[("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,4\n")]);
        assert_eq!(two_cores(&files, &[0, 4, 5]), Some((0, 5)));
        assert_eq!(two_cores(&files, &[0, 4]), Some((0, 4)));
        assert_eq!(two_cores(&files, &[3]), None);
    }

    #[test]
    fn handoffs_are_measured() {
        let wake_ups = WakeUps::gather(&FakeFiles(&[]), &cpu::allowed());
        assert_eq!(wake_ups.findings().len(), 2);
        if wake_ups.cpus.is_some() {
            assert!(wake_ups.sleeping.is_some_and(|it| it.median_ns > 0.0));
            assert!(wake_ups.spinning.is_some_and(|it| it.count > 0));
        }
    }

    #[test]
    fn slow_wake_ups_could_be_better() {
        let of = |sleeping| {
            let wake_ups = WakeUps {
                cpus: Some((0, 1)),
                sleeping: Some(Handoffs { count: 4_000, median_ns: sleeping }),
                spinning: Some(Handoffs { count: 4_000, median_ns: 80.0 }),
            };
            wake_ups.findings().remove(0)
        };
        assert_eq!(of(4_000.0).verdict, Verdict::Good);
        assert!(of(33_000.0).found.starts_with("33.00 µs for a handoff between CPU 0 and CPU 1"));
        assert!(of(33_000.0).change.unwrap().contains("APUS_DELIVERY=fullbusy"));
        assert_eq!(of(900_000.0).verdict, Verdict::Bad);
        let one = WakeUps { cpus: None, sleeping: None, spinning: None };
        assert!(one.findings().iter().all(|it| it.verdict == Verdict::NotKnown));
    }
}
