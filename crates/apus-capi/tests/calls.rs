//! Calls, bodies without copies, event loops, forks and ends, by the functions of C.

mod nodes;

use std::ffi::{CStr, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};
use std::thread;

use apus::net::conformance::in_child;
use apus_capi::apus_error::*;
use apus_capi::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodes::{
    FAULT_AFTER, NO_ADDRESS, NO_COMPLETION, NO_TRACE, OPTIONS, Pair, Shared, body_of, echo,
    last_error, node, pair, succeeds, take, wait_until,
};

#[test]
fn a_call_has_its_response_and_a_message_its_handles() {
    for link in ["link auto", "link udp"] {
        let all = pair(&[link]);
        let port = Shared(all.port);
        thread::scope(|scope| {
            scope.spawn(|| echo(&port));
            for body in [&b""[..], b"hello", &[7; 300_000]] {
                let mut message = null_mut();
                let (data, length) = (body.as_ptr().cast(), body.len());
                // SAFETY: the pointers are valid.
                unsafe {
                    let to = &raw const all.to;
                    succeeds(apus_call(all.client, to, data, length, null(), &raw mut message));
                    let other = apus_message_ref(message);
                    let at = apus_message_data(message, null_mut());
                    assert!(!at.is_null() && at == apus_message_data(other, null_mut()));
                    apus_message_free(message);
                    assert_eq!(take(other), body);
                }
            }
            // SAFETY: the handle is valid.
            succeeds(unsafe { apus_port_shutdown(port.get()) });
        });
        all.free();
    }
}

#[test]
fn a_request_has_its_facts() {
    let all = pair(&[]);
    let trace = apus_trace { trace_id: [3; 16], span_id: [4; 8], flags: 1, ..NO_TRACE };
    let options = apus_call_options { deadline_ns: 60_000_000_000, trace, ..OPTIONS };
    let (mut seen, mut from, mut name) = (NO_TRACE, NO_ADDRESS, [1; 4]);
    // SAFETY: the pointers are valid.
    unsafe {
        let (to, body) = (&raw const all.to, c"hello".as_ptr().cast());
        succeeds(apus_send(all.client, to, body, 5, &raw const options, 1));
        let request = all.request();
        assert_eq!(body_of(request), b"hello");
        assert!((1..=60_000_000_000).contains(&apus_request_remaining_ns(request)));
        assert_eq!(succeeds(apus_request_trace(request, &raw mut seen)), 1);
        assert_eq!(seen, trace);
        succeeds(apus_request_from(request, &raw mut from));
        assert_eq!(from.ip[..4], [127, 0, 0, 1]);
        assert_eq!(succeeds(apus_request_peer(request, name.as_mut_ptr(), 4)), 0);
        assert_eq!(name[0], 0);
        assert_eq!(succeeds(apus_request_is_cancelled(request)), 0);
        assert_eq!(succeeds(apus_cancel(all.client, 1)), 1);
        assert_eq!(succeeds(apus_cancel(all.client, 1)), 0);
        wait_until("the request is cancelled", || {
            succeeds(apus_request_is_cancelled(request)) == 1
        });
        // The client may not be known to have gone yet.
        assert_eq!(apus_reply(request, null(), 0), APUS_EGONE as i32, "{}", last_error());
        assert_eq!(body_of(request), b"hello");
        apus_request_abandon(request);

        succeeds(apus_send(all.client, to, body, 5, null(), 2));
        let request = all.request();
        assert_eq!(apus_request_remaining_ns(request), APUS_FOREVER);
        assert_eq!(succeeds(apus_request_trace(request, &raw mut seen)), 0);
        assert_eq!(seen, NO_TRACE);
        apus_request_abandon(request);
    }
    let cancelled = all.completion();
    assert_eq!((cancelled.tag, cancelled.error), (1, APUS_ECANCELLED as i32));
    assert_eq!(take(cancelled.message), b"the call was cancelled");
    let lost = all.completion();
    assert_eq!((lost.tag, lost.error, lost.may_have_executed), (2, APUS_ERESPONSE_LOST as i32, 1));
    take(lost.message);
    all.free();
}

