//! One association: the keys, numbers and windows that a handshake gave to a path, and their limits.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use apus_wire::{PathId, Priority};

use crate::holes::Hole;
use crate::record::aead::{Aead, Forged, Nonce};
use crate::record::counters::SealCounters;
use crate::record::datagram::{AssociationId, ClearHeader, Hint};
use crate::record::error::{HintError, OpenError, SealError};
use crate::record::key::EpochKey;
use crate::record::key_log::LoggedKey;
use crate::record::receiving::{OLD_KEY_TIME, Receiving};
use crate::record::sending::Sending;
use crate::record::window::Stale;
use crate::schedule::{PathSecret, RefreshSalt, Role};
use crate::suite::Suite;

/// After this time without a datagram, an association ends if a crossing handshake gave the path another one.
const CROSSED_TIME: Duration = Duration::from_secs(600);

/// At most one hint in this time is believed.
const HINT_INTERVAL: Duration = Duration::from_secs(1);

/// Limits of associations. Tests lower them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealLimits {
    /// Number of associations of a table, pending ones included: 1 to 2^20. Default 10,000.
    pub associations: usize,
    /// Bytes that a key seals before the next epoch begins, where a datagram counts as at least 1,024. If the peer has sent
    /// nothing since the last update, as many again. Default 2^37.
    pub key_bytes: u64,
    /// Time in which a key is used before the next epoch begins, and time without a datagram after which a path is idle. Default
    /// 120 s.
    pub key_time: Duration,
    /// Number of datagrams with wrong tags that end an association. Default 2^36, the limit of ChaCha20-Poly1305 (RFC 9001,
    /// section 6.6); AES-GCM allows more.
    pub forgeries: u64,
    /// The hole that a test brings back.
    #[cfg(feature = "holes")]
    pub hole: Option<Hole>,
}

impl SealLimits {
    /// Returns whether a test has opened a hole.
    #[inline(always)]
    pub(crate) fn has(&self, hole: Hole) -> bool {
        #[cfg(feature = "holes")]
        return self.hole == Some(hole);
        #[cfg(not(feature = "holes"))]
        {
            let _ = hole;
            false
        }
    }
}

impl Default for SealLimits {
    fn default() -> Self {
        Self {
            associations: 10_000,
            key_bytes: 1 << 37,
            key_time: Duration::from_secs(120),
            forgeries: 1 << 36,
            #[cfg(feature = "holes")]
            hole: None,
        }
    }
}

/// The result of a handshake, which [`Associations::install`](crate::Associations::install) takes.
pub struct Installation<Address> {
    /// The secret that the two nodes share.
    pub secret: PathSecret,
    /// The role of this node in the handshake.
    pub role: Role,
    /// The suite that the server chose.
    pub suite: Suite,
    /// The id that the peer chose for the datagrams that it receives.
    pub peer_id: AssociationId,
    /// The path of the association.
    pub path: PathId,
    /// The address of the path.
    pub address: Address,
    /// Time until the association ends: twice the interval of handshakes, or less if a certificate expires earlier (seal-7).
    pub lifetime: Duration,
}

/// The reason why an association ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// Its lifetime is over.
    Expired,
    /// A later handshake gave the path another association.
    Superseded,
    /// It was idle, and another one needed its place.
    Replaced,
    /// The key was used up, and the peer sent nothing that would allow another one.
    Exhausted,
    /// Too many datagrams had wrong tags.
    Forgeries,
}

/// The kind of the handshake that gave a path another association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Successor {
    /// A handshake over the sealed path.
    Refresh,
    /// A handshake that the peer began at the same time.
    Crossing,
}

pub(crate) struct Association<A, Address> {
    pub(crate) id: AssociationId,
    pub(crate) path: PathId,
    pub(crate) address: Address,
    pub(crate) salt: RefreshSalt,
    /// Whether the peer is known to have the keys.
    pub(crate) is_confirmed: bool,
    sending: Sending<A>,
    receiving: Receiving<A>,
    forgeries: u64,
    expires_at: Duration,
    /// Whether a datagram was sealed or opened since the last look at the association.
    is_used: bool,
    /// The next look; `None` while the association is idle.
    look_at: Option<Duration>,
    /// The last look that found the association used.
    used_at: Duration,
    successor: Option<Successor>,
    end: Option<EndReason>,
    /// The time from which the next hint is believed.
    hint_from: Duration,
}

