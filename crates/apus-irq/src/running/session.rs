//! The values that a process sets while it runs.

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
use crate::state::{Again, Changed, StateDirectory};
use crate::steering::{Group, Spread};

/// All values that this process has set. They are restored when the session is dropped or its process is killed.
#[derive(Debug)]
pub struct Session {
    state: StateDirectory,
    own: ProcessId,
    mode: Mode,
    devices: Vec<Device>,
    links: LinkEvents,
    guardian: Child,
    restored: bool,
    done: Done,
    /// Processes whose error was reported.
    reported: BTreeSet<ProcessId>,
    notify: fn(&Notice),
}

/// The changes of a session so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Done {
    /// The NAPI instances of each device by place, with the values before and after the change.
    pub devices: BTreeMap<String, BTreeMap<String, Changed<NapiParameters>>>,
    /// Number of epoll sets that were set.
    pub epoll_sets: usize,
    /// Number of NAPI instances that had lost their values, or came later, and were set again.
    pub set_again: usize,
}

impl Session {
    /// Starts the guardian, and sets nothing yet. `command` starts a process that calls [`guard`](super::guardian::guard) for this
    /// process and this directory. `notify` takes notices.
    ///
    /// # Errors
    /// When the guardian cannot be started.
    pub fn start(
        state: StateDirectory,
        mode: Mode,
        command: &mut Command,
        notify: fn(&Notice),
    ) -> Result<Self, Error> {
        let own = ProcessId::own().map_err(|error| Error::io("/proc", error))?;
        let links = LinkEvents::open().map_err(|error| Error::io("news about links", error))?;
        let guardian = ready::start("guardian", command.stdin(Stdio::piped()))?;
        let devices = Vec::new();
        let (done, reported) = (Done::default(), BTreeSet::new());
        Ok(Self {
            state,
            own,
            mode,
            devices,
            links,
            guardian,
            restored: false,
            done,
            reported,
            notify,
        })
    }

    /// The PID of the guardian.
    pub fn guardian(&self) -> i32 {
        i32::try_from(self.guardian.id()).expect("the kernel's numbers are smaller")
    }

    /// The changes so far.
    pub fn done(&self) -> &Done {
        &self.done
    }

    /// Sets NAPI instances of a device; of a whole device, also those that come later.
    ///
    /// # Errors
    /// When another process holds the device, or the kernel refuses.
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

    /// Changes to another mode, including the NAPI instances of devices. Epoll sets follow with the next
    /// [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// When another process holds a device, or the kernel refuses.
    pub fn change(&mut self, mode: Mode, places: &[(Device, Vec<Slot>)]) -> Result<(), Error> {
        self.mode = mode;
        self.devices.clear();
        for (device, slots) in places {
            self.set_device(device.clone(), slots, false)?;
        }
        Ok(())
    }

    /// Sets new and changed epoll sets of these processes. Returns their number.
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
                Err(error) if self.reported.insert(*process) => {
                    (self.notify)(&Notice::NotSet(error))
                }
                Err(_) => {}
            }
        }
        self.done.epoll_sets += sets;
        Ok(sets)
    }

    /// Sets lost values of NAPI instances of the devices again.
    ///
    /// # Errors
    /// When the files cannot be read or written.
    pub fn refresh_devices(&mut self) -> Result<(), Error> {
        for device in &self.devices {
            match self.state.set_device_again(device) {
                Ok(Some(Again { lost, new })) if lost + new > 0 => {
                    self.done.set_again += lost + new;
                    let device = device.name.clone();
                    (self.notify)(&Notice::SetAgain { device, lost, new });
                }
                // A link that is down has no NAPI instance, and is set when it is up; so is a device that is created again.
                Ok(_) | Err(Error::Io { .. } | Error::NoDevice(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A source that becomes readable when a link has changed.
    pub fn links(&self) -> &LinkEvents {
        &self.links
    }

    /// Waits until the program ends or a link changes, for a bounded time. Returns whether the program has ended.
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

    pub(super) fn notify(&self, notice: &Notice) {
        (self.notify)(notice);
    }

    /// Sends connections to the listener of their queue.
    ///
    /// # Errors
    /// When another process does, or the kernel refuses.
    pub(super) fn steer(&self, group: &Group, spread: Spread) -> Result<(), Error> {
        self.state.steer(group, spread, self.own)
    }

    /// Restores everything.
    ///
    /// # Errors
    /// When a value cannot be restored; the rest is in the state directory.
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
            (self.notify)(&Notice::NotRestored(error));
        }
        // The guardian reads the end of its input, finds nothing to restore, and ends.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}
