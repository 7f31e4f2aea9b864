//! Two tables with an association between them, on a virtual clock.

use std::time::Duration;

use apus_seal::{
    AssociationId, Associations, AwsAead, CLEAR_LEN, Installation, OVERHEAD, OpenError, PathSecret,
    Role, SealError, SealLimits, Suite, TAG_LEN,
};
use apus_wire::{PathId, Priority};

/// The addresses of the two nodes, and one of neither.
pub(crate) const CLIENT: u32 = 1;
pub(crate) const SERVER: u32 = 2;
pub(crate) const ELSEWHERE: u32 = 3;

pub(crate) const LIFETIME: Duration = Duration::from_secs(7200);

pub(crate) type Table = Associations<AwsAead, u32>;

pub(crate) struct Pair {
    pub(crate) client: Side,
    pub(crate) server: Side,
}

/// A table and the id of its association.
pub(crate) struct Side {
    pub(crate) table: Table,
    pub(crate) id: AssociationId,
    pub(crate) now: Duration,
}

/// The text of an opened datagram, and whether it came from the address of its path.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Text {
    pub(crate) payload: Vec<u8>,
    pub(crate) header: Vec<u8>,
    pub(crate) is_home: bool,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(Suite::Aes128Gcm, SealLimits::default())
    }

    pub(crate) fn with(suite: Suite, limits: SealLimits) -> Self {
        let [mut client, mut server] = [0, 5].map(|shard| {
            let mut table = Table::new(shard, limits);
            let id = table.reserve(0x5A5A).expect("an empty table");
            Side { table, id, now: Duration::ZERO }
        });
        client.install(installation(Role::Client, suite, server.id));
        server.install(installation(Role::Server, suite, client.id));
        Self { client, server }
    }

    /// Sends a datagram each way, so that both sides have confirmed each other.
    pub(crate) fn greet(&mut self) {
        let hello = self.client.seal(7, b"hello");
        self.server.open(CLIENT, &hello).expect("the keys of the server");
        let answer = self.server.seal(7, b"hello");
        self.client.open(SERVER, &answer).expect("the keys of the client");
    }

    pub(crate) fn advance(&mut self, seconds: u64) {
        self.client.advance(seconds);
        self.server.advance(seconds);
    }
}

impl Side {
    pub(crate) fn install(&mut self, new: Installation<u32>) {
        let kept = self.table.install(self.now, self.id, new).expect("a pending id");
        assert!(kept.is_empty());
    }

    /// Seals a packet that begins with these bytes.
    pub(crate) fn seal(&mut self, level: u8, packet: &[u8]) -> Vec<u8> {
        self.try_seal(level, packet).expect("the keys of the path")
    }

    pub(crate) fn try_seal(&mut self, level: u8, packet: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut datagram = vec![0; OVERHEAD + packet.len().max(28)];
        datagram[CLEAR_LEN..][..packet.len()].copy_from_slice(packet);
        self.table.seal_in_place(self.now, self.id, priority(level), &mut datagram)?;
        Ok(datagram)
    }

    /// Seals a payload and a header of `header_len` bytes behind it.
    pub(crate) fn seal_parts(&mut self, level: u8, payload: &[u8], header_len: usize) -> Vec<u8> {
        let header = vec![0xEE; header_len];
        let mut datagram = vec![0; OVERHEAD + payload.len() + header_len];
        self.table
            .seal_parts(self.now, self.id, priority(level), payload, &header, &mut datagram)
            .expect("the keys of the path");
        datagram
    }

    /// Opens a datagram in place, and leaves the caller's bytes as they are.
    pub(crate) fn open(&mut self, from: u32, datagram: &[u8]) -> Result<Text, OpenError> {
        let mut datagram = datagram.to_vec();
        let opened = self.table.admit(from, &mut datagram)?.open_in_place(self.now)?;
        let (payload, header) = opened.parts();
        Ok(Text { payload: payload.to_vec(), header: header.to_vec(), is_home: opened.is_home })
    }

    /// Passes the time, and does all work that becomes due.
    pub(crate) fn advance(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(at) = self.table.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.table.handle_timeout(self.now);
        }
        self.now = end;
    }
}

pub(crate) fn installation(role: Role, suite: Suite, peer_id: AssociationId) -> Installation<u32> {
    let (index, address) = match role {
        Role::Client => (0, SERVER),
        Role::Server => (1, CLIENT),
    };
    Installation {
        secret: PathSecret::new([7; 32]),
        role,
        suite,
        peer_id,
        path: PathId::new(index, u64::from(address)),
        address,
        lifetime: LIFETIME,
    }
}

pub(crate) fn priority(level: u8) -> Priority {
    Priority::new(level).expect("a level of 0 to 7")
}

/// Length of the sealed text of a datagram.
pub(crate) fn text_len(datagram: &[u8]) -> usize {
    datagram.len() - CLEAR_LEN - TAG_LEN
}
