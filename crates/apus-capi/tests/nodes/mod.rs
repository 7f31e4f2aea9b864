//! Nodes by the functions of C, for tests.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use apus_capi::*;

pub(crate) const PORT: u16 = 4000;

/// Time limit of a test's wait. Only a fault takes longer.
pub(crate) const FAULT_AFTER: Duration = Duration::from_secs(60);

/// Yields until a condition holds.
pub(crate) fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < FAULT_AFTER, "{condition}: not within {FAULT_AFTER:?}");
        thread::yield_now();
    }
}

/// The text of the last error of this thread.
pub(crate) fn last_error() -> String {
    // SAFETY: the text is valid until the next error.
    unsafe { CStr::from_ptr(apus_last_error()) }.to_str().unwrap().to_owned()
}

#[track_caller]
pub(crate) fn succeeds(number: i32) -> i32 {
    assert!(number >= 0, "{number}: {}", last_error());
    number
}

pub(crate) const NO_ADDRESS: apus_address = apus_address {
    size: size_of::<apus_address>() as u32,
    family: 0,
    port: 0,
    udp_port: 0,
    reserved: 0,
    scope_id: 0,
    ip: [0; 16],
};

pub(crate) const NO_TRACE: apus_trace =
    apus_trace { trace_id: [0; 16], span_id: [0; 8], flags: 0, reserved: [0; 7] };

pub(crate) const OPTIONS: apus_call_options = apus_call_options {
    size: size_of::<apus_call_options>() as u32,
    flags: 0,
    deadline_ns: APUS_FOREVER,
    trace: NO_TRACE,
};

pub(crate) const NO_COMPLETION: apus_completion = apus_completion {
    size: size_of::<apus_completion>() as u32,
    error: 0,
    tag: 0,
    message: null_mut(),
    may_have_executed: 0,
    reserved: 0,
};

/// A node on loopback with other settings, as `KEY VALUE`.
pub(crate) fn node(settings: &[&str]) -> *mut apus_node {
    let config = apus_config_new();
    let mut node = null_mut();
    // SAFETY: the handles and texts are valid.
    unsafe {
        succeeds(apus_config_apply_environment(config));
        for setting in settings.iter().chain(&["listen 127.0.0.1:0"]) {
            let (key, value) = setting.split_once(' ').unwrap();
            let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
            succeeds(apus_config_set(config, key.as_ptr(), value.as_ptr()));
        }
        succeeds(apus_node_start(config, &raw mut node));
        apus_config_free(config);
    }
    node
}

pub(crate) fn client(node: *mut apus_node) -> *mut apus_client {
    let mut client = null_mut();
    // SAFETY: the handles are valid.
    succeeds(unsafe { apus_client_open(node, &raw mut client) });
    client
}

pub(crate) fn bind(node: *mut apus_node) -> (*mut apus_port, apus_address) {
    let (mut port, mut address) = (null_mut(), NO_ADDRESS);
    // SAFETY: the handles are valid.
    unsafe {
        succeeds(apus_bind(node, PORT, &raw mut port));
        succeeds(apus_node_address(node, &raw mut address));
    }
    address.port = PORT;
    (port, address)
}

/// A server and a client.
pub(crate) struct Pair {
    pub(crate) server: *mut apus_node,
    pub(crate) port: *mut apus_port,
    pub(crate) node: *mut apus_node,
    pub(crate) client: *mut apus_client,
    pub(crate) to: apus_address,
}

pub(crate) fn pair(settings: &[&str]) -> Pair {
    let (server, node) = (node(settings), node(settings));
    let (port, to) = bind(server);
    let client = client(node);
    // SAFETY: the handles are valid.
    succeeds(unsafe { apus_connect(client, &raw const to, APUS_FOREVER) });
    Pair { server, port, node, client, to }
}

impl Pair {
    pub(crate) fn send(&self, body: &[u8], tag: u64) {
        let (data, length) = (body.as_ptr().cast(), body.len());
        // SAFETY: the handles and the body are valid.
        let sent = unsafe { apus_send(self.client, &raw const self.to, data, length, null(), tag) };
        succeeds(sent);
    }

    /// The next request.
    pub(crate) fn request(&self) -> *mut apus_request {
        let mut request = null_mut();
        // SAFETY: the handle is valid, and there is one place.
        let count = unsafe { apus_port_recv_many(self.port, &raw mut request, 1, -1) };
        assert_eq!(succeeds(count), 1);
        request
    }

    /// The next completion.
    pub(crate) fn completion(&self) -> apus_completion {
        let mut completion = NO_COMPLETION;
        // SAFETY: the handle is valid, and there is one place.
        let count = unsafe { apus_recv_many(self.client, &raw mut completion, 1, -1) };
        assert_eq!(succeeds(count), 1);
        completion
    }

    pub(crate) fn free(self) {
        // SAFETY: the handles are valid, and are not used any more.
        unsafe {
            apus_client_free(self.client);
            apus_port_free(self.port);
            apus_node_free(self.node);
            apus_node_free(self.server);
        }
    }
}

/// The bytes of a message, which is freed.
pub(crate) fn take(message: *mut apus_message) -> Vec<u8> {
    let mut length = 7;
    // SAFETY: the handle is valid.
    unsafe {
        let data = apus_message_data(message, &raw mut length).cast::<u8>();
        let bytes = slice::from_raw_parts(data, length).to_vec();
        apus_message_free(message);
        bytes
    }
}

/// The bytes of a request.
pub(crate) fn body_of<'a>(request: *const apus_request) -> &'a [u8] {
    let mut length = 7;
    // SAFETY: the handle is valid as long as the test uses the bytes.
    unsafe {
        let data = apus_request_body(request, &raw mut length).cast::<u8>();
        slice::from_raw_parts(data, length)
    }
}

/// Handles that a test gives to a thread.
pub(crate) struct Shared<T>(pub(crate) T);

// SAFETY: handles may be used by any thread.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    pub(crate) fn get(&self) -> T {
        self.0
    }
}

/// Answers requests with their bodies, until the port is closed.
pub(crate) fn echo(port: &Shared<*mut apus_port>) {
    let mut requests = [null_mut(); 8];
    loop {
        // SAFETY: the handle is valid, and there are that many places.
        let count = unsafe {
            apus_port_recv_many(port.get(), requests.as_mut_ptr(), requests.len(), APUS_FOREVER)
        };
        if count == apus_error::APUS_ECLOSED as i32 {
            return;
        }
        for request in &requests[..succeeds(count) as usize] {
            let mut length = 0;
            // SAFETY: the handle is valid.
            unsafe {
                let body = apus_request_body(*request, &raw mut length);
                if apus_reply(*request, body, length) != 0 {
                    apus_request_abandon(*request);
                }
            }
        }
    }
}
