//! The numbers of errors.

use std::ffi::{CStr, c_char};

use apus_error::*;

/// Errors. Functions return 0 or a positive number if they succeed, and one of these numbers otherwise. A number keeps its
/// meaning in all versions; later versions add numbers. apus_last_error() has the details of an error.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum apus_error {
    /// Misuse: an argument is NULL, or has a value that is not allowed.
    APUS_EINVAL = -1,
    /// Misuse: the handle was made by the parent of this process, before the fork.
    APUS_EFORKED = -2,
    /// Misuse: the key or the value of a setting is not allowed, or settings contradict each other.
    APUS_ECONFIG = -3,
    /// Misuse: the text is not an address, or the address is not that of a service.
    APUS_EADDRESS = -4,
    /// Misuse: the body is longer than this node, or a Linux host, allows. Nothing was sent.
    APUS_ETOO_LONG = -5,
    /// Misuse: the body is empty, which a Linux host (`homa://`) does not accept. Nothing was sent.
    APUS_EEMPTY = -6,
    /// Misuse: a thread called the port that it serves itself, and no other thread serves it.
    APUS_EOWN_SERVICE = -7,
    /// Misuse: the function was called by a release function, which may not do that.
    APUS_EIN_RELEASE = -8,
    /// Misuse: the node cannot be turned by an event loop: its setting `delivery` has another mode than suspend, or it has
    /// shards.
    APUS_EEVENT_LOOP = -9,
    /// Misuse: this node has no certificate, so it speaks with its own machine only, and the address is of another one, or the
    /// function is about the names of peers. Nothing was sent.
    APUS_ENO_IDENTITY = -10,
    /// Misuse: the `homa://` address is not of a host with which this node speaks plain. Nothing was sent.
    APUS_ENO_PLAIN_PEER = -11,

    /// Local: a fault of the library. apus_last_error() has its text. The request of a call may have been executed.
    APUS_EPANIC = -30,
    /// Local: the client, the port or the node is closed. The request of a call may have been executed.
    APUS_ECLOSED = -31,
    /// Local: the call was cancelled. Its request may have been executed.
    APUS_ECANCELLED = -32,
    /// Local: the deadline of the call passed. Its request may have been executed.
    APUS_EDEADLINE = -33,
    /// Local: as many calls to the peer are outstanding as the setting `calls_max` allows. Nothing was sent.
    APUS_ETOO_MANY_CALLS = -34,
    /// Local: the message does not fit the budgets beside others. Nothing was sent.
    APUS_EOVER_BUDGET = -35,
    /// Local: as many peers are in use as the setting `peers_max` allows. Nothing was sent.
    APUS_ETOO_MANY_PEERS = -36,
    /// Local: the response is longer than this node accepts. The request was executed.
    APUS_ERESPONSE_TOO_LONG = -37,
    /// Local: the path ended before the request was sent. It was not executed.
    APUS_ENOT_SENT = -38,
    /// Local: the shared engine has ended, or does not answer. Nothing was sent.
    APUS_ENO_ENGINE = -39,
    /// Local: the shared engine ended while the call was under way. Its request may have been executed.
    APUS_EENGINE_ENDED = -40,
    /// Local: another node or program uses the port or the address.
    APUS_EIN_USE = -41,
    /// Local: the address to listen at is not one of this machine.
    APUS_EADDRESS_NOT_AVAILABLE = -42,
    /// Local: the process lacks a permission.
    APUS_EPERMISSION = -43,
    /// Local: the process or the system has no memory, thread, descriptor or port left.
    APUS_ENO_RESOURCES = -44,
    /// Local: a file cannot be read or written, or has the wrong contents.
    APUS_EFILE = -45,
    /// Local: the network cannot be used.
    APUS_ELINK = -46,
    /// Local: the resolver does not know the name of the host.
    APUS_ELOOKUP = -47,
    /// Local: calls, requests or responses had not ended when the node was closed. It is closed nevertheless.
    APUS_EUNFINISHED = -48,

    /// Peer: it is silent. The request may have been executed.
    APUS_EPEER_TIMEOUT = -60,
    /// Peer: the network reports that it cannot be reached, or that no node is there. The request may have been executed.
    APUS_EPEER_UNREACHABLE = -61,
    /// Peer: no service has the port. The request was not executed.
    APUS_ENO_SUCH_PORT = -62,
    /// Peer: its handler panicked. The request may have been executed in part.
    APUS_EHANDLER_PANICKED = -63,
    /// Peer: it has given the response up. The request may have been executed.
    APUS_ERESPONSE_LOST = -64,
    /// Peer: it was restarted, or has forgotten this client. The request may have been executed.
    APUS_EMAY_HAVE_EXECUTED = -65,
    /// Peer: it has another version of the wire format. The request was not executed.
    APUS_EOTHER_VERSION = -66,
    /// Peer: the request is longer than it accepts. It was not executed.
    APUS_EREQUEST_TOO_LONG = -67,
    /// Peer: it had no room for the request. It was not executed.
    APUS_EOVERLOADED = -68,
    /// Peer: its certificate has another name than the client expects. Nothing was sent to it.
    APUS_EWRONG_PEER = -69,
    /// Peer or local: the two nodes did not verify each other. The request may have been executed.
    APUS_EHANDSHAKE = -70,
    /// Peer: it has no certificate, and this node calls nobody in plain. The request was not executed.
    APUS_EPLAIN_ONLY = -71,
    /// Peer: the rule of the port does not admit this node. The request was not executed.
    APUS_EFORBIDDEN = -72,
    /// Peer: it takes sealed packets only, and this node has no certificate. The request was not executed.
    APUS_ESEALED_ONLY = -73,
    /// Peer: the client no longer waits for this response.
    APUS_EGONE = -74,

    /// An error that this version has no number for. The request of a call may have been executed.
    APUS_EOTHER = -90,
}

