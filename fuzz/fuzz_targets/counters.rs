//! A file of counters with hostile contents: reading it neither panics nor takes more memory than its length.

#![no_main]

use apus_metrics::Reading;
use apus_metrics::layout::{MAGIC, VERSION};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Reading::parse(bytes);
    let file = [&MAGIC[..], &VERSION.to_ne_bytes(), bytes].concat();
    if let Ok(reading) = Reading::parse(&file) {
        assert!(reading.counters.len() <= file.len());
        assert!(reading.attached.len() * 64 <= file.len());
        assert!(reading.is_steady(&reading) || reading.sequences.iter().any(|it| it % 2 == 1));
    }
});
