//! The interface of transports.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result, bail};
use apus::{CallError, Delivery, Links};
use derive_more::AddAssign;
use serde::{Deserialize, Serialize};

use crate::message::MessageHeader;

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Connections of `tcp-epoll`; the other transports have one.
    pub connections: usize,
    /// Settings of Apus nodes.
    pub node: NodeOptions,
}

/// Settings of an Apus node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeOptions {
    /// Its links, which the transport determines.
    #[serde(with = "crate::as_text")]
    pub link: Links,
    /// Packet delivery of Apus.
    #[serde(with = "crate::as_text")]
    pub delivery: Delivery,
    /// Requested receive buffer, in bytes.
    pub receive_buffer: Option<u32>,
    /// File to which it appends its packets. Only the client's node captures; the server's has the same packets.
    #[serde(skip)]
    pub capture: Option<PathBuf>,
}

/// One request of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Identifies the call. The reply echoes it.
    pub tag: u64,
    /// Bytes of the request, at least [`crate::message::MessageHeader::LEN`].
    pub length: u32,
    /// Bytes of the wanted reply; 0 means the length of the request.
    pub reply: u32,
}

/// One reply, after the transport's own checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag of its request.
    pub tag: u64,
    /// Bytes of the received reply.
    pub length: u32,
    /// Bytes of the request as received by the server.
    pub request_length: u32,
}

impl Request {
    /// The header of its message.
    pub fn header(self) -> MessageHeader {
        MessageHeader { tag: self.tag, length: self.length, other_length: self.reply }
    }
}

impl From<MessageHeader> for Reply {
    /// The fields of a reply's header.
    fn from(header: MessageHeader) -> Self {
        Self { tag: header.tag, length: header.length, request_length: header.other_length }
    }
}

/// Counts of losses below the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, Serialize, Deserialize)]
pub struct Health {
    /// Datagrams that the kernel dropped because a receive buffer was full.
    pub drops: u64,
    /// Number of RESENDs.
    pub resends: u64,
}

/// Reports a server's health while it runs.
pub type HealthProbe = Box<dyn Fn() -> Health + Send>;

/// The kind of a wrong reply.
pub const WRONG_REPLY: &str = "wrong_reply";

/// The kind of a call that has had no reply for a long time.
pub const NO_REPLY: &str = "no_reply";

/// The kind of a call on a broken or missing connection.
const CONNECTION_LOST: &str = "connection_lost";

/// A failed call.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The key of the call.
    pub key: u64,
    /// The kind of the failure, in lower case with underscores.
    pub kind: String,
    /// A description of the failure.
    pub why: String,
}

impl Failed {
    /// A call that ended with an error of the transport.
    pub fn call(key: u64, error: &CallError) -> Self {
        Self { key, kind: kind(error), why: format!("a call failed: {error}") }
    }

    /// A call on a broken or missing connection.
    pub fn connection_lost(key: u64, why: impl fmt::Display) -> Self {
        Self { key, kind: CONNECTION_LOST.to_owned(), why: why.to_string() }
    }

    /// A call with a wrong reply.
    pub fn wrong(key: u64, why: impl fmt::Display) -> Self {
        Self { key, kind: WRONG_REPLY.to_owned(), why: why.to_string() }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failed {}

/// The name of an error's variant, in lower case with underscores, so that new variants need no list here.
fn kind(error: &CallError) -> String {
    let debugged = format!("{error:?}");
    let name = debugged.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut kind = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !kind.is_empty() {
            kind.push('_');
        }
        kind.push(c.to_ascii_lowercase());
    }
    kind
}

/// The end of a call.
pub type Ended = Result<Reply, Failed>;

/// The client's side of a transport, for one thread, connected to one or several servers. A benchmark on one machine has one
/// server.
pub trait Client {
    /// Sends a request to the server with index `server`. The request may stay queued until the next `receive`, so that many
    /// requests share a system call. The request's tag is the key of the call.
    ///
    /// # Errors
    /// If this call cannot be made. Other calls are not affected.
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed>;

    /// Sends queued requests and adds the calls that have ended, waiting up to `timeout` for the first. Does not wait if `timeout`
    /// is zero.
    ///
    /// # Errors
    /// If no outstanding call can end any more.
    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()>;

    /// Makes one call to the first server in the transport's fastest way.
    ///
    /// # Errors
    /// If the call fails or has no reply after `timeout`.
    fn call(
        &mut self,
        request: Request,
        timeout: Duration,
        ended: &mut Vec<Ended>,
    ) -> Result<Reply> {
        ended.clear();
        self.send(0, request)?;
        self.receive(timeout, ended)?;
        match ended.pop() {
            Some(ended) => Ok(ended?),
            None => bail!("no reply within {timeout:?}"),
        }
    }

    /// Continues after `receive` has failed with this error, if possible.
    ///
    /// # Errors
    /// The same error, if it is not possible.
    fn recover(&mut self, error: Error) -> Result<()> {
        Err(error)
    }

    /// The health of this side; empty if the kernel does not report it.
    ///
    /// # Errors
    /// If calls did not take the way that the transport's name implies.
    fn health(&self) -> Result<Health> {
        Ok(Health::default())
    }
}

/// The server's side of a transport: answers every request until the process ends.
pub trait Server: Send {
    /// The address for clients: an IP address and port, or the name of a unix socket.
    fn address(&self) -> String;

    /// A probe of this side's health.
    fn health_probe(&self) -> HealthProbe {
        Box::new(Health::default)
    }

    /// Serves; returns only with an error.
    fn run(self: Box<Self>) -> Result<Infallible>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_the_name_of_the_error() {
        for (error, expected) in [
            (CallError::NoSuchPort, "no_such_port"),
            (CallError::MessageTooLarge { length: 5, limit: 4 }, "message_too_large"),
            (CallError::Closed, "closed"),
        ] {
            assert_eq!(kind(&error), expected);
        }
    }
}
