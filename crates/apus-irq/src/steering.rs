//! The choice of the listener for a connection: the one of the receive queue of the connection's packets.
//!
//! Listeners of one address that have `SO_REUSEPORT` are a group, and the kernel gives each connection to one of them, by a hash
//! unless the group has a filter. Our filter takes the number of the receive queue of the first packet. So all connections of a
//! listener come by one queue, and the epoll set of its worker has one NAPI instance. The filter is attached by a duplicate of any
//! listener of the group.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use libc::sock_filter;
use rustix::net::sockopt::{socket_acceptconn, socket_cookie, socket_reuseport};
use serde::{Deserialize, Serialize};

use crate::epoll::{attach_group_filter, detach_group_filter};
use crate::program::{ProcessId, Program, is_gone};

/// Listeners of one address among which the kernel chooses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// The address.
    pub address: SocketAddr,
    /// The descriptors of each listener, by its cookie, which is unique in one boot.
    pub listeners: BTreeMap<u64, Vec<Descriptor>>,
}

/// A descriptor of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// The process.
    pub process: ProcessId,
    /// Number of the descriptor.
    pub fd: i32,
}

/// The distribution of the connections of queues over listeners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Queues whose numbers are equal modulo this value share the same listeners.
    pub modulus: u32,
    /// Number of listeners for each residue. One of them is chosen at random.
    pub each: u32,
}

/// Listeners that queues cannot be spread over evenly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{listeners} listeners for {queues} receive queues: the number of listeners must be at most the number of queues, or a \
     multiple of it"
)]
pub struct Misfit {
    /// Number of listeners of the group.
    pub listeners: u32,
    /// Number of receive queues of the device.
    pub queues: u32,
}

impl Spread {
    /// With fewer listeners than queues, several queues share one listener. With more, several listeners share a queue.
    ///
    /// # Errors
    /// When, with evenly used queues, some listeners would get more connections than others, or none.
    pub fn of(listeners: u32, queues: u32) -> Result<Self, Misfit> {
        let modulus = listeners.min(queues);
        if modulus == 0 || !listeners.is_multiple_of(modulus) {
            return Err(Misfit { listeners, queues });
        }
        Ok(Self { modulus, each: listeners / modulus })
    }

    /// The classic BPF program that returns the place of a listener. Most drivers note the number of the receive queue plus 1 in a
    /// packet; veth leaves the number of the sender's queue, which equals the receive queue's. Either way, packets of two adjacent
    /// queues have consecutive numbers, and so different places.
    fn filter(&self) -> [sock_filter; 9] {
        use libc::{
            BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_K, BPF_LD, BPF_LDX, BPF_MEM, BPF_MOD, BPF_MUL,
            BPF_RET, BPF_ST, BPF_W, BPF_X, SKF_AD_OFF, SKF_AD_QUEUE, SKF_AD_RANDOM,
        };
        let one = |code: u32, k: u32| sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let about_packet = |what: i32| one(BPF_LD | BPF_W | BPF_ABS, (SKF_AD_OFF + what) as u32);
        [
            about_packet(SKF_AD_QUEUE),
            one(BPF_ALU | BPF_MOD | BPF_K, self.modulus),
            one(BPF_ST, 0),
            about_packet(SKF_AD_RANDOM),
            one(BPF_ALU | BPF_MOD | BPF_K, self.each),
            one(BPF_ALU | BPF_MUL | BPF_K, self.modulus),
            one(BPF_LDX | BPF_W | BPF_MEM, 0),
            one(BPF_ALU | BPF_ADD | BPF_X, 0),
            one(BPF_RET | BPF_A, 0),
        ]
    }
}

/// The groups of TCP listeners of some processes, with at least two listeners each.
///
/// # Errors
/// When the descriptors of the first process may not be read.
pub fn groups(processes: &[ProcessId]) -> io::Result<Vec<Group>> {
    let mut found: BTreeMap<SocketAddr, BTreeMap<u64, Vec<Descriptor>>> = BTreeMap::new();
    for (place, process) in processes.iter().enumerate() {
        let listeners = Program::open(process.pid).and_then(|program| listeners(&program));
        match listeners {
            Ok(listeners) => {
                for (fd, address, cookie) in listeners {
                    let of_address = found.entry(address).or_default();
                    of_address
                        .entry(cookie)
                        .or_default()
                        .push(Descriptor { process: *process, fd });
                }
            }
            Err(_) if place > 0 || !process.runs() => {}
            Err(error) => return Err(error),
        }
    }
    let groups = found.into_iter().map(|(address, listeners)| Group { address, listeners });
    Ok(groups.filter(|group| group.listeners.len() > 1).collect())
}

