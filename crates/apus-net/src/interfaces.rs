//! The network interfaces of this machine, by address: MTU and rate.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::sys;

/// Time for which the table is reused, which bounds the cost to a dozen system calls per second.
const KEPT: Duration = Duration::from_secs(1);

/// An address and its interface.
#[derive(Debug)]
struct InterfaceAddress {
    ip: IpAddr,
    name: String,
    loopback: bool,
    mtu: usize,
    /// Rate in Mb/s, read when it is first needed; `None` inside if the driver reports none.
    mbps: Option<Option<u64>>,
}

/// The table of interfaces.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    entries: Vec<InterfaceAddress>,
    read: Option<Instant>,
}

impl Interfaces {
    /// Reads the table again if it is old. `socket` may be any socket.
    fn refresh(&mut self, socket: RawFd) {
        if self.read.is_some_and(|read| read.elapsed() < KEPT) {
            return;
        }
        self.read = Some(Instant::now());
        self.entries.clear();
        sys::each_interface_address(|ip, name, loopback| {
            if let (Some(mtu), Ok(text)) = (sys::mtu_of(socket, name), name.to_str()) {
                self.entries.push(InterfaceAddress {
                    ip,
                    name: text.to_owned(),
                    loopback,
                    mtu,
                    mbps: None,
                });
            }
        });
    }

    /// Returns the MTU of the interface with this address, and the rate in Mb/s that its driver reports, if any.
    pub(crate) fn of(&mut self, ip: IpAddr, socket: RawFd) -> Option<(usize, Option<u64>)> {
        self.refresh(socket);
        let entry = self.entries.iter_mut().find(|entry| entry.ip == ip)?;
        let InterfaceAddress { name, mbps, .. } = entry;
        Some((entry.mtu, *mbps.get_or_insert_with(|| mbps_of(name))))
    }

    /// Returns the MTU of packets from other machines to `ip`. If that is not an interface's address, but for instance a group's,
    /// returns the largest MTU. `None`: there is no interface except loopback.
    pub(crate) fn mtu_towards(&mut self, ip: Option<IpAddr>, socket: RawFd) -> Option<usize> {
        self.refresh(socket);
        let others = || self.entries.iter().filter(|entry| !entry.loopback);
        let own = others().find(|entry| Some(entry.ip) == ip).map(|entry| entry.mtu);
        own.or_else(|| others().map(|entry| entry.mtu).max())
    }
}

/// Returns the addresses of this machine's interfaces in this network namespace, except those of loopback.
#[must_use]
pub fn interface_addresses() -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    sys::each_interface_address(|ip, _, loopback| {
        if !loopback && !addresses.contains(&ip) {
            addresses.push(ip);
        }
    });
    addresses
}

/// Returns the rate that the driver reports. Virtual interfaces report none, or -1.
fn mbps_of(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok().filter(|&mbps: &u64| mbps > 0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Makes `socket` fail for all families except IPv4, IPv6 and unix sockets, as RestrictAddressFamilies= of systemd does.
    fn forbid_netlink() -> bool {
        let step = |code: u32, k: u32, yes, no| libc::sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k,
        };
        let (load, equals, end) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::BPF_RET | libc::BPF_K,
        );
        let refused = libc::SECCOMP_RET_ERRNO | libc::EAFNOSUPPORT.cast_unsigned();
        let mut steps = [
            step(load, 0, 0, 0), // Number of the call.
            step(equals, libc::SYS_socket as u32, 0, 3),
            step(load, 16, 0, 0), // First argument of the call.
            step(equals, libc::AF_NETLINK.cast_unsigned(), 0, 1),
            step(end, refused, 0, 0),
            step(end, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the program lives during the calls, and the kernel checks it.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        }
    }

    #[test]
    fn addresses_are_known_without_netlink() {
        let all = || {
            let mut all = Vec::new();
            sys::each_interface_address(|ip, name, loopback| {
                all.push((ip, name.to_owned(), loopback));
            });
            all.sort();
            all
        };
        // The filter applies to the thread that installs it.
        let (with, without) = (all(), std::thread::spawn(move || forbid_netlink().then(all)));
        let Some(without) = without.join().unwrap() else {
            return eprintln!("skipped: no seccomp filter can be installed");
        };
        assert!(!with.is_empty());
        assert_eq!(with, without);
    }

    #[test]
    fn the_loopback_interface_is_found_by_its_address_and_counts_for_nothing_else() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut interfaces = Interfaces::default();
        let local = "127.0.0.1".parse().unwrap();
        let (mtu, mbps) = interfaces.of(local, socket.as_raw_fd()).unwrap();
        assert!(mtu >= 1_280 && mbps.is_none(), "{mtu} {mbps:?}");
        let foreign = "198.51.100.77".parse().unwrap();
        assert_eq!(interfaces.of(foreign, socket.as_raw_fd()), None);
        let others = interfaces.entries.iter().any(|entry| !entry.loopback);
        let towards = interfaces.mtu_towards(Some(local), socket.as_raw_fd());
        assert_eq!(towards.is_some(), others);
    }
}
