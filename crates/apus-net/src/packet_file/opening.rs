//! Opens the sealed datagrams of a file with the keys of a log.

use std::io::{self, BufRead, Read, Write};

use apus_seal::{Aead, CLEAR_LEN, LINE_MAX, LoggedKey, LoggedKeys, NotOpened, VERSION_SEALED};

use super::datagram::UdpPlace;
use super::reader::{Frame, PacketFileError, PacketReader};
use super::writer::PacketWriter;

/// Upper bound on the keys of a log.
const KEYS_MAX: usize = 1 << 20;

/// Upper bound on the bytes of a line: that of the longest key, and some spaces.
const TEXT_MAX: usize = LINE_MAX + 100;

/// Length of the shortest sealed datagram.
const SEALED_MIN: usize = 64;

/// The reason why a key log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The system reports an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is no key.
    #[error("line {line}: expected 'APUS2 PATH-ID EPOCH SUITE KEY IV' in hexadecimal digits")]
    Line {
        /// Number of the line, from 1 on.
        line: usize,
    },
    /// There are more keys than a program writes in days.
    #[error("more than {KEYS_MAX} keys")]
    TooMany,
}

/// The reason why the datagrams of a file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenFileError {
    /// The file cannot be read. Frames before the error were written.
    #[error(transparent)]
    Read(#[from] PacketFileError),
    /// The output cannot be written.
    #[error(transparent)]
    Write(io::Error),
}

/// The contents of a file whose datagrams were opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct OpeningReport {
    /// Frames in the file.
    pub frames: u64,
    /// Sealed datagrams that were opened.
    pub opened: u64,
    /// Sealed datagrams whose key the log does not have.
    pub without_key: u64,
    /// Sealed datagrams that no key of their path opens: forged, changed, or of a key that is missing.
    pub forged: u64,
    /// Sealed datagrams of which the end was not captured.
    pub cut: u64,
}

/// Reads the keys of a log. Empty lines and lines that begin with `#` mean nothing.
///
/// # Errors
///
/// If the log cannot be read, or has another line.
pub fn read_keys<A: Aead>(mut input: impl BufRead) -> Result<LoggedKeys<A>, KeyFileError> {
    let mut keys = LoggedKeys::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        (&mut input).take(TEXT_MAX as u64).read_until(b'\n', &mut text)?;
        if text.is_empty() {
            break;
        }
        let is_cut = text.len() == TEXT_MAX && !text.ends_with(b"\n");
        let parsed = str::from_utf8(&text).ok().filter(|_| !is_cut).map(LoggedKey::parse);
        match parsed {
            Some(Ok(Some(key))) => _ = keys.add(&key),
            Some(Ok(None)) => {}
            Some(Err(_)) | None => return Err(KeyFileError::Line { line }),
        }
        if keys.len() > KEYS_MAX {
            return Err(KeyFileError::TooMany);
        }
    }
    Ok(keys)
}

/// Copies the frames of a pcap or pcapng file to a pcapng file, with opened datagrams in place of the sealed ones. Datagrams that
/// cannot be opened, and all other frames, stay as they are. A frame of several datagrams, captured before segmentation or after they
/// were joined, becomes one for each.
///
/// # Errors
///
/// If the file cannot be read or written.
pub fn open_file<A: Aead>(
    input: impl Read,
    keys: &mut LoggedKeys<A>,
    output: impl Write,
) -> Result<OpeningReport, OpenFileError> {
    let mut reader = PacketReader::new(input)?;
    let output = PacketWriter::new(output).map_err(OpenFileError::Write)?;
    let mut opener = Opener {
        keys,
        output,
        report: OpeningReport::default(),
        text: Vec::new(),
        frame: Vec::new(),
    };
    let end = loop {
        match reader.next_frame() {
            Ok(Some(frame)) => opener.take(&frame).map_err(OpenFileError::Write)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    opener.output.finish().map_err(OpenFileError::Write)?;
    end?;
    Ok(opener.report)
}

struct Opener<'k, A, W> {
    keys: &'k mut LoggedKeys<A>,
    output: PacketWriter<W>,
    report: OpeningReport,
    text: Vec<u8>,
    /// The frame that is written.
    frame: Vec<u8>,
}

impl<A: Aead, W: Write> Opener<'_, A, W> {
    fn take(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        self.report.frames += 1;
        let place = UdpPlace::of(frame);
        let sealed = place.filter(|place| is_sealed(&frame.bytes[place.payload.clone()]));
        let Some(place) = sealed else { return self.output.frame(frame) };
        if !place.is_whole {
            self.report.cut += 1;
            return self.output.frame(frame);
        }
        let payload = &frame.bytes[place.payload.clone()];
        let length = datagram_len(payload);
        let is_one = length == payload.len();
        for datagram in payload.chunks(length) {
            let content = match self.keys.open(datagram, &mut self.text) {
                Ok(opened) => {
                    self.report.opened += 1;
                    let (payload, header) =
                        opened.text.split_at(opened.text.len() - opened.header_len);
                    [header, payload]
                }
                Err(error) => {
                    match error {
                        NotOpened::Malformed(_) => {}
                        NotOpened::NoKey => self.report.without_key += 1,
                        NotOpened::Forged => self.report.forged += 1,
                    }
                    if is_one {
                        return self.output.frame(frame);
                    }
                    [datagram, &[]]
                }
            };
            place.replace(frame.bytes, content, &mut self.frame);
            let original_len = u32::try_from(self.frame.len()).unwrap_or(u32::MAX);
            self.output.frame(&Frame { original_len, bytes: &self.frame, ..*frame })?;
        }
        Ok(())
    }
}

/// Returns whether a payload, which may be cut, begins as a sealed datagram.
fn is_sealed(payload: &[u8]) -> bool {
    payload.len() >= CLEAR_LEN && payload[..3] == [0, 0, VERSION_SEALED]
}

/// Returns the length of each datagram of a payload, which may be several to one node, all but the last of one length: that at which
/// each begins with a sealed datagram for the same path.
fn datagram_len(payload: &[u8]) -> usize {
    let id = &payload[4..12];
    let begins = |at: usize| {
        let rest = &payload[at..];
        rest.len() >= SEALED_MIN && rest[..3] == [0, 0, VERSION_SEALED] && &rest[4..12] == id
    };
    let begins_everywhere = |&length: &usize| (length..payload.len()).step_by(length).all(begins);
    let lengths = (SEALED_MIN..payload.len()).filter(|&length| begins(length));
    lengths.into_iter().find(begins_everywhere).unwrap_or(payload.len())
}
