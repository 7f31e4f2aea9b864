//! Results for the tests of the reports.

use proptest::prelude::*;
use serde_json::Value;

use crate::latency::{BySize, Latency};
use crate::machine::Machine;
use crate::result::ResultFile;
use crate::row::Row;
use crate::series::{Scale, Series};

use super::conventions::Conventions;

/// The conventions of the tests.
pub(super) const CONVENTIONS: Conventions = Conventions {
    rivals: &["tcp"],
    floors: &["raw-"],
    main_figures: &[("rtt", "p50_us"), ("mix", "p99_us"), ("lab", "short_p99_us")],
    first_heads: &[("lab sizes", "tenth: up to")],
    names: &[("apus", "Apus"), ("tcp", "kernel TCP")],
    colours: &[("apus-udp", 0), ("tcp-busy", 1)],
    set_up: &["choice"],
    terms: "",
    own_forms: &[],
    own_tables: |_| Vec::new(),
};

/// Markup and control characters in external text.
pub(super) const HOSTILE: &str = "<script>alert(\"1\")</script>&'\x1b[2J";

/// A small result with all kinds of content.
pub(super) fn result() -> ResultFile {
    let machine = Machine {
        cpu: "AMD EPYC".into(),
        architecture: "x86_64".into(),
        cores: 2,
        ..Machine::default()
    };
    let mut result = ResultFile::new("apus bench rtt --runs 2", machine);
    result.started = "2026-11-20T18:40:00Z".into();
    result.warn("the generator was late");
    for run in [1_u32, 2] {
        for (transport, p50_us, goodput_gbps) in
            [("apus-udp", 4.9, 40.0), ("tcp-busy", 6.6, 60.0), ("raw-udp", 4.3, 50.0)]
        {
            let row = |bench| Row::new(transport).set("bench", bench).set("run", run);
            result.rows.push(row("rtt").set("size_bytes", 100_u32).set("p50_us", p50_us));
            result
                .rows
                .push(row("stream").set("outstanding", 8_u32).set("goodput_gbps", goodput_gbps));
        }
    }
    for (transport, ns) in [("apus-udp", 4900), ("tcp-busy", 6600)] {
        let (mut latency, mut by_size) = (Latency::new(), BySize::new());
        for n in 0..100 {
            latency.record_ns(ns + n * 40);
            by_size.record(100 * n as u32, ns + n * 40);
        }
        result.series.push(Series::latency_cdf("Latency of 100 B calls", transport, &latency));
        result.series.push(Series::slowdown_by_size(
            "Slowdown",
            transport,
            &by_size,
            99.0,
            |bytes| 1.0 + bytes / 1e4,
        ));
    }
    result
}

/// The same result with [`HOSTILE`] in every text.
pub(super) fn hostile() -> ResultFile {
    let mut result = result();
    let text = || HOSTILE.to_owned();
    result.command = text();
    result.started = text();
    result.warnings = vec![text()];
    result.machine.cpu = text();
    result
        .rows
        .push(Row::new(HOSTILE).set("bench", HOSTILE).set(HOSTILE, HOSTILE).set("a<b>_gbps", 1.5));
    result.rows.push(Row::new("tcp").set("bench", HOSTILE).set(HOSTILE, "x").set("a<b>_gbps", 3.0));
    let mut series = result.series[0].clone();
    (series.name, series.transport, series.x_label, series.y_label) =
        (text(), text(), text(), text());
    result.series.push(series);
    result
}

/// Results with any content that a file can have.
pub(super) fn any_result() -> impl Strategy<Value = ResultFile> {
    let cell = prop_oneof![
        any::<f64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
    ];
    let key = prop_oneof![
        Just("bench".to_owned()),
        Just("run".to_owned()),
        Just("connections".to_owned()),
        Just("size_bytes".to_owned()),
        Just("p50_us".to_owned()),
        Just("x_gbps".to_owned()),
        ".{0,6}",
    ];
    let transport = prop_oneof![Just("apus-udp"), Just("tcp"), Just("tcp-busy"), Just("raw-udp")];
    let row =
        (transport, prop::collection::vec((key, cell), 0..6)).prop_map(|(transport, cells)| {
            cells.into_iter().fold(Row::new(transport), |row, (key, cell)| row.set(&key, cell))
        });
    let scale = || prop_oneof![Just(Scale::Linear), Just(Scale::Log)];
    let series =
        ("[ab]", scale(), scale(), prop::collection::vec((any::<f64>(), any::<f64>()), 0..8))
            .prop_map(|(name, x_scale, y_scale, points)| Series {
                name,
                transport: "apus-udp".into(),
                x_label: "x".into(),
                x_scale,
                y_label: "y".into(),
                y_scale,
                points,
            });
    (prop::collection::vec(row, 0..8), prop::collection::vec(series, 0..4)).prop_map(
        |(rows, series)| {
            let mut result = ResultFile::new("apus bench", Machine::default());
            (result.rows, result.series) = (rows, series);
            result
        },
    )
}
