//! Heads of responses.

use bytes::Bytes;

use crate::code::Code;
use crate::envelope::FIRST_BYTE;
use crate::envelope::error::EnvelopeError;
use crate::envelope::head_reader::HeadReader;
use crate::envelope::head_writer::HeadWriter;
use crate::envelope::limits::EnvelopeLimits;
use crate::envelope::pairs;
use crate::metadata::Metadata;
use crate::status::{Execution, Status};

/// The head of a response.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseHead {
    /// The metadata before the body, if this response has it.
    pub metadata: Option<Metadata>,
    /// The status with its trailers, if the call ends with this response. Its code may be [`Code::Ok`].
    pub end: Option<Status>,
    /// The body goes on: it is pulled.
    pub more: bool,
}

/// The head of a response that has succeeded, without metadata: code 0, and neither message, details nor trailers.
//= docs/rpc-wire.md#E13
pub(crate) const PLAIN_OK: [u8; 6] = [FIRST_BYTE, END, 0, 0, 0, 0];

const HEAD: u8 = 1;
const END: u8 = 2;
const MORE: u8 = 4;
const NOT_EXECUTED: u8 = 8;
const DRAINING: u8 = 16;

impl ResponseHead {
    /// Splits a message into its head and its chunks.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`]: the bytes break a rule of the format or a limit.
    pub fn decode(
        message: &Bytes,
        limits: &EnvelopeLimits,
    ) -> Result<(Self, Bytes), EnvelopeError> {
        let mut reader = HeadReader::begin(message, limits.head)?;
        let flags = reader.byte()?;
        //= docs/rpc-wire.md#E4
        if flags & END != 0 && flags & MORE != 0 {
            return Err(EnvelopeError::BadFlags);
        }
        let mut head = Self { more: flags & MORE != 0, ..Self::default() };
        if flags & HEAD != 0 {
            head.metadata = Some(pairs::read(&mut reader, limits.pairs)?);
        }
        if flags & END != 0 {
            head.end = Some(read_end(&mut reader, flags, limits)?);
        }
        Ok((head, reader.chunks()))
    }

    /// The head as bytes, with room for `body` bytes behind it.
    #[must_use]
    pub fn encode(&self, body: usize) -> Vec<u8> {
        let metadata = self.metadata.as_ref();
        let mut room = 2 + metadata.map_or(0, pairs::length) + body;
        let mut flags = if self.more { MORE } else { 0 };
        if metadata.is_some() {
            flags |= HEAD;
        }
        if let Some(end) = &self.end {
            room += end_length(end);
            flags |= END | flags_of(end.execution());
        }
        let mut writer = HeadWriter::begin(room);
        writer.byte(flags);
        if let Some(metadata) = metadata {
            pairs::write(&mut writer, metadata);
        }
        if let Some(end) = &self.end {
            write_end(&mut writer, end);
        }
        writer.finish()
    }
}

//= docs/rpc-wire.md#E14
fn flags_of(execution: Execution) -> u8 {
    match execution {
        Execution::Possible => 0,
        Execution::None | Execution::NoneHere => NOT_EXECUTED,
        Execution::NoneByDraining => NOT_EXECUTED | DRAINING,
    }
}

//= docs/rpc-wire.md#E13
fn read_end(
    reader: &mut HeadReader<'_>,
    flags: u8,
    limits: &EnvelopeLimits,
) -> Result<Status, EnvelopeError> {
    let code = Code::from_number(reader.varint()?);
    let message = reader.bytes()?;
    let message = str::from_utf8(&message).map_err(|_| EnvelopeError::BadMessage)?;
    let details = reader.bytes()?;
    let trailers = pairs::read(reader, limits.pairs)?;
    //= docs/rpc-wire.md#E14
    let execution = match (flags & NOT_EXECUTED != 0, flags & DRAINING != 0) {
        (false, _) => Execution::Possible,
        (true, false) => Execution::None,
        (true, true) => Execution::NoneByDraining,
    };
    let mut status = Status::new(code, message.to_owned()).with_execution(execution);
    if !details.is_empty() {
        status = status.with_details(details);
    }
    if !trailers.is_empty() {
        status = status.with_metadata(trailers);
    }
    Ok(status)
}

/// Number of the bytes that [`write_end`] writes.
fn end_length(end: &Status) -> usize {
    HeadWriter::varint_length(end.code().number().into())
        + HeadWriter::counted_length(end.message().len())
        + HeadWriter::counted_length(end.details().len())
        + pairs::length(end.metadata())
}

//= docs/rpc-wire.md#E13
fn write_end(writer: &mut HeadWriter, end: &Status) {
    writer.varint(end.code().number().into());
    writer.counted(end.message().as_bytes());
    writer.counted(end.details());
    pairs::write(writer, end.metadata());
}
