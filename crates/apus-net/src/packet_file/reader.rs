//! Reads pcap files (`draft-ietf-opsawg-pcap`) and pcapng files (`draft-ietf-opsawg-pcapng`).

use std::io::{self, Read};

/// The first word of a pcap file, with times in microseconds or nanoseconds.
const PCAP_MICROS: u32 = 0xA1B2_C3D4;
const PCAP_NANOS: u32 = 0xA1B2_3C4D;

/// Types of pcapng blocks.
const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

/// Options of an interface: the unit of its times, and the time that is added to them.
const TIME_UNIT: u16 = 9;
const TIME_OFFSET: u16 = 14;

/// Upper bound on the bytes of a frame, four times what tcpdump writes.
const FRAME_MAX: usize = 1 << 20;

/// Upper bound on the bytes of a block that is kept, and on the interfaces of a section.
const BLOCK_MAX: usize = FRAME_MAX + (64 << 10);
const INTERFACES_MAX: usize = 65_536;

const NANOS: u128 = 1_000_000_000;

/// A captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The format of its first bytes: a `LINKTYPE` value.
    pub link_type: u16,
    /// The time of its capture, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Its length on the link, which is more than that of `bytes` if it was not captured completely.
    pub original_len: u32,
    /// The captured bytes.
    pub bytes: &'a [u8],
}

/// The reason why a file of packets cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketFileError {
    /// The system reports an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The first bytes are those of something else.
    #[error("neither a pcap nor a pcapng file")]
    NotPackets,
    /// The file ends in the middle of a packet, as of a program that was killed.
    #[error("the file ends in the middle of a packet, at byte {0}")]
    Cut(u64),
    /// A field has a value that no program writes.
    #[error("malformed at byte {at}: {fault}")]
    Malformed {
        /// The offset of the packet or block.
        at: u64,
        /// The fault.
        fault: &'static str,
    },
}

/// Reads the frames of a file one by one.
pub struct PacketReader<R> {
    input: R,
    /// Number of bytes read.
    at: u64,
    is_big_endian: bool,
    form: Form,
    buffer: Vec<u8>,
}

enum Form {
    Pcap(Interface),
    Pcapng(Vec<Interface>),
}

#[derive(Clone, Copy)]
struct Interface {
    link_type: u16,
    /// Number of units of its times in a second.
    units: u128,
    /// Seconds that are added to its times.
    offset: i64,
    /// Upper bound on the captured bytes; 0 for none.
    snap_len: u32,
}

impl Interface {
    fn time_ns(&self, time: u128) -> u64 {
        let ns = (time * NANOS / self.units).cast_signed();
        let ns = ns.saturating_add(i128::from(self.offset) * NANOS.cast_signed());
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

impl<R: Read> PacketReader<R> {
    /// Reads the beginning of a file. `input` should be buffered.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has another format.
    pub fn new(mut input: R) -> Result<Self, PacketFileError> {
        let mut first = [0; 4];
        match read_whole(&mut input, &mut first) {
            Ok(Some(())) => {}
            Ok(None) | Err(PacketFileError::Cut(_)) => return Err(PacketFileError::NotPackets),
            Err(error) => return Err(error),
        }
        let form = Form::Pcapng(Vec::new());
        let mut reader = Self { input, at: 4, is_big_endian: false, form, buffer: Vec::new() };
        let [little, big] = [u32::from_le_bytes(first), u32::from_be_bytes(first)];
        if little == SECTION {
            reader.section(0)?;
            return Ok(reader);
        }
        reader.is_big_endian = matches!(big, PCAP_MICROS | PCAP_NANOS);
        let units = match if reader.is_big_endian { big } else { little } {
            PCAP_MICROS => 1_000_000,
            PCAP_NANOS => NANOS,
            _ => return Err(PacketFileError::NotPackets),
        };
        reader.take(20)?;
        // The upper half says how many bytes at the end of a frame are a checksum, which no program sets.
        let link_type = reader.word(16) as u16;
        reader.form = Form::Pcap(Interface { link_type, units, offset: 0, snap_len: 0 });
        Ok(reader)
    }

    /// Returns the next frame; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// As [`PacketFileError`] says. No further frame can be read then.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, PacketFileError> {
        match self.form {
            Form::Pcap(interface) => self.next_record(interface),
            Form::Pcapng(_) => self.next_packet_block(),
        }
    }

    fn next_record(&mut self, interface: Interface) -> Result<Option<Frame<'_>>, PacketFileError> {
        let start = self.at;
        let mut head = [0; 16];
        if read_whole(&mut self.input, &mut head).map_err(|error| error.cut_at(start))?.is_none() {
            return Ok(None);
        }
        self.at += 16;
        self.buffer.clear();
        self.buffer.extend(head);
        let [seconds, part, len, original_len] = [0, 4, 8, 12].map(|at| self.word(at));
        let len = self.frame_len(len, start)?;
        self.take(len).map_err(|error| error.cut_at(start))?;
        let time_ns = interface.time_ns(u128::from(seconds) * interface.units + u128::from(part));
        let link_type = interface.link_type;
        Ok(Some(Frame { link_type, time_ns, original_len, bytes: &self.buffer }))
    }

