//! Benchmarks that compare transports: their options, rows, choice of connections, and warnings.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use apus::Delivery;
use apus_load::{ResultFile, Row, stats};

use crate::pin::{Pin, Placements};
use crate::runner::{Beside, Runner};
use crate::transport::Transport;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_node::arguments;
use apus_node::transport::interface::{Health, NodeOptions};

/// Options of all benchmarks that compare transports.
#[derive(Clone, Debug, clap::Args)]
pub struct Comparison {
    /// Transports to compare; ratios are to the best of TCP and unix sockets [default: all that fit]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Transport::parser())]
    pub transports: Vec<Transport>,
    /// Packet delivery of apus-shm and apus-udp on both sides: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    pub delivery: Delivery,
    /// UDP receive buffer of Apus on both sides; a stock machine gives 212992; `apus settings receive_buffer` shows the default
    #[arg(long, value_name = "BYTES", value_parser = arguments::buffer)]
    pub receive_buffer: Option<u32>,
    /// Write the packets of all runs of Apus over UDP to FILE for Wireshark, as seen by the client's node; this takes time
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    /// CPUs of client and server: split (the first two), same, none, or numbers like 0-3; several of them, as in split,0-3, are
    /// compared, and sweep has the server on each CPU in turn
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub pin: Placements,
    /// Runs of each transport, interleaved; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    pub seconds: f64,
}

impl Comparison {
    /// The requested transports, or the suitable ones of `default`, in each placement. Empties the capture file, if there is one.
    ///
    /// # Errors
    /// If a requested transport does not suit this benchmark, if no transport has packets to capture, or if the capture file cannot
    /// be written.
    pub(crate) fn transports(
        &self,
        bench: &str,
        default: &[Transport],
        fits: fn(Transport) -> bool,
    ) -> Result<Vec<(Transport, Pin)>> {
        let transports = self.transports_asked_for(bench, default, fits)?;
        if let Some(file) = &self.capture {
            if !transports.iter().any(|(transport, _)| transport.has_packets()) {
                return Err(Misuse(format!(
                    "'--capture {}': no transport of this run sends packets of Apus, as apus-udp does",
                    file.display()
                ))
                .into());
            }
            let cannot = || format!("cannot write capture file '{}'", file.display());
            File::create(file).with_context(cannot)?;
        }
        Ok(transports)
    }

    fn transports_asked_for(
        &self,
        bench: &str,
        default: &[Transport],
        fits: fn(Transport) -> bool,
    ) -> Result<Vec<(Transport, Pin)>> {
        let default: Vec<_> = default.iter().copied().chain(Transport::added()).collect();
        if self.transports.is_empty() {
            let fits_there =
                |&(transport, pin): &(Transport, Pin)| !(pin.shares_cpu() && transport.spins());
            return Ok(self.placed(&default).into_iter().filter(fits_there).collect());
        }
        if let Some(unfit) = self.transports.iter().find(|transport| !fits(**transport)) {
            let allowed: Vec<&str> = default.into_iter().map(Transport::name).collect();
            let (unfit, allowed) = (unfit.name(), allowed.join(", "));
            return Err(Misuse(format!(
                "'--transports {unfit}': `bench {bench}` allows {allowed}"
            ))
            .into());
        }
        Ok(self.placed(&self.transports))
    }

    /// Each transport in each placement.
    fn placed(&self, transports: &[Transport]) -> Vec<(Transport, Pin)> {
        let of_pin = |pin| transports.iter().map(move |transport| (*transport, pin));
        self.pin.iter().flat_map(of_pin).collect()
    }

    pub(crate) fn runner(&self, pin: Pin) -> Runner {
        Runner { pin, node: self.node_options() }
    }

