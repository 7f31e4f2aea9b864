//! NAPI instances and queues of a device, over the family `netdev`.

use std::io;

use netlink_packet_core::{DefaultNla, parse_u32, parse_u64};
use serde::Serialize;

use crate::netlink::{Answer, ask, attributes, family, invalid};

/// A NAPI instance: the receive context of one queue, or of several.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Napi {
    /// Number of the instance. It changes when the queue is created again, with some drivers when the link goes down and up.
    pub id: u32,
    /// Index of its device.
    pub ifindex: u32,
    /// The interrupt that schedules the instance; `None` if the driver does not report it.
    pub irq: Option<u32>,
    /// PID of the instance's kernel thread, if it has one.
    pub pid: Option<u32>,
    /// Empty polls on the timer until the interrupt is unmasked; with 0 there is no deferral.
    pub defer_hard_irqs: u32,
    /// Period of that timer in nanoseconds; with 0 there is no deferral.
    pub gro_flush_timeout_ns: u64,
    /// Longest suspension while an application is busy, in nanoseconds; with 0 there is none. `None` before Linux 6.13.
    pub irq_suspend_timeout_ns: Option<u64>,
    /// Whether a kernel thread polls: 0 no, 1 yes, 2 always (Linux 6.19). `None` where the kernel does not report it.
    pub threaded: Option<u32>,
}

/// A queue of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Queue {
    /// Number of the queue among the queues of its direction.
    pub id: u32,
    /// Whether it is a transmit queue.
    pub transmits: bool,
    /// The NAPI instance that serves the queue; `None` if the driver does not report it.
    pub napi: Option<u32>,
}

/// The parameters of a NAPI instance that can be set, all in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, serde::Deserialize)]
pub struct NapiParameters {
    /// Empty polls on the timer until the interrupt is unmasked, 0 to 2³¹ − 1.
    pub defer_hard_irqs: u32,
    /// Period of that timer in nanoseconds.
    pub gro_flush_timeout_ns: u64,
    /// Longest suspension in nanoseconds.
    pub irq_suspend_timeout_ns: u64,
    /// Whether a kernel thread polls, as [`Napi::threaded`]; `None` leaves that unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threaded: Option<u32>,
}

impl NapiParameters {
    /// Whether interrupts can be suspended: suspension also needs deferral.
    #[must_use]
    pub fn can_suspend(&self) -> bool {
        let is_deferred = self.defer_hard_irqs > 0 && self.gro_flush_timeout_ns > 0;
        is_deferred && self.irq_suspend_timeout_ns > 0
    }
}

/// The value of `threaded` for a kernel thread that polls all the time (Linux 6.19).
pub const THREADED_BUSY_POLL: u32 = 2;

impl Napi {
    /// The present parameters of the instance, without its kernel thread.
    pub fn parameters(&self) -> NapiParameters {
        NapiParameters {
            defer_hard_irqs: self.defer_hard_irqs,
            gro_flush_timeout_ns: self.gro_flush_timeout_ns,
            irq_suspend_timeout_ns: self.irq_suspend_timeout_ns.unwrap_or(0),
            threaded: None,
        }
    }

    /// The present parameters, to be restored after `set`: with the kernel thread if `set` changes it.
    pub(crate) fn parameters_before(&self, set: &NapiParameters) -> NapiParameters {
        let threaded = set.threaded.and(self.threaded);
        NapiParameters { threaded, ..self.parameters() }
    }

    /// Whether the instance has these parameters. Its kernel thread is compared only if they include it.
    pub fn has(&self, parameters: &NapiParameters) -> bool {
        let thread = parameters.threaded.is_none() || parameters.threaded == self.threaded;
        thread && self.parameters() == NapiParameters { threaded: None, ..*parameters }
    }

    fn parse(reply: &[u8]) -> io::Result<Self> {
        let mut napi = Self::default();
        for (kind, value) in attributes(reply)? {
            let Some(long) = number(&value)? else { continue };
            let short = u32::try_from(long).unwrap_or(u32::MAX);
            match kind {
                NETDEV_A_NAPI_IFINDEX => napi.ifindex = short,
                NETDEV_A_NAPI_ID => napi.id = short,
                NETDEV_A_NAPI_IRQ => napi.irq = Some(short),
                NETDEV_A_NAPI_PID => napi.pid = Some(short),
                NETDEV_A_NAPI_DEFER_HARD_IRQS => napi.defer_hard_irqs = short,
                NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT => napi.gro_flush_timeout_ns = long,
                NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT => napi.irq_suspend_timeout_ns = Some(long),
                NETDEV_A_NAPI_THREADED => napi.threaded = Some(short),
                _ => {}
            }
        }
        Ok(napi)
    }
}

