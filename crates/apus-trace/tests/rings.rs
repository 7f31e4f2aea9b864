//! Rings in a mapped file, read while their process writes and after its end.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use apus_trace::{EventInfo, RECORDS, RingStorage, Settings, Trace, record, start};

const EVERY_CALL: Settings = Settings { one_in: 1, slower_than: None };

const EVENTS: [EventInfo; 2] = [
    EventInfo { name: "counted", arguments: &["a", "b", "c", "d"], text: "{} {} {} {}" },
    EventInfo { name: "last", arguments: &[], text: "the end" },
];

/// Three threads write more than their rings hold while the file is read repeatedly. No read record is torn, and the numbers of
/// each ring are consecutive.
#[test]
fn a_ring_is_read_while_it_is_written() {
    let directory = std::env::temp_dir().join(format!("apus-trace-test-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    start(&RingStorage::Directory(directory.clone()), &EVENTS, &EVERY_CALL).unwrap();
    let file = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let file = File::open(file).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = || {
            for number in 0..3 * RECORDS as u32 {
                record(0, [number, number ^ 0xffff, !number, number.wrapping_mul(7)]);
            }
            record(1, [0; 4]);
        };
        let writers: Vec<_> = (0..3).map(|_| scope.spawn(write)).collect();
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                check(&Trace::read(&file).unwrap());
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let trace = Trace::read(&file).unwrap();
    check(&trace);
    assert!(!trace.rings.is_empty() && trace.rings.len() <= 3);
    for ring in &trace.rings {
        // The oldest record may be half overwritten.
        assert_eq!(ring.records.len(), RECORDS - 1);
        assert_eq!(ring.records[RECORDS - 2].event, trace.number_of("last").unwrap());
    }
    let [first, last] = trace.widest_anchors();
    assert!(last.nanos > first.nanos && last.ticks > first.ticks);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn check(trace: &Trace) {
    for ring in &trace.rings {
        let mut before = None;
        for record in &ring.records {
            if record.event == 1 {
                before = None; // Another thread may take the ring.
                continue;
            }
            let [number, b, c, d] = record.arguments;
            assert_eq!([b, c, d], [number ^ 0xffff, !number, number.wrapping_mul(7)]);
            assert!(before.is_none_or(|before| number == before + 1));
            before = Some(number);
        }
    }
}
