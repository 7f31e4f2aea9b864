//! Packets as the module builds and parses them.

/// Types by their byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Data = 0x10,
    Grant,
    Resend,
    Unknown,
    Busy,
    Cutoffs,
    Freeze,
    NeedAck,
    Ack,
}

impl Kind {
    pub(super) const ALL: [Self; 9] = [
        Self::Data,
        Self::Grant,
        Self::Resend,
        Self::Unknown,
        Self::Busy,
        Self::Cutoffs,
        Self::Freeze,
        Self::NeedAck,
        Self::Ack,
    ];

    pub(super) fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }

    /// The least length that the module accepts.
    pub(super) fn least(self, stripped: bool) -> usize {
        match self {
            Self::Data => 56,
            Self::Grant => 33,
            Self::Resend if stripped => 36,
            Self::Resend => 37,
            Self::Cutoffs => 62,
            Self::Ack => 80,
            Self::Unknown | Self::Busy | Self::Freeze | Self::NeedAck => 28,
        }
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// The variable fields of the first 28 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) source: u16,
    pub(super) dest: u16,
    pub(super) kind: Kind,
    /// The id in the sender's form.
    pub(super) id: u64,
}

/// The variable fields of the rest of DATA's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) length: u32,
    pub(super) incoming: u32,
    pub(super) ack: (u64, u16),
    pub(super) version: u16,
    pub(super) retransmit: bool,
    pub(super) offset: u32,
    /// Whether the segment offset has the offset; otherwise only the sequence number has it.
    pub(super) explicit: bool,
}

impl Header {
    /// The first 28 bytes. `sequence` is DATA's offset.
    fn common(self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(56);
        bytes.extend_from_slice(&self.source.to_be_bytes());
        bytes.extend_from_slice(&self.dest.to_be_bytes());
        bytes.extend_from_slice(&sequence.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, self.kind as u8]);
        bytes.push(if self.kind == Kind::Data { 0xE0 } else { 0x50 });
        bytes.extend_from_slice(&[0x06, 0, 0]);
        // The sum over the pseudo-header alone, for the network card to complete.
        bytes.extend_from_slice(&[0x14, 0xC1, 0xB9, 0x7D]);
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes
    }

    pub(super) fn control(self, body: &[u8]) -> Vec<u8> {
        let mut bytes = self.common(0);
        bytes.extend_from_slice(body);
        bytes
    }

    pub(super) fn data(self, data: &Data, payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.common(data.offset);
        bytes.extend_from_slice(&data.length.to_be_bytes());
        bytes.extend_from_slice(&data.incoming.to_be_bytes());
        bytes.extend_from_slice(&data.ack.0.to_be_bytes());
        bytes.extend_from_slice(&data.ack.1.to_be_bytes());
        bytes.extend_from_slice(&data.version.to_be_bytes());
        bytes.extend_from_slice(&[u8::from(data.retransmit), 0, 0, 0]);
        let segment = if data.explicit { data.offset } else { u32::MAX };
        bytes.extend_from_slice(&segment.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }
}
