//! What a process sets while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use super::notice::Notice;
use super::{RESCAN, ready};
use crate::device::{Device, Slot};
use crate::epoll::EpollParameters;
use crate::error::Error;
use crate::links::LinkEvents;
use crate::mode::Mode;
use crate::netdev::NapiParameters;
use crate::program::{ProcessId, Program};
use crate::state::{Again, Changed, State};
use crate::steering::{Group, Spread};

/// Everything that this process has set; dropped or killed, all is restored.
#[derive(Debug)]
pub struct Session {
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
    tell: fn(&Notice),
}

/// What a session has done so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Done {
    /// Devices with their NAPI instances by place: values before and those that were set.
    pub devices: BTreeMap<String, BTreeMap<String, Changed<NapiParameters>>>,
    /// Epoll sets that were given parameters.
    pub epoll_sets: usize,
    /// NAPI instances that had lost their values, or came later, and were set again.
    pub set_again: usize,
}

impl Session {
    /// Starts the guardian. Nothing is set yet. `command`: what starts a process that calls [`guard`](super::guardian::guard) for this
    /// one and this directory. `tell`: takes notices.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        state: State,
        mode: Mode,
        command: &mut Command,
        tell: fn(&Notice),
    ) -> Result<Self, Error> {
        let own = ProcessId::own().map_err(|error| Error::io("/proc", error))?;
        let links = LinkEvents::open().map_err(|error| Error::io("news about links", error))?;
        let guardian = ready::start("guardian", command.stdin(Stdio::piped()))?;
        let devices = Vec::new();
        let (done, told) = (Done::default(), BTreeSet::new());
        Ok(Self { state, own, mode, devices, links, guardian, restored: false, done, told, tell })
    }

    /// The process of the guardian.
    pub fn guardian(&self) -> i32 {
        i32::try_from(self.guardian.id()).expect("the kernel's numbers are smaller")
    }

    /// What it has done so far.
    pub fn done(&self) -> &Done {
        &self.done
    }

    /// Sets NAPI instances of a device; of a whole one, also those that come later.
    ///
    /// # Errors
    /// When somebody else holds the device, or the kernel refuses.
    pub fn set_device(
        &mut self,
        device: Device,
        slots: &[Slot],
        is_whole: bool,
    ) -> Result<(), Error> {
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
    pub fn change(&mut self, mode: Mode, places: &[(Device, Vec<Slot>)]) -> Result<(), Error> {
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
    pub fn refresh(&mut self, processes: &[ProcessId]) -> Result<usize, Error> {
        let wanted: EpollParameters = self.mode.epoll();
        let mut sets = 0;
        for (place, process) in processes.iter().enumerate() {
            let Ok(program) = Program::open(process.pid) else { continue };
            match self.state.set_program(&program, &wanted, self.own) {
                Ok(count) => sets += count,
                Err(_) if !process.runs() => {}
                Err(error) if place == 0 => return Err(error),
                Err(error) if self.told.insert(*process) => (self.tell)(&Notice::NotSet(error)),
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
    pub fn refresh_devices(&mut self) -> Result<(), Error> {
        for device in &self.devices {
            match self.state.set_device_again(device) {
                Ok(Some(Again { lost, new })) if lost + new > 0 => {
                    self.done.set_again += lost + new;
                    let device = device.name.clone();
                    (self.tell)(&Notice::SetAgain { device, lost, new });
                }
                // A link that is down has no NAPI instance, and is set when it is up; so is a device that is made anew.
                Ok(_) | Err(Error::Io { .. } | Error::NoDevice(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Becomes readable when something about a link has changed.
    pub fn links(&self) -> &LinkEvents {
        &self.links
    }

    /// Waits until the program ends or a link changes, but not long; whether the program has ended.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait_for(&self, program: &Program) -> Result<bool, Error> {
        let mut fds = [program.pidfd().as_fd(), self.links.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::try_from(RESCAN).expect("it is short")) {
            Ok(_) => {
                self.links.take();
                Ok(fds[0].any().unwrap_or(true))
            }
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(Error::io("wait for the program", error.into())),
        }
    }

    pub(super) fn tell(&self, notice: &Notice) {
        (self.tell)(notice);
    }

    /// Sends connections to the listener of their queue.
    ///
    /// # Errors
    /// When somebody else does, or the kernel refuses.
    pub(super) fn steer(&self, group: &Group, spread: Spread) -> Result<(), Error> {
        self.state.steer(group, spread, self.own)
    }

    /// Restores everything.
    ///
    /// # Errors
    /// When something cannot be restored; what is left is in the state directory.
    pub fn restore(mut self) -> Result<(), Error> {
        self.restored = true;
        self.state.restore_of(self.own)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.restored
            && let Err(error) = self.state.restore_of(self.own)
        {
            (self.tell)(&Notice::NotRestored(error));
        }
        // It reads the end of its input, finds nothing to restore, and ends.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}