    fn frame_len(&self, len: u32, at: u64) -> Result<usize, PacketFileError> {
        let len = usize::try_from(len).ok().filter(|&len| len <= FRAME_MAX);
        len.ok_or(PacketFileError::Malformed { at, fault: "a packet of more than 1 MiB" })
    }

    fn next_packet_block(&mut self) -> Result<Option<Frame<'_>>, PacketFileError> {
        loop {
            let start = self.at;
            let mut kind = [0; 4];
            if read_whole(&mut self.input, &mut kind)
                .map_err(|error| error.cut_at(start))?
                .is_none()
            {
                return Ok(None);
            }
            self.at += 4;
            let kind = self.number(kind);
            if kind == SECTION {
                self.section(start)?;
                continue;
            }
            self.take(4).map_err(|error| error.cut_at(start))?;
            let body_len = self.body_len(self.word(0), start)?;
            if !matches!(kind, INTERFACE | OLD_PACKET | SIMPLE_PACKET | PACKET) {
                self.skip(body_len + 4).map_err(|error| error.cut_at(start))?;
                continue;
            }
            self.body(body_len, start)?;
            let malformed = |fault| PacketFileError::Malformed { at: start, fault };
            if kind == INTERFACE {
                self.add_interface().map_err(malformed)?;
                continue;
            }
            let (link_type, time_ns, from, len, original_len) =
                self.packet(kind).map_err(malformed)?;
            let bytes = &self.buffer[from..from + len];
            return Ok(Some(Frame { link_type, time_ns, original_len, bytes }));
        }
    }

    /// Reads the header of a section, behind its type. It begins the numbers of interfaces anew.
    fn section(&mut self, start: u64) -> Result<(), PacketFileError> {
        self.take(8).map_err(|error| error.cut_at(start))?;
        self.is_big_endian = true;
        if self.word(4) != BYTE_ORDER_MAGIC {
            self.is_big_endian = false;
            if self.word(4) != BYTE_ORDER_MAGIC {
                let fault = "a section of an unknown byte order";
                return Err(PacketFileError::Malformed { at: start, fault });
            }
        }
        let rest = self.body_len(self.word(0), start)?.checked_sub(4);
        let fault = "a section that is too short";
        let rest = rest.ok_or(PacketFileError::Malformed { at: start, fault })?;
        self.skip(rest + 4).map_err(|error| error.cut_at(start))?;
        self.form = Form::Pcapng(Vec::new());
        Ok(())
    }

    /// Returns the length of a block's body, from that of the whole block.
    fn body_len(&self, len: u32, at: u64) -> Result<u64, PacketFileError> {
        let body = u64::from(len).checked_sub(12).filter(|body| body.is_multiple_of(4));
        body.ok_or(PacketFileError::Malformed { at, fault: "a block of a wrong length" })
    }

    /// Reads the body of a block into the buffer, and the length behind it.
    fn body(&mut self, len: u64, start: u64) -> Result<(), PacketFileError> {
        let len = usize::try_from(len).ok().filter(|&len| len <= BLOCK_MAX);
        let fault = "a packet of more than 1 MiB";
        let len = len.ok_or(PacketFileError::Malformed { at: start, fault })?;
        self.take(len + 4).map_err(|error| error.cut_at(start))?;
        self.buffer.truncate(len);
        Ok(())
    }

    fn add_interface(&mut self) -> Result<(), &'static str> {
        if self.buffer.len() < 8 {
            return Err("an interface that is too short");
        }
        let (link_type, snap_len) = (self.half(0), self.word(4));
        let mut interface = Interface { link_type, units: 1_000_000, offset: 0, snap_len };
        let mut at = 8;
        while at + 4 <= self.buffer.len() {
            let (code, len) = (self.half(at), usize::from(self.half(at + 2)));
            let Some(value) = self.buffer.get(at + 4..at + 4 + len).filter(|_| code != 0) else {
                break;
            };
            match (code, value) {
                (TIME_UNIT, &[unit]) => {
                    interface.units =
                        units(unit).ok_or("an interface with an unknown unit of time")?;
                }
                (TIME_OFFSET, value) => {
                    let bytes = value.try_into().map_err(|_| "an interface with a bad offset")?;
                    let big = self.is_big_endian;
                    interface.offset =
                        if big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) };
                }
                _ => {}
            }
            at += 4 + len.next_multiple_of(4);
        }
        let Form::Pcapng(interfaces) = &mut self.form else { return Ok(()) };
        if interfaces.len() >= INTERFACES_MAX {
            return Err("too many interfaces");
        }
        interfaces.push(interface);
        Ok(())
    }

    /// Reads a block of a packet. Returns the type of its link, its time, and the place and the two lengths of the frame.
    fn packet(&self, kind: u32) -> Result<(u16, u64, usize, usize, u32), &'static str> {
        let Form::Pcapng(interfaces) = &self.form else { return Err("no interface") };
        let head_len = if kind == SIMPLE_PACKET { 4 } else { 20 };
        if self.buffer.len() < head_len {
            return Err("a packet that is too short");
        }
        let number = match kind {
            SIMPLE_PACKET => 0,
            OLD_PACKET => u32::from(self.half(0)),
            _ => self.word(0),
        };
        let interface = usize::try_from(number).ok().and_then(|number| interfaces.get(number));
        let interface = interface.ok_or("a packet of an unknown interface")?;
        let room = self.buffer.len() - head_len;
        let (time, len, original_len) = if kind == SIMPLE_PACKET {
            let (original, snap) = (self.word(0), interface.snap_len);
            let len = if snap == 0 { original } else { original.min(snap) };
            (0, len, original)
        } else {
            let time = u128::from(self.word(4)) << 32 | u128::from(self.word(8));
            (time, self.word(12), self.word(16))
        };
        let len = usize::try_from(len).ok().filter(|&len| len <= room);
        let len = len.ok_or("a packet that is longer than its block")?;
        Ok((interface.link_type, interface.time_ns(time), head_len, len, original_len))
    }

    /// Reads bytes into the buffer.
    fn take(&mut self, len: usize) -> Result<(), PacketFileError> {
        self.buffer.clear();
        let taken = (&mut self.input).take(len as u64).read_to_end(&mut self.buffer)?;
        self.at += taken as u64;
        if taken == len { Ok(()) } else { Err(PacketFileError::Cut(self.at)) }
    }

    fn skip(&mut self, len: u64) -> Result<(), PacketFileError> {
        let skipped = io::copy(&mut (&mut self.input).take(len), &mut io::sink())?;
        self.at += skipped;
        if skipped == len { Ok(()) } else { Err(PacketFileError::Cut(self.at)) }
    }

    fn half(&self, at: usize) -> u16 {
        let bytes = [self.buffer[at], self.buffer[at + 1]];
        if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn word(&self, at: usize) -> u32 {
        self.number(self.buffer[at..at + 4].try_into().expect("four bytes"))
    }

    fn number(&self, bytes: [u8; 4]) -> u32 {
        if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
}

impl PacketFileError {
    /// Returns the error of a file that ends within the packet that begins there.
    fn cut_at(self, at: u64) -> Self {
        match self {
            Self::Cut(_) => Self::Cut(at),
            error => error,
        }
    }
}

/// Returns the number of units in a second, of an option of an interface.
fn units(unit: u8) -> Option<u128> {
    let exponent = u32::from(unit & 0x7F);
    let units =
        if unit & 0x80 == 0 { 10_u128.checked_pow(exponent) } else { 2_u128.checked_pow(exponent) };
    // Times have 64 bits.
    units.filter(|&units| units <= 1 << 64)
}

/// Fills the bytes. Returns `None` if the input has ended before.
fn read_whole(input: &mut impl Read, bytes: &mut [u8]) -> Result<Option<()>, PacketFileError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(PacketFileError::Cut(0)),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(()))
}
