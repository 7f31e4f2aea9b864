//! The timer that runs every millisecond.

use super::format::Kind;
use super::{Happened, Key, Module, State};

/// Ticks of silence before the first RESEND.
const RESEND_TICKS: u32 = 5;
/// Ticks between RESENDs.
const RESEND_INTERVAL: u32 = 5;
/// Ticks of silence after which an RPC fails.
const TIMEOUT_TICKS: u32 = 100;
/// Ticks between sending a response and NEED_ACK.
const ACK_TICKS: u64 = 2;

impl Module {
    /// Runs the timer once.
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        for key in self.rpcs.keys().copied().collect::<Vec<_>>() {
            self.tick_rpc(key);
        }
    }

    fn tick_rpc(&mut self, key: Key) {
        let ticks = self.ticks;
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        if rpc.state == State::InService {
            rpc.silent = 0;
            return;
        }
        rpc.silent += 1;
        if !rpc.is_client() && rpc.state == State::Outgoing {
            let sent = rpc.outgoing.as_ref().is_some_and(|message| message.is_sent());
            let since = *rpc.sent_at.get_or_insert(ticks);
            if !sent {
                rpc.sent_at = None;
            } else if ticks - since >= ACK_TICKS {
                let (peer, header) = (rpc.peer, rpc.header(Kind::NeedAck));
                self.counts.need_acks += 1;
                self.control(peer, header, &[]);
            }
        }
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        let waits_for_us = match rpc.state {
            State::Incoming => {
                rpc.incoming.as_ref().is_none_or(|message| message.missing().is_empty())
            }
            _ => {
                !rpc.is_client() || rpc.outgoing.as_ref().is_some_and(|message| message.may_send())
            }
        };
        if waits_for_us {
            rpc.silent = 0;
            return;
        }
        if rpc.silent < RESEND_TICKS {
            return;
        }
        if rpc.silent >= TIMEOUT_TICKS {
            if let Some(rpc) = self.end(key)
                && rpc.is_client()
            {
                self.happened.push_back(Happened::Failed { id: rpc.id, error: "ETIMEDOUT" });
            }
            return;
        }
        if (rpc.silent - RESEND_TICKS).is_multiple_of(RESEND_INTERVAL) {
            self.request_retransmission(key);
        }
    }
}
