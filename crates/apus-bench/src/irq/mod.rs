//! `apus bench irq`: the experiment of the kernel's IRQ suspension series, with any server.
//!
//! * `plan`: the experiment's plan, a file in TOML;
//! * `veth`, `device_under_test`: the device that queries arrive by, a temporary veth pair or a NIC;
//! * `server`: the server of a run, with the parameters of a case;
//! * `meter`: the use of the server's CPUs, with the counters of `pmu` if they exist;
//! * `activity`: suspensions of interrupts, in separate runs;
//! * `instructions`: instructions per query, from callgrind;
//! * `experiment`: the cases, the loads, their order, and the validity of runs.
//!
//! The load generator and its latencies are [`apus_memcached`]'s.

mod activity;
mod device_under_test;
mod experiment;
mod instructions;
mod meter;
mod plan;
mod pmu;
mod server;
mod veth;

use std::path::PathBuf;

use anyhow::Result;
use apus_irq::Mode;
use apus_load::ResultFile;

use self::experiment::Experiment;
use self::plan::Plan;
pub use self::server::Preload;
use crate::delivery::Load;
use crate::report::irq::curves;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_node::arguments;

/// The plan's file and its overrides.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// The plan, in TOML
    #[arg(value_name = "PLAN.toml")]
    pub plan: PathBuf,
    /// Modes, in place of the plan's: base, defer10, napibusy, fullbusy, suspend20, threadbusy, …
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = plan::mode)]
    pub cases: Vec<Mode>,
    /// Loads, in place of the plan's: percent of the highest rate of base, or MAX
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub loads: Vec<Load>,
    /// Runs of each case at each load, in place of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Seconds of each run, in place of the plan's; the warm-up is no longer than this
    #[arg(long, value_name = "S", value_parser = arguments::seconds)]
    pub seconds: Option<f64>,
    /// Also count the server's instructions per query with callgrind (needs valgrind)
    #[arg(long)]
    pub instructions: bool,
    /// Set a NIC even if other programs also receive its packets
    #[arg(long)]
    pub force: bool,
}

impl PlanArgs {
    /// The plan with the options' overrides.
    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::read(&self.plan)?;
        if !self.cases.is_empty() {
            plan.cases.clone_from(&self.cases);
        }
        if !self.loads.is_empty() {
            plan.loads.clone_from(&self.loads);
        }
        plan.runs = self.runs.unwrap_or(plan.runs);
        if let Some(seconds) = self.seconds {
            plan.seconds = seconds;
            plan.warmup_s = plan.warmup_s.min(seconds);
        }
        let checked = plan.check();
        checked.map_err(|Misuse(why)| Misuse(format!("plan `{}`: {why}", self.plan.display())))?;
        Ok(plan)
    }

    /// A text with the number and the time of the planned runs.
    ///
    /// # Errors
    /// If the plan cannot be read or makes no sense.
    pub fn estimate(&self) -> Result<String> {
        let plan = self.plan()?;
        let (cases, loads) = (plan.cases.len(), plan.loads.len());
        let count = cases * loads * plan.runs as usize;
        let each = plan.warmup_s + plan.seconds;
        let minutes = (experiment::time(&plan).as_secs_f64() / 60.0).ceil();
        Ok(format!(
            "{cases} cases at {loads} loads, {count} runs of {each:.1} s in all, and each case once more with a watch: about {minutes} min"
        ))
    }
}

/// Measures, and adds a row for each run of a case under a load, and curves against load.
///
/// # Errors
/// If the plan makes no sense, the device cannot be set, or the server fails.
pub fn measure(
    options: &PlanArgs,
    preload: Preload,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let plan = options.plan()?;
    if options.instructions {
        instructions::look_for_valgrind()?;
    }
    let experiment = Experiment::new(plan, options.force, preload, progress, result)?;
    let whole = experiment.measure(result).and_then(|()| {
        experiment.watch(result)?;
        if options.instructions { instructions::measure(&experiment, result) } else { Ok(()) }
    });
    experiment::warn_of_queues(result);
    result.series.extend(curves(&result.rows));
    whole
}
