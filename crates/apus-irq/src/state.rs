//! The values before every change, in files, so that everything is restored even after a crash.
//!
//! A file is written, whole or not at all, before the change that it describes, and removed after that change is restored. So a
//! crash at any moment leaves a file that restores everything, and restoring twice changes nothing.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::device::{Device, Slot};
use crate::directory::Directory;
use crate::epoll::EpollParameters;
use crate::error::Error;
use crate::netdev::{self, NapiParameters};
use crate::program::{ProcessId, Program};
use crate::steering::{Group, Spread};

/// The directory of the files.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    directory: PathBuf,
}

/// A device with NAPI instances that were set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldDevice {
    /// The device.
    pub device: Device,
    /// The process that restores the device when it ends; `None` if the device is restored by hand.
    pub owner: Option<ProcessId>,
    /// The process that sets lost values again, if there is no owner.
    #[serde(default)]
    pub keeper: Option<ProcessId>,
    /// The parameters of instances that come later; `None` if only some queues of the device were selected.
    #[serde(default)]
    pub later: Option<NapiParameters>,
    /// The instances that were set, by [`Slot::name`].
    pub slots: BTreeMap<String, Changed<NapiParameters>>,
}

/// A process with epoll sets that were set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldProgram {
    /// The process.
    pub program: ProcessId,
    /// The process that restores the epoll sets when it ends.
    pub owner: ProcessId,
    /// The sets by descriptor.
    pub sets: BTreeMap<i32, Changed<EpollParameters>>,
}

/// Listeners that have a filter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldGroup {
    /// The listeners.
    pub group: Group,
    /// The process that detaches the filter when it ends.
    pub owner: ProcessId,
}

/// A value before a change and after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Changed<T> {
    /// The value before.
    pub before: T,
    /// The value that was set.
    pub set: T,
}

/// The numbers of instances of a device that were set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Again {
    /// Number of NAPI instances that had lost their values.
    pub lost: usize,
    /// Number of new NAPI instances.
    pub new: usize,
}

impl StateDirectory {
    /// The directory for the whole system, `/run/apus-irq`. Like the values, it does not outlive the boot. It is not in
    /// `/run/apus`, which hosts may share with containers and other users.
    pub const DEFAULT: &str = "/run/apus-irq";

    /// The files of this directory, which is made when the first file is written. A directory of another user, one that others may
    /// write into, and links in it are refused ([`Error::UnsafeState`]).
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory of this user: [`DEFAULT`](Self::DEFAULT) for root, else `apus-irq` in `$XDG_RUNTIME_DIR`; `None` if that
    /// variable is not set.
    pub fn of_user() -> Option<Self> {
        if geteuid().is_root() {
            return Some(Self::at(Self::DEFAULT));
        }
        let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|it| !it.is_empty())?;
        Some(Self::at(PathBuf::from(runtime).join("apus-irq")))
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The devices of this network namespace that were set.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn devices(&self) -> Result<Vec<HeldDevice>, Error> {
        let mut devices: Vec<HeldDevice> = self.all("device-")?;
        let own = Device::own_namespace()?;
        devices.retain(|held| held.device.namespace == own);
        Ok(devices)
    }

