//! Packets of hostile nodes.

use apus_load::Random;
use apus_wire::{
    Ack, Acked, Busy, COMMON_LEN, Credentials, Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Grant,
    Header, MAX_HEADER, NeedAck, Open, PacketType, Priority, Proof, Resend, RpcId, Stamp, Token,
};
use rand::Rng;

use crate::chance::{below, happens};
use crate::check::scenario::Manner;

/// The next packet of an attacker to a node. `issued` is the last token that the node has issued to the attacker, if any.
pub(super) fn packet(
    rng: &mut Random,
    manner: Manner,
    issued: &mut Option<IssuedToken>,
    seen: &[Vec<u8>],
    port: u16,
) -> Vec<u8> {
    match manner {
        Manner::Noise => noise(rng),
        Manner::Copies => copy(rng, seen),
        Manner::Requests => request(rng, port),
        Manner::Control => control(rng, seen, port),
        Manner::Met => met(rng, issued, seen, port),
    }
}

/// A packet in the name of a node, from a sender that sees none of its packets: it knows ports and can guess call numbers, but not
/// tokens.
pub(super) fn forged(rng: &mut Random, ports: [u16; 2]) -> Vec<u8> {
    let port = |rng: &mut Random| ports[below(rng, 2) as usize];
    let number = if happens(rng, 700_000) { u64::from(below(rng, 100)) } else { rng.next_u64() };
    let header = Header { source_port: port(rng), dest_port: port(rng), sender_id: RpcId(number) };
    let mut packet = match below(rng, 4) {
        0 => {
            let mut data = request(rng, header.dest_port);
            data[..2].copy_from_slice(&header.source_port.to_be_bytes());
            data[20..28].copy_from_slice(&number.to_be_bytes());
            data
        }
        1 => control_with(rng, &header),
        2 => contact(rng, &header),
        _ => {
            // Any type with any body: the first byte of an RPC_UNKNOWN's body is its reason.
            let mut packet = control_with(rng, &header);
            packet[11] = PacketType::ALL[below(rng, PacketType::ALL.len() as u32) as usize] as u8;
            packet.resize(COMMON_LEN + below(rng, 60) as usize, below(rng, 8) as u8);
            packet
        }
    };
    let token = if happens(rng, 100_000) { Token::NONE } else { Token(rng.next_u64()) };
    let version = if happens(rng, 50_000) { rng.next_u32() as u8 } else { Stamp::VERSION };
    Stamp { version, token }.write(&mut packet);
    packet
}

/// The last token that a node has issued to an attacker, and whether the attacker has confirmed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssuedToken {
    pub(super) credentials: Credentials,
    pub(super) confirmed: bool,
    /// Whether this or an earlier token was confirmed, which shows that the attacker receives at its address.
    pub(super) met: bool,
}

/// The next packet of an attacker that makes first contact like any other node, and then sends arbitrary packets about a few calls.
fn met(rng: &mut Random, issued: &mut Option<IssuedToken>, seen: &[Vec<u8>], port: u16) -> Vec<u8> {
    const OURS: Token = Token(0x0BAD_0000_0BAD_0000);
    let number = RpcId(u64::from(2 * (1 + below(rng, 30))));
    let header = Header { source_port: 40_000, dest_port: port, sender_id: number };
    let mut buffer = [0; MAX_HEADER];
    let (mut packet, token) = match issued {
        Some(issued) if issued.confirmed && !happens(rng, 20_000) => {
            let packet = match below(rng, 4) {
                0 => copy(rng, seen),
                1 => control_with(rng, &header),
                _ => {
                    let mut data = request(rng, port);
                    data[20..28].copy_from_slice(&number.0.to_be_bytes());
                    data
                }
            };
            (packet, issued.credentials.token)
        }
        Some(issued) if !issued.confirmed => {
            (issued.confirmed, issued.met) = (true, true);
            let length = Credentials { token: OURS, ..issued.credentials }
                .emit_confirm(&header, &mut buffer);
            (buffer[..length].to_vec(), issued.credentials.token)
        }
        _ => {
            let length = Open { known: Token::NONE }.emit(&header, &mut buffer);
            (buffer[..length].to_vec(), OURS)
        }
    };
    if packet.len() >= COMMON_LEN {
        Stamp::new(token).write(&mut packet);
    }
    packet
}

