//! Records: sealed datagrams, and the keys, numbers and windows of the associations that seal and open them.
//!
//! | file | holds |
//! | --- | --- |
//! | `datagram` | the clear header and the hint, as bytes |
//! | `aead`, `aws` | the cipher as a trait, and that of aws-lc-rs |
//! | `window` | the numbers that have arrived |
//! | `key`, `sending`, `receiving` | the key of an epoch; the two directions of an association |
//! | `association` | one association: its limits, its end |
//! | `table` | all associations of a shard, found by their ids |
//! | `opened` | the way of a received datagram |
//! | `key_log`, `logged_keys` | keys as lines of a key log, and captured datagrams that they open |
//! | `error`, `counters` | reasons for refusing a datagram, and their number |

pub(crate) mod aead;
pub(crate) mod association;
#[cfg(feature = "rustls")]
pub(crate) mod aws;
pub(crate) mod counters;
pub(crate) mod datagram;
pub(crate) mod error;
mod key;
pub(crate) mod key_log;
pub(crate) mod logged_keys;
pub(crate) mod opened;
mod receiving;
mod sending;
pub(crate) mod table;
mod window;
