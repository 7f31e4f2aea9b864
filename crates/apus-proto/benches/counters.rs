//! The cost of counting: `cargo bench -p apus-proto --bench counters`. A counter may cost at most 2 ns.

#![expect(missing_docs, reason = "criterion makes public functions")]

use std::hint::black_box;

use apus_proto::Counters;
use criterion::{Criterion, criterion_group, criterion_main};

fn counters(criterion: &mut Criterion) {
    let mut counters = Counters::default();
    criterion.bench_function("one counter", |bencher| {
        bencher.iter(|| black_box(&mut counters).packets_received += 1);
    });
    let mut counters = Counters::default();
    criterion.bench_function("the counters of a DATA packet sent", |bencher| {
        bencher.iter(|| {
            let counters = black_box(&mut counters);
            counters.packets_sent += 1;
            counters.data_packets_sent += 1;
            counters.acks_piggybacked += black_box(1);
            counters.bytes_by_priority[black_box(6)] += black_box(1_400);
            counters.packets_by_priority[black_box(6)] += 1;
        });
    });
    let counters = Counters::default();
    criterion.bench_function("all values, as they are published", |bencher| {
        bencher.iter(|| black_box(&counters).values().fold(0u64, u64::wrapping_add));
    });
}

criterion_group!(benches, counters);
criterion_main!(benches);
