//! `apus irq set` and `apus irq restore`: parameters that last until they are restored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};
use apus_irq::{
    Changed, Device, Error, Mode, NapiChange, NapiParameters, ProcessId, Restored, Slot, Target,
};
use apus_load::misuse::Misuse;
use serde::Serialize;

use super::state::StateArgs;
use super::{keeper, preset};
use crate::failure;
use crate::output::{self, OutputFile};

/// Set the parameters of a device's NAPI instances, until `apus irq restore`
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The state directory keeps the values before. A background process sets the values again when the driver loses \
them, for example when the link goes down and up, and sets new queues of a whole device; `apus irq restore` ends it. The command \
sets the device only: suspension also needs a program whose epoll sets prefer busy polling (`apus irq attach`). Needs \
CAP_NET_ADMIN in the initial user namespace.

Examples:
  apus irq set eth0 --preset suspend:20
  apus irq set eth0:3 --defer 100 --gro-flush 20 --suspend 20
  apus irq restore eth0"
)]
pub(crate) struct SetArgs {
    /// Device, or one of its receive queues
    #[arg(value_name = "DEV[:QUEUE]")]
    target: Target,
    /// Values of a test case: base, defer:X, napibusy, fullbusy, suspend:X with X in microseconds, or threadbusy; or the name of a preset
    #[arg(long, value_name = "MODE", value_parser = preset::mode, required_unless_present_any = ["defer", "gro_flush", "suspend"])]
    preset: Option<Mode>,
    /// Empty polls on the timer until the interrupt is unmasked, 0 to 2147483647
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=0x7fff_ffff))]
    defer: Option<u32>,
    /// Period of that timer in microseconds, 0 to 1000000
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    gro_flush: Option<u64>,
    /// Longest suspension in milliseconds, 0 to 10000
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=10_000))]
    suspend: Option<u64>,
    /// Also set queues that several programs use
    #[arg(long)]
    force: bool,
    /// Start no background process; the values may be lost when the link goes down and up
    #[arg(long)]
    once: bool,
    /// Write the result as JSON to FILE; - is standard output, which then has no text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

/// The result for `--json`.
#[derive(Debug, Serialize)]
struct Set<'a> {
    schema: &'static str,
    device: &'a str,
    /// Values before and after the change, by the place of the NAPI instance.
    napis: BTreeMap<String, Changed<NapiParameters>>,
    /// The process that sets lost values again.
    keeper: Option<ProcessId>,
}

/// Restore what `apus irq` has set, also after a crash
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Values that a running `apus irq attach` or `apus irq run` has set stay: end that command instead. Restoring \
twice has no further effect.

Examples:
  apus irq restore
  apus irq restore eth0"
)]
pub(crate) struct RestoreArgs {
    /// Device to restore [default: all devices and programs]
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Write the result as JSON to FILE; - is standard output, which then has no text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

/// The result for `--json`.
#[derive(Debug, Serialize)]
struct RestoreResult<'a> {
    schema: &'static str,
    #[serde(flatten)]
    restored: &'a Restored,
}

/// Sets the parameters.
///
/// # Errors
/// When the device or queue is absent, shared or held, or the kernel refuses.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let device = Device::named(&args.target.device)?;
    let slots = device.slots_of(args.target.queue)?;
    let change = args.change();
    for slot in &slots {
        let after = change.of(slot.napi.parameters());
        if after.irq_suspend_timeout_ns > 0 && !after.can_suspend() {
            failure::note(&format!(
                "{} of {}: interrupts are not suspended unless --defer and --gro-flush are above 0",
                slot.name, device.name
            ));
        }
    }
    if !args.force {
        refuse_shared(&slots, &BTreeSet::new(), 2)?;
    }
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let state = args.state.open()?;
    let napis = change.set(&state, &device, &slots, args.target.queue.is_none())?;
    if !args.once {
        keeper::start(&state, &device)?;
    }
    let takes_stdout = json.as_ref().is_some_and(OutputFile::is_stdout);
    if let Some(json) = json {
        let keeper = state.held(&device)?.and_then(|held| held.keeper);
        json.write_json(&Set { schema: "apus-irq-set/1", device: &device.name, napis, keeper })?;
    }
    if takes_stdout {
        return Ok(());
    }
    let names = slots.iter().map(|slot| slot.name.as_str()).collect::<Vec<_>>().join(", ");
    output::print(&format!(
        "{}: set {names}; `apus irq restore` restores the values before\n",
        device.name
    ))
}

impl SetArgs {
    fn change(&self) -> NapiChange {
        NapiChange {
            mode: self.preset,
            defer_hard_irqs: self.defer,
            gro_flush_timeout_ns: self.gro_flush.map(|us| us * 1_000),
            irq_suspend_timeout_ns: self.suspend.map(|ms| ms * 1_000_000),
        }
    }
}

/// Refuses NAPI instances that this many programs use, apart from these processes. Prints the number of unreadable processes.
///
/// # Errors
/// When the instances are shared, with the names of the programs.
pub(super) fn refuse_shared(
    slots: &[Slot],
    without: &BTreeSet<ProcessId>,
    programs: usize,
) -> Result<()> {
    let unreadable = match apus_irq::refuse_shared(slots, without, programs) {
        Err(error @ Error::Shared { .. }) => bail!("{error}; --force sets it nevertheless"),
        result => result?,
    };
    if unreadable > 0 {
        failure::note(&format!(
            "{unreadable} processes of other users are not readable and may share these queues"
        ));
    }
    Ok(())
}

/// Restores devices, listeners and programs.
///
/// # Errors
/// When a running process holds the device, or a value cannot be restored; all other values are restored then.
pub(crate) fn restore(args: &RestoreArgs) -> Result<()> {
    let json = args.json.as_deref().map(OutputFile::open).transpose()?;
    let restored = apus_irq::restore(&args.state.open()?, args.device.as_deref())?;
    for (name, pid) in &restored.held {
        let why = format!("process {pid} holds {name} and restores it at its end");
        if args.device.is_some() {
            return Err(Misuse(why).into());
        }
        failure::note(&why);
    }
    let takes_stdout = json.as_ref().is_some_and(OutputFile::is_stdout);
    if let Some(json) = json {
        json.write_json(&RestoreResult { schema: "apus-irq-restore/1", restored: &restored })?;
    }
    if !takes_stdout {
        output::print(&text(&restored))?;
    }
    if !restored.errors.is_empty() {
        bail!("{}", restored.errors.join("; "));
    }
    Ok(())
}

fn text(restored: &Restored) -> String {
    let devices = restored.devices.iter().map(|name| format!("{name}: restored\n"));
    let listeners = restored.listeners.iter().map(|at| format!("listeners of {at}: restored\n"));
    let processes = restored.processes.iter().map(|pid| format!("process {pid}: restored\n"));
    let text: String = devices.chain(listeners).chain(processes).collect();
    if text.is_empty() && restored.errors.is_empty() {
        return "nothing to restore\n".to_owned();
    }
    text
}
