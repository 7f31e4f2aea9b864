//! Bundles: the items of a bundle, put together again, are the same datagram; so are the entries of a compact one, apart from bytes
//! without a meaning, and each of them is a packet that parses.

#![no_main]

use apus_wire::compact::{self, Entries, Entry};
use apus_wire::{DataFlags, Packet, bundle, packets_of_entries};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    if bundle::is_bundle(datagram) && compact::is_compact(datagram) {
        return entries_of(datagram);
    }
    let items: Vec<_> = bundle::packets(datagram).collect();
    assert!(items.len() <= bundle::MAX_PACKETS + 1);
    let good = items.iter().take_while(|item| item.is_ok()).count();
    assert!(good + 1 >= items.len(), "an item follows an error");
    if good == items.len() {
        assert!(bundle::is_bundle(datagram));
        let mut again = Vec::new();
        bundle::start(&mut again);
        for packet in items.into_iter().flatten() {
            let (header, payload) = packet.split_at(packet.len() / 3);
            assert!(bundle::push(&mut again, datagram.len(), header, payload));
        }
        assert_eq!(again, datagram);
    }
});

fn entries_of(datagram: &[u8]) {
    let Ok(mut entries) = Entries::parse(datagram) else { return };
    packets_of_entries(&mut entries.clone(), |packet| {
        Packet::parse(packet).expect("an entry stands for a packet");
    });
    let envelope = entries.envelope();
    let all: Vec<Entry<'_>> = entries.by_ref().collect();
    assert_eq!(all.len(), usize::from(entries.taken()));
    let Some(first) = all.first() else { return };
    let mut again = Vec::new();
    compact::start(&mut again, &envelope, first.id());
    for entry in &all {
        // A hostile bundle may have ids that are far apart.
        if !compact::push(&mut again, usize::MAX, &envelope, entry) {
            return;
        }
    }
    let parsed: Vec<Entry<'_>> = Entries::parse(&again).expect("it was just made").collect();
    assert_eq!(parsed.len(), all.len());
    for (one, other) in all.iter().zip(&parsed) {
        match (one, other) {
            (Entry::Message(one), Entry::Message(other)) => {
                assert_eq!(
                    (one.header, one.words, one.body),
                    (other.header, other.words, other.body)
                );
                assert_eq!(
                    one.flags.with(DataFlags::EXTENDED),
                    other.flags.with(DataFlags::EXTENDED)
                );
            }
            _ => assert_eq!(one, other),
        }
    }
}
