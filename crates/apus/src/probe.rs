//! Finds the node at an address, and the protocol that it speaks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use apus_net::Sleeper;
use apus_wire::{
    Header, MAX_HEADER, Open, Packet, PathError, Priority, Resend, RpcId, Stamp, Token, Transmit,
    UnknownReason, is_native,
};

use crate::address::Address;
use crate::config::{Config, Links};
use crate::engine::links;
use crate::error::StartError;
use crate::resolve::is_unspecified;

/// Interval at which the probe is repeated.
const INTERVAL: Duration = Duration::from_millis(100);

/// The last client port: the module's and ours are given out from the other end.
const CLIENT_PORT: u16 = u16::MAX;

/// The kind of node at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Presence {
    /// The host speaks the protocol and answered after this time. A port that is not served gives
    /// [`PortNotServed`](Self::PortNotServed) instead.
    Answered(Duration),
    /// The host speaks the protocol, but the port is not served.
    PortNotServed,
    /// The network reports why no answer is possible.
    Unreachable(PathError),
    /// No answer arrived in the time given.
    Silent,
}

/// Probes an address, to find out whether to call its host by `homa://` or by `apus://`. The probe is an OPEN packet or, on a
/// raw link, a RESEND for a call that never existed. Every Apus node and every Linux host with the module answers it, and keeps
/// no state for it.
///
/// # Errors
///
/// If no link can be opened (for a `homa://` address, without `CAP_NET_RAW`), and for `0.0.0.0` and `[::]`.
///
/// ```
/// use std::time::Duration;
/// use apus::{Address, Presence};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let node = apus::Node::start(&config)?;
/// # let port = node.bind(4000)?;
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # std::thread::spawn(move || {
/// #     port.serve(|request| {
/// #         let body = request.body().clone();
/// #         let _ = request.reply(body);
/// #     });
/// # });
/// let second = Duration::from_secs(1);
/// match apus::probe(address, second)? {
///     Presence::Answered(after) => println!("{address} answers after {after:?}"),
///     Presence::PortNotServed => println!("a node without this service"),
///     Presence::Unreachable(error) => println!("no node: {error}"),
///     _ => println!("no answer within {second:?}"),
/// }
/// let unserved = Address::new(node.local_addr(), 4001);
/// assert_eq!(apus::probe(unserved, Duration::from_secs(60))?, Presence::PortNotServed);
/// # Ok(())
/// # }
/// ```
pub fn probe(to: Address, timeout: Duration) -> Result<Presence, StartError> {
    probe_with(to, timeout, &Config::new())
}

/// As [`probe`], by a link with the settings of a configuration. The probe chooses the link's address and kind.
///
/// # Errors
///
/// As [`probe`], and for wrong settings.
pub fn probe_with(to: Address, timeout: Duration, config: &Config) -> Result<Presence, StartError> {
    if is_unspecified(to) {
        return Err(StartError::UnspecifiedAddress(to));
    }
    let any: IpAddr = match to.host {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut config = config.clone();
    config.listen((any, 0).into());
    config.link(if is_native(to.host) { Links::Raw } else { Links::Udp });
    config.check()?;
    let mut link = links::open(&config)?;
    let sleeper = Sleeper::new().map_err(StartError::Descriptor)?;
    let probe = Probe::new(to);
    let start = Instant::now();
    let path = link.resolve(to.host).expect("the link was opened for such addresses");
    while start.elapsed() < timeout {
        link.send(Transmit::control(path, Priority::HIGHEST, probe.packet()));
        link.flush();
        let asked = Instant::now();
        while asked.elapsed() < INTERVAL.min(timeout) {
            sleeper.sleep(link.descriptors(), Some(INTERVAL.saturating_sub(asked.elapsed())));
            let mut answer = None;
            while link.recv(&mut |from, packet: &[u8]| {
                if from == path {
                    answer = answer.or_else(|| probe.answered_by(packet));
                }
            }) > 0
            {}
            match answer {
                Some(true) => return Ok(Presence::PortNotServed),
                Some(false) => return Ok(Presence::Answered(asked.elapsed())),
                None => {}
            }
            while let Some((peer, error)) = link.poll_error() {
                match error {
                    PathError::NoService(port) if (peer, port) == (to.host, to.port) => {
                        return Ok(Presence::PortNotServed);
                    }
                    error if peer == to.host => return Ok(Presence::Unreachable(error)),
                    _ => {}
                }
            }
        }
    }
    Ok(Presence::Silent)
}

/// OPEN, which leaves no state behind; on a native link RESEND for a response that was never asked for.
struct Probe {
    packet: [u8; MAX_HEADER],
    length: usize,
    id: RpcId,
}

impl Probe {
    fn new(to: Address) -> Self {
        let port = to.port;
        // Beyond every id a node or a module has got to, and different each time.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let id = RpcId(1 << 63 | (since.as_nanos() as u64) << 1 & (u64::MAX >> 1));
        let header = Header { source_port: CLIENT_PORT, dest_port: port, sender_id: id };
        let mut packet = [0; MAX_HEADER];
        let length = if is_native(to.host) {
            let everything = Resend { offset: 0, length: None, priority: Priority::HIGHEST };
            everything.emit(&header, &mut packet)
        } else {
            let length = Open { known: Token::NONE }.emit(&header, &mut packet);
            Stamp::new(Token(id.0)).write(&mut packet);
            length
        };
        Self { packet, length, id }
    }

    fn packet(&self) -> &[u8] {
        &self.packet[..self.length]
    }

    /// Whether a packet answers this probe, and if so, whether it reports that the port is not served.
    fn answered_by(&self, packet: &[u8]) -> Option<bool> {
        let packet = Packet::parse(packet).ok()?;
        (packet.header().sender_id == self.id.flipped()).then_some(matches!(
            packet,
            Packet::RpcUnknown { unknown, .. } if unknown.reason == UnknownReason::NoContact
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn a_node_answers_says_which_ports_it_serves_and_keeps_nothing() {
        let mut config = Config::new();
        let node = Node::start(config.listen("127.0.0.1:0".parse().unwrap())).unwrap();
        let _service = node.bind(4000).unwrap();
        let at = |port| Address::new(node.local_addr(), port);
        let timeout = Duration::from_secs(10);
        assert!(matches!(probe(at(4000), timeout), Ok(Presence::Answered(_))));
        assert!(matches!(probe(at(4001), timeout), Ok(Presence::PortNotServed)));
        assert_eq!(node.stats().protocol.requests, 0);
        let gone = node.local_addr();
        drop((_service, node));
        let nobody = probe(Address::new(gone, 4000), timeout).unwrap();
        assert_eq!(nobody, Presence::Unreachable(PathError::PortUnreachable));
    }
}
