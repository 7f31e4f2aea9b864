//! Responses of the application.

use std::time::Duration;

use apus_wire::{MAX_LINUX_MESSAGE, RpcUnknown, UnknownReason};

use crate::body::Body;
use crate::config::Config;
use crate::control;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::step::Step;
use crate::error::ReplyError;
use crate::local::is_local;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::rpc::Phase;
use crate::slab::RpcKey;
use crate::time::{Time, nanos};
use crate::timer::TICK;
use crate::trace::TraceEvent;
use crate::usage::{Account, RPC_BYTES};

/// Upper bound on the time for which a short response waits for the next call to bring its acknowledgement.
const ACK_RTO_MAX: Duration = Duration::from_millis(200);

impl Endpoint {
    /// Answers a request.
    ///
    /// # Errors
    ///
    /// If the request is no longer in service, or the response is too large, empty and for a Linux host, or does not fit the
    /// budgets. In all cases but the first, the request can be answered again.
    pub fn reply(
        &mut self,
        now: Time,
        key: RpcKey,
        body: impl Into<Body>,
    ) -> Result<(), ReplyError> {
        let body = body.into();
        if is_local(key) {
            return self.reply_local(now, key, body);
        }
        if self.rpcs.get(key).is_some_and(|rpc| rpc.cancelled) {
            self.remove_rpc(key); // The client no longer waits for it.
        }
        let is_ample = match self.check_reply(key, body.len()) {
            Ok(is_ample) => is_ample,
            Err(error) => {
                self.discard(body);
                return Err(error);
            }
        };
        if let Some(mut step) = self.step(key) {
            step.reply(now, body);
        }
        if !is_ample {
            self.exempt(key);
        }
        Ok(())
    }

    /// Checks whether a request can be answered with a response of this length. Returns whether each budget has ample room for it.
    #[inline]
    fn check_reply(&mut self, key: RpcKey, length: usize) -> Result<bool, ReplyError> {
        let limit = self.parts.config.message_max;
        let in_service = self.step(key).filter(|step| step.rpc.phase.is_in_service());
        let step = in_service.ok_or(ReplyError::NotInService)?;
        if length > limit as usize {
            return Err(ReplyError::MessageTooLarge { length, limit });
        }
        match length {
            0 if step.peer.native => return Err(ReplyError::EmptyForLinux),
            _ if length > MAX_LINUX_MESSAGE as usize && step.peer.native => {
                return Err(ReplyError::TooLargeForLinux { length });
            }
            _ => {}
        }
        //= docs/protocol.md#hostile-9
        let (cost, charged) = (RPC_BYTES + length as u64, step.rpc.charge.bytes);
        let is_ample = cost <= charged || step.has_plenty(cost);
        if !is_ample {
            let (peer, socket) = (step.rpc.peer, step.rpc.socket);
            let room = self.room_to_send(peer, socket, Account::Theirs, charged);
            if length as u64 > room {
                return Err(ReplyError::OverBudget { length, room });
            }
        }
        Ok(is_ample)
    }

    /// Gives up a request in service, for example because its handler panicked, and reports that to the client, if it is an Apus
    /// node. Returns `false` if the request is no longer in service: answered, aborted, or its client gone.
    pub fn reject(&mut self, key: RpcKey, reason: UnknownReason) -> bool {
        if is_local(key) {
            return self.is_local_active(key) && self.abort_local(key, reason);
        }
        let in_service = self.step(key).filter(|step| step.rpc.phase.is_in_service());
        let Some(mut step) = in_service else { return false };
        //= docs/protocol.md#handler-1
        //= docs/protocol.md#linux-2
        if !step.peer.native {
            step.control(control::Body::Unknown(RpcUnknown { reason }));
        }
        self.abort(key)
    }
}

impl Step<'_> {
    /// Begins to transmit the response of a request in service.
    fn reply(&mut self, now: Time, body: Body) {
        let length = body.len() as u32;
        let request = self.rpc.charge.bytes.saturating_sub(RPC_BYTES);
        self.parts.note_call(now, request, length.into());
        self.trace(TraceEvent::SendmsgResponse, length, 0);
        let config = &self.parts.config;
        let (peer, rpc) = (&mut *self.peer, &mut *self.rpc);
        let priority =
            unscheduled_priority(peer.server.cutoffs.as_ref(), config.priorities, length);
        let most = self.parts.unscheduled_most();
        let mut unscheduled = peer.unscheduled_of(config, length).min(most);
        //= docs/protocol.md#incast-2
        if rpc.incast {
            unscheduled = unscheduled.min(config.incast_unscheduled);
        }
        rpc.note_progress(now);
        rpc.expires = None; // The client acknowledges the response.
        rpc.probing.queued = false;
        rpc.probing.rto = response_rto(now, rpc.started, length, peer, config);
        let birth = self.parts.next_birth();
        rpc.phase = Phase::Outgoing(Outgoing::new(body, unscheduled, priority, birth));
        self.requeue();
        self.charge(RPC_BYTES + u64::from(length));
        self.parts.counters.responses += 1;
        self.parts.counters.message_given(length.into());
        // The response is to be examined after the least RTO at the earliest. The timer of a request of one packet runs out by then.
        let config = &self.parts.config;
        let least = now + config.resend_min.min(config.peer_timeout) + TICK;
        if self.rpc.armed <= now || self.rpc.armed >= least {
            self.arm(now);
        }
    }
}

/// Returns the silence, in nanoseconds, after which the client is asked for the acknowledgement of a response of `length` bytes, whose
/// request began at `started`.
#[inline]
pub(super) fn response_rto(
    now: Time,
    started: Time,
    length: u32,
    peer: &Peer,
    config: &Config,
) -> u64 {
    //= docs/protocol.md#ack-3
    let client_asks = now < started.after(nanos(config.resend_min));
    let rto = peer.rto_nanos(config);
    if client_asks && !peer.native && length <= peer.measured.packet_payload {
        nanos(config.rto_max().min(ACK_RTO_MAX)).max(rto)
    } else {
        rto
    }
}
