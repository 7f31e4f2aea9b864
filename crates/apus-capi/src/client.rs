//! Clients: calls out, responses in.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use apus::{Address, CallOptions, Client, Flush, RecvError};
use bytes::Bytes;

use crate::address::{self, apus_address};
use crate::argument;
use crate::call_options::{self, apus_call_options};
use crate::completion::apus_completion;
use crate::entry;
use crate::failure::Failure;
use crate::message::apus_message;
use crate::node::apus_node;
use crate::owned::{self, apus_release};
use crate::process::OwnerProcess;
use crate::sized::Places;

/// A client: makes calls from a port of its own.
pub struct apus_client {
    owner: OwnerProcess,
    client: Client,
}

/// Opens a client on a node, and writes its handle to `client`. A client keeps its node running.
///
/// Returns 0, APUS_ECLOSED, or APUS_ENO_RESOURCES if all 32,768 client ports are taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_client_open(
    node: *mut apus_node,
    client: *mut *mut apus_client,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is valid, or NULL.
        let place = unsafe { argument::place("client", client)? };
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        let client = node.with(|node| Ok(node.client()?))?;
        *place = Box::into_raw(Box::new(apus_client { owner: OwnerProcess::this(), client }));
        Ok(0)
    })
}

/// Closes a client and frees it. Outstanding calls of apus_send() are given up, and responses that were not received are lost.
/// Does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_client_free(client: *mut apus_client) {
    entry::value((), || {
        if !client.is_null() {
            // SAFETY: the handle is valid, and no other thread uses it.
            drop(unsafe { argument::owned("client", client)? });
        }
        Ok(())
    });
}

/// Calls only peers whose certificate has a name of one of the `count` patterns, from now on: a DNS name, `*.example.org` for
/// names below one, a SPIFFE id, one that ends with a slash and an asterisk for ids below it, an IP address, or `any`. Without
/// it, the name that apus_node_resolve() found is expected.
///
/// Returns 0, APUS_EINVAL if a text is not a pattern, or APUS_ENO_IDENTITY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_client_expect(
    client: *mut apus_client,
    patterns: *const *const c_char,
    count: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        // SAFETY: the pointer is that of `count` texts, or NULL.
        let patterns = unsafe { argument::texts("patterns", patterns, count)? };
        client.client.expect(patterns)?;
        Ok(0)
    })
}

/// Makes first contact with the node at an address, which takes one round trip, and with a node of this host waits until memory
/// is shared with it. Without it, the first call to a node takes longer than later ones. A negative time waits until the node has
/// been silent for the setting `peer_timeout`.
///
/// Returns 0, or an error of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_connect(
    client: *mut apus_client,
    to: *const apus_address,
    timeout_ns: i64,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let to = unsafe { address::read("to", to)? };
        let mut connect = client.client.connect(to);
        if let Some(timeout) = argument::time(timeout_ns) {
            connect = connect.deadline(timeout);
        }
        connect.wait()?;
        Ok(0)
    })
}

/// Makes a call and waits for its end. The body is copied. `options` may be NULL. The response is written to `response`, as a
/// message that is to be freed with apus_message_free(); NULL is written with an error.
///
/// Returns 0, or an error. apus_last_error_may_have_executed() says whether the request may have been executed nevertheless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_call(
    client: *mut apus_client,
    to: *const apus_address,
    body: *const c_void,
    length: usize,
    options: *const apus_call_options,
    response: *mut *mut apus_message,
) -> i32 {
    // SAFETY: the pointer is valid, or NULL.
    let mut place = unsafe { argument::place("response", response) };
    if let Ok(place) = &mut place {
        **place = std::ptr::null_mut();
    }
    entry::number(|| {
        let place = place?;
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let to = unsafe { address::read("to", to)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let (options, _) = unsafe { call_options::of(options)? };
        // SAFETY: the pointer is that of `length` bytes, or NULL.
        let body = Bytes::copy_from_slice(unsafe { argument::body(body, length)? });
        *place = apus_message::new(wait(&client.client, to, body, options)?);
        Ok(0)
    })
}

/// A function of its own, so that instructions outside it can be counted (`cargo xtask c-call`).
#[inline(never)]
fn wait(
    client: &Client,
    to: Address,
    body: Bytes,
    options: CallOptions,
) -> Result<Bytes, apus::CallError> {
    client.call(to, body).options(options).wait()
}

/// Begins a call, whose result apus_recv_many() returns with `tag`. The body is copied. `options` may be NULL. Never waits: if
/// the limits of the node have no room, the call ends at once with APUS_ETOO_MANY_CALLS or APUS_EOVER_BUDGET.
///
/// Returns 0, or an error: nothing was sent then, and apus_recv_many() returns nothing for this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_send(
    client: *mut apus_client,
    to: *const apus_address,
    body: *const c_void,
    length: usize,
    options: *const apus_call_options,
    tag: u64,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let to = unsafe { address::read("to", to)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let (options, flush) = unsafe { call_options::of(options)? };
        // SAFETY: the pointer is that of `length` bytes, or NULL.
        let body = Bytes::copy_from_slice(unsafe { argument::body(body, length)? });
        client.send(to, body, (options, flush), tag)
    })
}

