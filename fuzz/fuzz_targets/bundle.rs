//! Bundles: the items of a bundle, put together again, are the same datagram.

#![no_main]

use apus_wire::bundle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
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
