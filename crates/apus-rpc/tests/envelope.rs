//! Envelopes as bytes: golden messages, every refusal, and round trips of generated ones.

use apus_rpc::envelope::{
    EnvelopeError, EnvelopeLimits, MethodPath, Opening, RequestHead, ResponseHead,
};
use apus_rpc::{Bytes, Code, Metadata, Status};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const LIMITS: EnvelopeLimits = EnvelopeLimits::new();

fn hex(text: &str) -> Bytes {
    let digits: Vec<_> = text.split_whitespace().collect();
    digits.iter().map(|byte| u8::from_str_radix(byte, 16).expect("two digits")).collect()
}

fn request(message: &Bytes) -> Result<(RequestHead, Bytes), EnvelopeError> {
    RequestHead::decode(message, &LIMITS)
}

fn response(message: &Bytes) -> Result<(ResponseHead, Bytes), EnvelopeError> {
    ResponseHead::decode(message, &LIMITS)
}

/// The example of docs/rpc-wire.md.
fn opening() -> Opening {
    let mut metadata = Metadata::new();
    metadata.append("x-tenant-id", "7").expect("a pair");
    let path = MethodPath::new("/shop.Calc/Add").expect("a path");
    Opening { id: 0x0102_0304_0506_0708, ends: true, holds: false, path, metadata }
}

const OPEN: &str = "
    a1 01 01 01 02 03 04 05 06 07 08
    0e 2f 73 68 6f 70 2e 43 61 6c 63 2f 41 64 64
    01 00 1b 01 37";

#[test]
fn an_open_has_its_bytes() {
    //= docs/rpc-wire.md#E1
    //= docs/rpc-wire.md#E2
    //= docs/rpc-wire.md#E9
    let open = RequestHead::Open(opening());
    assert_eq!(Bytes::from(open.encode(0)), hex(OPEN));
    let message = hex(&format!("{OPEN} 68 69"));
    assert_eq!(request(&message), Ok((open, Bytes::from("hi"))));
}

#[test]
fn other_requests_have_their_bytes() {
    let id = 5;
    for (head, bytes) in [
        (RequestHead::Push { id, ends: true, seq: 300 }, "a1 02 01 00 00 00 00 00 00 00 05 ac 02"),
        (RequestHead::Pull { id, seq: 1 }, "a1 03 00 00 00 00 00 00 00 00 05 01"),
        (RequestHead::Hold { id }, "a1 04 00 00 00 00 00 00 00 00 05"),
        (RequestHead::Cancel { id }, "a1 05 00 00 00 00 00 00 00 00 05"),
    ] {
        assert_eq!(Bytes::from(head.encode(0)), hex(bytes));
        assert_eq!(request(&hex(bytes)), Ok((head, Bytes::new())));
    }
}

#[test]
fn responses_have_their_bytes() {
    //= docs/rpc-wire.md#E13
    let ok = ResponseHead { end: Some(Status::new(Code::Ok, "")), ..ResponseHead::default() };
    assert_eq!(Bytes::from(ok.encode(0)), hex("a1 02 00 00 00 00"));
    assert_eq!(response(&hex("a1 02 00 00 00 00 6f 6b")), Ok((ok, Bytes::from("ok"))));

    let mut trailers = Metadata::new();
    trailers.append_bin("a-bin", &[0xFF][..]).expect("a pair");
    let status = Status::new(Code::NotFound, "né").with_details("d").with_metadata(trailers);
    let head = ResponseHead { metadata: Some(Metadata::new()), end: Some(status), more: false };
    let bytes = hex("a1 03 00 05 03 6e c3 a9 01 64 01 05 61 2d 62 69 6e 01 ff");
    assert_eq!(Bytes::from(head.encode(0)), bytes);
    assert_eq!(response(&bytes), Ok((head, Bytes::new())));

    let more = ResponseHead { more: true, ..ResponseHead::default() };
    assert_eq!(response(&hex("a1 04 78")), Ok((more, Bytes::from("x"))));
}

#[test]
fn a_response_says_whether_a_handler_has_begun() {
    //= docs/rpc-wire.md#E14
    for (bytes, may_have_executed) in
        [("a1 02 0e 00 00 00", true), ("a1 0a 0e 00 00 00", false), ("a1 1a 0e 00 00 00", false)]
    {
        let (head, _) = response(&hex(bytes)).expect("a response");
        let status = head.end.clone().expect("an end");
        assert_eq!(
            (status.code(), status.may_have_executed()),
            (Code::Unavailable, may_have_executed)
        );
        assert_eq!(Bytes::from(head.encode(0)), hex(bytes));
    }
}