impl<A: Aead, Address> Association<A, Address> {
    pub(crate) fn new(
        now: Duration,
        id: AssociationId,
        new: Installation<Address>,
        limits: &SealLimits,
    ) -> Self {
        let Installation { secret, role, suite, peer_id, path, address, lifetime } = new;
        Self {
            id,
            path,
            address,
            salt: secret.refresh_salt(),
            // A client has the keys before its server (seal-2).
            is_confirmed: role == Role::Server,
            sending: Sending::new(peer_id, suite, secret.direction(role), limits.key_bytes),
            receiving: Receiving::new(suite, secret.direction(role.peer())),
            forgeries: 0,
            expires_at: now.saturating_add(lifetime),
            is_used: false,
            look_at: Some(now + limits.key_time),
            used_at: now,
            successor: None,
            end: None,
            hint_from: now,
        }
    }

    /// Returns the clear header and the key of the next datagram that is sent.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Duration,
        level: Priority,
        header_len: usize,
        len: usize,
        shared: &mut Shared,
    ) -> Result<(ClearHeader, &EpochKey<A>), SealError> {
        if !self.sending.is_ready(len) {
            self.renew(now, len, shared)?;
        }
        self.is_used = true;
        shared.counters.sealed += 1;
        Ok(self.sending.next(level, header_len, len))
    }

    #[cold]
    fn renew(&mut self, now: Duration, len: usize, shared: &mut Shared) -> Result<(), SealError> {
        self.wake(now, shared);
        let Ok(is_updated) = self.sending.renew(len) else {
            self.end(now, EndReason::Exhausted, shared);
            return Err(SealError::Exhausted);
        };
        shared.counters.key_updates += u64::from(is_updated);
        if is_updated && shared.limits.has(Hole::ResetNumbers) {
            self.sending.reset_numbers();
        }
        if let Some(log) = &mut shared.key_log {
            log.extend(self.sending.take_key_to_log());
        }
        Ok(())
    }

    //= docs/protocol.md#seal-14
    /// Tests the number of a datagram, before it is opened.
    #[inline]
    pub(crate) fn check(
        &self,
        clear: ClearHeader,
        is_home: bool,
        shared: &mut Shared,
    ) -> Result<(), OpenError> {
        self.receiving.windows.check(clear.number, is_home).map_err(|stale| match stale {
            Stale::Replayed => {
                shared.counters.dropped_replay += 1;
                OpenError::Replayed
            }
            Stale::TooOld => {
                shared.counters.replay_too_old += 1;
                OpenError::TooOld
            }
        })
    }

    /// Opens a datagram whose number was tested, and marks the number if the tag fits.
    #[inline]
    pub(crate) fn open(
        &mut self,
        now: Duration,
        clear: ClearHeader,
        is_home: bool,
        shared: &mut Shared,
        decrypt: impl FnOnce(&A, &Nonce) -> Result<(), Forged>,
    ) -> Result<(), OpenError> {
        let usual = self.receiving.usual_key(clear.epoch_bits());
        let is_usual = usual.is_some();
        let key = match usual {
            Some(key) => key,
            None => self.rare_key(now, clear, shared)?,
        };
        if decrypt(&key.aead, &clear.nonce(key.iv)).is_err() {
            if shared.limits.has(Hole::MarkBeforeTag) {
                self.receiving.windows.set(clear.number, is_home);
            }
            self.count_forgery(now, shared);
            return Err(OpenError::Forged);
        }
        self.receiving.windows.set(clear.number, is_home || shared.limits.has(Hole::OneWindow));
        if !is_usual {
            self.confirm_rare_key(now, clear, shared);
        }
        self.sending.is_answered = true;
        self.is_confirmed = true;
        self.is_used = true;
        shared.counters.opened += 1;
        if !is_home {
            shared.counters.opened_foreign += 1;
        }
        Ok(())
    }

    #[cold]
    fn rare_key(
        &mut self,
        now: Duration,
        clear: ClearHeader,
        shared: &mut Shared,
    ) -> Result<&EpochKey<A>, OpenError> {
        self.wake(now, shared);
        self.receiving.rare_key(clear.epoch_bits()).ok_or_else(|| {
            shared.counters.dropped_epoch += 1;
            OpenError::UnknownEpoch(clear.hint())
        })
    }

    #[cold]
    fn confirm_rare_key(&mut self, now: Duration, clear: ClearHeader, shared: &mut Shared) {
        if let Some(due) = self.receiving.confirm(clear.epoch_bits(), now) {
            shared.schedule(due);
        }
        if let Some(log) = &mut shared.key_log {
            log.extend(self.receiving.take_key_to_log(self.id));
        }
    }

    #[cold]
    fn count_forgery(&mut self, now: Duration, shared: &mut Shared) {
        shared.counters.dropped_forged += 1;
        self.forgeries += 1;
        if self.forgeries >= shared.limits.forgeries {
            self.end(now, EndReason::Forgeries, shared);
        }
    }

    /// Returns whether a hint names the peer's side of this path.
    pub(crate) fn is_named_by(&self, hint: Hint) -> bool {
        self.sending.is_named_by(hint)
    }

    //= docs/protocol.md#seal-9
    pub(crate) fn handle_hint(&mut self, now: Duration, hint: Hint) -> Result<(), HintError> {
        if !self.sending.is_named_by(hint) {
            return Err(HintError::WrongId);
        }
        if !self.sending.is_recent(hint) {
            return Err(HintError::WrongNumber);
        }
        if !self.is_confirmed {
            return Err(HintError::Early);
        }
        if now < self.hint_from {
            return Err(HintError::Frequent);
        }
        self.hint_from = now + HINT_INTERVAL;
        Ok(())
    }

    //= docs/protocol.md#seal-7
    //= docs/protocol.md#seal-3
    pub(crate) fn supersede(&mut self, now: Duration, by: Successor, shared: &mut Shared) {
        self.successor = Some(by);
        match by {
            Successor::Refresh => {
                self.expires_at = self.expires_at.min(now + OLD_KEY_TIME);
                shared.schedule(self.expires_at);
            }
            Successor::Crossing => self.wake(now, shared),
        }
    }

    /// Takes the last number of a lane again, as a hole.
    #[cfg(feature = "holes")]
    pub(crate) fn step_back(&mut self, level: Priority, header_len: usize) {
        self.sending.step_back(level, header_len);
    }

    /// Returns the time of the next [`handle_timeout`](Self::handle_timeout).
    pub(crate) fn due(&self) -> Duration {
        let old_key = self.receiving.due().unwrap_or(Duration::MAX);
        self.expires_at.min(old_key).min(self.look_at.unwrap_or(Duration::MAX))
    }

    /// Does the work that is due. Returns a reason if the association is over.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Duration,
        shared: &mut Shared,
    ) -> Option<EndReason> {
        if now >= self.expires_at && self.end.is_none() {
            let superseded = self.successor.map(|_| EndReason::Superseded);
            self.end = superseded.or(Some(EndReason::Expired));
        }
        self.receiving.handle_timeout(now);
        if self.look_at.is_some_and(|at| now >= at) {
            self.look(now, shared);
        }
        self.end
    }

    /// Looks whether the association is in use. If it is, its key is updated in time. If not, it shrinks.
    fn look(&mut self, now: Duration, shared: &mut Shared) {
        if mem::take(&mut self.is_used) {
            if self.sending.is_key_used() {
                let is_updated = self.sending.update();
                shared.counters.key_updates += u64::from(is_updated);
                if is_updated && shared.limits.has(Hole::ResetNumbers) {
                    self.sending.reset_numbers();
                }
            }
            self.used_at = now;
            self.look_at = Some(now + shared.limits.key_time);
            return;
        }
        self.sending.shrink();
        self.receiving.shrink();
        let is_crossed = self.successor == Some(Successor::Crossing);
        self.look_at = is_crossed.then_some(now + shared.limits.key_time);
        if is_crossed && now >= self.used_at + CROSSED_TIME {
            self.end = Some(EndReason::Superseded);
        }
    }

    /// Returns the last time at which the association was found in use, if it is idle.
    pub(crate) fn idle_since(&self) -> Option<Duration> {
        self.look_at.is_none().then_some(self.used_at)
    }

    /// Makes sure that a later look finds the association.
    #[cold]
    fn wake(&mut self, now: Duration, shared: &mut Shared) {
        if self.look_at.is_none() {
            let at = now + shared.limits.key_time;
            self.look_at = Some(at);
            shared.schedule(at);
        }
    }

    /// Lets the next sweep remove the association.
    fn end(&mut self, now: Duration, reason: EndReason, shared: &mut Shared) {
        self.end = Some(reason);
        self.expires_at = now;
        shared.schedule(now);
    }
}

/// The parts of a table that all associations use.
pub(crate) struct Shared {
    pub(crate) limits: SealLimits,
    pub(crate) counters: SealCounters,
    /// The time of the next sweep; `Duration::MAX` if none is needed.
    pub(crate) sweep_at: Duration,
    /// The earliest time that the sweep under way has found so far.
    pub(crate) earliest: Duration,
    /// Bytes that are kept for pending associations.
    pub(crate) kept_bytes: usize,
    /// Keys that were used for the first time, for the key log; `None` unless there is one.
    pub(crate) key_log: Option<VecDeque<LoggedKey>>,
}

impl Shared {
    /// Makes sure that a sweep begins at this time or before.
    pub(crate) fn schedule(&mut self, at: Duration) {
        self.sweep_at = self.sweep_at.min(at);
        self.earliest = self.earliest.min(at);
    }
}