/// The listeners of a process that may be in a group: descriptor, address and cookie.
fn listeners(program: &Program) -> io::Result<Vec<(i32, SocketAddr, u64)>> {
    let mut listeners = Vec::new();
    for fd in program.socket_fds()? {
        let socket = match program.duplicate(fd) {
            Err(error) if is_gone(&error) => continue, // The process closed it meanwhile.
            socket => socket?,
        };
        if !socket_acceptconn(&socket)? || !socket_reuseport(&socket).unwrap_or(false) {
            continue;
        }
        let cookie = socket_cookie(&socket)?;
        // A Unix domain socket has no such address.
        if let Ok(address) = TcpListener::from(socket).local_addr() {
            listeners.push((fd, address, cookie));
        }
    }
    Ok(listeners)
}

impl Group {
    /// The number of listeners.
    pub fn len(&self) -> u32 {
        u32::try_from(self.listeners.len()).unwrap_or(u32::MAX)
    }

    /// Whether there is no listener. Groups of [`groups`] are never empty.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Attaches the filter.
    ///
    /// # Errors
    /// When no listener can be reached, or the kernel refuses.
    pub(crate) fn steer(&self, spread: Spread) -> io::Result<()> {
        let socket = self.reach()?.ok_or(io::ErrorKind::NotFound)?;
        attach_group_filter(socket, &mut spread.filter())
    }

    /// Detaches the filter. Does nothing if no listener or no filter is left.
    ///
    /// # Errors
    /// When a listener may not be reached, or the kernel refuses.
    pub(crate) fn unsteer(&self) -> io::Result<()> {
        let Some(socket) = self.reach()? else { return Ok(()) };
        match detach_group_filter(socket) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// A duplicate of one of the listeners; `None` if none is left.
    fn reach(&self) -> io::Result<Option<OwnedFd>> {
        for (cookie, descriptors) in &self.listeners {
            for descriptor in descriptors {
                let Ok(program) = Program::open(descriptor.process.pid) else { continue };
                if program.id() != descriptor.process {
                    continue;
                }
                match program.duplicate(descriptor.fd) {
                    Ok(socket) if socket_cookie(&socket).is_ok_and(|it| it == *cookie) => {
                        return Ok(Some(socket));
                    }
                    Err(error) if !is_gone(&error) && descriptor.process.runs() => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_spread_evenly_or_not_at_all() {
        assert_eq!(Spread::of(2, 2), Ok(Spread { modulus: 2, each: 1 }));
        assert_eq!(Spread::of(2, 8), Ok(Spread { modulus: 2, each: 1 }));
        assert_eq!(Spread::of(3, 4), Ok(Spread { modulus: 3, each: 1 }));
        assert_eq!(Spread::of(8, 2), Ok(Spread { modulus: 2, each: 4 }));
        assert!(Spread::of(3, 2).unwrap_err().to_string().contains("3 listeners for 2 receive"));
        assert!(Spread::of(2, 0).is_err() && Spread::of(0, 2).is_err());
    }

    #[test]
    fn listeners_of_one_address_are_a_group_that_takes_the_filter_and_loses_it() {
        let listener = |at: SocketAddr| {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&at.into()).unwrap();
            socket.listen(8).unwrap();
            TcpListener::from(socket)
        };
        let first = listener("127.0.0.1:0".parse().unwrap());
        let address = first.local_addr().unwrap();
        let own = ProcessId::own().unwrap();
        let group = || groups(&[own]).unwrap().into_iter().find(|group| group.address == address);
        assert!(group().is_none(), "one is no group");
        let second = listener(address);
        let group = group().expect("two are one");
        assert_eq!(group.len(), 2);
        group.unsteer().unwrap();
        group.steer(Spread { modulus: 2, each: 1 }).unwrap();
        detach_group_filter(&second).unwrap();
        assert_eq!(detach_group_filter(&second).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        drop((first, second));
        group.unsteer().unwrap();
        assert!(group.steer(Spread { modulus: 2, each: 1 }).is_err());
    }
}
