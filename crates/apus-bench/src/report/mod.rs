//! Reports of the results of Apus: conventions of names, tables in the form of published ones, and verdicts.
//!
//! * [`CONVENTIONS`]: which transports are rivals and floors, and the main figure of each benchmark; for
//!   [`apus_load::report`];
//! * `testcases`: the form of the published tables of IRQ suspension; `delivery`: tables and curves of packet delivery in
//!   this form;
//! * `irq`: tables and curves of the same experiment with the kernel's own suspension, and their ratios beside the published ones;
//! * `memcached`: the table of a server for keys and values against load;
//! * `placements`: benchmarks in several placements of client and server;
//! * `sockets`: tables and curves by size of an ordinary sockets program;
//! * `counters`: the counters of a simulation, a line each;
//! * `checks`: claims about Apus, with verdicts.

mod checks;
mod counters;
pub(crate) mod delivery;
pub(crate) mod irq;
pub(crate) mod memcached;
mod order;
mod placements;
pub(crate) mod sockets;
mod testcases;

use apus_load::Row;
use apus_load::report::{Conventions, Table};

/// The names in results of benchmarks, lab and simulator: kernel TCP and unix sockets are rivals, transports without a protocol floors.
pub const CONVENTIONS: Conventions = Conventions {
    rivals: &["tcp", "unix"],
    floors: &["raw-"],
    main_figures: &[
        ("rtt", "p50_us"),
        ("rate", "calls_per_s"),
        ("stream", "goodput_gbps"),
        ("mix", "p99_us"),
        ("lab", "short_p99_us"),
        ("lab max", "goodput_mbps"),
        ("lab incast", "goodput_mbps"),
    ],
    first_heads: &[
        ("lab deciles", "decile: up to"),
        ("lab sizes", "decile: up to"),
        ("lab idle", "message"),
        ("lab choice", "connections, set-up"),
    ],
    names: &[
        ("apus-run", "`apus run`"),
        ("apus", "Apus"),
        ("tcp", "kernel TCP"),
        ("unix", "unix sockets"),
        ("raw-udp", "raw UDP"),
        ("raw-shm", "raw shared memory"),
    ],
    colours: &[
        ("apus", 0),
        ("apus-shm", 3),
        ("apus-shm-fullbusy", 11),
        ("apus-udp", 0),
        ("apus-udp-fullbusy", 5),
        ("apus-run", 0),
        ("tcp-epoll", 1),
        ("tcp-block", 4),
        ("tcp-poll", 6),
        ("tcp", 1),
        ("tcp-spin", 6),
        ("unix", 4),
        ("unix-block", 10),
        ("unix-poll", 12),
        ("raw-udp", 7),
        ("raw-udp-block", 2),
        ("raw-udp-gso", 15),
        ("raw-udp-batch", 8),
        ("computed ideal", 7),
        ("tcp-newreno", 9),
        ("tcp-cubic", 4),
        ("dctcp", 1),
        ("pfabric", 2),
        ("srpt-oracle", 7),
        ("suspend", 0),
        ("suspend20", 5),
        ("suspend0", 3),
        ("fullbusy", 6),
        ("napibusy", 2),
        ("defer20", 4),
        ("base", 1),
    ],
    set_up: &["choosing", "lab choice"],
    terms: include_str!("terms.txt"),
    own_forms: &[
        delivery::BENCH,
        irq::BENCH,
        memcached::BENCH,
        sockets::RR,
        sockets::STREAM,
        counters::BENCH,
        counters::SIZES,
    ],
    own_tables,
};

/// Number of claims about Apus that the rows of a result refute: lines of the table `checks` with the verdict FAILS.
#[must_use]
pub fn failed_checks(rows: &[Row]) -> usize {
    checks::failed(rows)
}

fn own_tables(rows: &[Row]) -> Vec<Table> {
    let tables = delivery::tables(rows).into_iter().chain(sockets::tables(rows));
    let tables = tables.chain(irq::tables(rows)).chain(memcached::tables(rows));
    let tables = tables.chain(counters::tables(rows));
    tables.chain(placements::tables(rows)).chain(checks::table(rows)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use apus_load::ResultFile;
    use apus_load::report::{Style, WIDTH, text};

    use super::*;

    #[test]
    fn tables_of_all_recorded_results_fit_the_screen() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
        let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let results: Vec<ResultFile> =
            paths.filter_map(|path| ResultFile::read(&path).ok()).collect();
        assert!(results.len() >= 10, "{} results", results.len());
        for result in results {
            let text = text(&result, &CONVENTIONS, Style::PLAIN);
            // The command is one line, so that it can be copied.
            let too_long = text.lines().skip(1).find(|line| line.chars().count() > WIDTH);
            assert_eq!(too_long, None, "{}", result.command);
        }
    }
}
