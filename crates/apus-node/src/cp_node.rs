//! Messages of `cp_node`, the load generator of the Linux Homa module, which may be on either side.
//!
//! A message begins with 12 bytes in the host's byte order: its length; the numbers of the client port, client, server port and
//! server; the index of the call in the client's table; flags. The server answers with the first bytes of the request, all or 100
//! of them, with the length and a flag corrected. The bytes after the header have no meaning.

use anyhow::{Context, Result, ensure};
use apus::Bytes;

use crate::message::{SHORT_REPLY, filler};

/// Flag: answer with 100 bytes.
const SHORT_RESPONSE: u16 = 1 << 1;

/// Flag: the message is an answer.
const IS_RESPONSE: u16 = 1 << 2;

/// The first bytes of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpNodeHeader {
    /// Bytes of the message, including the header.
    length: i32,
    /// Client port, client, server port, server. Each counts from 0 and is only echoed.
    ids: [u8; 4],
    /// Index of the call in the client's table.
    slot: u16,
    flags: u16,
}

impl CpNodeHeader {
    /// Bytes of a header, which is the smallest message.
    pub const LEN: usize = 12;

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.ids);
        bytes[8..10].copy_from_slice(&self.slot.to_ne_bytes());
        bytes[10..].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (ids, rest) = rest.split_first_chunk::<4>()?;
        let (slot, rest) = rest.split_first_chunk::<2>()?;
        let (flags, _) = rest.split_first_chunk::<2>()?;
        Some(Self {
            length: i32::from_ne_bytes(*length),
            ids: *ids,
            slot: u16::from_ne_bytes(*slot),
            flags: u16::from_ne_bytes(*flags),
        })
    }

    fn says(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A request of `length` bytes, at least [`CpNodeHeader::LEN`], to the server with index `server`.
pub fn request(key: u64, server: usize, length: u32, short: bool) -> Bytes {
    let header = CpNodeHeader {
        length: length as i32,
        ids: [0, 0, 0, server as u8],
        slot: key as u16,
        flags: if short { SHORT_RESPONSE } else { 0 },
    };
    message(header, length as usize).into()
}

/// Bytes of the response to a request of `length` bytes.
pub fn response_length(length: u32, short: bool) -> u32 {
    if short { length.min(SHORT_REPLY) } else { length }
}

/// Checks the response to the call `key`. Returns its length.
///
/// # Errors
/// If it is not a response of a cp_node, or belongs to another call.
pub fn read_response(key: u64, body: &[u8]) -> Result<u32> {
    let header = CpNodeHeader::from_bytes(body).context("a response shorter than its header")?;
    ensure!(header.says(IS_RESPONSE), "a response without the response flag: not from a cp_node");
    ensure!(header.slot == key as u16, "a response to another request");
    ensure!(
        header.length as usize == body.len(),
        "a response of {} bytes whose header says {}",
        body.len(),
        header.length
    );
    Ok(body.len() as u32)
}

/// The response to a request; `None` if the request is not from a cp_node.
pub fn response(body: &[u8]) -> Option<Bytes> {
    let header = CpNodeHeader::from_bytes(body)?;
    if header.length as usize != body.len() || header.says(IS_RESPONSE) {
        return None;
    }
    let length = response_length(body.len() as u32, header.says(SHORT_RESPONSE)) as usize;
    let header =
        CpNodeHeader { length: length as i32, flags: header.flags | IS_RESPONSE, ..header };
    let mut response = Vec::with_capacity(length);
    response.extend_from_slice(&header.to_bytes());
    response.extend_from_slice(&body[CpNodeHeader::LEN..length.max(CpNodeHeader::LEN)]);
    Some(response.into())
}

/// The response to a malformed request: a header that matches no call.
pub fn refusal() -> Bytes {
    let header = CpNodeHeader {
        length: CpNodeHeader::LEN as i32,
        ids: [0; 4],
        slot: u16::MAX,
        flags: IS_RESPONSE,
    };
    header.to_bytes().to_vec().into()
}

fn message(header: CpNodeHeader, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&header.to_bytes());
    while bytes.len() < length {
        bytes.extend_from_slice(filler(bytes.len(), length - bytes.len()));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_lies_as_in_the_module() {
        let request = request(0x0005_0000_1234, 7, 5000, true);
        assert_eq!(request.len(), 5000);
        assert_eq!(request[..4], 5000_i32.to_ne_bytes());
        assert_eq!(request[4..8], [0, 0, 0, 7]);
        assert_eq!(request[8..10], 0x1234_u16.to_ne_bytes());
        assert_eq!(request[10..12], 2_u16.to_ne_bytes());
    }

    #[test]
    fn a_response_is_the_beginning_of_its_request() {
        for (length, short, expected) in [
            (12, false, 12),
            (12, true, 12),
            (100, true, 100),
            (5000, true, 100),
            (5000, false, 5000),
        ] {
            let request = request(9, 1, length, short);
            let response = response(&request).unwrap();
            assert_eq!(read_response(9, &response).unwrap(), expected);
            assert_eq!(response_length(length, short), expected);
            assert_eq!(
                response[CpNodeHeader::LEN..],
                request[CpNodeHeader::LEN..expected as usize]
            );
            assert!(read_response(10, &response).is_err());
        }
    }

    #[test]
    fn what_is_no_request_is_not_answered_as_one() {
        let good = request(9, 1, 200, false);
        let mut longer = good.to_vec();
        longer[..4].copy_from_slice(&i32::MAX.to_ne_bytes());
        let mut negative = good.to_vec();
        negative[..4].copy_from_slice(&(-1_i32).to_ne_bytes());
        let answer = response(&good).unwrap();
        for wrong in [&good[..11], &good[..199], &longer, &negative, &answer, &[0; 100]] {
            assert_eq!(response(wrong), None);
        }
        assert!(read_response(9, &refusal()).is_err() && refusal().len() == CpNodeHeader::LEN);
    }
}
