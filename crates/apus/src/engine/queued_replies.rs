//! Responses within the host that quick handlers of a service have given, and that leave together.
//!
//! They wait outside the engine, so a handler does not take the lock for each of them. The thread that turns the engine next sends
//! them: mostly the thread of the handlers, after the last request of a batch.

use std::mem;

use apus_proto::{Body, RpcKey, SocketKey, Time};
use apus_wire::PathId;

use super::Engine;
use super::near::Reply;
use crate::error::ReplyError;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// The queue, which an engine shares with the handles of its node.
#[derive(Debug)]
pub(crate) struct QueuedReplies {
    replies: Mutex<Vec<QueuedReply>>,
    /// Number of `replies`, as far as the lock of the engine need not be exact.
    count: AtomicU32,
    /// Upper bound on the length of a response that waits here. A longer one may be refused, of which its giver learns.
    longest: usize,
}

/// A response, and the request that it answers.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    pub(crate) socket: SocketKey,
    pub(crate) rpc: RpcKey,
    pub(crate) path: PathId,
    /// Time at which the application took the request, if it has a deadline.
    pub(crate) taken: Option<Time>,
    pub(crate) body: Body,
}

/// Longer responses gain nothing by waiting for others.
const LONGEST: usize = 4 << 10;

impl QueuedReplies {
    /// `message_max`: length of the longest message of the node.
    pub(super) fn new(message_max: usize) -> Self {
        let (replies, count) = (Mutex::new(Vec::new()), AtomicU32::new(0));
        Self { replies, count, longest: message_max.min(LONGEST) }
    }

    /// Whether a response of this length may wait.
    #[inline]
    pub(crate) fn takes(&self, length: usize) -> bool {
        length <= self.longest
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds a response.
    #[inline]
    pub(crate) fn push(&self, reply: QueuedReply) {
        let Ok(mut replies) = self.replies.lock() else { return };
        replies.push(reply);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Moves all responses to `target`, which is empty.
    fn take(&self, target: &mut Vec<QueuedReply>) {
        let Ok(mut replies) = self.replies.lock() else { return };
        mem::swap(&mut *replies, target);
        self.count.store(0, Ordering::Relaxed);
    }
}

impl Engine {
    /// Gives the waiting responses to the endpoint or into the rings of their clients.
    #[inline]
    pub(super) fn send_queued_replies(&mut self, now: Time) {
        if !self.replies.is_empty() {
            self.send_replies(now);
        }
    }

    #[inline(never)]
    fn send_replies(&mut self, now: Time) {
        let mut replies = mem::take(&mut self.spent_replies);
        self.replies.take(&mut replies);
        let is_same = |a: &QueuedReply, b: &QueuedReply| (a.path, a.socket) == (b.path, b.socket);
        for run in replies.chunk_by_mut(is_same) {
            self.send_run(now, run);
        }
        for reply in replies.drain(..).filter(|reply| !reply.body.is_empty()) {
            self.endpoint.discard(reply.body); // It was refused: the client no longer waits, or the service is closed.
        }
        self.spent_replies = replies;
    }

    /// Sends responses of one service to one client.
    fn send_run(&mut self, now: Time, run: &mut [QueuedReply]) {
        let Some(&mut QueuedReply { socket, path, .. }) = run.first_mut() else { return };
        if let Some(mailbox) = self.mail.mailbox(socket) {
            for taken in run.iter().filter_map(|reply| reply.taken) {
                mailbox.queue.note_service_time(now.saturating_since(taken));
            }
        }
        self.reply_many(now, socket, path, run);
    }
}

impl Reply for QueuedReply {
    fn rpc(&self) -> RpcKey {
        self.rpc
    }

    #[inline]
    fn take_response(&mut self) -> Option<(RpcKey, Body)> {
        Some((self.rpc, mem::take(&mut self.body)))
    }

    #[inline]
    fn sent(&mut self, _: usize) {}

    #[cold]
    fn refused(&mut self, body: Body, _: &ReplyError) {
        self.body = body;
    }
}