/// As apus_send(), without a copy: the library has the bytes of `data` until it calls `release` with `argument`. It does so once,
/// whether this function returns an error or not, perhaps before this function returns. `release` is free() and `argument` is
/// `data` for memory of malloc().
///
/// Returns 0, or an error: nothing was sent then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_send_owned(
    client: *mut apus_client,
    to: *const apus_address,
    data: *const c_void,
    length: usize,
    release: apus_release,
    argument: *mut c_void,
    options: *const apus_call_options,
    tag: u64,
) -> i32 {
    // SAFETY: the header demands that the bytes stay until they are released.
    let body = unsafe { owned::take(data, length, release, argument) };
    entry::number(|| {
        let body = body?;
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let to = unsafe { address::read("to", to)? };
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        let (options, flush) = unsafe { call_options::of(options)? };
        client.send(to, body, (options, flush), tag)
    })
}

impl apus_client {
    fn send(
        &self,
        to: Address,
        body: Bytes,
        (options, flush): (CallOptions, Flush),
        tag: u64,
    ) -> Result<i32, Failure> {
        self.client.send_with(to, body, tag, flush, options)?;
        Ok(0)
    }
}

/// Takes results of calls of apus_send(), up to `max` of them, in the order of their arrival. Waits for the first one for at most
/// `timeout_ns`; 0 does not wait, and a negative time waits without end. Writes them to `completions`, whose first element states
/// the size of all. The message of each is to be freed.
///
/// Returns their number; 0 if none came in time; or APUS_ECLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_recv_many(
    client: *mut apus_client,
    completions: *mut apus_completion,
    max: usize,
    timeout_ns: i64,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let client = &unsafe { argument::shared("client", client)? }.client;
        let max = argument::count("max", max)?;
        // SAFETY: the pointer is that of structures of which the first has its size, or NULL.
        let places = unsafe { Places::new("completions", completions)? };
        if max == 1 {
            let received = match argument::time(timeout_ns) {
                Some(Duration::ZERO) => client.try_recv(),
                Some(timeout) => client.recv_timeout(timeout),
                None => client.recv(),
            };
            let Some(response) = in_time(received)? else { return Ok(0) };
            // SAFETY: there is one place.
            unsafe { places.write(0, &apus_completion::of(response)) };
            return Ok(1);
        }
        let mut batch = Vec::new();
        let received = client.recv_many(&mut batch, max, argument::time(timeout_ns));
        let count = in_time(received)?.unwrap_or(0);
        for (index, response) in batch.into_iter().enumerate() {
            // SAFETY: there are `max` places.
            unsafe { places.write(index, &apus_completion::of(response)) };
        }
        Ok(count as i32)
    })
}

/// A message, unless none came in time.
#[inline]
pub(crate) fn in_time<T>(received: Result<T, RecvError>) -> Result<Option<T>, Failure> {
    match received {
        Ok(received) => Ok(Some(received)),
        Err(RecvError::Timeout | RecvError::Empty) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends the outstanding calls of apus_send() with this tag. apus_recv_many() returns them with APUS_ECANCELLED. Their requests
/// may be executed nevertheless.
///
/// Returns 1 if there was such a call, and otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_cancel(client: *mut apus_client, tag: u64) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let client = unsafe { argument::shared("client", client)? };
        if client.client.cancel(tag) {
            return Ok(1);
        }
        client.owner.check()?;
        Ok(0)
    })
}
