//! Calls and responses within the host that go straight into the ring of their peer.

use apus_proto::{Body, CallError, CallOptions, Departures, RpcKey, SocketKey, Time, Words};
use apus_wire::PathId;

use super::Engine;
use crate::error::ReplyError;
use crate::host::neighbours::NeighbourSender;

/// Calls of a socket to one node of the host, or responses of it. The node can read each message before this process charges and
/// counts it. Their common part is charged once, when the value is dropped. The node is woken by the next
/// [`transmit`](Engine::transmit).
pub(crate) struct Near<'a> {
    departures: Departures<'a>,
    sender: NeighbourSender<'a>,
}

/// A request with a response.
pub(crate) trait Reply {
    /// The request.
    fn rpc(&self) -> RpcKey;

    /// Takes the response, if there is one.
    fn take_response(&mut self) -> Option<(RpcKey, Body)>;

    /// The response of this length is on its way.
    fn sent(&mut self, length: usize);

    /// The response was refused.
    fn refused(&mut self, body: Body, error: &ReplyError);
}

impl Engine {
    /// Gives responses of a service to the peer at the end of a path; nothing is transmitted yet.
    pub(crate) fn reply_many<R: Reply>(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: PathId,
        replies: &mut [R],
    ) {
        if self.mail.mailbox(socket).is_none() {
            return; // The service is closed.
        }
        if let Some(mut near) = self.near(now, socket, to) {
            for reply in replies {
                let Some((rpc, body)) = reply.take_response() else { continue };
                let length = body.len();
                match near.reply(rpc, body) {
                    Ok(()) => reply.sent(length),
                    Err(error) => {
                        reply.refused(near.departures.take_refused(), &ReplyError::refused(error));
                    }
                }
            }
            return;
        }
        if !to.is_local() && replies.iter().any(|reply| self.endpoint.is_active(reply.rpc())) {
            self.know_path(now, to); // The peer of a request holds the path.
        }
        let mut messages = self.endpoint.short_messages(now, socket, to);
        for reply in replies {
            let Some((rpc, body)) = reply.take_response() else { continue };
            let length = body.len();
            match messages.reply(rpc, body) {
                Ok(()) => reply.sent(length),
                Err(error) => {
                    let body = messages.endpoint().take_refused().unwrap_or_default();
                    reply.refused(body, &ReplyError::refused(error));
                }
            }
        }
    }

    /// Returns the way to the node at the end of a path within the host. `None` for other paths, and if the engine works for other
    /// processes or another engine for this one.
    #[inline]
    pub(crate) fn near(&mut self, now: Time, socket: SocketKey, path: PathId) -> Option<Near<'_>> {
        if !path.is_local() {
            return None;
        }
        let sender = self.neighbours.as_mut()?.sender(now, path)?;
        Some(Near { departures: self.endpoint.departures(now, socket, path), sender })
    }
}

impl Near<'_> {
    /// Starts a call to the service at `port`.
    #[inline]
    pub(crate) fn call(
        &mut self,
        port: u16,
        body: Body,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let sender = &mut self.sender;
        self.departures.call(port, body, options, |words, body| send(sender, words, body))
    }

    /// Answers a request.
    #[inline]
    pub(crate) fn reply(&mut self, rpc: RpcKey, body: Body) -> Result<(), apus_proto::ReplyError> {
        let sender = &mut self.sender;
        self.departures.reply(rpc, body, |words, body| send(sender, words, body))
    }
}

/// Sends a message. Returns `true`: it does not have to wait.
#[inline]
fn send(sender: &mut NeighbourSender<'_>, words: Words, body: &Body) -> bool {
    sender.send(words, body);
    true
}