    /// The programs that were set.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn programs(&self) -> Result<Vec<HeldProgram>, Error> {
        self.all("program-")
    }

    /// Like [`set_whole_device`](Self::set_whole_device), but leaves instances that come later unchanged.
    ///
    /// # Errors
    /// As for that function.
    pub fn set_device(
        &self,
        device: &Device,
        slots: &[Slot],
        wanted: impl Fn(&Slot) -> NapiParameters,
        owner: Option<ProcessId>,
    ) -> Result<(), Error> {
        self.set_whole_device(device, slots, wanted, None, owner)
    }

    /// Keeps the values of NAPI instances and sets others. `later` is for instances that come later. If one instance cannot be set,
    /// the instances before it are restored. A slot that is set already keeps the values before its first change.
    ///
    /// # Errors
    /// When a running process holds the device, or the file or an instance cannot be written.
    pub fn set_whole_device(
        &self,
        device: &Device,
        slots: &[Slot],
        wanted: impl Fn(&Slot) -> NapiParameters,
        later: Option<NapiParameters>,
        owner: Option<ProcessId>,
    ) -> Result<(), Error> {
        let (directory, _lock) = self.lock()?;
        let name = name_of(device);
        let old = self.read::<HeldDevice>(&directory, &name)?.filter(|old| old.device == *device);
        if let Some(old) = &old {
            refuse_held(old, owner)?;
        }
        let mut held = old.clone().unwrap_or_else(|| HeldDevice {
            device: device.clone(),
            owner,
            keeper: None,
            later: None,
            slots: BTreeMap::new(),
        });
        held.later = later.or(held.later);
        for slot in slots {
            let set = wanted(slot);
            let fresh = || Changed { before: slot.napi.parameters_before(&set), set };
            let changed = held.slots.entry(slot.name.clone()).or_insert_with(fresh);
            changed.set = set;
            // A thread that only an earlier command requested is put back; the state before a thread that only this command
            // requests is noted.
            match (changed.before.threaded, set.threaded) {
                (Some(before), None) => changed.set.threaded = Some(before),
                (None, Some(_)) => changed.before.threaded = slot.napi.threaded,
                _ => {}
            }
        }
        write(&directory, &name, &held)?;
        for slot in slots {
            let Err(error) = netdev::set(slot.napi.id, &held.slots[&slot.name].set) else {
                continue;
            };
            let what = format!("set {} of {}", slot.name, device.name);
            // Values that cannot be put back stay in the file.
            let put_back = slots.iter().all(|it| {
                let before = it.napi.parameters_before(&held.slots[&it.name].set);
                netdev::set(it.napi.id, &before).is_ok()
            });
            // If the first instance was refused, nothing was changed.
            let unchanged = put_back || slot.name == slots[0].name;
            match old {
                Some(old) if unchanged => write(&directory, &name, &old)?,
                None if unchanged => directory.remove(&name)?,
                _ => {}
            }
            return Err(Error::io(what, error));
        }
        Ok(())
    }

    /// Sets the instances of a held device that have lost their values, as after a link went down and up, and new instances. A
    /// device that was created again by the same name counts as the same. `None` if the device is not held any more.
    ///
    /// # Errors
    /// When they cannot be read or set, or there is no such device now ([`Error::NoDevice`]).
    pub fn set_device_again(&self, device: &Device) -> Result<Option<Again>, Error> {
        let (directory, _lock) = self.lock()?;
        let name = name_of(device);
        let Some(mut held) = self.read::<HeldDevice>(&directory, &name)? else { return Ok(None) };
        let device = Device::named(&device.name)?;
        let earlier = held.slots.clone();
        if device != held.device {
            held.device = device.clone();
            held.slots.clear();
        }
        let mut again = Again::default();
        let mut wrong = Vec::new();
        for slot in device.slots()? {
            let set = earlier.get(&slot.name).map(|it| it.set).or(held.later);
            let Some(set) = set else { continue };
            let before = slot.napi.parameters_before(&set);
            let is_right = slot.napi.has(&set);
            let is_new = !held.slots.contains_key(&slot.name);
            held.slots.entry(slot.name.clone()).or_insert(Changed { before, set });
            if is_new {
                again.new += 1;
            } else if !is_right {
                again.lost += 1;
            }
            if !is_right {
                wrong.push((slot, set));
            }
        }
        if again.new > 0 {
            write(&directory, &name, &held)?;
        }
        for (slot, set) in wrong {
            let what = || format!("set {} of {} again", slot.name, device.name);
            netdev::set(slot.napi.id, &set).map_err(|error| Error::io(what(), error))?;
        }
        Ok(Some(again))
    }

    /// Notes the process that sets lost values of a held device again; it replaces the process before. Returns whether the device
    /// is held until it is restored by hand. If not, there is nothing to keep.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn keep(&self, device: &Device, keeper: Option<ProcessId>) -> Result<bool, Error> {
        let (directory, _lock) = self.lock()?;
        let name = name_of(device);
        let Some(held) =
            self.read::<HeldDevice>(&directory, &name)?.filter(|it| it.owner.is_none())
        else {
            return Ok(false);
        };
        write(&directory, &name, &HeldDevice { keeper, ..held })?;
        Ok(true)
    }

    /// The held state of a device.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn held(&self, device: &Device) -> Result<Option<HeldDevice>, Error> {
        match Directory::open(&self.directory)? {
            Some(directory) => self.read(&directory, &name_of(device)),
            None => Ok(None),
        }
    }

    /// Restores a device, if it was set. A device that is gone, or was created again, has nothing to restore.
    ///
    /// # Errors
    /// When an instance is absent or cannot be set; its values are kept.
    pub fn restore_device(&self, held: &HeldDevice) -> Result<(), Error> {
        let (directory, _lock) = self.lock()?;
        let name = name_of(&held.device);
        let Some(mut held) = self.read::<HeldDevice>(&directory, &name)? else { return Ok(()) };
        let Ok(device) = Device::named(&held.device.name) else { return directory.remove(&name) };
        if device != held.device {
            return directory.remove(&name);
        }
        for slot in device.slots()? {
            let Some(changed) = held.slots.get(&slot.name) else { continue };
            let what = || format!("restore {} of {}", slot.name, device.name);
            netdev::set(slot.napi.id, &changed.before).map_err(|error| Error::io(what(), error))?;
            held.slots.remove(&slot.name);
        }
        if held.slots.is_empty() {
            return directory.remove(&name);
        }
        let slots = held.slots.keys().cloned().collect::<Vec<_>>().join(", ");
        write(&directory, &name, &held)?;
        Err(Error::Absent { device: device.name, slots })
    }

    /// Keeps the parameters of epoll sets of a program that are not set yet, and sets them. Returns their number. A set with other
    /// values than before is set again, since its descriptor may refer to a new set.
    ///
    /// # Errors
    /// When another running process holds the program, or the file or a set cannot be written.
    pub fn set_program(
        &self,
        program: &Program,
        wanted: &EpollParameters,
        owner: ProcessId,
    ) -> Result<usize, Error> {
        let what = || format!("epoll sets of process {}", program.id().pid);
        let fds = program.epoll_fds().map_err(|error| Error::io(what(), error))?;
        let mut changes = BTreeMap::new();
        for fd in fds {
            match program.epoll_parameters(fd) {
                Ok(before) if before == *wanted => {}
                Ok(before) => _ = changes.insert(fd, Changed { before, set: *wanted }),
                Err(error) if crate::program::is_gone(&error) => {}
                Err(error) => return Err(Error::io(what(), error)),
            }
        }
        if changes.is_empty() {
            return Ok(0);
        }
        let (directory, _lock) = self.lock()?;
        let name = name_of_program(program.id());
        let mut held = match self.read::<HeldProgram>(&directory, &name)? {
            Some(held) if held.owner != owner && held.owner.runs() => {
                let what = format!("process {}", program.id().pid);
                return Err(Error::Held { what, by: by(held.owner) });
            }
            Some(held) => HeldProgram { owner, ..held },
            None => HeldProgram { program: program.id(), owner, sets: BTreeMap::new() },
        };
        for (fd, change) in &changes {
            held.sets.entry(*fd).or_insert(*change).set = change.set;
        }
        write(&directory, &name, &held)?;
        for fd in changes.keys() {
            match program.set_epoll_parameters(*fd, wanted) {
                Err(error) if !crate::program::is_gone(&error) => {
                    return Err(Error::io(what(), error));
                }
                _ => {}
            }
        }
        Ok(changes.len())
    }

    /// Restores the epoll sets of a program, if they were set and it still runs. A set that has been changed by others since is
    /// left unchanged.
    ///
    /// # Errors
    /// When a set may not be changed.
    pub fn restore_program(&self, held: &HeldProgram) -> Result<(), Error> {
        let (directory, _lock) = self.lock()?;
        let name = name_of_program(held.program);
        let Some(held) = self.read::<HeldProgram>(&directory, &name)? else { return Ok(()) };
        let what = || format!("restore the epoll sets of process {}", held.program.pid);
        let program = Program::open(held.program.pid).ok();
        for (fd, changed) in &held.sets {
            let Some(program) = program.as_ref().filter(|it| it.id() == held.program) else {
                break;
            };
            let now = program.epoll_parameters(*fd);
            if !now.is_ok_and(|now| now == changed.set) {
                continue;
            }
            match program.set_epoll_parameters(*fd, &changed.before) {
                Err(error) if !crate::program::is_gone(&error) && held.program.runs() => {
                    return Err(Error::io(what(), error));
                }
                _ => {}
            }
        }
        directory.remove(&name)
    }

    /// The groups of listeners that have a filter.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn groups(&self) -> Result<Vec<HeldGroup>, Error> {
        self.all("group-")
    }

    /// Notes a group, and attaches the filter that sends connections to the listener of their queue.
    ///
    /// # Errors
    /// When another running process has attached a filter, the file cannot be written, or the kernel refuses.
    pub fn steer(&self, group: &Group, spread: Spread, owner: ProcessId) -> Result<(), Error> {
        let what = || format!("listeners of {}", group.address);
        let of_others = self.groups()?.into_iter().filter(|held| {
            held.owner != owner
                && held.group.listeners.keys().any(|it| group.listeners.contains_key(it))
        });
        for held in of_others {
            if held.owner.runs() {
                return Err(Error::Held { what: what(), by: by(held.owner) });
            }
            self.unsteer(&held)?;
        }
        let (directory, _lock) = self.lock()?;
        let name = name_of_group(group, owner);
        write(&directory, &name, &HeldGroup { group: group.clone(), owner })?;
        group.steer(spread).map_err(|error| Error::io(format!("filter for the {}", what()), error))
    }

    /// Detaches the filter of a group, if a listener of it is left.
    ///
    /// # Errors
    /// When the listeners may not be reached, or the kernel refuses.
    pub fn unsteer(&self, held: &HeldGroup) -> Result<(), Error> {
        let (directory, _lock) = self.lock()?;
        let what = || format!("take the filter from the listeners of {}", held.group.address);
        held.group.unsteer().map_err(|error| Error::io(what(), error))?;
        directory.remove(&name_of_group(&held.group, held.owner))
    }

    /// Restores everything that a process has set, whether it runs or not. An error does not end the attempt.
    ///
    /// # Errors
    /// The first error.
    pub fn restore_of(&self, owner: ProcessId) -> Result<(), Error> {
        let mut results = Vec::new();
        for held in self.groups()?.iter().filter(|it| it.owner == owner) {
            results.push(self.unsteer(held));
        }
        for held in self.programs()?.iter().filter(|it| it.owner == owner) {
            results.push(self.restore_program(held));
        }
        for held in self.devices()?.iter().filter(|it| it.owner == Some(owner)) {
            results.push(self.restore_device(held));
        }
        results.into_iter().collect()
    }

    fn all<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, Error> {
        let Some(directory) = Directory::open(&self.directory)? else { return Ok(Vec::new()) };
        let mut names = directory.names()?;
        names.retain(|name| name.starts_with(kind) && name.ends_with(".json"));
        names.iter().filter_map(|name| self.read(&directory, name).transpose()).collect()
    }

    fn read<T: DeserializeOwned>(
        &self,
        directory: &Directory,
        name: &str,
    ) -> Result<Option<T>, Error> {
        let Some(text) = directory.read(name)? else { return Ok(None) };
        let bad = |why: serde_json::Error| Error::BadState {
            path: self.directory.join(name),
            why: why.to_string(),
        };
        serde_json::from_str(&text).map(Some).map_err(bad)
    }

    /// Locks the directory, so that one process changes files at a time.
    fn lock(&self) -> Result<(Directory, Flock<File>), Error> {
        let directory = Directory::made(&self.directory)?;
        let lock = directory.lock()?;
        Ok((directory, lock))
    }
}

