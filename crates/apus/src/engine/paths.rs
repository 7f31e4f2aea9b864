//! Paths to peers: what the link knows of them, and what the endpoint was told.

use std::net::SocketAddr;
use std::time::Duration;

use apus_net::Examined;
use apus_proto::Time;
use apus_wire::{PathError, PathId};

use super::Engine;
use crate::error::CallError;
use crate::shared_engine::attached::REMOTES_MAX;
use crate::sync::clock;

impl Engine {
    /// The path to the node at an address.
    ///
    /// # Errors
    ///
    /// No link reaches it, or the engine of another process is to be used and is not there.
    #[inline]
    pub(crate) fn resolve(&mut self, host: SocketAddr) -> Result<PathId, CallError> {
        let Self { neighbours, endpoint, link, .. } = self;
        match neighbours.as_mut().and_then(|neighbours| neighbours.attachments.attached.as_mut()) {
            None => {
                let (error, sent) = (PathError::NoLink, false);
                link.resolve(host).ok_or(CallError::PeerUnreachable { error, sent })
            }
            Some(attached) if !attached.is_attached() => Err(CallError::NoEngine),
            Some(attached) => attached
                .path_to(clock::now(), host, endpoint)
                .ok_or(CallError::TooManyPeers { limit: REMOTES_MAX }),
        }
    }

    /// The endpoint was told what the link knows of this path, some time.
    #[inline]
    pub(crate) fn knows(&self, path: PathId) -> bool {
        path.is_local()
            || matches!(self.told.get(path.index()), Some(Some((told, _))) if *told == path)
    }

    /// Tells the endpoint what the link knows of a path, unless it was told lately: the endpoint forgets peers that are idle.
    #[inline]
    pub(crate) fn know_path(&mut self, now: Time, path: PathId) {
        match self.told.get(path.index()) {
            Some(&Some((told, at))) if told == path && now < at + PATH_FRESH => {}
            _ => self.tell_path(now, path),
        }
    }

    #[cold]
    fn tell_path(&mut self, now: Time, path: PathId) {
        if self.told.len() <= path.index() {
            self.told.resize(path.index() + 1, None);
        }
        self.told[path.index()] = Some((path, now));
        let known = self.link.path(path);
        self.endpoint.set_path(now, path, known.loopback, known.link_mbps);
        self.examinations.extend(self.link.examination(path));
    }

    /// Takes what an examination of a path found out.
    pub(crate) fn examined(&mut self, examined: Examined) {
        let path = self.link.find(examined.peer());
        self.link.examined(examined);
        if let Some(told) = path.and_then(|path| self.told.get_mut(path.index())) {
            *told = None;
        }
    }

    pub(super) fn handle_path_error(&mut self, now: Time, peer: SocketAddr, error: PathError) {
        if let Some(path) = self.link.find(peer) {
            self.endpoint.handle_path_error(now, path, error);
        }
    }

    /// The network says this of a peer, as another engine was told.
    pub(crate) fn handle_misrouted(&mut self, peer: SocketAddr, error: PathError) {
        let now = clock::now();
        self.handle_path_error(now, peer, error);
        self.see_to(now);
    }
}

/// How long a path counts as told: less than a peer has to be idle before it is forgotten.
const PATH_FRESH: Duration = Duration::from_secs(1);
