//! The comment of a captured packet: its RPC, and its sender's decisions.
//!
//! ```text
//! rpc=6 request unscheduled priority=6
//! rpc=6 response granted retransmission priority=2
//! rpc=6 grant priority=7
//! ```
//!
//! The id is in the client's form, in both directions. Only sent packets have a priority: a received packet does not carry it.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use apus_wire::{DATA_HEADER_LEN, Data, Header, PacketType, PathId, Priority, RpcId};

/// Direction of a packet, as in `epb_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// Upper bound on messages whose unscheduled length is kept; beyond it, the oldest is dropped.
const MESSAGES_MAX: usize = 4096;

/// A message: its path, the id in its sender's form, and its direction.
type MessageKey = (PathId, RpcId, Direction);

/// Builds comments. Keeps the number of unscheduled bytes of each message, which only its first packet contains.
#[derive(Default)]
pub(super) struct Comments {
    unscheduled: HashMap<MessageKey, u32>,
    /// The same messages, oldest first.
    order: VecDeque<MessageKey>,
    text: String,
}

impl Comments {
    /// Returns the comment of a packet in one or two parts, or `None` if it does not parse.
    pub(super) fn of(
        &mut self,
        direction: Direction,
        path: PathId,
        priority: Option<Priority>,
        [head, tail]: [&[u8]; 2],
    ) -> Option<&str> {
        let (packet_type, header) = Header::parse(head).ok()?;
        self.text.clear();
        if header.sender_id.client_form() != RpcId(0) {
            let _ = write!(self.text, "rpc={} ", header.sender_id.client_form());
        }
        if packet_type == PacketType::Data {
            let data = data(head, tail)?;
            self.describe((path, header.sender_id, direction), &data);
        } else {
            self.text.push_str(packet_type.name());
        }
        if let Some(priority) = priority {
            let _ = write!(self.text, " priority={}", priority.get());
        }
        Some(&self.text)
    }

    fn describe(&mut self, message: MessageKey, data: &Data) {
        self.text.push_str(if message.1.is_client() { "request" } else { "response" });
        if data.offset == 0 && !data.retransmit {
            self.remember(message, data.incoming);
        }
        match self.unscheduled.get(&message) {
            Some(&unscheduled) if data.offset < unscheduled => self.text.push_str(" unscheduled"),
            Some(_) => self.text.push_str(" granted"),
            None => {}
        }
        if data.retransmit {
            self.text.push_str(" retransmission");
        }
    }

    fn remember(&mut self, message: MessageKey, unscheduled: u32) {
        if self.unscheduled.insert(message, unscheduled).is_some() {
            return;
        }
        self.order.push_back(message);
        if self.order.len() > MESSAGES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.unscheduled.remove(&oldest);
        }
    }
}

/// Parses the header of DATA. The payload is the second part, or follows the header if there is none.
fn data(head: &[u8], tail: &[u8]) -> Option<Data> {
    if tail.is_empty() {
        return Data::parse(head).ok().map(|(data, _)| data);
    }
    Data::parse_fixed(head.first_chunk::<DATA_HEADER_LEN>()?, tail.len()).ok()
}

#[cfg(test)]
mod tests {
    use apus_wire::{DataFlags, Grant, MAX_HEADER};

    use super::*;
    use crate::recorder::PEER;

    const FIRST: Data = Data {
        message_length: 3000,
        incoming: 2000,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: DataFlags::NONE,
        offset: 0,
    };

    fn header(id: u64) -> Header {
        Header { source_port: 32768, dest_port: 4000, sender_id: RpcId(id) }
    }

    fn sent(comments: &mut Comments, id: u64, data: Data) -> String {
        let mut head = [0; DATA_HEADER_LEN];
        data.emit(&header(id), &mut head);
        let priority = Some(Priority::clamped(5));
        let text = comments.of(Direction::Outbound, PEER, priority, [&head, &[7; 100]]);
        text.expect("it is a packet").to_owned()
    }

    #[test]
    fn data_is_unscheduled_up_to_what_its_first_packet_says() {
        let mut comments = Comments::default();
        assert_eq!(sent(&mut comments, 6, FIRST), "rpc=6 request unscheduled priority=5");
        let granted = Data { offset: 2000, incoming: 3000, ..FIRST };
        assert_eq!(sent(&mut comments, 6, granted), "rpc=6 request granted priority=5");
        let again = Data { retransmit: true, incoming: 3000, ..FIRST };
        let text = "rpc=6 request unscheduled retransmission priority=5";
        assert_eq!(sent(&mut comments, 6, again), text);
        assert_eq!(sent(&mut comments, 7, FIRST), "rpc=6 response unscheduled priority=5");
    }

    #[test]
    fn a_comment_has_only_known_values() {
        let mut comments = Comments::default();
        let middle = Data { offset: 1000, ..FIRST };
        assert_eq!(sent(&mut comments, 6, middle), "rpc=6 request priority=5");
        let mut head = [0; DATA_HEADER_LEN];
        FIRST.emit(&header(6), &mut head);
        let whole = [&head[..], &[7; 100]].concat();
        let received = comments.of(Direction::Inbound, PEER, None, [&whole, &[]]);
        assert_eq!(received, Some("rpc=6 request unscheduled"));
        assert_eq!(comments.of(Direction::Inbound, PEER, None, [&[0xAB; 60], &[]]), None);
        let whole = [&head[..], &[7; 3001]].concat();
        assert_eq!(comments.of(Direction::Inbound, PEER, None, [&whole, &[]]), None);
    }

    #[test]
    fn a_control_packet_is_named() {
        let mut packet = [0; MAX_HEADER];
        let grant = Grant { offset: 9, priority: Priority::LOWEST };
        let length = grant.emit(&header(7), &mut packet);
        let mut comments = Comments::default();
        let text = comments.of(
            Direction::Outbound,
            PEER,
            Some(Priority::HIGHEST),
            [&packet[..length], &[]],
        );
        assert_eq!(text, Some("rpc=6 grant priority=7"));
    }

    #[test]
    fn a_bounded_number_of_messages_is_remembered() {
        let mut comments = Comments::default();
        for id in 0..2 * MESSAGES_MAX as u64 {
            sent(&mut comments, 2 * id + 2, FIRST);
        }
        assert_eq!(
            (comments.unscheduled.len(), comments.order.len()),
            (MESSAGES_MAX, MESSAGES_MAX)
        );
    }
}
