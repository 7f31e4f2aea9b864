//! The transports of the hosts.
//!
//! A [`Transport`] is all hosts' ends of one protocol. `apus` is the production core. The others are rivals, as simple as their
//! papers allow.
//!
//! | module | contents | source |
//! |---|---|---|
//! | `apus` | the `apus-proto` endpoint, unchanged | SIGCOMM 2018, docs/protocol.md |
//! | `pfabric` | priority queues by bytes left, full rate, drops | Alizadeh et al., SIGCOMM 2013 |
//! | `tcp` | NewReno, CUBIC, DCTCP, one connection per message | RFC 6582, RFC 9438, RFC 8257 |
//! | `oracle` | senders are chosen with full knowledge | SRPT on one big switch |

pub(crate) mod apus;
pub(crate) mod oracle;
pub(crate) mod pfabric;
pub(crate) mod tcp;

use apus_trace::Trace;

use crate::fabric::Fabric;

/// A message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// Small and unique among the messages in progress.
    pub(crate) number: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) bytes: u32,
}

pub(crate) trait Transport {
    /// The header of its packets.
    type Header: Copy;

    /// Starts a message of the application.
    fn start(&mut self, fabric: &mut Fabric<Self::Header>, message: Message);

    /// Handles a packet that arrived, and removes it from the fabric.
    fn receive(&mut self, fabric: &mut Fabric<Self::Header>, host: u32, packet: u32);

    /// Called when a host's link has nothing to send.
    fn nic_free(&mut self, fabric: &mut Fabric<Self::Header>, host: u32);

    /// Called at a time that the transport asked for.
    fn timer(&mut self, fabric: &mut Fabric<Self::Header>, place: u32, subject: u32);

    /// The time trace, if one is recorded.
    fn time_trace(&self) -> Option<Trace> {
        None
    }

    /// Its own counters, for the results.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}