impl Queue {
    fn parse(reply: &[u8]) -> io::Result<Self> {
        let mut queue = Self::default();
        for (kind, value) in attributes(reply)? {
            let Some(number) = number(&value)? else { continue };
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            match kind {
                NETDEV_A_QUEUE_ID => queue.id = number,
                NETDEV_A_QUEUE_TYPE => queue.transmits = number == NETDEV_QUEUE_TYPE_TX,
                NETDEV_A_QUEUE_NAPI_ID => queue.napi = Some(number),
                _ => {}
            }
        }
        Ok(queue)
    }
}

/// The NAPI instances of a device in the order of their numbers. Many drivers show none.
///
/// # Errors
/// When the kernel has no such family or command (before Linux 6.8), or refuses.
pub fn napis(ifindex: u32) -> io::Result<Vec<Napi>> {
    let device = attribute_u32(NETDEV_A_NAPI_IFINDEX, ifindex);
    let replies = ask(family(FAMILY)?.id, NETDEV_CMD_NAPI_GET, vec![device], Answer::Dump)?;
    let mut napis = replies.iter().map(|it| Napi::parse(it)).collect::<io::Result<Vec<_>>>()?;
    napis.sort_by_key(|napi| napi.id);
    Ok(napis)
}

/// The queues of a device, receive queues first.
///
/// # Errors
/// As [`napis`].
pub fn queues(ifindex: u32) -> io::Result<Vec<Queue>> {
    let device = attribute_u32(NETDEV_A_QUEUE_IFINDEX, ifindex);
    let replies = ask(family(FAMILY)?.id, NETDEV_CMD_QUEUE_GET, vec![device], Answer::Dump)?;
    let mut queues = replies.iter().map(|it| Queue::parse(it)).collect::<io::Result<Vec<_>>>()?;
    queues.sort_by_key(|queue| (queue.transmits, queue.id));
    Ok(queues)
}

