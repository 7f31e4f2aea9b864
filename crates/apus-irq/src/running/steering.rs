//! The listeners of a program that get the connections of their receive queue, while listeners come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::notice::Notice;
use super::session::Session;
use crate::device::{Device, Slot};
use crate::error::Error;
use crate::program::ProcessId;
use crate::steering::{Group, Spread, groups};

/// The known groups of listeners of a program.
#[derive(Debug)]
pub struct Steering {
    device: String,
    /// The last result of the search: receive queues, and the listeners of each address.
    seen: Found,
    /// The result that was steered last.
    steered: Found,
    /// Number of calls since the last search.
    calls: u32,
}

type Found = (u32, BTreeMap<SocketAddr, BTreeSet<u64>>);

/// Number of calls between two searches, each of which reads every socket of the program.
const CALLS: u32 = 25;

impl Steering {
    /// Steering for the queues of a whole device.
    pub fn new(device: impl Into<String>) -> Self {
        let none = || (0, BTreeMap::new());
        Self { device: device.into(), seen: none(), steered: none(), calls: 0 }
    }

    /// Steers the present listeners.
    ///
    /// # Errors
    /// When there is no group, or its number of listeners does not fit the number of queues.
    pub fn begin(&mut self, session: &Session, processes: &[ProcessId]) -> Result<(), Error> {
        let (queues, groups) = self.find(processes)?;
        if groups.is_empty() {
            return Err(Error::NoListeners);
        }
        for group in &groups {
            steer(session, group, queues)?;
        }
        self.steered = self.seen.clone();
        Ok(())
    }

    /// Steers new listeners, once their number stays the same.
    ///
    /// # Errors
    /// When the program's descriptors may not be read.
    pub fn refresh(&mut self, session: &Session, processes: &[ProcessId]) -> Result<(), Error> {
        self.calls += 1;
        let is_settled = self.seen == self.steered && !self.steered.1.is_empty();
        if is_settled && self.calls < CALLS {
            return Ok(());
        }
        self.calls = 0;
        let before = self.seen.clone();
        let (queues, groups) = self.find(processes)?;
        if self.seen != before || self.seen == self.steered {
            return Ok(());
        }
        for group in &groups {
            let is_known = self.steered.0 == queues
                && self.steered.1.get(&group.address) == self.seen.1.get(&group.address);
            if !is_known && let Err(error) = steer(session, group, queues) {
                session.notify(&Notice::NotSteered(error));
            }
        }
        self.steered = self.seen.clone();
        Ok(())
    }

    fn find(&mut self, processes: &[ProcessId]) -> Result<(u32, Vec<Group>), Error> {
        let groups =
            groups(processes).map_err(|error| Error::io("sockets of the program", error))?;
        // A link that is down shows no queues, although it had some before.
        let slots =
            Device::named(&self.device).and_then(|device| device.slots()).unwrap_or_default();
        let queues =
            Some(receive_queues(&slots)).filter(|queues| *queues > 0).unwrap_or(self.seen.0);
        let listeners = |group: &Group| group.listeners.keys().copied().collect();
        self.seen = (queues, groups.iter().map(|it| (it.address, listeners(it))).collect());
        Ok((queues, groups))
    }
}

fn steer(session: &Session, group: &Group, queues: u32) -> Result<(), Error> {
    let (address, listeners) = (group.address, group.len());
    let spread =
        Spread::of(listeners, queues).map_err(|source| Error::Misfit { address, source })?;
    session.steer(group, spread)?;
    session.notify(&Notice::Steered { address, listeners, queues, spread });
    Ok(())
}

/// The number of receive queues of a device. Where the driver does not report queues, each NAPI instance has one.
fn receive_queues(slots: &[Slot]) -> u32 {
    let queues = slots.iter().flat_map(|slot| &slot.queues);
    let receiving = queues.filter(|name| name.starts_with("rx-")).count();
    let has_queues = slots.iter().any(|slot| !slot.queues.is_empty());
    u32::try_from(if has_queues { receiving } else { slots.len() }).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netdev::Napi;

    #[test]
    fn receive_queues_are_counted_by_name_or_by_instance() {
        let slot = |queues: &[&str]| Slot {
            name: "0".to_owned(),
            queues: queues.iter().map(|name| (*name).to_owned()).collect(),
            napi: Napi::default(),
        };
        assert_eq!(receive_queues(&[slot(&["rx-0", "tx-0"]), slot(&["rx-1"])]), 2);
        assert_eq!(receive_queues(&[slot(&["tx-0"])]), 0);
        assert_eq!(receive_queues(&[slot(&[]), slot(&[]), slot(&[])]), 3);
    }
}