/// The number, the name, a text, and whether the request of a call that ended with it may have been executed.
type Entry = (apus_error, &'static CStr, &'static CStr, bool);

macro_rules! table {
    ($($number:ident: $text:literal, $executed:literal;)*) => {
        const TABLE: &[Entry] = &[$((
            $number,
            match CStr::from_bytes_with_nul(concat!(stringify!($number), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no NUL"),
            },
            $text,
            $executed,
        )),*];

        /// The table has every number: this does not compile otherwise.
        const _: fn(apus_error) = |number| match number {
            $($number => (),)*
        };
    };
}

table! {
    APUS_EINVAL: c"an argument is not allowed", false;
    APUS_EFORKED: c"the handle belongs to the parent of this process", true;
    APUS_ECONFIG: c"a setting is not allowed", false;
    APUS_EADDRESS: c"not the address of a service", false;
    APUS_ETOO_LONG: c"the message is too long", false;
    APUS_EEMPTY: c"the message is empty, and the peer is a Linux host", false;
    APUS_EOWN_SERVICE: c"the call waited for its own thread", true;
    APUS_EIN_RELEASE: c"called by a release function", false;
    APUS_EEVENT_LOOP: c"an event loop cannot turn the node", false;
    APUS_ENO_IDENTITY: c"this node has no certificate", false;
    APUS_ENO_PLAIN_PEER: c"this node does not speak plain with the host", false;
    APUS_EPANIC: c"a fault of the library", true;
    APUS_ECLOSED: c"closed", true;
    APUS_ECANCELLED: c"the call was cancelled", true;
    APUS_EDEADLINE: c"the deadline of the call passed", true;
    APUS_ETOO_MANY_CALLS: c"too many calls are outstanding", false;
    APUS_EOVER_BUDGET: c"the message does not fit the budgets", false;
    APUS_ETOO_MANY_PEERS: c"too many peers are in use", false;
    APUS_ERESPONSE_TOO_LONG: c"the response is too long", true;
    APUS_ENOT_SENT: c"the path ended before the request was sent", false;
    APUS_ENO_ENGINE: c"the shared engine does not answer", false;
    APUS_EENGINE_ENDED: c"the shared engine has ended", true;
    APUS_EIN_USE: c"the port or address is in use", false;
    APUS_EADDRESS_NOT_AVAILABLE: c"not an address of this machine", false;
    APUS_EPERMISSION: c"permission is missing", false;
    APUS_ENO_RESOURCES: c"no memory, thread, descriptor or port is left", false;
    APUS_EFILE: c"a file cannot be used", false;
    APUS_ELINK: c"the network cannot be used", false;
    APUS_ELOOKUP: c"the host is not known", false;
    APUS_EUNFINISHED: c"calls or requests had not ended", true;
    APUS_EPEER_TIMEOUT: c"the peer is silent", true;
    APUS_EPEER_UNREACHABLE: c"the peer cannot be reached", true;
    APUS_ENO_SUCH_PORT: c"no service has the port", false;
    APUS_EHANDLER_PANICKED: c"the server's handler panicked", true;
    APUS_ERESPONSE_LOST: c"the peer has given the response up", true;
    APUS_EMAY_HAVE_EXECUTED: c"the server was restarted or has forgotten this client", true;
    APUS_EOTHER_VERSION: c"the peer has another version of the wire format", false;
    APUS_EREQUEST_TOO_LONG: c"the request is longer than the peer accepts", false;
    APUS_EOVERLOADED: c"the peer had no room for the request", false;
    APUS_EWRONG_PEER: c"the peer has another name than expected", false;
    APUS_EHANDSHAKE: c"the nodes did not verify each other", true;
    APUS_EPLAIN_ONLY: c"the peer has no certificate", false;
    APUS_EFORBIDDEN: c"the rule of the port does not admit this node", false;
    APUS_ESEALED_ONLY: c"the peer takes sealed packets only", false;
    APUS_EGONE: c"the client no longer waits", false;
    APUS_EOTHER: c"an error without a number", true;
}

fn entry(error: i32) -> Option<&'static Entry> {
    TABLE.iter().find(|(number, ..)| *number as i32 == error)
}

