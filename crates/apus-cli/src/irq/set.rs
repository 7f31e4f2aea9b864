//! `apus irq set` and `apus irq restore`: parameters that last until they are restored.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use apus_bench::misuse::Misuse;
use apus_irq::{Device, Mode, NapiParameters, ProcessId, Slot, Target, users, users_besides};

use super::state::StateArgs;
use super::{keeper, preset};
use crate::failure;
use crate::output;

/// Set the parameters of a device's NAPI instances, until `apus irq restore`
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The values before are kept in the state directory. A process stays behind, which sets the values again when the driver loses them, as \
by a link that goes down and up, and new queues of a whole device; `apus irq restore` ends it. This sets the device only: suspension also needs a program whose \
epoll sets prefer busy polling (`apus irq attach`). Needs CAP_NET_ADMIN in the first user namespace.

Examples:
  apus irq set eth0 --preset suspend:20
  apus irq set eth0:3 --defer 100 --gro-flush 20 --suspend 20
  apus irq restore eth0"
)]
pub(crate) struct SetArgs {
    /// Device, or one of its receive queues
    #[arg(value_name = "DEV[:QUEUE]")]
    target: Target,
    /// Values of a test case: base, defer:X, napibusy, fullbusy, suspend:X with X in microseconds; or a preset's name
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
    /// Set queues that several programs use, too
    #[arg(long)]
    force: bool,
    /// Leave no process behind; the values may be lost when the link goes down and up
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    state: StateArgs,
}

/// Restore what `apus irq` has set, also after a crash
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "What a running `apus irq attach` or `apus irq run` has set is left alone: end that instead. To restore twice \
changes nothing.

Examples:
  apus irq restore
  apus irq restore eth0"
)]
pub(crate) struct RestoreArgs {
    /// Device to restore; all, and all programs, if none is given
    #[arg(value_name = "DEV")]
    device: Option<String>,
    #[command(flatten)]
    state: StateArgs,
}

/// Sets them.
///
/// # Errors
/// When the device or queue is not there, is shared or held, or the kernel refuses.
pub(crate) fn set(args: &SetArgs) -> Result<()> {
    let device = Device::named(&args.target.device)?;
    let slots = device.slots_of(args.target.queue)?;
    let wanted = |slot: &Slot| args.wanted(slot.napi.parameters());
    for slot in &slots {
        let NapiParameters { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns } =
            wanted(slot);
        let deferred = defer_hard_irqs > 0 && gro_flush_timeout_ns > 0;
        if irq_suspend_timeout_ns > 0 && !deferred {
            failure::note(&format!(
                "{} of {}: without --defer and --gro-flush above 0, nothing is suspended",
                slot.name, device.name
            ));
        }
    }
    if !args.force {
        refuse_shared(&slots, &BTreeSet::new(), 2)?;
    }
    let state = args.state.open()?;
    let first = wanted(&slots[0]);
    let are_alike = slots.iter().all(|slot| wanted(slot) == first);
    let later = (args.target.queue.is_none() && are_alike).then_some(first);
    state.set_whole_device(&device, &slots, wanted, later, None)?;
    if !args.once {
        keeper::start(&state, &device)?;
    }
    let names = slots.iter().map(|slot| slot.name.as_str()).collect::<Vec<_>>().join(", ");
    output::print(&format!("{}: set {names}; `apus irq restore` restores it\n", device.name))
}

impl SetArgs {
    /// Those that were named, over those of the preset, over those before.
    fn wanted(&self, before: NapiParameters) -> NapiParameters {
        let base = self.preset.map_or(before, |mode| mode.napi());
        let or = |given: Option<u64>, unit: u64, value| given.map_or(value, |given| given * unit);
        NapiParameters {
            defer_hard_irqs: self.defer.unwrap_or(base.defer_hard_irqs),
            gro_flush_timeout_ns: or(self.gro_flush, 1_000, base.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: or(self.suspend, 1_000_000, base.irq_suspend_timeout_ns),
        }
    }
}

/// Refuses NAPI instances that so many programs use, without these processes. Processes of one name are one program.
///
/// # Errors
/// With the names of the programs.
pub(super) fn refuse_shared(
    slots: &[Slot],
    without: &BTreeSet<ProcessId>,
    programs: usize,
) -> Result<()> {
    let names: BTreeMap<u32, &str> =
        slots.iter().map(|slot| (slot.napi.id, slot.name.as_str())).collect();
    let (users, unreadable) = users(&names.keys().copied().collect()).context("/proc")?;
    for (id, slot) in names {
        let others: BTreeMap<&str, i32> = users_besides(&users, id, without)
            .iter()
            .map(|it| (it.name.as_str(), it.process.pid))
            .collect();
        if others.len() >= programs {
            let others = others.iter().map(|(name, pid)| format!("{name} (pid {pid})"));
            let others = others.collect::<Vec<_>>().join(", ");
            bail!(
                "{slot} is shared: it also brings packets to {others}, which would wait while another program is busy; \
                 --force sets it all the same"
            );
        }
    }
    if unreadable > 0 {
        failure::note(&format!(
            "{unreadable} processes of other users may not be read, and may share these queues"
        ));
    }
    Ok(())
}

/// Restores them.
///
/// # Errors
/// When a running process holds the device, or something cannot be restored; the rest is restored then.
pub(crate) fn restore(args: &RestoreArgs) -> Result<()> {
    let state = args.state.open()?;
    let named = |name: &str| args.device.as_deref().is_none_or(|device| device == name);
    let mut text = String::new();
    let mut errors = Vec::new();
    for held in state.devices()?.iter().filter(|held| named(&held.device.name)) {
        let name = &held.device.name;
        if let Some(owner) = held.owner.filter(ProcessId::runs) {
            let why = format!("process {} holds {name} and restores it when it ends", owner.pid);
            match args.device {
                Some(_) => return Err(Misuse(why).into()),
                None => failure::note(&why),
            }
            continue;
        }
        if let Some(keeper) = held.keeper {
            keeper::end(keeper);
        }
        match state.restore_device(held) {
            Ok(()) => text += &format!("{name}: restored\n"),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let groups = if args.device.is_none() { state.groups()? } else { Vec::new() };
    for held in groups.iter().filter(|held| !held.owner.runs()) {
        match state.unsteer(held) {
            Ok(()) => text += &format!("listeners of {}: restored\n", held.group.address),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let programs = if args.device.is_none() { state.programs()? } else { Vec::new() };
    for held in programs.iter().filter(|held| !held.owner.runs()) {
        match state.restore_program(held) {
            Ok(()) => text += &format!("process {}: restored\n", held.program.pid),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if text.is_empty() && errors.is_empty() {
        "nothing to restore\n".clone_into(&mut text);
    }
    output::print(&text)?;
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    Ok(())
}
