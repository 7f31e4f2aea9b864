//! The direction in which this node receives: the keys of up to three epochs, and the windows.

use std::time::Duration;

use crate::datagram::{ClearHeader, Number};
use crate::key::EpochKey;
use crate::window::{Stale, Windows};
use crate::{Aead, DirectionSecret, Suite};

/// Time for which an old key still opens datagrams that later ones have overtaken.
pub(crate) const OLD_KEY_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Receiving<A> {
    suite: Suite,
    epoch: u32,
    secret: DirectionSecret,
    /// The key of the epoch; absent until the first datagram, and while the path is idle.
    key: Option<EpochKey<A>>,
    /// Secret and key of the next epoch, once a datagram claims it. No tag has fitted yet.
    candidate: Option<(DirectionSecret, EpochKey<A>)>,
    /// The key of the epoch before, and the end of its time.
    previous: Option<(EpochKey<A>, Duration)>,
    windows: Windows,
}

impl<A: Aead> Receiving<A> {
    pub(crate) fn new(suite: Suite, secret: DirectionSecret) -> Self {
        Self {
            suite,
            epoch: 0,
            secret,
            key: None,
            candidate: None,
            previous: None,
            windows: Windows::new(),
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.key.is_none()
    }

    #[inline]
    pub(crate) fn check(&self, number: Number, is_home: bool) -> Result<(), Stale> {
        self.windows.check(number, is_home)
    }

    //= docs/protocol.md#seal-15
    /// Returns the key that may open the datagram; `None` if this node does not have it.
    #[inline]
    pub(crate) fn key(&mut self, clear: ClearHeader, now: Duration) -> Option<&EpochKey<A>> {
        match self.epochs_ahead(clear) {
            0 => Some(self.key.get_or_insert_with(|| EpochKey::new(&self.secret, self.suite))),
            1 => {
                let (_, key) = self.candidate.get_or_insert_with(|| {
                    let secret = self.secret.next();
                    let key = EpochKey::new(&secret, self.suite);
                    (secret, key)
                });
                Some(key)
            }
            3 => self.previous.as_ref().filter(|(_, end)| now < *end).map(|(key, _)| key),
            _ => None,
        }
    }

    /// Notes that the tag of a datagram fits. Returns the time at which the old key ends, if the datagram began an epoch.
    #[inline]
    pub(crate) fn accept(
        &mut self,
        clear: ClearHeader,
        is_home: bool,
        now: Duration,
    ) -> Option<Duration> {
        self.windows.set(clear.number, is_home);
        if self.epochs_ahead(clear) == 1 { self.advance(now) } else { None }
    }

    #[cold]
    fn advance(&mut self, now: Duration) -> Option<Duration> {
        let (secret, key) = self.candidate.take()?;
        let end = now + OLD_KEY_TIME;
        self.epoch += 1;
        self.secret = secret;
        self.previous = self.key.replace(key).map(|key| (key, end));
        Some(end)
    }

    /// Returns the distance of the datagram's epoch from that of this node, modulo 4.
    #[inline]
    fn epochs_ahead(&self, clear: ClearHeader) -> u32 {
        clear.epoch_bits().wrapping_sub(self.epoch) % 4
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
