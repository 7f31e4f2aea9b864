//! The rate at which payload is copied.

use super::thread;
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::report::{Cell, Report};

/// Lower bound on bytes of a burst. The time of a shorter one is mostly system calls.
const BYTES_MIN: u64 = 10_000;

/// Of all bytes that the link received in a batch, recorded packets must make up more than this share.
const SHARE_MIN: f64 = 0.9;

/// A burst of packets in one direction at a thread.
#[derive(Clone, Copy, Default)]
struct Burst {
    since: Option<u64>,
    bytes: u64,
}

impl Burst {
    fn note(&mut self, at: u64, bytes: u32) {
        self.since.get_or_insert(at);
        self.bytes += u64::from(bytes);
    }

    /// Bytes and nanoseconds, if the burst was long enough.
    fn end(&mut self, at: u64) -> Option<(u64, u64)> {
        let Self { since, bytes } = std::mem::take(self);
        Some((bytes, at - since?)).filter(|_| bytes >= BYTES_MIN)
    }
}

/// Rates at which bursts of payload are handed to the kernel and copied out of the kernel's buffers, by thread.
///
/// Handing over lasts from the first packet of a burst that the core has made until the link has flushed it; the kernel copies the
/// bytes in that time. Copying out lasts from the first packet that the core parses to the end of the batch, without the preceding
/// system call. Only bursts of at least 10,000 bytes whose packets are nearly all in the trace count.
#[must_use]
pub fn copy(merged: &Merged) -> Report {
    let mut bursts = vec![[Burst::default(); 2]; merged.rings.len()];
    let mut copies = vec![[const { Vec::new() }; 2]; merged.rings.len()];
    for moment in &merged.moments {
        let [sent, received] = &mut bursts[moment.ring];
        let ([first, second, _, bytes], at) = (moment.arguments, moment.nanos);
        match merged.name(moment) {
            "data_xmit" | "granted_xmit" | "retransmit" => sent.note(at, bytes),
            "link_flush" => copies[moment.ring][0].extend(sent.end(at).filter(|_| first > 0)),
            "data_received" => received.note(at, bytes),
            "link_recv" => {
                let is_whole =
                    |(bytes, _): &(u64, u64)| *bytes as f64 > f64::from(second) * SHARE_MIN;
                copies[moment.ring][1].extend(received.end(at).filter(is_whole));
            }
            _ => {}
        }
    }
    let mut report = Report::default();
    let columns = ["thread", "copy", "bursts", "bytes", "gbps", "burst_p50_us", "burst_p99_us"];
    let table = report.table("copies", &columns);
    for (ring, copies) in copies.iter().enumerate() {
        for (name, copies) in ["to the kernel", "out of the link"].into_iter().zip(copies) {
            let times: Distribution = copies.iter().map(|(_, nanos)| *nanos).collect();
            if times.count() == 0 {
                continue;
            }
            let bytes = copies.iter().map(|(bytes, _)| *bytes).sum();
            let nanos = copies.iter().fold(0, |sum: u64, (_, nanos)| sum.saturating_add(*nanos));
            let [p50, p99] = [times.median(), times.percentile(99)].map(Cell::nanos);
            let (rate, name) = (Cell::gbps(bytes, nanos), Cell::from(name));
            table.row([
                thread(merged, ring).into(),
                name,
                times.count().into(),
                bytes.into(),
                rate,
                p50,
                p99,
            ]);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn bursts_end_with_the_flush_and_with_the_batch() {
        let report = copy(&script(
            "0 c data_xmit 2 9 0 20000
             100 c data_xmit 2 9 20000 20000
             3200 c link_flush 28
             5000 s data_received 3 9 0 20000
             6000 s link_recv 14 21000
             7000 s data_received 3 9 20000 20000
             9000 s link_recv 28 42000",
        ));
        assert_eq!(report.cell("copies", 0, "gbps"), Some(&Cell::Number(100.0)));
        assert_eq!(report.cell("copies", 1, "gbps"), Some(&Cell::Number(160.0)));
        assert_eq!(report.cell("copies", 1, "bursts"), Some(&Cell::Count(1)));
    }
}