fn contact(rng: &mut Random, header: &Header) -> Vec<u8> {
    let mut buffer = [0; MAX_HEADER];
    let token = Token(rng.next_u64());
    let credentials = Credentials {
        token,
        proof: Proof { code: rng.next_u64(), issued: edgy(rng) },
        compact: true,
    };
    let length = match below(rng, 3) {
        0 => Open { known: token }.emit(header, &mut buffer),
        1 => credentials.emit_token(header, &mut buffer),
        _ => credentials.emit_confirm(header, &mut buffer),
    };
    buffer[..length].to_vec()
}

fn noise(rng: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; below(rng, 200) as usize];
    rng.fill_bytes(&mut bytes);
    if let Some(kind) = bytes.get_mut(11) {
        *kind = 0x10 + below(rng, 10) as u8;
    }
    bytes
}

fn copy(rng: &mut Random, seen: &[Vec<u8>]) -> Vec<u8> {
    if seen.is_empty() {
        return noise(rng);
    }
    let mut bytes = seen[below(rng, seen.len() as u32) as usize].clone();
    for _ in 0..below(rng, 4) {
        let at = below(rng, bytes.len().min(64) as u32) as usize;
        bytes[at] = rng.next_u32() as u8;
    }
    if happens(rng, 100_000) {
        bytes.truncate(below(rng, bytes.len() as u32) as usize);
    }
    bytes
}

/// Ports and an id: from a recorded packet, or random.
fn header(rng: &mut Random, seen: &[Vec<u8>], port: u16) -> Header {
    let known = seen.get(below(rng, 1 + seen.len() as u32) as usize);
    let known = known.and_then(|bytes| apus_wire::Packet::parse(bytes).ok().map(|p| *p.header()));
    known.unwrap_or_else(|| Header {
        source_port: rng.next_u32() as u16,
        dest_port: port,
        sender_id: RpcId(rng.next_u64()),
    })
}

fn request(rng: &mut Random, port: u16) -> Vec<u8> {
    let header =
        Header { source_port: 40_000, dest_port: port, sender_id: RpcId(rng.next_u64() & !1) };
    let message_length =
        if happens(rng, 500_000) { 1 + below(rng, 100_000) } else { edgy(rng).max(1) };
    let payload = below(rng, 1_400).min(message_length);
    let data = Data {
        message_length,
        incoming: edgy(rng),
        ack: None,
        cutoff_version: 0,
        retransmit: happens(rng, 500_000),
        flags: DataFlags::NONE,
        offset: if happens(rng, 500_000) { 0 } else { edgy(rng) % message_length },
    };
    let mut bytes = [0; DATA_HEADER_LEN];
    data.emit(&header, &mut bytes);
    let mut packet = bytes.to_vec();
    packet.resize(DATA_HEADER_LEN + payload as usize, 0xEE);
    packet
}

fn control(rng: &mut Random, seen: &[Vec<u8>], port: u16) -> Vec<u8> {
    let header = header(rng, seen, port);
    about(rng, &header, port, 4)
}

fn control_with(rng: &mut Random, header: &Header) -> Vec<u8> {
    about(rng, header, header.dest_port, 6)
}

/// A control packet of one of the first `kinds` kinds.
fn about(rng: &mut Random, header: &Header, port: u16, kinds: u32) -> Vec<u8> {
    let mut buffer = [0; MAX_HEADER];
    let priority = Priority::clamped(below(rng, 8) as u8);
    let length = match below(rng, kinds) {
        0 => Grant { offset: edgy(rng), priority }.emit(header, &mut buffer),
        1 => {
            let length = happens(rng, 500_000).then(|| edgy(rng));
            Resend { offset: edgy(rng), length, priority }.emit(header, &mut buffer)
        }
        2 => NeedAck.emit(header, &mut buffer),
        3 => {
            let acked = Acked { client_id: RpcId(header.sender_id.0 & !1), server_port: port };
            Ack::new(&[acked]).emit(header, &mut buffer)
        }
        4 => Busy.emit(header, &mut buffer),
        _ => {
            let cutoffs = std::array::from_fn(|_| edgy(rng));
            Cutoffs { cutoffs, version: rng.next_u32() as u16 }.emit(header, &mut buffer)
        }
    };
    buffer[..length].to_vec()
}

/// A number for a hostile field, often at the edge of its range.
fn edgy(rng: &mut Random) -> u32 {
    match below(rng, 4) {
        0 => below(rng, 100),
        1 => u32::MAX - below(rng, 3),
        2 => 1 << below(rng, 32),
        _ => rng.next_u32(),
    }
}
