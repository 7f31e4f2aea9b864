//! Requests and their answers.

use std::ffi::{c_char, c_void};
use std::ptr;

use apus::Request;
use bytes::Bytes;

use crate::address::{self, apus_address};
use crate::argument;
use crate::call_options::{APUS_FOREVER, apus_trace, nanoseconds};
use crate::entry;
use crate::failure::Failure;
use crate::owned::{self, apus_release};
use crate::process::OwnerProcess;

/// A request of a client, executed at most once. Any thread may answer it, at any time.
pub struct apus_request {
    owner: OwnerProcess,
    /// Empty only while an answer is given.
    request: Option<Request>,
}

impl apus_request {
    /// A handle, which the program owns.
    #[inline]
    pub(crate) fn new(request: Request, owner: OwnerProcess) -> *mut Self {
        Box::into_raw(Box::new(Self { owner, request: Some(request) }))
    }

    #[inline]
    fn get(&self) -> Result<&Request, Failure> {
        self.request.as_ref().ok_or_else(|| {
            Failure::argument("request", &"an answered request", "one that is not answered")
        })
    }
}

/// The request of a handle.
#[inline]
unsafe fn of<'a>(request: *const apus_request) -> Result<&'a Request, Failure> {
    // SAFETY: the handle is valid, or NULL.
    unsafe { argument::shared("request", request)? }.get()
}

/// Returns the bytes of a request, and their number in `length`, which may be NULL. The pointer is valid until the request is
/// answered or given up, and is never NULL: an empty body has a pointer to no byte. Returns NULL and a length of 0 if `request`
/// is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_body(
    request: *const apus_request,
    length: *mut usize,
) -> *const c_void {
    entry::value(ptr::null(), || {
        // SAFETY: the pointer is valid, or NULL.
        let length = unsafe { length.as_mut() };
        // SAFETY: the handle is valid, or NULL.
        let body = unsafe { of(request) }.map(|request| &request.body()[..]);
        if let Some(length) = length {
            *length = body.as_ref().map_or(0, |body| body.len());
        }
        Ok(body?.as_ptr().cast())
    })
}

/// Writes the address of the client to `address`. It is not authenticated; the name of apus_request_peer() is.
///
/// Returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_from(
    request: *const apus_request,
    address: *mut apus_address,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let from = unsafe { of(request)? }.from();
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        unsafe { address::write("address", address, from)? };
        Ok(0)
    })
}

/// Writes the name of the client's certificate, and a NUL, to a buffer of `size` bytes: its SPIFFE id, else its first DNS name.
///
/// Returns the length of the name without the NUL; 0 if the client has no certificate, and an empty text; or APUS_EINVAL if it
/// does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_peer(
    request: *const apus_request,
    buffer: *mut c_char,
    size: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let handle = unsafe { argument::shared("request", request)? };
        let peer = handle.get()?.peer();
        if peer.is_none() {
            handle.owner.check()?;
        }
        let name = peer.as_ref().map_or("", |peer| peer.name());
        // SAFETY: the buffer has that many bytes, or is NULL.
        unsafe { address::write_text(name, buffer, size) }
    })
}

/// Returns the time until the deadline of the call in nanoseconds; 0 when it has passed, and if `request` is NULL; APUS_FOREVER
/// if the call has no deadline. A service that makes calls of its own for a request gives them no more: the value fits the member
/// `deadline_ns` of apus_call_options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_remaining_ns(request: *const apus_request) -> i64 {
    entry::value(0, || {
        // SAFETY: the handle is valid, or NULL.
        let remaining = unsafe { of(request)? }.remaining();
        Ok(remaining.map_or(APUS_FOREVER, nanoseconds))
    })
}

/// Returns 1 if the response is no longer needed: the client has given the call up, its deadline has passed, the client is lost,
/// or the node is closed. Otherwise 0. Turns the engine once to find out. A handler that takes long can check this now and then,
/// and stop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_is_cancelled(request: *const apus_request) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let handle = unsafe { argument::shared("request", request)? };
        let is_cancelled = handle.get()?.is_cancelled();
        if is_cancelled {
            handle.owner.check()?;
        }
        Ok(is_cancelled.into())
    })
}

/// Writes the place of the call in a distributed trace to `trace`; zeros if the client has sent none. Any client can name any
/// trace.
///
/// Returns 1 if there is a place, and otherwise 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_trace(
    request: *const apus_request,
    trace: *mut apus_trace,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let context = unsafe { of(request)? }.trace_context();
        // SAFETY: the pointer is valid, or NULL.
        let place = unsafe { argument::place("trace", trace)? };
        *place = context.as_ref().map_or(apus_trace::NONE, apus_trace::of);
        Ok(context.is_some().into())
    })
}

/// Answers a request. The body is copied; it may be that of the request. With success the request is freed: its handle and the
/// pointer to its body are not valid any more. With an error it is not, and can be answered again or given up.
///
/// Returns 0; APUS_EGONE if the client no longer waits; APUS_EOVER_BUDGET or APUS_ETOO_LONG if the response does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_reply(
    request: *mut apus_request,
    body: *const c_void,
    length: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is that of `length` bytes, or NULL.
        let body = Bytes::copy_from_slice(unsafe { argument::body(body, length)? });
        // SAFETY: the handle is valid, or NULL, and no other thread uses it.
        unsafe { reply(request, body) }
    })
}

/// As apus_reply(), without a copy: the library has the bytes of `data` until it calls `release` with `argument`. It does so
/// once, whether this function returns an error or not, perhaps before this function returns.
///
/// Returns 0, or an error of apus_reply().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_reply_owned(
    request: *mut apus_request,
    data: *const c_void,
    length: usize,
    release: apus_release,
    argument: *mut c_void,
) -> i32 {
    // SAFETY: the header demands that the bytes stay until they are released.
    let body = unsafe { owned::take(data, length, release, argument) };
    // SAFETY: the handle is valid, or NULL, and no other thread uses it.
    entry::number(|| unsafe { reply(request, body?) })
}

/// Frees the handle with success.
#[inline]
unsafe fn reply(request: *mut apus_request, body: Bytes) -> Result<i32, Failure> {
    // SAFETY: as of this function.
    let handle = unsafe { argument::place("request", request)? };
    handle.get()?;
    let Some(taken) = handle.request.take() else { return Ok(0) };
    if let Err(failed) = taken.reply(body) {
        let error = failed.error();
        handle.request = Some(failed.into_request());
        return Err(error.into());
    }
    // SAFETY: the handle is that of this library, and the program uses it no more.
    drop(unsafe { Box::from_raw(request) });
    Ok(0)
}

/// Gives a request up and frees it: the client is notified that there will be no response. Does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_request_abandon(request: *mut apus_request) {
    entry::value((), || {
        if !request.is_null() {
            // SAFETY: the handle is valid, and no other thread uses it.
            drop(unsafe { argument::owned("request", request)? });
        }
        Ok(())
    });
}
