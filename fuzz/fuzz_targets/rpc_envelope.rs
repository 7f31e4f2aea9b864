//! Envelopes of services: a message whose head is read gives the same head when it is written again.

#![no_main]

use apus_rpc::Bytes;
use apus_rpc::envelope::{EnvelopeLimits, RequestHead, ResponseHead};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let message = Bytes::copy_from_slice(bytes);
    let limits = EnvelopeLimits::new();
    if let Ok((head, chunks)) = RequestHead::decode(&message, &limits) {
        let again = Bytes::from([head.encode(0), chunks.to_vec()].concat());
        assert_eq!(RequestHead::decode(&again, &limits), Ok((head, chunks)));
    }
    if let Ok((head, chunks)) = ResponseHead::decode(&message, &limits) {
        let again = Bytes::from([head.encode(0), chunks.to_vec()].concat());
        assert_eq!(ResponseHead::decode(&again, &limits), Ok((head, chunks)));
    }
});