/// Returns a short text for the number of an error; "no error" for 0 and positive numbers, and "unknown error" for a number that
/// this version does not know. The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn apus_strerror(error: i32) -> *const c_char {
    let text = match entry(error) {
        Some((_, _, text, _)) => text,
        None if error >= 0 => c"no error",
        None => c"unknown error",
    };
    text.as_ptr()
}

/// Returns the name of an error, such as "APUS_EINVAL", or NULL for a number that this version does not know. The text is valid
/// for ever.
#[unsafe(no_mangle)]
pub extern "C" fn apus_error_name(error: i32) -> *const c_char {
    entry(error).map_or(std::ptr::null(), |(_, name, ..)| name.as_ptr())
}

/// Returns 0 if no call that ended with this error has executed its request: it may be repeated then, whatever the request does.
/// Returns 1 otherwise, and for a number that this version does not know. Some calls that end with APUS_EDEADLINE,
/// APUS_EPEER_TIMEOUT, APUS_EPEER_UNREACHABLE or APUS_EHANDSHAKE were not executed either: apus_last_error_may_have_executed()
/// and the field of an apus_completion state that for one call.
#[unsafe(no_mangle)]
pub extern "C" fn apus_error_may_have_executed(error: i32) -> i32 {
    match entry(error) {
        Some((.., executed)) => (*executed).into(),
        None => 1,
    }
}

/// Returns the version of the library with which the program runs, such as "0.1.0". The text is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn apus_version() -> *const c_char {
    const TEXT: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("a version has no NUL"),
        };
    TEXT.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_package() {
        let line = format!("#define APUS_VERSION \"{}\"\n", env!("CARGO_PKG_VERSION"));
        assert!(include_str!("../include/apus/apus.h").contains(&line), "{line}");
    }

    /// Numbers keep their meaning: a line of this table is never changed or removed, only added.
    #[test]
    fn numbers_are_never_reused() {
        let table: Vec<String> = TABLE
            .iter()
            .map(|(number, name, ..)| format!("{} {}", *number as i32, name.to_str().unwrap()))
            .collect();
        let record = include_str!("../errors.txt");
        assert_eq!(table, record.lines().collect::<Vec<_>>());
        let mut numbers: Vec<i32> = TABLE.iter().map(|(number, ..)| *number as i32).collect();
        numbers.dedup();
        assert!(numbers.is_sorted_by(|a, b| a > b), "{numbers:?}");
    }
}
