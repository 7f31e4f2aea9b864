//! The expanded key of one epoch.

use crate::record::datagram::Iv;
use crate::{Aead, DirectionSecret, Suite};

pub(crate) struct EpochKey<A> {
    pub(crate) aead: A,
    pub(crate) iv: Iv,
}

impl<A: Aead> EpochKey<A> {
    pub(crate) fn new(secret: &DirectionSecret, suite: Suite) -> Self {
        let key = secret.record_key(suite);
        Self { aead: A::new(&key), iv: Iv::new(key.iv()) }
    }
}
