//! The common part of `rate` and `stream`: a constant number of outstanding calls of one size.

use anyhow::Result;
use apus_load::{ResultFile, Row, Workload};

use crate::calls::Calls;
use crate::closed_loop::{Pipeline, Tally};
use crate::comparison::{Best, Comparison, Connections, note_beside, warn_of_losses};
use crate::peer::CpuTimes;
use crate::pin::Pin;
use crate::runner::measured;
use crate::transport::Transport;
use apus_load::progress::Progress;

/// A measurement of throughput.
pub(crate) struct Throughput<'a> {
    /// `rate` or `stream`.
    pub(crate) bench: &'static str,
    pub(crate) comparison: &'a Comparison,
    /// Transports with their placements.
    pub(crate) transports: Vec<(Transport, Pin)>,
    /// Bytes of each request.
    pub(crate) size: u32,
    /// Numbers of outstanding calls, each of which is measured.
    pub(crate) outstanding: &'a [u64],
    pub(crate) connections: &'a Connections,
    /// Length of replies, as in [`Request::reply`](apus_node::transport::interface::Request::reply).
    pub(crate) reply: u32,
    /// The key of the main figure, for which higher is better.
    pub(crate) main_figure: &'static str,
    /// Adds the measurements to a row.
    pub(crate) figures: fn(Row, &Tally, &CpuTimes) -> Row,
}

/// One transport with one number of calls outstanding.
struct TransportRate {
    transport: Transport,
    pin: Pin,
    outstanding: u32,
    connections: usize,
    total: Tally,
}

/// Part of the duration that a trial of a number of connections takes.
const TRIAL: f64 = 0.3;

impl Throughput<'_> {
    /// Measures, and adds a row for each run of a transport.
    ///
    /// # Errors
    /// If a transport fails.
    pub(crate) fn measure(&self, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
        let count = self.transports.len() * self.outstanding.len();
        progress.lengthen(count as u64 * u64::from(self.comparison.runs));
        let mut subjects = self.subjects(result, progress)?;
        let whole = self.comparison.interleave(&mut subjects, progress, |subject, run| {
            let TransportRate { transport, pin, outstanding, .. } = subject;
            let placement = self.comparison.pin.suffix(*pin);
            progress.begin(&format!(
                "{}: {}, {outstanding} outstanding{placement}",
                self.bench,
                transport.name()
            ));
            let row = self.measure_once(subject, run, 1.0, result)?;
            result.rows.push(row);
            Ok(())
        });
        for subject in subjects {
            warn_of_losses(result, subject.transport, subject.total.lost, subject.total.calls);
        }
        whole
    }

    /// The subjects, each with its best number of connections.
    fn subjects(
        &self,
        result: &mut ResultFile,
        progress: &dyn Progress,
    ) -> Result<Vec<TransportRate>> {
        let mut subjects = Vec::new();
        for &outstanding in self.outstanding {
            for &(transport, pin) in &self.transports {
                let outstanding = outstanding as u32;
                let total = Tally::default();
                let mut subject =
                    TransportRate { transport, pin, outstanding, connections: 1, total };
                let best = Best::Highest(self.main_figure);
                subject.connections = self.connections.choose(
                    transport,
                    best,
                    result,
                    |connections, run, result| {
                        progress.begin(&format!(
                            "{}: {} over {connections} connections",
                            self.bench,
                            transport.name()
                        ));
                        let trial = &mut TransportRate { connections, ..subject };
                        self.measure_once(trial, run, TRIAL, result)
                    },
                )?;
                subjects.push(subject);
            }
        }
        Ok(subjects)
    }

    /// Measures for the given part of the requested duration.
    fn measure_once(
        &self,
        subject: &mut TransportRate,
        run: u32,
        part: f64,
        result: &mut ResultFile,
    ) -> Result<Row> {
        let &mut TransportRate { transport, pin, outstanding, connections, .. } = subject;
        let workload = Workload::Fixed(self.size);
        let ((tally, cpu), beside) =
            self.comparison.runner(pin).run(transport, connections, |client, meter| {
                let calls = Calls::new(workload, self.reply, outstanding, 1);
                let mut pipeline = Pipeline::new(transport, calls);
                measured(meter, self.comparison.duration().mul_f64(part), |duration| {
                    pipeline.run(client, duration, 0)
                })
            })?;
        subject.total += tally;
        let row = self.comparison.row(self.bench, transport, pin, run);
        let row = row.set("size_bytes", self.size).set("outstanding", outstanding);
        let row = if transport == Transport::TcpEpoll {
            row.set("connections", connections)
        } else {
            row
        };
        let row = (self.figures)(row, &tally, &cpu);
        let row = row.set("elapsed_s", tally.elapsed.as_secs_f64());
        Ok(note_beside(row, beside, result))
    }
}
