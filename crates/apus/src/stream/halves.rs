//! The two halves of a stream at one end, and the reason if the stream ended early.

use bytes::Bytes;

use crate::error::CallError;
use crate::stream::incoming::{Incoming, Violation};
use crate::stream::message::{FIN, HEADER, MORE, Reason, SegmentHeader};
use crate::stream::outgoing::{Outgoing, Segment};

/// The reason for the end of a stream before both halves are complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The peer has reset it.
    ByPeer(Reason),
    /// This end has reset the stream, and reports that to the peer.
    ByUs(Reason),
    /// The call that opens the stream has failed.
    NotOpened(CallError),
    /// A call has failed permanently.
    Failed(CallError),
    /// The port or the node was closed.
    Closed,
}

/// The common state of both ends of a stream.
#[derive(Debug)]
pub(crate) struct Halves {
    pub(crate) id: u64,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) broken: Option<Broken>,
}

impl Halves {
    /// `window`: upper bound on waiting bytes in each direction. `segment_max`: upper bound on the bytes of one message.
    pub(crate) fn new(id: u64, window: u64, segment_max: usize) -> Self {
        let (outgoing, incoming) = (Outgoing::new(segment_max, window), Incoming::new(window));
        Self { id, outgoing, incoming, broken: None }
    }

    /// Whether both halves are complete, or the stream is broken.
    pub(crate) fn is_over(&self) -> bool {
        self.broken.is_some() || (self.outgoing.is_complete() && self.incoming.is_complete())
    }

    /// Ends the stream, unless it has ended already: the first reason counts.
    pub(crate) fn end(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// Handles a message. A violation of the rules ends the stream. Returns `true` if the stream continues.
    pub(crate) fn handle(&mut self, header: &SegmentHeader, payload: Bytes) -> bool {
        if self.broken.is_some() {
            return false;
        }
        if let Some(reason) = header.reason {
            // The peer may have forgotten a stream that it has completed.
            if !(self.is_over() && reason == Reason::Unknown) {
                self.end(Broken::ByPeer(reason));
            }
            return false;
        }
        match self.take(header, payload) {
            Ok(()) => true,
            Err(Violation) => {
                self.end(Broken::ByUs(Reason::Violation));
                false
            }
        }
    }

    fn take(&mut self, header: &SegmentHeader, payload: Bytes) -> Result<(), Violation> {
        if header.id != self.id {
            return Err(Violation);
        }
        self.outgoing.acknowledged(header.received, header.limit)?;
        self.incoming.insert(header.offset, payload, header.has(FIN))
    }

    /// A message, with the next segment if `with_segment` is true and a segment waits, and the offset of that segment.
    pub(crate) fn message(
        &mut self,
        flags: u8,
        keep: u8,
        epoch: u16,
        with_segment: bool,
    ) -> (Bytes, Option<u64>) {
        let segment = if with_segment { self.outgoing.take_segment() } else { None };
        let begins = segment.as_ref().map(|segment| segment.offset);
        let Segment { offset, mut body, fin } = segment.unwrap_or_else(|| Segment {
            offset: self.outgoing.next(),
            body: vec![0; HEADER],
            fin: false,
        });
        let more = begins.is_some() && !self.outgoing.is_sent();
        let header = SegmentHeader {
            flags: flags | if fin { FIN } else { 0 } | if more { MORE } else { 0 },
            keep,
            reason: None,
            epoch,
            id: self.id,
            offset,
            received: self.incoming.received(),
            limit: self.incoming.advertise_limit(),
        };
        body[..HEADER].copy_from_slice(&header.encode());
        let body = Bytes::from(body);
        if begins.is_some() {
            self.outgoing.sent(offset, body.slice(HEADER..));
        }
        (body, begins)
    }
}
