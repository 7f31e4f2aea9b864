//! Ports: requests in.

use std::ffi::c_char;
use std::time::Duration;

use apus::Port;

use crate::argument;
use crate::client::in_time;
use crate::entry;
use crate::node::apus_node;
use crate::process::OwnerProcess;
use crate::request::apus_request;

/// A port that clients call: the server's side of a service.
pub struct apus_port {
    owner: OwnerProcess,
    port: Port,
}

/// Opens the port `number`, 1 to 32766, on a node, and writes its handle to `port`. A port keeps its node running.
///
/// Returns 0, APUS_EINVAL, APUS_EIN_USE or APUS_ECLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_bind(
    node: *mut apus_node,
    number: u16,
    port: *mut *mut apus_port,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is valid, or NULL.
        let place = unsafe { argument::place("port", port)? };
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        let port = node.with(|node| Ok(node.bind(number)?))?;
        *place = Box::into_raw(Box::new(apus_port { owner: OwnerProcess::this(), port }));
        Ok(0)
    })
}

/// Admits requests only of peers whose certificate has a name of one of the `count` patterns, from now on; those of
/// apus_client_expect().
///
/// Returns 0, APUS_EINVAL if a text is not a pattern, or APUS_ENO_IDENTITY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_port_allow(
    port: *mut apus_port,
    patterns: *const *const c_char,
    count: usize,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let port = unsafe { argument::shared("port", port)? };
        // SAFETY: the pointer is that of `count` texts, or NULL.
        let patterns = unsafe { argument::texts("patterns", patterns, count)? };
        port.port.allow(patterns)?;
        Ok(0)
    })
}

/// Takes requests, up to `max` of them. Waits for the first one for at most `timeout_ns`; 0 does not wait, and a negative time
/// waits without end. Writes their handles to `requests`. Each is answered with apus_reply(), or given up with
/// apus_request_abandon().
///
/// Returns their number; 0 if none came in time; or APUS_ECLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_port_recv_many(
    port: *mut apus_port,
    requests: *mut *mut apus_request,
    max: usize,
    timeout_ns: i64,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let apus_port { owner, port } = unsafe { argument::shared("port", port)? };
        let max = argument::count("max", max)?;
        // SAFETY: the pointer is that of `max` places, or NULL.
        let first = std::ptr::from_mut(unsafe { argument::place("requests", requests)? });
        if max == 1 {
            let received = match argument::time(timeout_ns) {
                Some(Duration::ZERO) => port.try_recv(),
                Some(timeout) => port.recv_timeout(timeout),
                None => port.recv(),
            };
            let Some(request) = in_time(received)? else { return Ok(0) };
            // SAFETY: there is one place.
            unsafe { first.write(apus_request::new(request, *owner)) };
            return Ok(1);
        }
        let mut batch = Vec::new();
        let received = port.recv_many(&mut batch, max, argument::time(timeout_ns));
        let count = in_time(received)?.unwrap_or(0);
        for (index, request) in batch.into_iter().enumerate() {
            // SAFETY: there are `max` places.
            unsafe { first.add(index).write(apus_request::new(request, *owner)) };
        }
        Ok(count as i32)
    })
}

/// Closes a port. Waiting threads return with APUS_ECLOSED, and requests that are not answered are given up. The handle is still
/// to be freed.
///
/// Returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_port_shutdown(port: *mut apus_port) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let port = unsafe { argument::shared("port", port)? };
        port.owner.check()?;
        port.port.shutdown();
        Ok(0)
    })
}

/// Frees a port. It is closed when its last request is answered or given up. Responses that are under way may be lost then;
/// apus_node_close() waits for them. Does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_port_free(port: *mut apus_port) {
    entry::value((), || {
        if !port.is_null() {
            // SAFETY: the handle is valid, and no other thread uses it.
            drop(unsafe { argument::owned("port", port)? });
        }
        Ok(())
    });
}
