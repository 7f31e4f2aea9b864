//! NULL and values that are not allowed are errors that name the argument.

mod nodes;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use apus_capi::apus_error::*;
use apus_capi::*;
use nodes::{NO_ADDRESS, NO_COMPLETION, NO_TRACE, OPTIONS, PORT, last_error, pair, succeeds};

/// The number of an error, and the argument that it names.
#[track_caller]
fn names(number: i32, expected: apus_error, argument: &str) {
    assert_eq!(number, expected as i32, "{}", last_error());
    assert!(last_error().starts_with(argument), "expected {argument}: {}", last_error());
}

const fn text(text: &CStr) -> *const c_char {
    text.as_ptr()
}

#[test]
fn null_is_an_error_that_names_the_argument() {
    let all = pair(&[]);
    let (client, port, node) = (all.client, all.port, all.node);
    let to = &raw const all.to;
    let config = apus_config_new();
    let (mut message, mut address) = (null_mut(), NO_ADDRESS);
    let (mut completion, mut request, mut trace) = (NO_COMPLETION, null_mut(), NO_TRACE);
    let address = &raw mut address;
    let number = EINVAL;
    // SAFETY: each pointer is valid or NULL.
    unsafe {
        names(apus_config_set(null_mut(), text(c"a"), text(c"b")), number, "config: NULL");
        names(apus_config_set(config, null(), text(c"b")), number, "key: NULL");
        names(apus_config_set(config, text(c"a"), null()), number, "value: NULL");
        names(apus_config_read(config, null()), number, "path: NULL");
        names(apus_config_apply_environment(null_mut()), number, "config: NULL");
        names(apus_node_start(null(), &mut null_mut()), number, "config: NULL");
        names(apus_node_start(config, null_mut()), number, "node: NULL");
        names(apus_node_close(null_mut(), 0), number, "node: NULL");
        names(apus_node_address(null(), address), number, "node: NULL");
        names(apus_node_address(node, null_mut()), number, "address: NULL");
        names(apus_node_resolve(node, null(), address), number, "text: NULL");
        names(apus_node_fd(null_mut()), number, "node: NULL");
        names(apus_node_turn(null_mut()), number, "node: NULL");
        names(apus_stats(null(), null_mut(), 0), number, "node: NULL");
        names(apus_stats(node, null_mut(), 1), number, "stats: NULL");
        names(apus_address_parse(null(), address), number, "text: NULL");
        names(apus_address_parse(text(c"127.0.0.1:1"), null_mut()), number, "address: NULL");
        names(apus_address_format(null(), null_mut(), 0), number, "address: NULL");
        names(apus_address_format(to, null_mut(), 9), number, "buffer: NULL");
        names(apus_resolve(text(c"localhost:1"), address, null_mut()), number, "count: NULL");
        names(apus_resolve(text(c"localhost:1"), null_mut(), &mut 1), number, "addresses");
        names(apus_client_open(null_mut(), &mut null_mut()), number, "node: NULL");
        names(apus_client_open(node, null_mut()), number, "client: NULL");
        names(apus_client_expect(client, null(), 1), number, "patterns: NULL");
        names(apus_client_expect(client, &null(), 1), number, "patterns: NULL");
        names(apus_connect(null_mut(), to, 0), number, "client: NULL");
        names(apus_connect(client, null(), 0), number, "to: NULL");
        let call = |client, to, body, response| apus_call(client, to, body, 1, null(), response);
        let body: *const c_void = c"x".as_ptr().cast();
        names(call(null_mut(), to, body, &raw mut message), number, "client: NULL");
        names(call(client, null(), body, &raw mut message), number, "to: NULL");
        names(call(client, to, null(), &raw mut message), number, "body: NULL");
        names(call(client, to, body, null_mut()), number, "response: NULL");
        names(apus_send(null_mut(), to, body, 1, null(), 0), number, "client: NULL");
        names(apus_recv_many(null_mut(), &raw mut completion, 1, 0), number, "client: NULL");
        names(apus_recv_many(client, null_mut(), 1, 0), number, "completions: NULL");
        names(apus_cancel(null_mut(), 0), number, "client: NULL");
        names(apus_bind(null_mut(), 1, &mut null_mut()), number, "node: NULL");
        names(apus_bind(node, 1, null_mut()), number, "port: NULL");
        names(apus_port_allow(null_mut(), null(), 0), number, "port: NULL");
        names(apus_port_recv_many(null_mut(), &raw mut request, 1, 0), number, "port: NULL");
        names(apus_port_recv_many(port, null_mut(), 1, 0), number, "requests: NULL");
        names(apus_port_shutdown(null_mut()), number, "port: NULL");
        names(apus_reply(null_mut(), null(), 0), number, "request: NULL");
        names(apus_request_from(null(), address), number, "request: NULL");
        names(apus_request_peer(null(), null_mut(), 0), number, "request: NULL");
        names(apus_request_is_cancelled(null()), number, "request: NULL");
        names(apus_request_trace(null(), &raw mut trace), number, "request: NULL");
        assert_eq!(apus_request_remaining_ns(null()), 0);
        let mut length = 9;
        assert!(apus_request_body(null(), &raw mut length).is_null() && length == 0);
        length = 9;
        assert!(apus_message_data(null(), &raw mut length).is_null() && length == 0);
        assert!(apus_message_ref(null_mut()).is_null());
        free_null();
        apus_config_free(config);
    }
    all.free();
}

