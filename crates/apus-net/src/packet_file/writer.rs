//! Writes pcapng files.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::reader::Frame;

/// Writes frames to a pcapng file with times in nanoseconds. Each type of link is an interface.
pub struct PacketWriter<W> {
    output: W,
    /// The numbers of interfaces, by the type of their link.
    interfaces: BTreeMap<u16, u32>,
    block: Vec<u8>,
}

impl<W: Write> PacketWriter<W> {
    /// Writes the beginning of a file. `output` should be buffered.
    ///
    /// # Errors
    ///
    /// If the write fails.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(&section_header())?;
        Ok(Self { output, interfaces: BTreeMap::new(), block: Vec::new() })
    }

    /// Writes a frame. A frame of at most 65,535 bytes more than a read one has room.
    ///
    /// # Errors
    ///
    /// If the write fails.
    pub fn frame(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let next = self.interfaces.len() as u32;
        let interface = *self.interfaces.entry(frame.link_type).or_insert(next);
        if interface == next {
            self.output.write_all(&interface_description(frame.link_type, None))?;
        }
        let number = |number: usize| u32::try_from(number).map_err(io::Error::other);
        let captured = number(frame.bytes.len())?;
        let total = number(frame.bytes.len().next_multiple_of(4) + 32)?;
        let time = frame.time_ns;
        let words = [6, total, interface, (time >> 32) as u32, time as u32];
        self.block.clear();
        for word in words.into_iter().chain([captured, frame.original_len]) {
            self.block.extend_from_slice(&word.to_le_bytes());
        }
        self.block.extend_from_slice(frame.bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
        self.block.extend_from_slice(&total.to_le_bytes());
        self.output.write_all(&self.block)
    }

    /// Writes buffered bytes, and returns the output.
    ///
    /// # Errors
    ///
    /// If the write fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Returns a Section Header Block (pcapng draft, section 4.1).
pub(crate) fn section_header() -> Vec<u8> {
    let mut section = Vec::new();
    section.extend_from_slice(&0x1A2B_3C4D_u32.to_le_bytes());
    section.extend_from_slice(&1u16.to_le_bytes());
    section.extend_from_slice(&0u16.to_le_bytes());
    section.extend_from_slice(&u64::MAX.to_le_bytes()); // length not given
    put_option(&mut section, 4, concat!("apus ", env!("CARGO_PKG_VERSION")).as_bytes()); // shb_userappl
    put_option(&mut section, 0, &[]);
    block(0x0A0D_0D0A, &section)
}

/// Returns an Interface Description Block (section 4.2).
pub(crate) fn interface_description(link_type: u16, name: Option<&str>) -> Vec<u8> {
    let mut interface = Vec::new();
    interface.extend_from_slice(&link_type.to_le_bytes());
    interface.extend_from_slice(&[0; 6]); // reserved, no limit on the length
    if let Some(name) = name {
        put_option(&mut interface, 2, name.as_bytes()); // if_name
    }
    put_option(&mut interface, 9, &[9]); // if_tsresol: 10^-9 s
    put_option(&mut interface, 0, &[]);
    block(1, &interface)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let total = u32::try_from(body.len() + 12).expect("a header block is short").to_le_bytes();
    [&kind.to_le_bytes(), &total, body, &total].concat()
}

pub(crate) fn put_option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    block.extend_from_slice(&code.to_le_bytes());
    block.extend_from_slice(
        &u16::try_from(value.len()).expect("our options are short").to_le_bytes(),
    );
    block.extend_from_slice(value);
    block.resize(block.len().next_multiple_of(4), 0);
}
