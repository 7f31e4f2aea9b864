//! Paths to peers: their properties by the link, and the properties reported to the endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use apus_net::Examined;
use apus_proto::Time;
use apus_wire::{PathError, PathId};

use super::Engine;
use crate::address::Address;
use crate::error::CallError;
use crate::shared_engine::attached::REMOTES_MAX;
use crate::sync::clock;

impl Engine {
    /// Resolves the address of a service to a path, for sockets of this node's own identity.
    ///
    /// # Errors
    ///
    /// As [`resolve_as`](Self::resolve_as).
    #[inline]
    pub(crate) fn resolve(&mut self, to: Address) -> Result<PathId, CallError> {
        self.resolve_as(to, 0)
    }

    /// Resolves the address of a service to a path, for sockets of the identity of this node with the number `local`.
    ///
    /// # Errors
    ///
    /// No link reaches the address, the node exchanges no plain packets with its host, or the node uses the engine of another process
    /// and is not attached.
    #[inline]
    pub(crate) fn resolve_as(&mut self, to: Address, local: u8) -> Result<PathId, CallError> {
        let host = to.host;
        let Self { neighbours, endpoint, link, sealed_peers, .. } = self;
        match neighbours.as_mut().and_then(|neighbours| neighbours.attachments.attached.as_mut()) {
            None => {
                let (error, sent) = (PathError::NoLink, false);
                let path = match sealed_peers {
                    None => link.resolve(host),
                    Some(peers) => peers.resolve(&mut **link, (to, local), clock::now)?,
                };
                match path {
                    Some(path) if path.is_barred() => Err(CallError::barred(host)),
                    path => path.ok_or(CallError::PeerUnreachable { error, sent }),
                }
            }
            Some(attached) if !attached.is_attached() => Err(CallError::NoEngine),
            Some(attached) => attached
                .path_to(clock::now(), host, endpoint)
                .ok_or(CallError::TooManyPeers { limit: REMOTES_MAX }),
        }
    }

    /// Returns whether the properties of this path were ever reported to the endpoint.
    #[inline]
    pub(crate) fn knows(&self, path: PathId) -> bool {
        path.is_local()
            || matches!(self.paths.reported.get(path.index()), Some(Some((reported, _))) if *reported == path)
    }

    /// Reports the properties of a path to the endpoint, unless that was done within the last second: the endpoint forgets idle
    /// peers.
    #[inline]
    pub(crate) fn know_path(&mut self, now: Time, path: PathId) {
        match self.paths.reported.get(path.index()) {
            Some(&Some((reported, at))) if reported == path && now < at + PATH_FRESH => {}
            _ => self.report_path(now, path),
        }
    }

    #[cold]
    fn report_path(&mut self, now: Time, path: PathId) {
        if self.paths.reported.len() <= path.index() {
            self.paths.reported.resize(path.index() + 1, None);
        }
        self.paths.reported[path.index()] = Some((path, now));
        let known = self.link.path(path);
        self.endpoint.set_path(now, path, known.loopback, known.link_mbps);
        self.paths.examinations.extend(self.link.examination(path));
    }

    /// Applies the result of an examination.
    pub(crate) fn examined(&mut self, examined: Examined) {
        let paths = self.paths_to(examined.peer());
        self.link.examined(examined);
        for path in paths {
            if let Some(reported) = self.paths.reported.get_mut(path.index()) {
                *reported = None;
            }
        }
    }

    pub(super) fn handle_path_error(&mut self, now: Time, peer: SocketAddr, error: PathError) {
        for path in self.paths_to(peer) {
            self.endpoint.handle_path_error(now, path, error);
        }
    }

    /// The plain path and the sealed ones that are found by an address.
    pub(super) fn paths_to(&mut self, peer: SocketAddr) -> Vec<PathId> {
        let mut paths = self.link.sealed_paths().map_or_else(Vec::new, |it| it.sealed_at(peer));
        paths.extend(self.link.find(peer));
        paths
    }

    /// The kernel gave this error about a peer to the link of another engine.
    pub(crate) fn handle_misrouted(&mut self, peer: SocketAddr, error: PathError) {
        let now = clock::now();
        self.handle_path_error(now, peer, error);
        self.transmit_due(now);
    }
}

/// Lifetime of a report, which is shorter than the idle time after which a peer is forgotten.
const PATH_FRESH: Duration = Duration::from_secs(1);
