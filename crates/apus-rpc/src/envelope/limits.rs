//! Limits of a receiver.

use crate::envelope::error::EnvelopeError;

/// Limits on the envelopes and bodies that a channel or server accepts. Setters return the limits, so that they can be chained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EnvelopeLimits {
    pub(crate) head: usize,
    pub(crate) pairs: usize,
    pub(crate) frame: usize,
}

impl EnvelopeLimits {
    /// The defaults.
    #[must_use]
    //= docs/rpc-wire.md#E5
    //= docs/rpc-wire.md#E8
    //= docs/rpc-wire.md#E17
    pub const fn new() -> Self {
        Self { head: 16 << 10, pairs: 128, frame: 4 << 20 }
    }

    /// Longest head of a message, in bytes: path, metadata, and the status with its message and details. Default 16,384.
    #[must_use]
    pub const fn head_max(mut self, bytes: usize) -> Self {
        self.head = bytes;
        self
    }

    /// Most pairs of metadata in one block. Default 128.
    #[must_use]
    pub const fn pairs_max(mut self, pairs: usize) -> Self {
        self.pairs = pairs;
        self
    }

    /// Longest message of a method, in bytes. Default 4,194,304 (4 MiB). The setting `message_max` of the node (64 MiB) bounds it as
    /// well.
    #[must_use]
    pub const fn frame_max(mut self, bytes: usize) -> Self {
        self.frame = bytes;
        self
    }

    /// Refuses a message of a method that is longer than the limit.
    //= docs/rpc-wire.md#E17
    pub(crate) fn check_frame(&self, length: usize) -> Result<(), EnvelopeError> {
        if length > self.frame {
            return Err(EnvelopeError::FrameTooLong { length, limit: self.frame });
        }
        Ok(())
    }
}

impl Default for EnvelopeLimits {
    fn default() -> Self {
        Self::new()
    }
}
