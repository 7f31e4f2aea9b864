//! `apus bench delivery`: the experiment of the kernel's IRQ suspension patches with Apus in the kernel's place.
//!
//! * `store`, `server`: a key-value store on one core;
//! * `generator`: queries from another core, open loop, latency from the intended start;
//! * `instructions`: instructions per query, from callgrind;
//! * `experiment`: the cases, the loads, their order, and the validity of runs.

mod experiment;
mod generator;
pub(crate) mod instructions;
pub(crate) mod server;
pub(crate) mod store;

use anyhow::Result;
use apus_load::ResultFile;

pub(crate) use self::experiment::testcase;
pub use self::experiment::{CASES, Cases, ExperimentDesign, Load};
pub use self::generator::ArrivalProcess;

use self::experiment::Experiment;
use crate::report::delivery::curves;
use apus_load::progress::Progress;

/// Measures, and adds a row for each run of a case under a load, and curves against load.
///
/// # Errors
/// If a process fails.
pub fn measure(
    options: &ExperimentDesign,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    if options.ipq {
        instructions::look_for_valgrind()?;
    }
    let points = options.points();
    let experiment = Experiment::new(options, progress)?;
    progress.lengthen(points.len() as u64 * u64::from(options.runs));
    let base_qps = match options.base_qps {
        Some(qps) => f64::from(qps),
        None => experiment.highest_qps_of_base(result)?,
    };
    let whole = experiment.measure(&points, base_qps, result);
    if options.ipq && whole.is_ok() {
        instructions::measure(&experiment, result)?;
    }
    result.series.extend(curves(&result.rows));
    whole
}