/// Sets the parameters of one NAPI instance.
///
/// # Errors
/// When the caller lacks `CAP_NET_ADMIN` in the initial user namespace (`PermissionDenied`), there is no such instance in
/// this network namespace (`NotFound`), a value is out of range, or the kernel does not have the command (before Linux
/// 6.13: `Unsupported`) or [`THREADED_BUSY_POLL`] (before Linux 6.19: `Unsupported`, with a text).
pub fn set(id: u32, parameters: &NapiParameters) -> io::Result<()> {
    let family = family(FAMILY)?;
    if !family.commands.contains(&u32::from(NETDEV_CMD_NAPI_SET)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let set = ask(family.id, NETDEV_CMD_NAPI_SET, set_request(id, parameters), Answer::Done);
    set.map(drop).map_err(|error| match error.raw_os_error() {
        // The kernel checks attributes before it changes anything, and refuses unknown attributes and values.
        Some(libc::EINVAL | libc::ERANGE) if parameters.threaded == Some(THREADED_BUSY_POLL) => {
            io::Error::new(io::ErrorKind::Unsupported, NO_THREADED_BUSY_POLL)
        }
        _ => error,
    })
}

/// Whether the parameters of single NAPI instances can be set, as IRQ suspension needs.
///
/// # Errors
/// When the kernel does not answer.
pub fn napis_can_be_set() -> io::Result<bool> {
    match family(FAMILY) {
        Ok(family) => Ok(family.commands.contains(&u32::from(NETDEV_CMD_NAPI_SET))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn set_request(id: u32, parameters: &NapiParameters) -> Vec<DefaultNla> {
    let long = |kind, value: u64| DefaultNla::new(kind, value.to_ne_bytes().to_vec());
    let mut request = vec![
        attribute_u32(NETDEV_A_NAPI_ID, id),
        attribute_u32(NETDEV_A_NAPI_DEFER_HARD_IRQS, parameters.defer_hard_irqs),
        long(NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT, parameters.gro_flush_timeout_ns),
        long(NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT, parameters.irq_suspend_timeout_ns),
    ];
    request.extend(parameters.threaded.map(|value| attribute_u32(NETDEV_A_NAPI_THREADED, value)));
    request
}

fn attribute_u32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// Reads a number of 4 bytes, or one of the type "uint", which has 4 or 8.
fn number(value: &[u8]) -> io::Result<Option<u64>> {
    Ok(match value.len() {
        8 => Some(parse_u64(value).map_err(invalid)?),
        4 => Some(u64::from(parse_u32(value).map_err(invalid)?)),
        _ => None,
    })
}

const NO_THREADED_BUSY_POLL: &str =
    "this kernel has no threads that busy-poll a NAPI instance, which need Linux 6.19";

// Constants of linux/netdev.h.
const FAMILY: &str = "netdev";
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_PID: u16 = 4;
const NETDEV_A_NAPI_DEFER_HARD_IRQS: u16 = 5;
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;
const NETDEV_A_NAPI_THREADED: u16 = 8;
const NETDEV_A_QUEUE_ID: u16 = 1;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const NETDEV_A_QUEUE_NAPI_ID: u16 = 4;
const NETDEV_QUEUE_TYPE_TX: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::bytes;

    #[cfg(target_endian = "little")]
    #[test]
    fn a_recorded_napi_is_read() {
        // The reply to napi-get about a veth with GRO, Linux 6.18.
        let reply = [
            8, 0, 2, 0, 7, 1, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 8, 0, 0, 0, 0, 0, 8, 0, 5, 0,
            100, 0, 0, 0, 8, 0, 7, 0, 0, 0x2d, 0x31, 1, 8, 0, 6, 0, 0x20, 0x4e, 0, 0,
        ];
        let napi = Napi::parse(&reply).unwrap();
        let expected = Napi {
            id: 263,
            ifindex: 3,
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: 20_000,
            irq_suspend_timeout_ns: Some(20_000_000),
            threaded: Some(0),
            ..Napi::default()
        };
        assert_eq!(napi, expected);
    }

    #[test]
    fn numbers_have_both_lengths() {
        let nla = |kind, value: &[u8]| DefaultNla::new(kind, value.to_vec());
        let reply = bytes(&[
            nla(2, &513_u32.to_ne_bytes()),
            nla(3, &44_u32.to_ne_bytes()),
            nla(4, &4711_u32.to_ne_bytes()),
            nla(6, &5_000_000_000_u64.to_ne_bytes()),
            nla(99, &[1]),
        ]);
        let napi = Napi::parse(&reply).unwrap();
        assert_eq!((napi.id, napi.irq, napi.pid), (513, Some(44), Some(4711)));
        assert_eq!(napi.gro_flush_timeout_ns, 5_000_000_000);
        assert_eq!((napi.irq_suspend_timeout_ns, napi.threaded), (None, None));
        assert!(Napi::parse(&[1, 2, 3]).is_err());
    }

    #[test]
    fn a_thread_counts_only_where_parameters_are_about_it() {
        let napi = Napi { defer_hard_irqs: 3, threaded: Some(1), ..Napi::default() };
        let silent = NapiParameters { defer_hard_irqs: 3, ..NapiParameters::default() };
        let busy = NapiParameters { threaded: Some(THREADED_BUSY_POLL), ..silent };
        assert!(napi.has(&silent) && !napi.has(&busy));
        assert!(napi.has(&NapiParameters { threaded: Some(1), ..silent }));
        assert_eq!(napi.parameters_before(&silent), silent);
        assert_eq!(napi.parameters_before(&busy).threaded, Some(1));
    }

    #[test]
    fn queues_are_read_with_and_without_a_napi() {
        let nla = |kind, value: u32| DefaultNla::new(kind, value.to_ne_bytes().to_vec());
        let queue = Queue::parse(&bytes(&[nla(1, 2), nla(2, 3), nla(3, 1), nla(4, 261)])).unwrap();
        assert_eq!(queue, Queue { id: 2, transmits: true, napi: Some(261) });
        let queue = Queue::parse(&bytes(&[nla(1, 0), nla(2, 3), nla(3, 0)])).unwrap();
        assert_eq!(queue, Queue { id: 0, transmits: false, napi: None });
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_request_to_set_has_these_bytes() {
        let parameters = NapiParameters {
            defer_hard_irqs: 100,
            gro_flush_timeout_ns: 20_000,
            irq_suspend_timeout_ns: 20_000_000,
            threaded: None,
        };
        let expected = [
            8, 0, 2, 0, 5, 1, 0, 0, 8, 0, 5, 0, 100, 0, 0, 0, 12, 0, 6, 0, 0x20, 0x4e, 0, 0, 0, 0,
            0, 0, 12, 0, 7, 0, 0, 0x2d, 0x31, 1, 0, 0, 0, 0,
        ];
        assert_eq!(bytes(&set_request(261, &parameters)), expected);
        let threaded = NapiParameters { threaded: Some(THREADED_BUSY_POLL), ..parameters };
        let request = bytes(&set_request(261, &threaded));
        assert_eq!(request[..expected.len()], expected);
        assert_eq!(request[expected.len()..], [8, 0, 8, 0, 2, 0, 0, 0]);
    }
}
