//! Generic netlink: families, requests, dumps, and attributes.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NlasIterator, ParseableParametrized,
};
use netlink_packet_generic::constants::GENL_ID_CTRL;
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, OpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

/// The expected answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// One message.
    One,
    /// One message for each object.
    Dump,
    /// Only the acknowledgement.
    Done,
}

/// A family as the kernel has registered it.
pub(crate) struct Family {
    pub(crate) id: u16,
    pub(crate) commands: BTreeSet<u32>,
}

/// Requests a family by its name; `NotFound` if the kernel does not have it.
pub(crate) fn family(name: &str) -> io::Result<Family> {
    let request = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
    };
    let replies: Vec<GenlCtrl> = exchange(GENL_ID_CTRL, request, Answer::One)?;
    let attributes = replies.into_iter().flat_map(|reply| reply.nlas);
    let mut family = Family { id: 0, commands: BTreeSet::new() };
    for attribute in attributes {
        match attribute {
            GenlCtrlAttrs::FamilyId(id) => family.id = id,
            GenlCtrlAttrs::Ops(operations) => {
                let attributes = operations.into_iter().flatten();
                family.commands.extend(attributes.filter_map(|attribute| match attribute {
                    OpAttrs::Id(id) => Some(id),
                    OpAttrs::Flags(_) => None,
                }));
            }
            _ => {}
        }
    }
    Ok(family)
}

/// A message of any family: its command and its attributes as bytes.
#[derive(Clone, Debug)]
struct Plain {
    command: u8,
    attributes: Vec<u8>,
}

impl GenlFamily for Plain {
    fn family_name() -> &'static str {
        "" // It is named by its number.
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Plain {
    fn buffer_len(&self) -> usize {
        self.attributes.len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer[..self.attributes.len()].copy_from_slice(&self.attributes);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Plain {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { command: header.cmd, attributes: bytes.to_vec() })
    }
}

/// Sends a request. Returns the attributes of each reply.
pub(crate) fn ask(
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
    answer: Answer,
) -> io::Result<Vec<Vec<u8>>> {
    let request = Plain { command, attributes: bytes(&attributes) };
    let replies: Vec<Plain> = exchange(family, request, answer)?;
    Ok(replies.into_iter().map(|reply| reply.attributes).collect())
}

/// Sends a request. Returns the replies up to the last one.
fn exchange<P>(family: u16, request: P, answer: Answer) -> io::Result<Vec<P>>
where
    P: GenlFamily + Emitable + std::fmt::Debug + ParseableParametrized<[u8], GenlHeader>,
{
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(TIMEOUT_S))?;
    let header = GenlHeader { cmd: request.command(), version: request.version() };
    let request = GenlMessage::new(header, request, family);
    let mut netlink = NetlinkHeader::default();
    netlink.flags = NLM_F_REQUEST
        | match answer {
            Answer::One => 0,
            Answer::Dump => NLM_F_DUMP,
            Answer::Done => NLM_F_ACK,
        };
    netlink.message_type = family;
    let mut request = NetlinkMessage::new(netlink, NetlinkPayload::from(request));
    request.finalize();
    let mut buffer = vec![0; request.buffer_len()];
    request.serialize(&mut buffer);
    socket.send(&buffer, 0)?;
    let mut replies = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<GenlMessage<P>>::deserialize(rest).map_err(invalid)?;
            let length = (message.header.length as usize).next_multiple_of(4).min(rest.len());
            rest = &rest[length.max(1)..];
            match message.payload {
                NetlinkPayload::InnerMessage(reply) => replies.push(reply.payload),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(replies),
                _ => {}
            }
        }
        if answer == Answer::One && !replies.is_empty() {
            return Ok(replies);
        }
    }
}

/// Splits attributes into pairs of kind and value.
pub(crate) fn attributes(bytes: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    NlasIterator::new(bytes)
        .map(|attribute| {
            let attribute = attribute.map_err(invalid)?;
            Ok((attribute.kind(), attribute.value().to_vec()))
        })
        .collect()
}

pub(crate) fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

pub(crate) fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Time limit for the kernel's answer, in seconds.
const TIMEOUT_S: i64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_is_not_there_is_not_found() {
        let error = family("no-such-family").err().expect("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
