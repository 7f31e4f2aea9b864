//! The unix sockets at which a node is met, and at which it looks for other nodes.
//!
//! Nodes of one network namespace meet by abstract names, which need no file. A node with a [directory](crate::Config::shm_dir) has
//! files there as well, by the addresses at which other network namespaces reach it: an address such as 127.0.0.1, or 0.0.0.0 for
//! all of them, names another node in each namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use apus_shm::{Listener, Place};

/// The unix sockets at which a node is met, and at which it looks for other nodes.
#[derive(Debug)]
pub(crate) struct Places {
    /// Address of this node over UDP.
    local_addr: SocketAddr,
    /// The directory that network namespaces share, if the setting names one.
    directory: Option<PathBuf>,
    /// The addresses of this node in that directory.
    own: Vec<SocketAddr>,
}

impl Places {
    /// Creates the places of a node at `local_addr`. `interfaces` returns the addresses of this machine by which other namespaces
    /// reach it.
    pub(crate) fn new(
        local_addr: SocketAddr,
        directory: Option<&Path>,
        interfaces: impl FnOnce() -> Vec<IpAddr>,
    ) -> Self {
        let own = directory.map_or_else(Vec::new, |_| own_addresses(local_addr, interfaces));
        Self { local_addr, directory: directory.map(Path::to_owned), own }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Begins to listen at all places at which other nodes look for this node. If another process has a name, other nodes cannot
    /// find this node by that name, but this node can still find them.
    ///
    /// # Errors
    ///
    /// No file can be created in the directory.
    pub(crate) fn listen(&self) -> io::Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        listeners.extend(Listener::bind(&Place::Namespace(self.local_addr)));
        for (directory, &address) in self.directory.iter().zip(&self.own) {
            match Listener::bind(&Place::Directory(directory.clone(), address)) {
                Ok(listener) => listeners.push(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Ok(listeners)
    }

    /// The places at which the node at an address may listen, the likeliest first. `is_local`: the address is one of this network
    /// namespace.
    pub(super) fn of(&self, address: SocketAddr, is_local: bool) -> Vec<Place> {
        if !is_local {
            let address = plain(address);
            let directory = self.directory.clone().filter(|_| !self.own.contains(&address));
            return directory.map(|it| Place::Directory(it, address)).into_iter().collect();
        }
        // A node may listen at all addresses of its machine.
        let all_of = |ip: IpAddr| {
            let mut all = address;
            all.set_ip(ip);
            all
        };
        let of_family = address.is_ipv4().then(|| all_of(Ipv4Addr::UNSPECIFIED.into()));
        let of_both = all_of(Ipv6Addr::UNSPECIFIED.into());
        let names = [Some(address), of_family, Some(of_both)].into_iter().flatten();
        names.filter(|&name| name != self.local_addr).map(Place::Namespace).collect()
    }
}

/// The addresses at which other network namespaces reach a node that listens at `local_addr`.
fn own_addresses(
    local_addr: SocketAddr,
    interfaces: impl FnOnce() -> Vec<IpAddr>,
) -> Vec<SocketAddr> {
    let ip = local_addr.ip().to_canonical();
    let mut own = if ip.is_unspecified() { interfaces() } else { vec![ip] };
    own.retain(|own| (ip.is_ipv6() || own.is_ipv4()) && is_reachable(*own));
    own.truncate(OWN_MAX);
    own.into_iter().map(|ip| SocketAddr::new(ip, local_addr.port())).collect()
}

/// Whether an address names the same node in several network namespaces.
fn is_reachable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// The common form of an address: IPv4 unmapped, and IPv6 without a scope.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Upper bound on addresses in the directory of a node that listens at all addresses; each takes a descriptor.
const OWN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn own(listen: &str) -> Vec<String> {
        let interfaces = ["10.0.0.1", "169.254.7.7", "fe80::1", "fd00::1", "192.168.0.1"];
        let interfaces = || interfaces.map(|ip| ip.parse().unwrap()).to_vec();
        let own = own_addresses(listen.parse().unwrap(), interfaces);
        own.into_iter().map(|address| address.to_string()).collect()
    }

    #[test]
    fn a_node_has_files_by_the_addresses_that_mean_it_elsewhere() {
        assert_eq!(own("0.0.0.0:7"), ["10.0.0.1:7", "192.168.0.1:7"]);
        assert_eq!(own("[::]:7"), ["10.0.0.1:7", "[fd00::1]:7", "192.168.0.1:7"]);
        assert_eq!(own("10.9.9.9:7"), ["10.9.9.9:7"]);
        assert_eq!(own("[::ffff:10.9.9.9]:7"), ["10.9.9.9:7"]);
        assert!(own("127.0.0.1:7").is_empty() && own("[::1]:7").is_empty());
        assert!(own("[fe80::1%3]:7").is_empty(), "there is one on every link");
    }

    #[test]
    fn a_node_looks_in_the_directory_for_addresses_that_are_not_of_its_namespace() {
        let [address, ours] = ["10.0.0.2:7", "10.0.0.1:7"].map(|it| it.parse().unwrap());
        let directory = Path::new("/run/apus");
        let places = Places::new(ours, Some(directory), Vec::new);
        let file = |address| vec![Place::Directory(directory.to_owned(), address)];
        assert_eq!(places.of(address, false), file(address));
        assert_eq!(places.of("[::ffff:10.0.0.2]:7".parse().unwrap(), false), file(address));
        assert_eq!(places.of(ours, false), [], "it does not meet itself");
        assert_eq!(Places::new(ours, None, Vec::new).of(address, false), []);
    }

    #[test]
    fn a_node_looks_for_names_of_its_namespace() {
        let ours = "0.0.0.0:9".parse().unwrap();
        for directory in [None, Some(Path::new("/run/apus"))] {
            let places = Places::new(ours, directory, Vec::new);
            let names = |address: &str| places.of(address.parse().unwrap(), true);
            let name = |address: &str| Place::Namespace(address.parse().unwrap());
            assert_eq!(
                names("127.0.0.1:7"),
                [name("127.0.0.1:7"), name("0.0.0.0:7"), name("[::]:7")]
            );
            assert_eq!(names("[::1]:7"), [name("[::1]:7"), name("[::]:7")]);
            assert_eq!(names("127.0.0.1:9"), [name("127.0.0.1:9"), name("[::]:9")]);
        }
    }
}
