//! Packets that arrive as entries of compact bundles.

use apus_proto::{Endpoint, Time};
use apus_wire::compact::{self, AckRange, Entries, Entry, Envelope, Message};
use apus_wire::{Data, Packet, PathId, Stamp};

/// Passes a packet to an endpoint: one that a compact bundle can hold as such a bundle, if the id of its RPC has a certain bit.
pub(super) fn pass(endpoint: &mut Endpoint, now: Time, from: PathId, packet: &[u8]) {
    match compact_form(packet).filter(|_| !from.is_native()) {
        Some(bundle) => {
            let mut entries = Entries::parse(&bundle).expect("the bundle was just made");
            endpoint.handle_entries_as_events(now, from, &mut entries);
        }
        None => endpoint.handle_packet(now, from, packet),
    }
}

/// Returns the compact bundle for a packet.
fn compact_form(packet: &[u8]) -> Option<Vec<u8>> {
    let stamp = Stamp::read(packet).filter(|stamp| stamp.version == Stamp::VERSION)?;
    let (cutoff_version, entries) = match Packet::parse(packet).ok()? {
        Packet::Data { header, data, payload } => {
            let is_whole = payload.len() == data.message_length as usize && !data.retransmit;
            if !is_whole || header.sender_id.0 & 4 == 0 {
                return None;
            }
            let (flags, words) = (data.flags, Data::extension_words(packet));
            let message = Entry::Message(Message { header, flags, words, body: payload });
            let ack = data.ack.map(|acked| acks(acked.client_id));
            (data.cutoff_version, [ack, Some(message)].into_iter().flatten().collect())
        }
        Packet::Ack { header, ack } => {
            let others = ack.iter().map(|acked| acks(acked.client_id));
            (0, others.chain([acks(header.sender_id.client_form())]).collect::<Vec<_>>())
        }
        _ => return None,
    };
    let envelope = Envelope { token: stamp.token, cutoff_version };
    let mut bundle = Vec::new();
    compact::start(&mut bundle, &envelope, entries.first()?.id());
    let fits = entries.iter().all(|entry| compact::push(&mut bundle, usize::MAX, &envelope, entry));
    fits.then_some(bundle)
}

fn acks(first: apus_wire::RpcId) -> Entry<'static> {
    Entry::Acks(AckRange { first, count: 1 })
}
