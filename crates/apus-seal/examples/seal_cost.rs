//! Seals and opens datagrams with a cipher that does nothing, to count the instructions of all else. Valgrind lacks those of the
//! real ciphers. `seal_cost seal|seal-parts|open|open-into NUMBER`

use std::hint::black_box;
use std::time::Duration;

use apus_seal::{
    Aead, AssociationId, Associations, Forged, Installation, Nonce, OVERHEAD, PathSecret,
    RecordKey, Role, SealLimits, Suite, Tag,
};
use apus_wire::{PathId, Priority};

const NOW: Duration = Duration::ZERO;
const ADDRESS: u64 = 1;
const LEVEL: Priority = Priority::HIGHEST;
/// Lengths of a packet, and of payload and header.
const PACKET: usize = 100;
const PAYLOAD: usize = 100;
const HEADER: usize = 56;

/// Neither encrypts nor authenticates.
struct NoCipher;

impl Aead for NoCipher {
    fn new(_: &RecordKey) -> Self {
        Self
    }

    #[inline(never)]
    fn seal_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &mut Tag) {
        black_box((nonce, text, tag));
    }

    #[inline(never)]
    fn seal_parts(&self, nonce: &Nonce, payload: &[u8], header: &[u8], sealed: &mut [u8]) {
        black_box((nonce, payload, header, sealed));
    }

    #[inline(never)]
    fn open_in_place(&self, nonce: &Nonce, text: &mut [u8], tag: &Tag) -> Result<(), Forged> {
        black_box((nonce, text, tag));
        Ok(())
    }

    #[inline(never)]
    fn open_into(
        &self,
        nonce: &Nonce,
        sealed: &[u8],
        tag: &Tag,
        text: &mut [u8],
    ) -> Result<(), Forged> {
        black_box((nonce, sealed, tag, text));
        Ok(())
    }
}

type Table = Associations<NoCipher, u64>;

#[inline(never)]
fn seal(table: &mut Table, id: AssociationId, datagram: &mut [u8]) -> bool {
    table.seal_in_place(NOW, id, LEVEL, datagram).is_ok()
}

#[inline(never)]
fn seal_parts(table: &mut Table, id: AssociationId, datagram: &mut [u8]) -> bool {
    table.seal_parts(NOW, id, LEVEL, &[0; PAYLOAD], &[0; HEADER], datagram).is_ok()
}

#[inline(never)]
fn open(table: &mut Table, datagram: &mut [u8]) -> bool {
    table.admit(ADDRESS, datagram).is_ok_and(|admitted| admitted.open_in_place(NOW).is_ok())
}

#[inline(never)]
fn open_into(table: &mut Table, datagram: &mut [u8], room: &mut [u8]) -> bool {
    table.admit(ADDRESS, datagram).is_ok_and(|admitted| admitted.open_into(NOW, room).is_ok())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let operation = arguments.next().expect("an operation");
    let number: u64 = arguments.next().and_then(|it| it.parse().ok()).expect("a number");
    let (mut table, id) = table();
    let mut packet = [0; OVERHEAD + PACKET];
    let mut parts = [0; OVERHEAD + PAYLOAD + HEADER];
    write_clear(&mut packet, 0, id, 14);
    write_clear(&mut parts, (HEADER / 4) as u8, id, 15);
    let mut room = [0; PAYLOAD + HEADER];
    for counter in 1..=number {
        let done = match operation.as_str() {
            "seal" => seal(&mut table, id, &mut packet),
            "seal-parts" => seal_parts(&mut table, id, &mut parts),
            "open" => open(&mut table, with_counter(&mut packet, counter)),
            "open-into" => open_into(&mut table, with_counter(&mut parts, counter), &mut room),
            _ => panic!("unknown operation {operation}"),
        };
        assert!(done, "{operation} fails at {counter}");
    }
}

fn table() -> (Table, AssociationId) {
    let limits = SealLimits { key_bytes: u64::MAX, ..SealLimits::default() };
    let mut table = Table::new(0, limits);
    let id = table.reserve(1).expect("an empty table");
    let installation = Installation {
        secret: PathSecret::new([7; 32]),
        role: Role::Client,
        suite: Suite::Aes128Gcm,
        peer_id: id,
        path: PathId::new(0, 0),
        address: ADDRESS,
        lifetime: Duration::from_secs(3600),
    };
    table.install(NOW, id, installation).expect("a pending id");
    (table, id)
}

fn write_clear(datagram: &mut [u8], words: u8, id: AssociationId, lane: u8) {
    datagram[..4].copy_from_slice(&[0, 0, 2, words]);
    datagram[4..12].copy_from_slice(&id.to_bits().to_be_bytes());
    datagram[12] = lane << 4;
}

fn with_counter(datagram: &mut [u8], counter: u64) -> &mut [u8] {
    datagram[13..20].copy_from_slice(&counter.to_be_bytes()[1..]);
    datagram
}
