//! The direction in which this node receives: the keys of up to three epochs, and the windows.

use std::time::Duration;

use crate::record::datagram::AssociationId;
use crate::record::key::EpochKey;
use crate::record::key_log::LoggedKey;
use crate::record::window::Windows;
use crate::{Aead, DirectionSecret, Suite};

/// Time for which an old key still opens datagrams that later ones have overtaken.
pub(crate) const OLD_KEY_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Receiving<A> {
    suite: Suite,
    epoch: u32,
    secret: DirectionSecret,
    /// The key of the epoch; absent until the first datagram, and while the path is idle.
    key: Option<EpochKey<A>>,
    /// Whether the key of the epoch is in the key log.
    is_logged: bool,
    /// Secret and key of the next epoch, once a datagram claims it. No tag has fitted yet.
    candidate: Option<(DirectionSecret, EpochKey<A>)>,
    /// The key of the epoch before, and the end of its time.
    previous: Option<(EpochKey<A>, Duration)>,
    pub(crate) windows: Windows,
}

impl<A: Aead> Receiving<A> {
    pub(crate) fn new(suite: Suite, secret: DirectionSecret) -> Self {
        Self {
            suite,
            epoch: 0,
            secret,
            key: None,
            is_logged: false,
            candidate: None,
            previous: None,
            windows: Windows::new(),
        }
    }

    /// Returns the key of this epoch, if the datagram names it and it is expanded. [`rare_key`](Self::rare_key) returns other
    /// keys.
    #[inline]
    pub(crate) fn usual_key(&self, epoch_bits: u32) -> Option<&EpochKey<A>> {
        if self.epochs_ahead(epoch_bits) == 0 { self.key.as_ref() } else { None }
    }

    //= docs/protocol.md#seal-15
    /// Returns the key that a datagram names; `None` if this node does not have it.
    #[cold]
    pub(crate) fn rare_key(&mut self, epoch_bits: u32) -> Option<&EpochKey<A>> {
        match self.epochs_ahead(epoch_bits) {
            0 => Some(self.key.get_or_insert_with(|| EpochKey::new(&self.secret, self.suite))),
            1 => {
                let (_, key) = self.candidate.get_or_insert_with(|| {
                    let secret = self.secret.next();
                    let key = EpochKey::new(&secret, self.suite);
                    (secret, key)
                });
                Some(key)
            }
            3 => self.previous.as_ref().map(|(key, _)| key),
            _ => None,
        }
    }

    /// Notes that a tag fits the key of [`rare_key`](Self::rare_key). If that begins an epoch, returns the end of the old key's
    /// time.
    #[cold]
    pub(crate) fn confirm(&mut self, epoch_bits: u32, now: Duration) -> Option<Duration> {
        if self.epochs_ahead(epoch_bits) != 1 {
            return None;
        }
        let (secret, key) = self.candidate.take()?;
        self.epoch += 1;
        self.secret = secret;
        self.is_logged = false;
        self.previous = self.key.replace(key).map(|key| (key, now + OLD_KEY_TIME));
        self.due()
    }

    /// Returns the key of the epoch, whose datagrams have the id, for the key log, once.
    #[cold]
    pub(crate) fn take_key_to_log(&mut self, id: AssociationId) -> Option<LoggedKey> {
        let is_logged = std::mem::replace(&mut self.is_logged, true);
        let key = || self.secret.record_key(self.suite);
        (!is_logged).then(|| LoggedKey { id, epoch: self.epoch, key: key() })
    }

    /// Returns the distance of the datagram's epoch from that of this node, modulo 4.
    #[inline]
    fn epochs_ahead(&self, epoch_bits: u32) -> u32 {
        epoch_bits.wrapping_sub(self.epoch) % 4
    }

    /// Returns the time at which the old key ends.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.previous.as_ref().map(|(_, end)| *end)
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        self.previous.take_if(|(_, end)| now >= *end);
    }

    /// Gives up the expanded keys and the windows.
    pub(crate) fn shrink(&mut self) {
        self.key = None;
        self.candidate = None;
        self.previous = None;
        self.windows.shrink();
    }
}
