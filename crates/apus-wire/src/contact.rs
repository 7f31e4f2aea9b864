//! OPEN, TOKEN and CONFIRM, by which two nodes exchange their tokens over UDP (rules W32 to W34).
//!
//! All three have the same length, so the answer to an OPEN is not longer than the OPEN.

use std::ops::Range;

use crate::field::{read_u32, read_u64, write_u32, write_u64};
use crate::{COMMON_LEN, Header, PacketType, ParseError, Token};

/// A byte of the common header that has no meaning in other packets.
const FEATURES: usize = 9;
const TOKEN: Range<usize> = 28..36;
const PROOF: Range<usize> = 36..44;
const ISSUED: Range<usize> = 44..48;

/// Bit of the features: the sender reads compact bundles.
const COMPACT: u8 = 1;

/// Length of each of the three packets in bytes.
const LEN: usize = COMMON_LEN + 20;

fn fixed(bytes: &[u8]) -> Result<&[u8; LEN], ParseError> {
    bytes.first_chunk().ok_or(ParseError::TooShort { length: bytes.len(), needed: LEN })
}

/// The first packet to a peer. OPEN asks the peer to send the stamp's token in every packet and to answer with a token of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Open {
    /// The receiver's token that the sender knows and doubts; [`Token::NONE`] at a first contact.
    pub known: Token,
}

impl Open {
    /// Length of the packet in bytes.
    pub const LEN: usize = LEN;

    /// Parses a packet whose common header has type OPEN.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Ok(Self { known: Token(read_u64(fixed(bytes)?, TOKEN)) })
    }

    /// Writes the whole packet without its stamp. Returns its length, [`Open::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        //= docs/wire.md#W32
        let packet = header.emit_control::<LEN>(PacketType::Open, buffer);
        write_u64(packet, TOKEN, self.known.0);
        LEN
    }
}

/// The proof that a node sends in TOKEN and its peer repeats in CONFIRM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Proof {
    /// A number that only the receiver of the TOKEN knows.
    pub code: u64,
    /// Time at which the code was made, by the clock and in the units of its maker.
    pub issued: u32,
}

/// The body of TOKEN and CONFIRM: the token that admits packets to the sender, and the proof that the peer receives at its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Credentials {
    /// The sender's token for its peer.
    pub token: Token,
    /// The proof: made by the sender of TOKEN, repeated by the sender of CONFIRM.
    pub proof: Proof,
    /// Whether the sender reads compact bundles.
    pub compact: bool,
}

impl Credentials {
    /// Length of either packet in bytes.
    pub const LEN: usize = LEN;

    /// Parses a packet whose common header has type TOKEN or CONFIRM.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let fixed = fixed(bytes)?;
        let proof = Proof { code: read_u64(fixed, PROOF), issued: read_u32(fixed, ISSUED) };
        //= docs/wire.md#W57
        let compact = fixed[FEATURES] & COMPACT != 0;
        Ok(Self { token: Token(read_u64(fixed, TOKEN)), proof, compact })
    }

    /// Writes the answer to an OPEN without its stamp. Returns its length, [`Credentials::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    pub fn emit_token(&self, header: &Header, buffer: &mut [u8]) -> usize {
        //= docs/wire.md#W33
        self.emit(PacketType::Token, header, buffer)
    }

    /// Writes the answer to a TOKEN without its stamp. Returns its length, [`Credentials::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    pub fn emit_confirm(&self, header: &Header, buffer: &mut [u8]) -> usize {
        //= docs/wire.md#W34
        self.emit(PacketType::Confirm, header, buffer)
    }

    fn emit(&self, packet_type: PacketType, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<LEN>(packet_type, buffer);
        //= docs/wire.md#W57
        packet[FEATURES] = if self.compact { COMPACT } else { 0 };
        write_u64(packet, TOKEN, self.token.0);
        write_u64(packet, PROOF, self.proof.code);
        write_u32(packet, ISSUED, self.proof.issued);
        LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{FROM_CLIENT, FROM_SERVER, assert_lengths, bytes, emitted};

    const CREDENTIALS: Credentials = Credentials {
        token: Token(0x0102_0304_0506_0708),
        proof: Proof { code: 0x1112_1314_1516_1718, issued: 0x2122_2324 },
        compact: true,
    };

    //= docs/wire.md#W32
    #[test]
    fn open_says_which_token_is_in_doubt() {
        let open = Open { known: Token(0x0a0b) };
        let packet = emitted(|buffer| open.emit(&FROM_CLIENT, buffer));
        let expected = bytes(
            "80 00 0f a0 00 00 00 00 00 00 00 19 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 02
             00 00 00 00 00 00 0a 0b 00 00 00 00 00 00 00 00 00 00 00 00",
        );
        assert_eq!(packet, expected);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Open { header: FROM_CLIENT, open }));
        assert_lengths(&packet, 48);
    }

    //= docs/wire.md#W33
    //= docs/wire.md#W34
    #[test]
    fn token_and_confirm_carry_a_token_and_its_proof() {
        let token = emitted(|buffer| CREDENTIALS.emit_token(&FROM_SERVER, buffer));
        let expected = bytes(
            "0f a0 80 00 00 00 00 00 00 01 00 1a 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 03
             01 02 03 04 05 06 07 08 11 12 13 14 15 16 17 18 21 22 23 24",
        );
        assert_eq!(token, expected);
        assert_eq!(
            Packet::parse(&token),
            Ok(Packet::Token { header: FROM_SERVER, credentials: CREDENTIALS })
        );
        let confirm = emitted(|buffer| CREDENTIALS.emit_confirm(&FROM_CLIENT, buffer));
        assert_eq!((confirm[9], &confirm[28..]), (1, &token[28..]));
        let parsed = Packet::Confirm { header: FROM_CLIENT, credentials: CREDENTIALS };
        assert_eq!(Packet::parse(&confirm), Ok(parsed));
        assert_lengths(&token, 48);
        assert_lengths(&confirm, 48);
    }

    //= docs/wire.md#W57
    #[test]
    fn a_node_that_says_nothing_reads_no_compact_bundles() {
        let mut token = emitted(|buffer| CREDENTIALS.emit_token(&FROM_SERVER, buffer));
        for (features, compact) in [(0, false), (0xFE, false), (0xFF, true)] {
            token[9] = features;
            let credentials = Credentials { compact, ..CREDENTIALS };
            let parsed = Packet::Token { header: FROM_SERVER, credentials };
            assert_eq!(Packet::parse(&token), Ok(parsed));
        }
    }
}