#[test]
fn flags_without_a_meaning_are_ignored() {
    //= docs/rpc-wire.md#E4
    let (head, _) = request(&hex("a1 04 ff 00 00 00 00 00 00 00 05")).expect("a request");
    assert_eq!(head, RequestHead::Hold { id: 5 });
    let (head, _) = response(&hex("a1 f8")).expect("a response");
    assert_eq!(head, ResponseHead::default());
    assert_eq!(response(&hex("a1 06 00 00 00 00")), Err(EnvelopeError::BadFlags));
}

#[test]
fn an_unknown_code_counts_as_unknown() {
    //= docs/rpc-wire.md#E13
    let (head, _) = response(&hex("a1 02 11 00 00 00")).expect("a response");
    assert_eq!(head.end.map(|status| status.code()), Some(Code::Unknown));
}

#[test]
fn each_violation_has_its_reason() {
    //= docs/rpc-wire.md#E1
    //= docs/rpc-wire.md#E3
    //= docs/rpc-wire.md#E6
    //= docs/rpc-wire.md#E9
    //= docs/rpc-wire.md#E10
    let open = |rest: &str| format!("a1 01 00 00 00 00 00 00 00 00 05 {rest}");
    let path = "04 2f 61 2f 62";
    let table = [
        (String::new(), "not_an_envelope"),
        ("00".to_owned(), "not_an_envelope"),
        ("a2 01".to_owned(), "other_version"),
        ("a1".to_owned(), "too_short"),
        ("a1 00 00".to_owned(), "unknown_kind"),
        ("a1 06 00".to_owned(), "unknown_kind"),
        ("a1 01 00 00".to_owned(), "too_short"),
        (open("04 2f 61"), "too_short"),
        (open("84 00 2f"), "bad_varint"),
        (open("03 2f 61 2f"), "bad_path"),
        (open(path), "too_short"),
        (open(&format!("{path} 81 01")), "too_many_pairs"),
        (open(&format!("{path} ff ff ff ff ff ff ff ff ff 01")), "too_many_pairs"),
        (open(&format!("{path} 01 00 20 00")), "unknown_name"),
        (open(&format!("{path} 01 01 41 00")), "bad_name"),
        (open(&format!("{path} 01 01 61 01 0a")), "bad_value"),
        (open(&format!("{path} 01 01 61 ff ff ff ff ff ff ff ff ff 01")), "too_short"),
    ];
    for (bytes, reason) in table {
        let error = request(&hex(&bytes)).expect_err(&bytes);
        assert_eq!(error.reason(), reason, "{bytes}: {error}");
    }
    //= docs/rpc-wire.md#E13
    let error = response(&hex("a1 02 00 01 ff 00 00")).expect_err("bytes that are not UTF-8");
    assert_eq!(error.reason(), "bad_message");
}

#[test]
fn a_head_ends_within_its_limit() {
    //= docs/rpc-wire.md#E5
    let mut opening = opening();
    let exact = opening.encode(0).len();
    let limits = LIMITS.head_max(exact);
    let message = Bytes::from([opening.encode(2), b"hi".to_vec()].concat());
    assert!(RequestHead::decode(&message, &limits).is_ok());
    let limits = LIMITS.head_max(exact - 1);
    let error = Err(EnvelopeError::HeadTooLong { limit: exact - 1 });
    assert_eq!(RequestHead::decode(&message, &limits), error);
    // A message that is wholly a head of more than the limit.
    opening.metadata.append("a", "x".repeat(20_000)).expect("a pair");
    let error = Err(EnvelopeError::HeadTooLong { limit: 16 << 10 });
    assert_eq!(request(&opening.encode(0).into()), error);
}

