//! The floor of a moment: the round trip of 100 bytes through `raw-shm` between two threads on the CPUs of a measurement.
//!
//! A virtual machine has phases, presumably by where its host runs the two virtual CPUs: in one a cache line takes four times as long
//! from CPU to CPU as in another, and the phase changes within minutes. Every run takes the floor before and after itself, so that
//! runs of different phases are not compared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus_load::{FLOOR, FLOOR_SAME, ResultFile, Row, stats};
use apus_node::transport::interface::{Client, Request};

use crate::pin::{Pin, on_cpu, stay_on};
use crate::transport::raw_shm;

/// Round trips whose mean is one sample.
const BATCH: u32 = 50;

/// Samples, whose median is the floor: a few milliseconds, which an interrupted sample does not change.
const SAMPLES: u32 = 40;

/// Bytes of a message.
const LENGTH: u32 = 100;

/// Upper bound on the time of one round trip, if another program takes a CPU.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The floors just before and after a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    before: Duration,
    after: Duration,
}

impl Floor {
    pub(crate) fn of(before: Option<Duration>, after: Option<Duration>) -> Option<Self> {
        Some(Self { before: before?, after: after? })
    }

    /// Adds the floor to the row of the measurement, and a warning if the phase changed meanwhile.
    pub(crate) fn note(self, row: Row, result: &mut ResultFile) -> Row {
        if let Some(warning) = self.warning(row.transport()) {
            result.warn(warning);
        }
        let mean = (self.before + self.after) / 2;
        row.set(FLOOR, mean.as_nanos() as f64 / 1e3)
    }

    /// A warning if the phase changed during the measurement.
    fn warning(self, subject: &str) -> Option<String> {
        let Self { before, after } = self;
        let ratio = stats::ratio(after.as_secs_f64(), before.as_secs_f64())?;
        (!FLOOR_SAME.contains(&ratio)).then(|| {
            format!(
                "{subject}: the machine changed its pace during a run (floor {} ns before, {} ns after)",
                before.as_nanos(),
                after.as_nanos()
            )
        })
    }
}

/// Measures a row between two measurements of the floor, which it adds.
///
/// # Errors
/// The errors of `measure` and of [`round_trip`].
pub(crate) fn beside(
    pin: Pin,
    result: &mut ResultFile,
    measure: impl FnOnce(&mut ResultFile) -> Result<Row>,
) -> Result<Row> {
    let before = round_trip(pin)?;
    let row = measure(result)?;
    Ok(match Floor::of(before, round_trip(pin)?) {
        Some(floor) => floor.note(row, result),
        None => row,
    })
}

/// Measures the floor now, in some milliseconds. `None` if both sides share a CPU or stay nowhere: the two threads would wait for
/// each other, or move.
///
/// # Errors
/// If the kernel refuses the memory or a CPU.
pub(crate) fn round_trip(pin: Pin) -> Result<Option<Duration>> {
    let (Some(here), Some(there)) = pin.cpus() else { return Ok(None) };
    if here == there {
        return Ok(None);
    }
    let (mut client, mut answering) = raw_shm::within_process().context("the floor")?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            stay_on(Some(there))?;
            while !over.load(Ordering::Relaxed) {
                answering.turn()?;
            }
            Ok(())
        });
        let floor = on_cpu(Some(here), || samples(&mut client));
        over.store(true, Ordering::Relaxed);
        server.join().expect("the server does not panic").and(floor).map(Some)
    })
}

fn samples(client: &mut dyn Client) -> Result<Duration> {
    let mut ended = Vec::new();
    let mut means = Vec::new();
    for _ in 0..SAMPLES {
        let start = Instant::now();
        for tag in 0..u64::from(BATCH) {
            client.call(Request { tag, length: LENGTH, reply: 0 }, TIMEOUT, &mut ended)?;
        }
        means.push(start.elapsed() / BATCH);
    }
    means.sort_unstable();
    Ok(means[means.len() / 2])
}

#[cfg(test)]
mod tests {
    use apus_load::Machine;

    use super::*;

    fn floor(before: u64, after: u64) -> Floor {
        let [before, after] = [before, after].map(Duration::from_nanos);
        Floor { before, after }
    }

    #[test]
    fn a_floor_is_the_mean_of_both_and_a_change_by_a_fifth_is_named() {
        let mut result = ResultFile::new("apus bench", Machine::default());
        let row = floor(160, 180).note(Row::new("apus-shm"), &mut result);
        assert_eq!(row.number(FLOOR), Some(0.17));
        assert!(result.warnings.is_empty());
        assert_eq!(floor(160, 190).warning("apus-shm"), None);
        let warning = floor(160, 650).warning("apus-shm").unwrap();
        assert!(warning.contains("160 ns before, 650 ns after"), "{warning}");
    }

    #[test]
    fn there_is_a_floor_where_both_sides_have_a_cpu() {
        let several = apus_net::cpu::allowed().len() > 1;
        assert_eq!(round_trip(Pin::Split).unwrap().is_some(), several);
        assert_eq!(round_trip(Pin::Same).unwrap(), None);
        assert_eq!(round_trip(Pin::None).unwrap(), None);
    }
}