#[test]
fn the_longest_times_end_nothing() {
    let all = pair(&[]);
    let longest = i64::MAX;
    let options = apus_call_options { deadline_ns: longest, ..OPTIONS };
    let (to, body) = (&raw const all.to, c"hello".as_ptr().cast());
    let (mut request, mut completion) = (null_mut(), NO_COMPLETION);
    // SAFETY: the pointers are valid.
    unsafe {
        succeeds(apus_connect(all.client, to, longest));
        succeeds(apus_send(all.client, to, body, 5, &raw const options, 1));
        assert_eq!(succeeds(apus_port_recv_many(all.port, &raw mut request, 1, longest)), 1);
        assert!(apus_request_remaining_ns(request) > 0);
        succeeds(apus_reply(request, body, 5));
        assert_eq!(succeeds(apus_recv_many(all.client, &raw mut completion, 1, longest)), 1);
        assert_eq!((completion.error, take(completion.message)), (0, b"hello".to_vec()));
        succeeds(apus_node_close(all.node, longest));
    }
    all.free();
}

#[test]
fn completions_come_in_a_batch_and_none_is_no_error() {
    let all = pair(&[]);
    let mut completions = [NO_COMPLETION; 16];
    let mut receive = |timeout| {
        let (places, max) = (completions.as_mut_ptr(), completions.len());
        // SAFETY: there are that many places.
        let count = succeeds(unsafe { apus_recv_many(all.client, places, max, timeout) });
        completions[..count as usize].to_vec()
    };
    assert!(receive(0).is_empty() && receive(1).is_empty());
    (0..16).for_each(|tag| all.send(&[tag; 3], tag.into()));
    let mut taken = 0;
    while taken < 16 {
        let mut requests = [null_mut(); 7];
        // SAFETY: there are seven places.
        let count = unsafe { apus_port_recv_many(all.port, requests.as_mut_ptr(), 7, -1) };
        for request in &requests[..succeeds(count) as usize] {
            let body = body_of(*request);
            // SAFETY: the request is answered once.
            succeeds(unsafe { apus_reply(*request, body.as_ptr().cast(), body.len()) });
            taken += 1;
        }
    }
    let mut answered = [false; 16];
    while answered != [true; 16] {
        for completion in receive(APUS_FOREVER) {
            assert_eq!(completion.error, 0);
            assert_eq!(take(completion.message), [completion.tag as u8; 3]);
            answered[completion.tag as usize] = true;
        }
    }
    all.free();
}