#[test]
fn pairs_are_counted_before_they_are_read() {
    //= docs/rpc-wire.md#E8
    let mut opening = opening();
    for _ in 0..128 {
        opening.metadata.append("a", "").expect("a pair");
    }
    let error = request(&opening.encode(0).into()).expect_err("129 pairs");
    assert_eq!(error, EnvelopeError::TooManyPairs { count: 129, limit: 128 });
    assert!(error.to_string().contains("pairs_max"), "{error}");
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let text = ("[a-z0-9._-]{1,12}[a-z]", "[ -~]{0,20}").prop_map(|(name, value)| {
        let mut metadata = Metadata::new();
        // Names that end in -bin are the other half.
        let _ = metadata.append(&name, value);
        metadata
    });
    let binary = ("[a-z0-9._-]{0,12}-bin", vec(any::<u8>(), 0..20)).prop_map(|(name, value)| {
        let mut metadata = Metadata::new();
        metadata.append_bin(&name, value).expect("a pair");
        metadata
    });
    let known = (0..32_usize).prop_map(|index| {
        let mut metadata = Metadata::new();
        let name = apus_rpc::envelope::STATIC_NAMES[index];
        let _ = metadata.append(name, "x");
        metadata
    });
    vec(prop_oneof![text, binary, known], 0..8).prop_map(|parts| {
        let mut all = Metadata::new();
        parts.into_iter().for_each(|part| all.extend(part));
        all
    })
}

fn request_head() -> impl Strategy<Value = RequestHead> {
    let open = (any::<u64>(), any::<(bool, bool)>(), "/[!-~]{1,20}/[!-.0-~]{1,20}", metadata());
    prop_oneof![
        open.prop_map(|(id, (ends, holds), path, metadata)| {
            let path = MethodPath::new(path).expect("a path");
            RequestHead::Open(Opening { id, ends, holds, path, metadata })
        }),
        any::<(u64, bool, u64)>().prop_map(|(id, ends, seq)| RequestHead::Push { id, ends, seq }),
        any::<(u64, u64)>().prop_map(|(id, seq)| RequestHead::Pull { id, seq }),
        any::<u64>().prop_map(|id| RequestHead::Hold { id }),
        any::<u64>().prop_map(|id| RequestHead::Cancel { id }),
    ]
}

fn response_head() -> impl Strategy<Value = ResponseHead> {
    let end = (0..17_u64, ".{0,20}", vec(any::<u8>(), 0..20), metadata());
    let end = end.prop_map(|(code, message, details, trailers)| {
        let status = Status::new(Code::from_number(code), message);
        status.with_details(details).with_metadata(trailers)
    });
    (option::of(metadata()), option::of(end), any::<bool>()).prop_map(|(metadata, end, more)| {
        let more = more && end.is_none();
        ResponseHead { metadata, end, more }
    })
}

proptest! {
    #[test]
    fn a_request_round_trips(head in request_head(), body in vec(any::<u8>(), 0..100)) {
        let mut message = head.encode(body.len());
        let capacity = message.capacity();
        message.extend_from_slice(&body);
        prop_assert_eq!((message.len(), message.capacity()), (capacity, capacity), "no byte is spare");
        prop_assert_eq!(request(&message.into()), Ok((head, Bytes::from(body))));
    }

    #[test]
    fn a_response_round_trips(head in response_head(), body in vec(any::<u8>(), 0..100)) {
        let mut message = head.encode(body.len());
        let capacity = message.capacity();
        message.extend_from_slice(&body);
        prop_assert_eq!((message.len(), message.capacity()), (capacity, capacity), "no byte is spare");
        prop_assert_eq!(response(&message.into()), Ok((head, Bytes::from(body))));
    }

    #[test]
    fn a_cut_request_is_too_short(head in request_head(), cut in 1..200_usize) {
        let whole = head.encode(0);
        let cut = Bytes::copy_from_slice(&whole[..whole.len().saturating_sub(cut)]);
        let error = request(&cut).expect_err("a part of a head");
        let too_short = [EnvelopeError::TooShort, EnvelopeError::NotAnEnvelope];
        prop_assert!(too_short.contains(&error), "{}", error);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(mut bytes in vec(any::<u8>(), 0..300), kind in 1..6_u8) {
        for (place, value) in [0xA1, kind].into_iter().enumerate() {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        let message = Bytes::from(bytes);
        if let Ok((head, chunks)) = request(&message) {
            let again = [head.encode(0), chunks.to_vec()].concat();
            prop_assert_eq!(request(&again.into()), Ok((head, chunks)));
        }
        if let Ok((head, chunks)) = response(&message) {
            let again = [head.encode(0), chunks.to_vec()].concat();
            prop_assert_eq!(response(&again.into()), Ok((head, chunks)));
        }
    }
}