/// Writes a file, whole or not at all.
fn write(directory: &Directory, name: &str, value: &impl Serialize) -> Result<(), Error> {
    directory.write(name, &serde_json::to_vec_pretty(value).expect("names and numbers are JSON"))
}

fn name_of(device: &Device) -> String {
    format!("device-{}-{}.json", device.namespace, device.name)
}

fn name_of_program(program: ProcessId) -> String {
    format!("program-{}-{}.json", program.pid, program.started)
}

fn name_of_group(group: &Group, owner: ProcessId) -> String {
    let address = group.address.to_string().replace(['[', ']', ':'], "-");
    format!("group-{}-{}-{address}.json", owner.pid, owner.started)
}

/// Refuses a device that another owner holds.
fn refuse_held(held: &HeldDevice, owner: Option<ProcessId>) -> Result<(), Error> {
    let what = || format!("`{}`", held.device.name);
    match (held.owner, owner) {
        (None, None) => Ok(()),
        (old, new) if old == new => Ok(()),
        (Some(old), _) if old.runs() => Err(Error::Held { what: what(), by: by(old) }),
        _ => Err(Error::Held {
            what: what(),
            by: "an earlier command: run `apus irq restore` first".to_owned(),
        }),
    }
}

fn by(owner: ProcessId) -> String {
    format!("process {}, which restores it at its end", owner.pid)
}
