//! The look-up of the way to a peer, which an examination makes: it takes some system calls, any of which may wait for a lock of the
//! kernel's network configuration.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::routes::{self, WayAnswer};
use super::socket::Xsk;

/// Upper bound on devices with an XSK, for each of which the kernel accounts 1 MiB.
const DEVICES_MAX: usize = 4;

/// A question about the way to a peer.
#[derive(Debug)]
pub(crate) struct WayQuery {
    pub(super) to: SocketAddr,
    /// The local address, if the link is bound to one.
    pub(super) source: Option<IpAddr>,
    /// Devices for which the link has an XSK.
    pub(super) open: Vec<u32>,
    /// The link's address, if XSKs are to receive.
    pub(super) own: Option<SocketAddr>,
    /// XSKs of devices that are gone or down. To close one takes milliseconds, because the kernel waits for its other users.
    pub(super) retired: Vec<Xsk>,
}

impl WayQuery {
    /// Asks the kernel, and opens an XSK for the device if the link has none.
    pub(crate) fn run(self) -> FoundWay {
        drop(self.retired);
        let other = |failure| FoundWay { answer: WayAnswer::Other, opened: None, failure };
        let answer = match routes::way(self.to, self.source) {
            Ok(answer) => answer,
            Err(error) => return other(Some(error)),
        };
        let device = match &answer {
            WayAnswer::Way(way) if !self.open.contains(&way.device) => way.device,
            _ => return FoundWay { answer, opened: None, failure: None },
        };
        if self.open.len() >= DEVICES_MAX {
            return other(None);
        }
        match Xsk::open(device, self.own) {
            Ok(xsk) => FoundWay { answer, opened: Some((device, xsk)), failure: None },
            Err(error) => other(Some(error)),
        }
    }
}

/// The answer to a [`WayQuery`].
#[derive(Debug)]
pub(crate) struct FoundWay {
    pub(super) answer: WayAnswer,
    /// A new XSK, with the number of its device.
    pub(super) opened: Option<(u32, Xsk)>,
    /// Why packets to the peer go by UDP.
    pub(super) failure: Option<io::Error>,
}
