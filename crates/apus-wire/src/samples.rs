//! Packets for tests: the ones of the spec's section 1.13 (client 10.0.0.1:32768, server 10.0.0.2:4000, client id 2; checksums
//! complete), and some captured between two Linux 6.12 hosts with the module of July 2026 (client 10.77.0.2, server 10.77.0.3:4100;
//! checksums left for the network card to complete).

use crate::{Header, Packet, RpcId};

/// Header of the spec's packets from the client to the server.
pub(crate) const FROM_CLIENT: Header =
    Header { source_port: 32768, dest_port: 4000, sender_id: RpcId(2) };
/// Header of the spec's packets from the server to the client.
pub(crate) const FROM_SERVER: Header =
    Header { source_port: 4000, dest_port: 32768, sender_id: RpcId(3) };

pub(crate) const SPEC_DATA: &str = "
    80 00 0f a0 00 00 00 00 00 00 00 10 e0 06 00 00 5d dd b9 7d 00 00 00 00 00 00 00 02 00 00 00 14
    00 00 00 14 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff 01 02 03 04 05 06 07 08
    09 0a 0b 0c 0d 0e 0f 10 11 12 13 14";
pub(crate) const SPEC_GRANT: &str = "
    0f a0 80 00 00 00 00 00 00 00 00 11 50 06 00 00 f1 0b b9 7d 00 00 00 00 00 00 00 03 00 01 5f 90
    02";
pub(crate) const SPEC_RESEND: &str = "
    80 00 0f a0 00 00 00 00 00 00 00 12 50 06 00 00 4b 99 b9 7d 00 00 00 00 00 00 00 02 00 00 00 00
    ff ff ff ff 07";
pub(crate) const SPEC_CUTOFFS: &str = "
    0f a0 80 00 00 00 00 00 00 00 00 15 50 06 00 00 c9 db b9 7d 00 00 00 00 00 00 00 03 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 0f 42 40 00 00 3a 98 00 00 0a f0 00 00 00 c8 00 01";
pub(crate) const SPEC_ACK: &str = "
    80 00 0f a0 00 00 00 00 00 00 00 18 50 06 00 00 42 c3 b9 7d 00 00 00 00 00 00 00 02 00 01 00 00
    00 00 00 00 00 04 0f a0 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
pub(crate) const SPEC_NEED_ACK: &str = "
    0f a0 80 00 00 00 00 00 00 00 00 17 50 06 00 00 52 9c b9 7d 00 00 00 00 00 00 00 03";

/// First request between two hosts: 100 bytes, no cutoffs known yet.
pub(crate) const LINUX_FIRST_REQUEST: &str = "
    80 00 10 04 00 00 00 00 00 00 00 10 e0 06 00 00 15 41 b9 7d 00 00 00 00 00 00 00 02 00 00 00 64
    00 00 00 64 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff 64 00 00 00 64 00 00 00
    ff 1e 3d 5c 7b 9a b9 d8 f7 16 35 54 73 92 b1 d0 ef 0e 2d 4c 6b 8a a9 c8 e7 06 25 44 63 82 a1 c0
    df fe 1d 3c 5b 7a 99 b8 d7 f6 15 34 53 72 91 b0 cf ee 0d 2c 4b 6a 89 a8 c7 e6 05 24 43 62 81 a0
    bf de fd 1c 3b 5a 79 98 b7 d6 f5 14 33 52 71 90 af ce ed 0c 2b 4a 69 88 a7 c6 e5 04";
/// The server's answer: the initial table of a host.
pub(crate) const LINUX_CUTOFFS: &str = "
    10 04 80 00 00 00 00 00 00 00 00 15 50 06 00 00 14 e3 b9 7d 00 00 00 00 00 00 00 03 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 0f 42 40 00 00 3a 98 00 00 0a f0 00 00 00 c8 00 01";
/// The server asks whether the client has the response.
pub(crate) const LINUX_NEED_ACK: &str = "
    10 04 80 00 00 00 00 00 00 00 00 17 50 06 00 00 14 c1 b9 7d 00 00 00 00 00 00 00 03";