const EINVAL: apus_error = APUS_EINVAL;

/// As free() of the C library.
fn free_null() {
    // SAFETY: nothing is freed.
    unsafe {
        apus_config_free(null_mut());
        apus_node_free(null_mut());
        apus_client_free(null_mut());
        apus_port_free(null_mut());
        apus_message_free(null_mut());
        apus_request_abandon(null_mut());
    }
}

#[test]
fn values_that_are_not_allowed_are_named_with_the_allowed_ones() {
    let all = pair(&[]);
    let (client, to) = (all.client, all.to);
    let mut message = null_mut();
    let mut call = |to: apus_address, length, options: apus_call_options| {
        let (body, response) = (c"x".as_ptr().cast(), &raw mut message);
        // SAFETY: the pointers are valid; the length is refused.
        unsafe { apus_call(client, &raw const to, body, length, &raw const options, response) }
    };
    names(
        call(apus_address { size: 3, ..to }, 1, OPTIONS),
        EINVAL,
        "to->size: 3: expected sizeof(",
    );
    names(call(apus_address { family: 2, ..to }, 1, OPTIONS), EINVAL, "to->family: 2: expected A");
    names(call(apus_address { ip: [0; 16], ..to }, 1, OPTIONS), APUS_EADDRESS, "cannot call");
    names(call(to, usize::MAX, OPTIONS), APUS_ETOO_LONG, "body of 18446744073709551615 bytes");
    names(call(to, (1 << 30) + 1, OPTIONS), APUS_ETOO_LONG, "body of 1073741825 bytes");
    let flags = apus_call_options { flags: 4, ..OPTIONS };
    names(call(to, 1, flags), EINVAL, "options->flags: 0x4: expected APUS_CALL_");
    let size = apus_call_options { size: 0, ..OPTIONS };
    names(call(to, 1, size), EINVAL, "options->size: 0: expected sizeof(apus_call_options)");
    let trace = apus_call_options {
        trace: apus_trace { flags: 1, span_id: [1; 8], ..NO_TRACE },
        ..OPTIONS
    };
    names(call(to, 1, trace), EINVAL, "options->trace: one id of zeros: expected two ids");
    let late = apus_call_options { deadline_ns: 0, ..OPTIONS };
    names(call(to, 1, late), APUS_EDEADLINE, "deadline exceeded");
    assert!(message.is_null());

    let mut completion = NO_COMPLETION;
    let mut address = NO_ADDRESS;
    let mut buffer = [1 as c_char; 8];
    // SAFETY: the pointers are valid.
    unsafe {
        names(apus_recv_many(client, &raw mut completion, 0, 0), EINVAL, "max: 0: expected a num");
        completion.size = 1 << 20;
        names(apus_recv_many(client, &raw mut completion, 1, 0), EINVAL, "completions->size: 104");
        names(apus_port_recv_many(all.port, &mut null_mut(), 0, 0), EINVAL, "max: 0");
        let place = &raw mut address;
        names(apus_address_parse(text(c"\xff"), place), EINVAL, "text: '\u{fffd}': expected text");
        names(apus_address_parse(text(c"host:1"), place), APUS_EADDRESS, "address 'host:1'");
        names(apus_resolve(text(c"x"), place, &mut 1), APUS_EADDRESS, "address 'x'");
        names(apus_resolve(text(c"[::1]:1"), place, &mut 0), EINVAL, "*count: 0");
        names(apus_address_format(&raw const to, buffer.as_mut_ptr(), 8), EINVAL, "size: 8: expe");
        assert_eq!(buffer, [1; 8]);
        let bind = |number| apus_bind(all.node, number, &mut null_mut());
        names(bind(0), EINVAL, "port 0: server ports are 1 to 32766");
        names(bind(32_767), EINVAL, "port 32767");
        let bind = apus_bind(all.server, PORT, &mut null_mut());
        names(bind, APUS_EIN_USE, "port 4000");
        let patterns = [text(c"any")];
        let rule = apus_client_expect(client, patterns.as_ptr(), 1);
        names(rule, APUS_ENO_IDENTITY, "the node has no certificate");
        names(apus_port_allow(all.port, patterns.as_ptr(), 0), EINVAL, "patterns: 0 texts");
        names(apus_port_allow(all.port, patterns.as_ptr(), 5_000), EINVAL, "patterns: 5000 texts");
    }
    all.free();
}

