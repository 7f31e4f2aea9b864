//! `--steer`: connections go to the listener of the receive queue that they come by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use apus_irq::{Device, Group, ProcessId, Slot, Spread, Target, groups};
use apus_load::misuse::Misuse;

use super::session::Session;
use crate::failure;

/// The groups of listeners of a program, as far as they are known.
#[derive(Debug)]
pub(super) struct Steering {
    device: String,
    /// As they were found last: receive queues, and the listeners of each address.
    seen: Found,
    /// As they were steered.
    steered: Found,
    /// Calls since they were looked for.
    calls: u32,
}

type Found = (u32, BTreeMap<SocketAddr, BTreeSet<u64>>);

/// Of so many calls, one looks again whether listeners have changed, which takes a look at each socket of the program.
const CALLS: u32 = 25;

impl Steering {
    /// For the queues of a device.
    ///
    /// # Errors
    /// When it is not one whole device.
    pub(super) fn of(targets: &[Target]) -> Result<Self> {
        let [Target { device, queue: None }] = targets else {
            return Err(Misuse(
                "'--steer' needs one whole device: queues have the same numbers on each, and connections come by all of them"
                    .to_owned(),
            )
            .into());
        };
        let none = || (0, BTreeMap::new());
        Ok(Self { device: device.clone(), seen: none(), steered: none(), calls: 0 })
    }

    /// Steers the listeners that there are.
    ///
    /// # Errors
    /// When there is no group, or its number of listeners does not fit that of the queues.
    pub(super) fn begin(&mut self, session: &Session, processes: &[ProcessId]) -> Result<()> {
        let (queues, groups) = self.find(processes)?;
        if groups.is_empty() {
            bail!(
                "'--steer': the program has no TCP listeners that share an address by SO_REUSEPORT, of which each worker would have one"
            );
        }
        for group in &groups {
            steer(session, group, queues)?;
        }
        self.steered = self.seen.clone();
        Ok(())
    }

    /// Steers listeners that have come since, once their number stays the same.
    ///
    /// # Errors
    /// When the program's descriptors may not be read.
    pub(super) fn refresh(&mut self, session: &Session, processes: &[ProcessId]) -> Result<()> {
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
                failure::note(&format!("{error:#}"));
            }
        }
        self.steered = self.seen.clone();
        Ok(())
    }

    fn find(&mut self, processes: &[ProcessId]) -> Result<(u32, Vec<Group>)> {
        let groups = groups(processes).context("'--steer': sockets of the program")?;
        // A link that is down shows no queues, which it had before.
        let slots =
            Device::named(&self.device).and_then(|device| device.slots()).unwrap_or_default();
        let queues =
            Some(receive_queues(&slots)).filter(|queues| *queues > 0).unwrap_or(self.seen.0);
        let listeners = |group: &Group| group.listeners.keys().copied().collect();
        self.seen = (queues, groups.iter().map(|it| (it.address, listeners(it))).collect());
        Ok((queues, groups))
    }
}

fn steer(session: &Session, group: &Group, queues: u32) -> Result<()> {
    let address = group.address;
    let spread =
        Spread::of(group.len(), queues).with_context(|| format!("'--steer': {address}"))?;
    session.steer(group, spread)?;
    let listeners = group.len();
    let several = match (spread.modulus < queues, spread.each) {
        (true, _) => {
            "; several queues have the same listener, whose packets come by more than one NAPI instance then"
        }
        (false, 1) => "",
        (false, _) => "; listeners of one queue are chosen at random",
    };
    failure::note(&format!(
        "{address}: {listeners} listeners get the connections of {queues} receive queues by the queue's number{several}"
    ));
    Ok(())
}

/// How many receive queues a device has: where the driver does not tell queues, each NAPI instance has one.
fn receive_queues(slots: &[Slot]) -> u32 {
    let told = slots.iter().flat_map(|slot| &slot.queues);
    let receiving = told.filter(|name| name.starts_with("rx-")).count();
    let is_told = slots.iter().any(|slot| !slot.queues.is_empty());
    u32::try_from(if is_told { receiving } else { slots.len() }).unwrap_or(u32::MAX)
}