/// Counts calls of a release function.
unsafe extern "C" fn count(argument: *mut c_void) {
    // SAFETY: the tests give a counter.
    unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

/// A body of the program, and how often it was released.
#[derive(Default)]
struct Counted(AtomicU32);

impl Counted {
    fn argument(&self) -> *mut c_void {
        (&raw const self.0).cast_mut().cast()
    }

    fn released(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

static BODY: [u8; 100_000] = [9; 100_000];

/// Sends the body of the program.
fn send_owned(all: &Pair, to: apus_address, counted: &Counted, options: apus_call_options) -> i32 {
    let (data, length) = (BODY.as_ptr().cast(), BODY.len());
    let (to, options) = (&raw const to, &raw const options);
    let release: apus_release = Some(count);
    // SAFETY: the pointers are valid.
    unsafe {
        apus_send_owned(all.client, to, data, length, release, counted.argument(), options, 1)
    }
}

#[test]
fn a_body_that_is_refused_is_released_once() {
    let all = pair(&["message_max 100 kB"]);
    let counted: [Counted; 9] = Default::default();
    let data = BODY.as_ptr().cast();
    let wrong = apus_address { family: 0, ..all.to };
    let flags = apus_call_options { flags: 1 << 31, ..OPTIONS };
    // SAFETY: the pointers are valid or NULL.
    unsafe {
        let (to, release): (_, apus_release) = (&raw const all.to, Some(count));
        let refused = [
            send_owned(&all, wrong, &counted[0], OPTIONS),
            send_owned(&all, all.to, &counted[1], flags),
            apus_send_owned(null_mut(), to, data, 1, release, counted[2].argument(), null(), 1),
            apus_send_owned(all.client, null(), data, 1, release, counted[3].argument(), null(), 1),
            apus_send_owned(all.client, to, null(), 1, release, counted[4].argument(), null(), 1),
            apus_send_owned(
                all.client,
                to,
                data,
                usize::MAX,
                release,
                counted[5].argument(),
                null(),
                1,
            ),
            apus_reply_owned(null_mut(), data, 1, release, counted[6].argument()),
        ];
        assert!(refused.iter().all(|number| *number < 0), "{refused:?}");
        let without = apus_send_owned(all.client, to, data, 1, None, null_mut(), null(), 1);
        assert_eq!(without, APUS_EINVAL as i32);
        assert!(last_error().starts_with("release: NULL"));

        // Longer than the setting allows; the request is not consumed.
        all.send(b"question", 1);
        let (request, long) = (all.request(), vec![0; 100_001]);
        let (at, argument) = (long.as_ptr().cast(), counted[7].argument());
        let reply = apus_reply_owned(request, at, long.len(), release, argument);
        assert_eq!(reply, APUS_ETOO_LONG as i32);
        let empty = apus_reply_owned(request, null(), 0, release, counted[8].argument());
        assert_eq!(succeeds(empty), 0);
    }
    assert_eq!(take(all.completion().message), b"");
    assert_eq!(counted.each_ref().map(Counted::released), [1; 9]);
    all.free();
}

#[test]
fn a_body_that_is_sent_is_released_once() {
    for link in ["link auto", "link udp"] {
        let all = pair(&[link]);
        let [request, response, outstanding] = [(); 3].map(|()| Counted::default());
        succeeds(send_owned(&all, all.to, &request, OPTIONS));
        let received = all.request();
        assert!(body_of(received) == BODY);
        let (data, argument) = (BODY.as_ptr().cast(), response.argument());
        // SAFETY: the request is answered once.
        succeeds(unsafe { apus_reply_owned(received, data, BODY.len(), Some(count), argument) });
        assert!(take(all.completion().message) == BODY);
        // Not answered when everything ends.
        succeeds(send_owned(&all, all.to, &outstanding, OPTIONS));
        let unanswered = all.request();
        all.free();
        // SAFETY: the handle is valid.
        unsafe { apus_request_abandon(unanswered) };
        let all = [&request, &response, &outstanding];
        wait_until("bodies are released", || all.map(Counted::released).iter().all(|n| *n > 0));
        assert_eq!(all.map(Counted::released), [1; 3]);
    }
}

/// Calls the library.
unsafe extern "C" fn call_back(argument: *mut c_void) {
    // SAFETY: the test gives a client and a place for the number.
    let (client, number) = unsafe { *argument.cast::<(*mut apus_client, *mut i32)>() };
    // SAFETY: as above.
    unsafe { *number = apus_cancel(client, 1) };
}

#[test]
fn a_release_function_may_not_call_the_library() {
    let all = pair(&[]);
    let mut number = 0;
    let mut argument = (all.client, &raw mut number);
    let (to, body) = (apus_address { family: 9, ..all.to }, c"x".as_ptr().cast());
    let argument = (&raw mut argument).cast();
    // SAFETY: the pointers are valid.
    let sent = unsafe {
        apus_send_owned(all.client, &raw const to, body, 1, Some(call_back), argument, null(), 1)
    };
    assert_eq!((sent, number), (APUS_EINVAL as i32, APUS_EIN_RELEASE as i32));
    all.free();
}

/// What a release function has called, and with which results.
struct CalledBack {
    client: *mut apus_client,
    request: *mut apus_request,
    response: *mut apus_message,
    cancelled: AtomicI32,
    remaining: AtomicI64,
    released: AtomicU32,
}

/// Calls functions with and without an error number.
unsafe extern "C" fn call_back_and_free(argument: *mut c_void) {
    // SAFETY: the test gives this structure.
    let called = unsafe { &*argument.cast::<CalledBack>() };
    // SAFETY: the handles are valid.
    unsafe {
        called.cancelled.store(apus_cancel(called.client, 1), Ordering::Relaxed);
        called.remaining.store(apus_request_remaining_ns(called.request), Ordering::Relaxed);
        apus_client_free(called.client);
        apus_request_abandon(called.request);
        apus_message_free(called.response);
    }
    called.released.fetch_add(1, Ordering::Release);
}

/// The body of a call that ends in order is released by a thread that works on the node.
#[test]
fn a_release_function_that_calls_the_library_is_refused_after_a_call_as_well() {
    for link in ["link auto", "link udp"] {
        let all = pair(&[link]);
        all.send(b"before", 1);
        let request = all.request();
        // SAFETY: the request is answered once.
        succeeds(unsafe { apus_reply(request, BODY.as_ptr().cast(), BODY.len()) });
        let response = all.completion().message;
        all.send(b"outstanding", 2);
        let (client, request) = (all.client, all.request());
        let called = CalledBack {
            client,
            request,
            response,
            cancelled: AtomicI32::new(0),
            remaining: AtomicI64::new(-1),
            released: AtomicU32::new(0),
        };
        let (to, body) = (&raw const all.to, BODY.as_ptr().cast());
        let argument = (&raw const called).cast_mut().cast();
        let release: apus_release = Some(call_back_and_free);
        // SAFETY: the pointers are valid.
        succeeds(unsafe {
            apus_send_owned(client, to, body, BODY.len(), release, argument, null(), 3)
        });
        // SAFETY: the request is answered once.
        succeeds(unsafe { apus_reply(all.request(), body, 1) });
        assert_eq!(take(all.completion().message), BODY[..1]);
        wait_until("the body is released", || called.released.load(Ordering::Acquire) == 1);
        assert_eq!(called.cancelled.load(Ordering::Relaxed), APUS_EIN_RELEASE as i32);
        assert_eq!(called.remaining.load(Ordering::Relaxed), 0);
        // The client and the request are still there.
        // SAFETY: the request is answered once.
        succeeds(unsafe { apus_reply(request, body, 2) });
        assert_eq!(take(all.completion().message), BODY[..2]);
        all.free();
    }
}

/// Makes a call, which is refused.
unsafe extern "C" fn call_in_release(argument: *mut c_void) {
    // SAFETY: the test gives a client, an address and a place for the response.
    let (client, to, response) =
        unsafe { &mut *argument.cast::<(*mut apus_client, apus_address, *mut apus_message)>() };
    // SAFETY: the pointers are valid.
    let called = unsafe { apus_call(*client, to, null(), 0, null(), response) };
    assert_eq!(called, APUS_EIN_RELEASE as i32);
}

#[test]
fn a_call_that_is_refused_has_no_response() {
    let all = pair(&[]);
    let mut argument = (all.client, all.to, std::ptr::dangling_mut::<apus_message>());
    let (to, body) = (apus_address { family: 9, ..all.to }, c"x".as_ptr().cast());
    let (release, at): (apus_release, _) = (Some(call_in_release), (&raw mut argument).cast());
    // SAFETY: the pointers are valid.
    unsafe { apus_send_owned(all.client, &raw const to, body, 1, release, at, null(), 1) };
    assert!(argument.2.is_null());
    all.free();
}

#[test]
fn an_event_loop_turns_a_node() {
    let all = pair(&[]);
    // SAFETY: the handles are valid.
    let (fd, own) = unsafe { (apus_node_fd(all.node), apus_node_fd(all.server)) };
    // SAFETY: as above.
    assert_eq!(succeeds(fd), unsafe { apus_node_fd(all.node) });
    let watch = |fd| {
        // SAFETY: the node has it, and lives.
        let fd = unsafe { BorrowedFd::borrow_raw(succeeds(fd)) };
        let timeout = PollTimeout::try_from(FAULT_AFTER).unwrap();
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap(), 1);
    };
    all.send(b"hello", 5);
    let (mut request, mut completion) = (null_mut(), NO_COMPLETION);
    // SAFETY: the pointers are valid.
    unsafe {
        while succeeds(apus_port_recv_many(all.port, &raw mut request, 1, 0)) == 0 {
            watch(own);
            succeeds(apus_node_turn(all.server));
        }
        succeeds(apus_reply(request, c"there".as_ptr().cast(), 5));
        while succeeds(apus_recv_many(all.client, &raw mut completion, 1, 0)) == 0 {
            watch(fd);
            succeeds(apus_node_turn(all.node));
        }
        assert_eq!((completion.tag, take(completion.message)), (5, b"there".to_vec()));
        succeeds(apus_node_close(all.node, 0));
        assert_eq!(apus_node_turn(all.node), APUS_ECLOSED as i32);
        let busy = node(&["delivery fullbusy"]);
        assert_eq!(apus_node_fd(busy), APUS_EEVENT_LOOP as i32);
        apus_node_free(busy);
    }
    all.free();
}

#[test]
fn a_node_closes_with_calls_outstanding() {
    let all = pair(&[]);
    all.send(b"never answered", 3);
    let request = all.request();
    let caller = Shared((all.client, all.to));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let (client, to) = caller.get();
            let mut message = null_mut();
            // SAFETY: the pointers are valid.
            unsafe { apus_call(client, &raw const to, null(), 0, null(), &raw mut message) }
        });
        let second = all.request();
        // SAFETY: the handles are valid.
        unsafe {
            assert_eq!(apus_node_close(all.node, 1), APUS_EUNFINISHED as i32);
            assert!(last_error().contains("RPCs had not ended"), "{}", last_error());
            assert_eq!(waiting.join().unwrap(), APUS_ECLOSED as i32);
            assert_eq!(apus_node_close(all.node, 1), APUS_ECLOSED as i32);
            assert_eq!(apus_client_open(all.node, &mut null_mut()), APUS_ECLOSED as i32);
            assert_eq!(apus_stats(all.node, null_mut(), 0), APUS_ECLOSED as i32);
            let mut completion = NO_COMPLETION;
            while apus_recv_many(all.client, &raw mut completion, 1, -1) == 1 {
                assert_eq!((completion.tag, completion.error), (3, APUS_ECLOSED as i32));
                take(completion.message);
            }
            assert!(last_error().contains("closed"), "{}", last_error());
            apus_request_abandon(second);
            apus_request_abandon(request);
        }
    });
    all.free();
}

