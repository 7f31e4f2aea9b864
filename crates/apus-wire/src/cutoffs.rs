//! CUTOFFS: the receiver of messages assigns priorities to their unscheduled bytes (rule W17).

use std::ops::Range;

use crate::field::{read_u16, write_u16};
use crate::{Header, PacketType, ParseError, Priority};

const CUTOFFS: Range<usize> = 28..60;
const VERSION: Range<usize> = 60..62;

/// The body of a CUTOFFS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cutoffs {
    /// Entry i: length in bytes of the longest message whose unscheduled packets use priority i. A message uses the highest
    /// priority whose entry is not below its length. The parser checks neither order nor range.
    pub cutoffs: [u32; Priority::LEVELS],
    /// Version, which the receiver echoes in later DATA to the sender of this packet.
    pub version: u16,
}

impl Cutoffs {
    /// Length of the packet in bytes.
    pub const LEN: usize = 62;

    /// Parses a packet whose common header has type CUTOFFS.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: Self::LEN });
        };
        let mut cutoffs = [0; Priority::LEVELS];
        let (entries, _) = fixed[CUTOFFS].as_chunks();
        for (cutoff, entry) in cutoffs.iter_mut().zip(entries) {
            *cutoff = u32::from_be_bytes(*entry);
        }
        Ok(Self { cutoffs, version: read_u16(fixed, VERSION) })
    }

    /// Writes the whole packet. Returns its length, [`Cutoffs::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::Cutoffs, buffer);
        let (entries, _) = packet[CUTOFFS].as_chunks_mut();
        for (entry, cutoff) in entries.iter_mut().zip(self.cutoffs) {
            *entry = cutoff.to_be_bytes();
        }
        write_u16(packet, VERSION, self.version);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{
        FROM_SERVER, LINUX_CUTOFFS, SPEC_CUTOFFS, assert_lengths, bytes, emitted, without_checksum,
    };
    use crate::{Packet, RpcId};

    /// The initial table of the Linux module.
    const DEFAULT: Cutoffs =
        Cutoffs { cutoffs: [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200], version: 1 };

    #[test]
    fn parses_the_spec_packet() {
        //= docs/wire.md#W17
        let packet = bytes(SPEC_CUTOFFS);
        let expected = Packet::Cutoffs { header: FROM_SERVER, cutoffs: DEFAULT };
        assert_eq!(Packet::parse(&packet), Ok(expected));
        assert_lengths(&packet, 62);
    }

    #[test]
    fn parses_a_packet_of_linux() {
        let packet = bytes(LINUX_CUTOFFS);
        let header = Header { source_port: 4100, dest_port: 32768, sender_id: RpcId(3) };
        assert_eq!(Packet::parse(&packet), Ok(Packet::Cutoffs { header, cutoffs: DEFAULT }));
    }

    #[test]
    fn emits_the_spec_packet() {
        let packet = emitted(|buffer| DEFAULT.emit(&FROM_SERVER, buffer));
        assert_eq!(packet, without_checksum(SPEC_CUTOFFS));
    }
}
