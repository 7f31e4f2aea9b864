//! The files of the identity, which are looked at every 10 s, and the peers that are judged again when one has changed.

use std::sync::Arc;
use std::time::Duration;

use apus_proto::Time;
use apus_seal::{HandshakeError, Identity, Role, TlsError};
use apus_wire::PathId;

use crate::engine::Engine;
use crate::error::{CallError, IdentityError};
use crate::secure::attempts::{HANDSHAKE_TIME, soon};
use crate::secure::driver::Driver;
use crate::secure::node_identity::LOOK_EVERY;
use crate::secure::paths::time_of;
use crate::secure::worker::{Job, Verdict};

/// Upper bound on the peers that are judged as one piece of work, for which refreshes wait: some 2 ms.
const JUDGED_TOGETHER: usize = 16;

impl Driver {
    /// Has the files looked at if that is due.
    pub(super) fn look_at_files(&mut self, at: Duration) {
        if at >= self.look_at {
            self.look_at = at + LOOK_EVERY;
            for node in &self.nodes {
                self.worker.push(Job::Reload { node: Arc::clone(node) });
            }
        }
    }

    /// Takes the result of a look at the files.
    pub(super) fn reloaded(&mut self, engine: &mut Engine, result: &Result<bool, IdentityError>) {
        let handshakes = &mut engine.handshakes;
        match result {
            Ok(changed) => handshakes.reloads += u64::from(*changed),
            Err(_) => handshakes.reload_failures += 1,
        }
    }

    //= docs/protocol.md#seal-11
    /// Has all peers judged again if the files were read since that was done last. Paths that this node began are refreshed soon, by its
    /// present certificate. Returns whether the files were read.
    pub(super) fn judge_again(&mut self, now: Time) -> bool {
        let (generation, at) = (self.generation(), time_of(now));
        if self.judged.0 == generation {
            return false;
        }
        self.judged = (generation, Some(at));
        let paths = self.paths.iter();
        let peers =
            paths.filter_map(|(path, entry)| Some((path, entry.peer.clone()?, entry.role.peer())));
        let peers: Vec<_> = peers.collect();
        let paths: Vec<PathId> = peers.iter().map(|&(path, ..)| path).collect();
        self.judge(&peers);
        for path in paths {
            let pause = soon();
            self.paths.update(path, |entry| {
                entry.refresh_at = entry.refresh_at.map(|due| due.min(at + pause));
            });
        }
        true
    }

    /// Has a client judged that was verified just now, if its handshake may have begun before the files were read last: it was
    /// verified by the earlier ones.
    pub(super) fn judge_client(&mut self, now: Time, path: PathId, client: &Arc<Identity>) {
        if self.judged.1.is_some_and(|at| time_of(now) <= at + HANDSHAKE_TIME) {
            self.judge(&[(path, Arc::clone(client), Role::Client)]);
        }
    }

    fn judge(&self, peers: &[(PathId, Arc<Identity>, Role)]) {
        // The roots and revocation lists of all identities are the same files.
        let tls = self.node().tls();
        for piece in peers.chunks(JUDGED_TOGETHER) {
            self.worker.push(Job::Judge { tls: Arc::clone(&tls), peers: piece.to_vec() });
        }
    }

    /// Ends the paths of peers that are no longer accepted, and compares the others with the rules.
    pub(super) fn judged(&mut self, engine: &mut Engine, now: Time, verdicts: Vec<Verdict>) {
        for Verdict { path, peer, result } in verdicts {
            if !self.paths.is_peer(path, &peer) {
                continue; // A later handshake has judged the peer that is there now.
            }
            match result {
                Ok(identity) => {
                    // Others know an identity by its place in memory, so an equal one stays.
                    if *identity != *peer {
                        self.paths.update(path, |entry| entry.peer = Some(identity));
                    }
                    self.report_rights(engine, path);
                }
                Err(error) => self.end_revoked(engine, now, path, error),
            }
        }
    }

    fn end_revoked(&mut self, engine: &mut Engine, now: Time, path: PathId, error: TlsError) {
        let of = self.paths.get(path).map(|entry| (entry.address, entry.usage));
        let Some(of) = of else { return };
        self.forget_path(engine, path);
        let error = HandshakeError::Tls(error);
        let reason = error.to_string();
        self.paths.add(path, of, time_of(now));
        self.paths.update(path, |entry| {
            entry.attempts.failed(time_of(now), error, 0);
            entry.error = Some(CallError::HandshakeFailed { reason, sent: false });
        });
    }
}
