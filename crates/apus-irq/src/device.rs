//! A device, and its NAPI instances by names that last while their numbers change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::net::if_::if_nametoindex;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::netdev::{Napi, napis, queues};

/// A device of this thread's network namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Number of the network namespace.
    pub namespace: u64,
}

/// A NAPI instance by its queue or place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Slot {
    /// The first receive queue of the instance (`rx-0`), or else its first transmit queue (`tx-0`). An instance whose queues the
    /// driver does not report is `napi-0`: its place among such instances in the order of their numbers, which is the order of the
    /// queues with the drivers that we know.
    pub name: String,
    /// All queues of the instance, as `rx-0`, `tx-0`; empty if the driver does not report them.
    pub queues: Vec<String>,
    /// The present state of the instance.
    pub napi: Napi,
}

/// A selection of a device's NAPI instances: `eth0` is all, `eth0:3` the one of receive queue 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Name of the device.
    pub device: String,
    /// Number of a receive queue; `None` for all instances.
    pub queue: Option<u32>,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, queue) = match text.rsplit_once(':') {
            None => (text, None),
            Some((device, queue)) => match queue.parse() {
                Ok(number) if queue.bytes().all(|byte| byte.is_ascii_digit()) => {
                    (device, Some(number))
                }
                _ => return Err(format!("queue `{queue}`: expected a number")),
            },
        };
        if device.is_empty() || device.contains('/') {
            return Err("expected DEV or DEV:QUEUE, with the name of a network device".to_owned());
        }
        Ok(Self { device: device.to_owned(), queue })
    }
}

impl Device {
    /// The device of this name.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn named(name: &str) -> Result<Self, Error> {
        let ifindex = if_nametoindex(name).map_err(|_| Error::NoDevice(name.to_owned()))?;
        let namespace = Self::own_namespace()?;
        Ok(Self { name: name.to_owned(), ifindex, namespace })
    }

    /// The number of this thread's network namespace.
    pub(crate) fn own_namespace() -> Result<u64, Error> {
        let namespace = fs::metadata("/proc/thread-self/ns/net");
        Ok(namespace.map_err(|error| Error::io("network namespace", error))?.ino())
    }

    /// The NAPI instances of the device by place; empty if the driver shows none.
    ///
    /// # Errors
    /// When the kernel does not report them (before Linux 6.8).
    pub fn slots(&self) -> Result<Vec<Slot>, Error> {
        let what = || format!("NAPI instances of {}", self.name);
        let read = || -> io::Result<_> { Ok((napis(self.ifindex)?, queues(self.ifindex)?)) };
        let (napis, queues) = read().map_err(|error| Error::io(what(), error))?;
        let mut unlinked = 0;
        let slot = |napi: Napi| {
            let of_napi = queues.iter().filter(|queue| queue.napi == Some(napi.id));
            let names: Vec<_> = of_napi
                .map(|it| format!("{}-{}", if it.transmits { "tx" } else { "rx" }, it.id))
                .collect();
            let name = names.first().cloned().unwrap_or_else(|| {
                unlinked += 1;
                format!("napi-{}", unlinked - 1)
            });
            Slot { name, queues: names, napi }
        };
        Ok(napis.into_iter().map(slot).collect())
    }

    /// The NAPI instances that a target selects, at least one.
    ///
    /// # Errors
    /// As [`slots`](Self::slots), and when there is no such queue or no instance at all.
    pub fn slots_of(&self, queue: Option<u32>) -> Result<Vec<Slot>, Error> {
        let slots = self.slots()?;
        if slots.is_empty() {
            return Err(Error::NoNapi(self.name.clone()));
        }
        let Some(queue) = queue else { return Ok(slots) };
        let linked = format!("rx-{queue}");
        let is_linked = slots.iter().any(|slot| !slot.queues.is_empty());
        let wanted = |slot: &Slot| match is_linked {
            true => slot.queues.contains(&linked),
            false => slot.name == format!("napi-{queue}"),
        };
        let (found, others): (Vec<_>, Vec<_>) = slots.into_iter().partition(wanted);
        if found.is_empty() {
            let names = others.into_iter().map(|slot| slot.name).collect::<Vec<_>>().join(", ");
            return Err(Error::NoQueue { device: self.name.clone(), queue, there: names });
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let target = |device: &str, queue| Ok(Target { device: device.to_owned(), queue });
        assert_eq!("eth0".parse(), target("eth0", None));
        assert_eq!("eth0:3".parse(), target("eth0", Some(3)));
        for wrong in ["", ":3", "eth0:", "eth0:x", "eth0:-1", "../eth0", "eth0:+1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = Device::named("no-such-one").unwrap_err().to_string();
        assert!(error.contains("`no-such-one`"), "{error}");
        assert!(matches!(
            Device::named("lo").unwrap().slots_of(None),
            Err(Error::NoNapi(_) | Error::Io { .. })
        ));
    }
}
