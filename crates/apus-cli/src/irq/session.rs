//! What `attach` and `run` set while they run, and the guardian that restores it when they are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use apus_irq::{
    Again, Changed, Device, EpollParameters, Error, Group, LinkEvents, Mode, NapiParameters,
    ProcessId, Program, Slot, Spread, State,
};
use rustix::process::setsid;
use serde::Serialize;

use super::privileges;
use super::state::StateArgs;
use crate::failure;

/// The hidden subcommand that restores what a killed process has set.
pub(super) const GUARDIAN_COMMAND: &str = "guardian";

/// What the guardian has to know.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GuardianArgs {
    /// Process that is guarded
    pid: i32,
    /// When it started
    started: u64,
    #[command(flatten)]
    state: StateArgs,
}

/// Waits until standard input, which a guarded process holds, ends; then restores what that process has set. It finds
/// nothing if the process has restored it.
///
/// # Errors
/// When something cannot be restored.
pub(crate) fn guard(args: &GuardianArgs) -> Result<()> {
    // A signal to the terminal's processes or to the group of the guarded process is not for the guardian.
    let _ = setsid();
    privileges::keep_what_restoring_takes();
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).context("standard output")?;
    io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    let owner = ProcessId { pid: args.pid, started: args.started };
    Ok(args.state.open()?.restore_of(owner)?)
}

const READY: &str = "ready";

/// Everything that this process has set; dropped or killed, all is restored.
#[derive(Debug)]
pub(super) struct Session {
    state: State,
    own: ProcessId,
    mode: Mode,
    devices: Vec<Device>,
    links: LinkEvents,
    guardian: Child,
    restored: bool,
    done: Done,
    /// Processes of which an error was told.
    told: BTreeSet<ProcessId>,
}

/// What a session has done so far, for `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Done {
    /// Devices with their NAPI instances by place: values before and those that were set.
    pub(super) devices: BTreeMap<String, BTreeMap<String, Changed<NapiParameters>>>,
    /// Epoll sets that were given parameters.
    pub(super) epoll_sets: usize,
    /// NAPI instances that had lost their values, or came later, and were set again.
    pub(super) set_again: usize,
}

impl Session {
    /// Starts the guardian. Nothing is set yet.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn new(state: State, mode: Mode) -> Result<Self> {
        let own = ProcessId::own().context("/proc")?;
        let links = LinkEvents::open().context("news about links")?;
        let program = env::current_exe().context("the path of this program")?;
        let mut guardian = Command::new(program)
            .args(["irq", GUARDIAN_COMMAND, &own.pid.to_string(), &own.started.to_string()])
            .arg("--state")
            .arg(state.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the guardian")?;
        let mut line = String::new();
        let stdout = guardian.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).context("the guardian")?;
        ensure!(line.trim_end() == READY, "the guardian did not start");
        let devices = Vec::new();
        let (done, told) = (Done::default(), BTreeSet::new());
        Ok(Self { state, own, mode, devices, links, guardian, restored: false, done, told })
    }

    /// The process of the guardian.
    pub(super) fn guardian(&self) -> i32 {
        i32::try_from(self.guardian.id()).expect("the kernel's numbers are smaller")
    }

    /// What it has done so far.
    pub(super) fn done(&self) -> &Done {
        &self.done
    }

    /// Sets NAPI instances of a device; of a whole one, also those that come later.
    ///
    /// # Errors
    /// When somebody else holds the device, or the kernel refuses.
    pub(super) fn set_device(
        &mut self,
        device: Device,
        slots: &[Slot],
        is_whole: bool,
    ) -> Result<()> {
        let parameters = self.mode.napi();
        let later = is_whole.then_some(parameters);
        self.state.set_whole_device(&device, slots, |_| parameters, later, Some(self.own))?;
        let held = self.state.held(&device)?.map(|held| held.slots).unwrap_or_default();
        self.done.devices.insert(device.name.clone(), held);
        self.devices.push(device);
        Ok(())
    }

    /// Changes to another mode, also NAPI instances of devices. Epoll sets follow with the next [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// When somebody else holds a device, or the kernel refuses.
    pub(super) fn change(&mut self, mode: Mode, places: &[(Device, Vec<Slot>)]) -> Result<()> {
        self.mode = mode;
        self.devices.clear();
        for (device, slots) in places {
            self.set_device(device.clone(), slots, false)?;
        }
        Ok(())
    }

    /// Sets what is new or has changed since of the epoll sets of these processes. Returns how many.
    ///
    /// # Errors
    /// When the first of the processes may not be read or set.
    pub(super) fn refresh(&mut self, processes: &[ProcessId]) -> Result<usize> {
        let wanted: EpollParameters = self.mode.epoll();
        let mut sets = 0;
        for (place, process) in processes.iter().enumerate() {
            let Ok(program) = Program::open(process.pid) else { continue };
            match self.state.set_program(&program, &wanted, self.own) {
                Ok(count) => sets += count,
                Err(_) if !process.runs() => {}
                Err(error) if place == 0 => return Err(error.into()),
                Err(error) if self.told.insert(*process) => failure::note(&error.to_string()),
                Err(_) => {}
            }
        }
        self.done.epoll_sets += sets;
        Ok(sets)
    }

    /// Sets NAPI instances of the devices again that have lost their values.
    ///
    /// # Errors
    /// When the files cannot be read or written.
    pub(super) fn refresh_devices(&mut self) -> Result<()> {
        for device in &self.devices {
            match self.state.set_device_again(device) {
                Ok(Some(Again { lost, new })) if lost + new > 0 => {
                    self.done.set_again += lost + new;
                    failure::note(&format!(
                        "{}: set again: {lost} NAPI instances that had lost their values, and {new} new ones",
                        device.name
                    ));
                }
                // A link that is down has no NAPI instance, and is set when it is up; so is a device that is made anew.
                Ok(_) | Err(Error::Io { .. } | Error::NoDevice(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Becomes readable when something about a link has changed.
    pub(super) fn links(&self) -> &LinkEvents {
        &self.links
    }

    /// Sends connections to the listener of their queue.
    ///
    /// # Errors
    /// When somebody else does, or the kernel refuses.
    pub(super) fn steer(&self, group: &Group, spread: Spread) -> Result<()> {
        Ok(self.state.steer(group, spread, self.own)?)
    }

    /// Restores everything.
    ///
    /// # Errors
    /// When something cannot be restored; `apus irq restore` can try again.
    pub(super) fn restore(mut self) -> Result<()> {
        self.restored = true;
        Ok(self.state.restore_of(self.own)?)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.restored
            && let Err(error) = self.state.restore_of(self.own)
        {
            failure::note(&error.to_string());
        }
        // It reads the end of its input, finds nothing to restore, and ends.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}