    pub(crate) fn node_options(&self) -> NodeOptions {
        NodeOptions {
            delivery: self.delivery,
            receive_buffer: self.receive_buffer,
            capture: self.capture.clone(),
            ..NodeOptions::default()
        }
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// A row with the settings, without measurements.
    pub(crate) fn row(&self, bench: &str, transport: Transport, pin: Pin, run: u32) -> Row {
        let mut row =
            Row::new(transport.name()).set("bench", bench).set("run", run).set("pin", &*pin.name());
        if let Transport::Rival(rival) = transport {
            row.put("version", rival.version);
        }
        if transport.is_apus() {
            row.put("delivery", transport.node(self.node_options()).delivery.to_string());
            if let Some(bytes) = self.receive_buffer {
                row.put("receive_buffer", bytes);
            }
        }
        row
    }

    /// Calls `measure` with every subject and the number of the run, interleaving the subjects: A B C A B C.
    pub(crate) fn interleave<S>(
        &self,
        subjects: &mut [S],
        progress: &dyn Progress,
        mut measure: impl FnMut(&mut S, u32) -> Result<()>,
    ) -> Result<()> {
        for run in 1..=self.runs {
            for subject in &mut *subjects {
                measure(subject, run)?;
                progress.done();
            }
        }
        Ok(())
    }
}

/// The numbers of TCP connections of `tcp-epoll`.
#[derive(Clone, Debug, clap::Args)]
pub struct Connections {
    /// Connections of tcp-epoll; of several numbers the best is found by a trial
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub connections: Vec<u64>,
}

impl Connections {
    /// The best number of connections for a transport, by the figure in the row that `measure` returns for a number of connections
    /// and a run. The result keeps every row. Only `tcp-epoll` has a choice.
    pub(crate) fn choose(
        &self,
        transport: Transport,
        best: Best,
        result: &mut ResultFile,
        mut measure: impl FnMut(usize, u32, &mut ResultFile) -> Result<Row>,
    ) -> Result<usize> {
        let choices = if transport == Transport::TcpEpoll { &self.connections[..] } else { &[1] };
        if choices.len() == 1 {
            return Ok(choices[0] as usize);
        }
        let mut costs = vec![Vec::new(); choices.len()];
        for run in 1..=TRIALS {
            for (&choice, costs) in choices.iter().zip(&mut costs) {
                let row = measure(choice as usize, run, result)?.set("load", CHOOSING);
                costs.push(match best {
                    Best::Highest(key) => -row.number(key).unwrap_or(0.0),
                    Best::Lowest(key) => row.number(key).unwrap_or(f64::INFINITY),
                });
                result.rows.push(row);
            }
        }
        let medians = costs.iter().filter_map(|costs| stats::median(costs));
        let lowest =
            choices.iter().zip(medians).min_by(|(_, one), (_, other)| one.total_cmp(other));
        Ok(lowest.map_or(choices[0], |(choice, _)| *choice) as usize)
    }
}

/// Runs of each number of connections before one is chosen.
pub(crate) const TRIALS: u32 = 3;

/// The `load` of rows measured only to choose the number of connections.
const CHOOSING: &str = "choosing connections";

/// The better direction of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Best {
    Highest(&'static str),
    Lowest(&'static str),
}

/// Warns that a floor lost messages, which improves its other figures.
pub(crate) fn warn_of_losses(result: &mut ResultFile, transport: Transport, lost: u64, calls: u64) {
    if lost > 0 {
        result.warn(format!(
            "{}: {lost} of {} calls were lost, because raw UDP drops datagrams when a socket buffer is full",
            transport.name(),
            lost + calls
        ));
    }
}

/// Adds the floor of the same second to a row, and losses and drops as [`note_health`].
pub(crate) fn note_beside(row: Row, beside: Beside, result: &mut ResultFile) -> Row {
    let Beside { health, floor } = beside;
    let row = match floor {
        Some(floor) => floor.note(row, result),
        None => row,
    };
    note_health(row, health, result)
}

/// Adds losses and drops below the messages to a row and to the warnings, if there are any.
pub(crate) fn note_health(mut row: Row, health: Health, result: &mut ResultFile) -> Row {
    let name = row.transport().to_owned();
    if health.drops > 0 {
        row.put("drops", health.drops);
        result.warn(format!(
            "{name}: the kernel dropped datagrams because a receive buffer was full"
        ));
    }
    if health.resends > 0 {
        row.put("resends", health.resends);
        result.warn(format!("{name}: some data was retransmitted"));
    }
    row
}
