//! The device under test: a veth pair of this host, or a NIC.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use apus_irq::{Device, Mode, ProcessId, Slot, StateDirectory, users};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::plan::Plan;
use super::veth::{self, Veth, VethEnd};
use apus_load::misuse::Misuse;

/// The device that queries arrive by. Dropping it restores the device's values.
#[derive(Debug)]
pub(super) struct DeviceUnderTest {
    /// `None` for a NIC.
    veth: Option<Veth>,
    device: Device,
    /// The server's address.
    pub(super) address: String,
    /// Saved values of a NIC, which `apus irq restore` finds if this process is killed.
    state: StateDirectory,
    own: ProcessId,
    /// The value of `threaded` that a veth pair gets in modes that do not set it, if the plan has a mode that does.
    threaded: Option<u32>,
}

impl DeviceUnderTest {
    /// Creates a pair, or finds a NIC.
    ///
    /// # Errors
    /// If the pair cannot be created, no device has this name, or other programs use the device and `force` is not given.
    pub(super) fn new(plan: &Plan, force: bool) -> Result<Self> {
        let own = ProcessId::own().context("/proc")?;
        let state = StateDirectory::at(StateDirectory::DEFAULT);
        if !plan.is_veth() {
            let device = Device::named(&plan.device)?;
            if !force {
                refuse_shared(&device)?;
            }
            let address = plan.address.clone().expect("the plan was checked");
            return Ok(Self { veth: None, device, address, state, own, threaded: None });
        }
        let veth = Veth::new(plan.queues)?;
        if plan.threaded {
            veth.make_threaded()?;
        }
        let device = veth.inside(VethEnd::Server, || Device::named(&veth::device()))??;
        let address = veth::ADDRESS.to_owned();
        let is_about = |case: &Mode| case.napi().threaded.is_some();
        let threaded = plan.cases.iter().any(is_about).then(|| u32::from(plan.threaded));
        let under_test = Self { veth: Some(veth), device, address, state, own, threaded };
        for thread in under_test.threads()? {
            sched_setaffinity(Pid::from_raw(thread), &cpu_set(&plan.pin.server)?)
                .context("cannot pin the thread of a NAPI instance to the server's CPUs")?;
        }
        Ok(under_test)
    }

    /// Runs `work` on a thread in the server's namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered, and the errors of `work`.
    pub(super) fn at_server<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.at(VethEnd::Server, work)
    }

    /// Runs `work` on a thread in the load generator's namespace.
    ///
    /// # Errors
    /// The errors of [`at_server`](Self::at_server).
    pub(super) fn at_client<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.at(VethEnd::Client, work)
    }

    fn at<T: Send>(&self, side: VethEnd, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match &self.veth {
            Some(veth) => veth.inside(side, work)?,
            None => work(),
        }
    }

    /// Sets a mode's parameters on the NAPI instances.
    ///
    /// # Errors
    /// If the kernel refuses, or another process has set them.
    pub(super) fn set(&self, mode: Mode) -> Result<()> {
        let slots = self.slots()?;
        if self.veth.is_none() {
            let of_mode = |_: &Slot| mode.napi();
            return Ok(self.state.set_device(&self.device, &slots, of_mode, Some(self.own))?);
        }
        let set = |slot: &Slot| {
            let what = || format!("set {} of {}", slot.name, self.device.name);
            let mut parameters = mode.napi();
            parameters.threaded = parameters.threaded.or(self.threaded);
            apus_irq::set(slot.napi.id, &parameters).with_context(what)
        };
        self.at_server(|| slots.iter().try_for_each(set))
    }

    /// Name of the device.
    pub(super) fn device(&self) -> &str {
        &self.device.name
    }

    /// PIDs of its NAPI instances' kernel threads.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn threads(&self) -> Result<Vec<i32>> {
        let pids = self.slots()?.into_iter().filter_map(|slot| slot.napi.pid);
        Ok(pids.filter_map(|pid| i32::try_from(pid).ok()).collect())
    }

    /// Its NAPI instances.
    ///
    /// # Errors
    /// If the kernel does not report them, or the device has none.
    pub(super) fn slots(&self) -> Result<Vec<Slot>> {
        self.at_server(|| Ok(self.device.slots_of(None)?))
    }
}

impl Drop for DeviceUnderTest {
    fn drop(&mut self) {
        if self.veth.is_none() {
            // Values that cannot be restored now stay in the file for `apus irq restore`.
            let _ = self.state.restore_of(self.own);
        }
    }
}

/// CPUs as a set.
///
/// # Errors
/// For numbers above the kernel's limit.
pub(super) fn cpu_set(cpus: &[usize]) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu)).context("a set of CPUs")?;
    Ok(set)
}

/// Refuses a device whose packets go to running programs.
fn refuse_shared(device: &Device) -> Result<()> {
    let slots = device.slots_of(None)?;
    let napis: BTreeSet<u32> = slots.iter().map(|slot| slot.napi.id).collect();
    let (found, _) = users(&napis).context("/proc")?;
    if found.is_empty() {
        return Ok(());
    }
    let programs: Vec<String> =
        found.iter().map(|user| format!("{} (pid {})", user.name, user.process.pid)).collect();
    Err(Misuse(format!(
        "{1} also receives packets of `{0}`, which the cases would delay: use a separate device, or --force",
        device.name,
        programs.join(", ")
    ))
    .into())
}