#[test]
fn settings_are_those_of_a_file() {
    let config = apus_config_new();
    let set = |key, value| {
        // SAFETY: the handle and the texts are valid.
        unsafe { apus_config_set(config, text(key), text(value)) }
    };
    assert_eq!(set(c"message_max", c"1 MB"), 0);
    names(
        set(c"priorities", c"9"),
        APUS_ECONFIG,
        "priorities = '9': expected a number from 1 to 8",
    );
    names(set(c"colour", c"red"), APUS_ECONFIG, "");
    assert!(last_error().contains("colour") && last_error().contains("peer_timeout"));
    // SAFETY: the handle and the text are valid.
    let read = unsafe { apus_config_read(config, text(c"/no/such/file.toml")) };
    names(read, APUS_EFILE, "");
    assert!(last_error().contains("/no/such/file.toml"));
    assert_eq!(set(c"link", c"raw"), 0);
    assert_eq!(set(c"shards", c"2"), 0);
    let mut node = null_mut();
    // SAFETY: the handles are valid.
    unsafe {
        assert!(apus_node_start(config, &raw mut node) < 0 && node.is_null());
        apus_config_free(config);
    }
}

#[test]
fn a_text_of_every_address_fits_the_buffer() {
    for (given, expected) in [
        (c"127.0.0.1:4000", "127.0.0.1:4000"),
        (c"apus://10.0.0.1:1@20146", "10.0.0.1:1"),
        (c"homa://[2001:db8::1]:65535", "homa://[2001:db8::1]:65535"),
        (
            c"[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535@65535",
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535@65535",
        ),
    ] {
        let (mut address, mut buffer) = (NO_ADDRESS, [0 as c_char; APUS_ADDRESS_TEXT]);
        // SAFETY: the pointers are valid.
        unsafe {
            succeeds(apus_address_parse(given.as_ptr(), &raw mut address));
            let length = apus_address_format(&raw const address, buffer.as_mut_ptr(), buffer.len());
            let text = CStr::from_ptr(buffer.as_ptr()).to_str().unwrap();
            assert_eq!((succeeds(length) as usize, text), (expected.len(), expected));
        }
    }
    let (mut found, mut count) = ([NO_ADDRESS; 4], 4);
    // SAFETY: there are four places.
    succeeds(unsafe { apus_resolve(text(c"localhost:7@9"), found.as_mut_ptr(), &raw mut count) });
    assert!((1..=4).contains(&count), "{count}");
    assert!(found[..count].iter().all(|it| (it.port, it.udp_port) == (7, 9)));
    assert_eq!(found[0].size as usize, size_of::<apus_address>());
}

#[test]
fn every_error_has_a_name_and_a_text() {
    for number in -200..3 {
        // SAFETY: the texts are valid for ever.
        let described = unsafe { CStr::from_ptr(apus_strerror(number)) }.to_str().unwrap();
        let name = apus_error_name(number);
        let expected = match (number, name.is_null()) {
            (0.., _) => described == "no error",
            (_, true) => described == "unknown error",
            (_, false) => !described.is_empty() && described != "unknown error",
        };
        assert!(expected, "{number}: {described}");
    }
    let executed = |error: apus_error| apus_error_may_have_executed(error as i32);
    assert_eq!([APUS_ENO_SUCH_PORT, APUS_EOVERLOADED, APUS_EINVAL].map(executed), [0; 3]);
    assert_eq!([APUS_EDEADLINE, APUS_ECLOSED, APUS_EOTHER].map(executed), [1; 3]);
    assert_eq!(apus_error_may_have_executed(-12_345), 1);
}
