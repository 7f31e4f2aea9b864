//! Restores everything that is recorded in a state directory, except values of running processes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::keeper;
use crate::error::Error;
use crate::program::ProcessId;
use crate::state::StateDirectory;

/// The result of [`restore`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Restored {
    /// Restored devices.
    pub devices: Vec<String>,
    /// Addresses of listeners whose filter was detached.
    pub listeners: Vec<String>,
    /// Processes whose epoll sets were restored.
    pub processes: Vec<i32>,
    /// Devices that a running process holds, with its PID. The process restores them when it ends.
    pub held: BTreeMap<String, i32>,
    /// Errors of values that could not be restored.
    pub errors: Vec<String>,
}

/// Restores the device of this name, or all devices, listeners and programs. Ends the keepers of restored devices.
///
/// # Errors
/// When the state directory cannot be read. Values that cannot be restored are reported in the result.
pub fn restore(state: &StateDirectory, only: Option<&str>) -> Result<Restored, Error> {
    let mut restored = Restored::default();
    restored.devices(state, only)?;
    if only.is_none() {
        restored.listeners(state)?;
        restored.programs(state)?;
    }
    Ok(restored)
}

impl Restored {
    fn devices(&mut self, state: &StateDirectory, only: Option<&str>) -> Result<(), Error> {
        let selected = |name: &str| only.is_none_or(|device| device == name);
        for held in state.devices()?.iter().filter(|held| selected(&held.device.name)) {
            let name = &held.device.name;
            if let Some(owner) = held.owner.filter(ProcessId::runs) {
                self.held.insert(name.clone(), owner.pid);
                continue;
            }
            if let Some(keeper) = held.keeper {
                keeper::end(keeper);
            }
            match state.restore_device(held) {
                Ok(()) => self.devices.push(name.clone()),
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn listeners(&mut self, state: &StateDirectory) -> Result<(), Error> {
        for held in state.groups()?.iter().filter(|held| !held.owner.runs()) {
            match state.unsteer(held) {
                Ok(()) => self.listeners.push(held.group.address.to_string()),
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        Ok(())
    }

    fn programs(&mut self, state: &StateDirectory) -> Result<(), Error> {
        for held in state.programs()?.iter().filter(|held| !held.owner.runs()) {
            match state.restore_program(held) {
                Ok(()) => self.processes.push(held.program.pid),
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        Ok(())
    }
}
