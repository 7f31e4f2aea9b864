//! The cost of a record.
#![allow(missing_docs, reason = "criterion makes a function without any")]
#![expect(missing_docs, reason = "criterion makes public functions")]

use std::hint::black_box;

use apus_trace::{Clock, EventInfo, RingStorage, Settings, record, start, ticks};
use criterion::{Criterion, criterion_group, criterion_main};

fn costs(criterion: &mut Criterion) {
    let event = EventInfo { name: "event", arguments: &["a"], text: "event {}" };
    let settings = Settings { one_in: 1, slower_than: None };
    start(&RingStorage::Memory, &[event], &settings).expect("memory can be mapped");
    let clock = Clock::of_host();
    criterion.bench_function("stamp", |bencher| bencher.iter(|| ticks(black_box(clock))));
    criterion.bench_function("record", |bencher| {
        bencher.iter(|| record(black_box(0), black_box([1, 2, 3, 4])));
    });
}

criterion_group!(benches, costs);
criterion_main!(benches);