#[test]
fn counters_have_names() {
    let all = pair(&[]);
    let empty = apus_stat { size: 24, reserved: 0, name: null(), value: 0 };
    // SAFETY: the pointers are valid.
    unsafe {
        let count = succeeds(apus_stats(all.node, null_mut(), 0)) as usize;
        let mut stats = vec![empty; count];
        let name = |stat: &apus_stat| CStr::from_ptr(stat.name).to_str().unwrap();
        let mut calls = || {
            assert_eq!(succeeds(apus_stats(all.node, stats.as_mut_ptr(), count)) as usize, count);
            stats.iter().find(|stat| name(stat) == "calls").unwrap().value
        };
        let before = calls();
        all.send(b"hello", 1);
        assert_eq!(calls(), before + 1);
        assert!(stats.iter().any(|stat| name(stat) == "turns" && stat.value > 0));
    }
    all.free();
}

#[test]
fn a_child_gets_an_error_from_every_function() {
    let all = pair(&[]);
    all.send(b"held", 1);
    let request = Shared(all.request());
    let counted = Counted::default();
    let parts = Shared((all.server, all.port, all.node, all.client));
    // SAFETY: the handle is valid.
    let (to, node_fd) = (all.to, unsafe { apus_node_fd(all.node) });
    assert!(node_fd >= 0);
    let child = in_child(move || {
        let (server, port, node, client) = parts.get();
        let (body, mut message) = (c"x".as_ptr().cast(), null_mut());
        let (to, mut completion) = (&raw const to, NO_COMPLETION);
        let (mut other, mut name) = (null_mut(), [0; 9]);
        // SAFETY: the handles are copies of the parent's.
        unsafe {
            let numbers = [
                apus_call(client, to, body, 1, null(), &raw mut message),
                apus_connect(client, to, -1),
                apus_send(client, to, body, 1, null(), 1),
                apus_send_owned(client, to, body, 1, Some(count), counted.argument(), null(), 1),
                apus_recv_many(client, &raw mut completion, 1, -1),
                apus_recv_many(client, &raw mut completion, 9, -1),
                apus_cancel(client, 1),
                apus_port_recv_many(port, &raw mut other, 1, -1),
                apus_port_shutdown(port),
                apus_request_is_cancelled(request.get()),
                apus_request_peer(request.get(), name.as_mut_ptr(), 9),
                apus_reply(request.get(), body, 1),
                apus_client_open(node, &mut null_mut()),
                apus_bind(server, 5, &mut null_mut()),
                apus_node_fd(node),
                apus_node_turn(node),
                apus_node_turn(server),
                apus_stats(node, null_mut(), 0),
                apus_node_close(node, -1),
                apus_node_close(server, -1),
            ];
            apus_request_abandon(request.get());
            apus_client_free(client);
            apus_port_free(port);
            apus_node_free(node);
            apus_node_free(server);
            numbers == [APUS_EFORKED as i32; 20] && counted.released() == 1
        }
    });
    assert!(child);
    // The parent goes on.
    let request = Shared(request_of_parent(&all));
    // SAFETY: the request is answered once.
    succeeds(unsafe { apus_reply(request.get(), c"x".as_ptr().cast(), 1) });
    all.free();
}

/// The next request in the parent, to show that its node goes on.
fn request_of_parent(all: &Pair) -> *mut apus_request {
    all.send(b"after the fork", 2);
    let request = all.request();
    assert_eq!(body_of(request), b"after the fork");
    request
}