/// The client has it. Both the header and an entry name the RPC.
pub(crate) const LINUX_ACK: &str = "
    80 00 10 04 00 00 00 00 00 00 00 18 50 06 00 00 14 f5 b9 7d 00 00 00 00 00 00 00 02 00 01 00 00
    00 00 00 00 00 02 10 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
/// Second request on a socket, which acknowledges the first; 100 bytes.
pub(crate) const LINUX_PIGGYBACKED_ACK: &str = "
    80 02 10 04 00 00 00 00 00 00 00 10 e0 06 00 00 15 41 b9 7d 00 00 00 00 00 00 00 08 00 00 00 64
    00 00 00 64 00 00 00 00 00 00 00 06 10 04 00 01 00 00 00 00 ff ff ff ff 64 00 00 00 64 00 00 00
    ff 1e 3d 5c 7b 9a b9 d8 f7 16 35 54 73 92 b1 d0 ef 0e 2d 4c 6b 8a a9 c8 e7 06 25 44 63 82 a1 c0
    df fe 1d 3c 5b 7a 99 b8 d7 f6 15 34 53 72 91 b0 cf ee 0d 2c 4b 6a 89 a8 c7 e6 05 24 43 62 81 a0
    bf de fd 1c 3b 5a 79 98 b7 d6 f5 14 33 52 71 90 af ce ed 0c 2b 4a 69 88 a7 c6 e5 04";
/// The last 64 bytes of a message of 60,000, long after the unscheduled part. Only the sequence carries the offset.
pub(crate) const LINUX_LAST_OF_60000: &str = "
    80 06 10 04 00 00 ea 20 00 00 00 10 e0 06 00 00 15 1d b9 7d 00 00 00 00 00 00 00 16 00 00 ea 60
    00 00 9c 40 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 ff ff ff ff e7 06 25 44 63 82 a1 c0
    df fe 1d 3c 5b 7a 99 b8 d7 f6 15 34 53 72 91 b0 cf ee 0d 2c 4b 6a 89 a8 c7 e6 05 24 43 62 81 a0
    bf de fd 1c 3b 5a 79 98 b7 d6 f5 14 33 52 71 90 af ce ed 0c 2b 4a 69 88";
/// The grant for the whole message.
pub(crate) const LINUX_GRANT: &str = "
    10 04 80 06 00 00 00 00 00 00 00 11 50 06 00 00 14 c6 b9 7d 00 00 00 00 00 00 00 17 00 00 ea 60
    00";

/// Converts hexadecimal digits to bytes.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
        .collect()
}

/// Converts hexadecimal digits to bytes and clears the checksum, as `emit` leaves it.
pub(crate) fn without_checksum(hex: &str) -> Vec<u8> {
    let mut packet = bytes(hex);
    packet[crate::header::layout::CHECKSUM].fill(0);
    packet
}

/// Returns the packet that an `emit` function writes into a buffer with old content.
pub(crate) fn emitted(emit: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut buffer = [0xA5; crate::MAX_HEADER];
    let length = emit(&mut buffer);
    assert!(
        buffer[length..].iter().all(|&byte| byte == 0xA5),
        "bytes after the packet were written"
    );
    buffer[..length].to_vec()
}

/// Asserts that the packet parses to the same value with any bytes after it, and fails to parse if it is one byte shorter than
/// `shortest`.
pub(crate) fn assert_lengths(packet: &[u8], shortest: usize) {
    let parsed = Packet::parse(packet).expect("the whole packet is fine");
    let mut longer = packet.to_vec();
    longer.extend([0xFF; 20]);
    //= docs/wire.md#W5
    assert_eq!(Packet::parse(&longer), Ok(parsed));
    //= docs/wire.md#W2
    let too_short = crate::ParseError::TooShort { length: shortest - 1, needed: shortest };
    assert_eq!(Packet::parse(&packet[..shortest - 1]), Err(too_short));
}
