//! What a transport is to the benchmarks.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Error, Result, bail};
use apus::{CallError, Delivery, Links};
use derive_more::AddAssign;
use serde::{Deserialize, Serialize};

use crate::message::Header;

/// What a client may choose.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Connections of `tcp-epoll`; the other transports have one.
    pub connections: usize,
    /// What nodes of Apus are set to.
    pub node: NodeOptions,
}

/// What a node of Apus is set to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeOptions {
    /// How it reaches others; follows from the transport.
    #[serde(with = "crate::as_text")]
    pub link: Links,
    /// Packet delivery of Apus.
    #[serde(with = "crate::as_text")]
    pub delivery: Delivery,
    /// Receive buffer to ask for, in bytes.
    pub receive_buffer: Option<u32>,
    /// File to which it appends its packets. Only the client's node does: the server's has the same packets.
    #[serde(skip)]
    pub capture: Option<PathBuf>,
}

/// One request as the benchmarks give it to a transport.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the reply.
    pub tag: u64,
    /// Bytes of the request, at least [`crate::message::Header::LEN`].
    pub length: u32,
    /// Bytes of the wanted reply; 0 means as long as the request.
    pub reply: u32,
}

/// One reply, already checked by the transport for what only it can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag of the request it answers.
    pub tag: u64,
    /// Bytes of the reply as they arrived.
    pub length: u32,
    /// Bytes of the request as the server saw them.
    pub request_length: u32,
}

impl Request {
    /// The header of its message.
    pub fn header(self) -> Header {
        Header { tag: self.tag, length: self.length, other_length: self.reply }
    }
}

impl From<Header> for Reply {
    /// What the header of a reply tells.
    fn from(header: Header) -> Self {
        Self { tag: header.tag, length: header.length, request_length: header.other_length }
    }
}

/// What went wrong below the messages and was put right, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign, Serialize, Deserialize)]
pub struct Health {
    /// Datagrams the kernel dropped because a receive buffer was full.
    pub drops: u64,
    /// Times data was asked for again.
    pub resends: u64,
}

/// Tells a server's health while it runs.
pub type HealthProbe = Box<dyn Fn() -> Health + Send>;

/// The kind of a reply that is not what was asked for.
pub const WRONG_REPLY: &str = "wrong_reply";

/// The kind of a call without any reply for a long time.
pub const NO_REPLY: &str = "no_reply";

/// The kind of the calls on a connection that broke or is not there.
const CONNECTION_LOST: &str = "connection_lost";

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Which call.
    pub key: u64,
    /// What it is counted as, lower case with underscores.
    pub kind: String,
    /// What happened, for people.
    pub why: String,
}

impl Failed {
    /// A call that the transport ended with an error.
    pub fn call(key: u64, error: &CallError) -> Self {
        Self { key, kind: kind(error), why: format!("a call failed: {error}") }
    }

    /// A call on a connection that broke or is not there.
    pub fn connection_lost(key: u64, why: impl fmt::Display) -> Self {
        Self { key, kind: CONNECTION_LOST.to_owned(), why: why.to_string() }
    }

    /// A call whose reply is not what was asked for.
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

/// The name of an error's variant, in lower case with underscores, so that new kinds of errors need no list here.
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

/// What became of a call.
pub type Ended = Result<Reply, Failed>;

/// The client's side of a transport, used by one thread and connected to some servers; a benchmark on this machine has one.
pub trait Client {
    /// Takes a request to the server of that place in the list. It may stay queued until the next `receive`, so that many
    /// share a system call. The request's tag is the key of the call.
    ///
    /// # Errors
    /// When this call cannot be made; others may.
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed>;

    /// Sends what is queued and adds the calls that have ended, waiting up to `timeout` for the first. With a `timeout`
    /// of zero it only looks.
    ///
    /// # Errors
    /// When no call that is outstanding can end any more.
    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()>;

    /// One request to the first server and its reply, the transport's quickest way.
    ///
    /// # Errors
    /// When the call fails or has no reply after `timeout`.
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

    /// Goes on after `receive` has failed with this error, if that is possible.
    ///
    /// # Errors
    /// The same one, when it is not.
    fn recover(&mut self, error: Error) -> Result<()> {
        Err(error)
    }

    /// What this side knows of its health; nothing, where the kernel keeps it to itself.
    ///
    /// # Errors
    /// When calls did not go the way that the transport's name says.
    fn health(&self) -> Result<Health> {
        Ok(Health::default())
    }
}

/// The server's side of a transport: answers every request until the process ends.
pub trait Server: Send {
    /// Where clients find it: an IP address and port, or the name of a unix socket.
    fn address(&self) -> String;

    /// Tells what this side knows of its health.
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
