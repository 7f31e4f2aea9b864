//! Metadata as bytes.

use crate::envelope::error::EnvelopeError;
use crate::envelope::head_reader::HeadReader;
use crate::envelope::head_writer::HeadWriter;
use crate::header_name::HeaderName;
use crate::metadata::{Metadata, is_text};

/// Fewest bytes of a pair: a name of one character or an index with its zero, and an empty value.
const PAIR_MIN: usize = 3;

pub(crate) fn read(
    reader: &mut HeadReader<'_>,
    pairs_max: usize,
) -> Result<Metadata, EnvelopeError> {
    let count = reader.varint()?;
    if count == 0 {
        return Ok(Metadata::new());
    }
    //= docs/rpc-wire.md#E8
    let number = usize::try_from(count).ok().filter(|&number| number <= pairs_max);
    let Some(number) = number else {
        return Err(EnvelopeError::TooManyPairs { count, limit: pairs_max });
    };
    let mut metadata = Metadata::with_capacity(number.min(reader.remaining() / PAIR_MIN));
    for _ in 0..number {
        let name = read_name(reader)?;
        let value = reader.bytes()?;
        //= docs/rpc-wire.md#E10
        if !name.is_binary() && !is_text(&value) {
            return Err(EnvelopeError::BadValue);
        }
        metadata.push(name, value);
    }
    Ok(metadata)
}

//= docs/rpc-wire.md#E9
fn read_name(reader: &mut HeadReader<'_>) -> Result<HeaderName, EnvelopeError> {
    let name = reader.bytes()?;
    if name.is_empty() {
        let index = reader.byte()?;
        return HeaderName::at(index).ok_or(EnvelopeError::UnknownName { index });
    }
    HeaderName::other(name).ok_or(EnvelopeError::BadName)
}

//= docs/rpc-wire.md#E8
pub(crate) fn write(writer: &mut HeadWriter, metadata: &Metadata) {
    writer.varint(metadata.len() as u64);
    for (name, value) in metadata.pairs() {
        match name {
            //= docs/rpc-wire.md#E9
            HeaderName::Static(index) => {
                writer.byte(0);
                writer.byte(*index);
            }
            HeaderName::Other(bytes) => writer.counted(bytes),
        }
        writer.counted(value);
    }
}

/// Number of the bytes that [`write()`] writes.
pub(crate) fn length(metadata: &Metadata) -> usize {
    let name = |name: &HeaderName| match name {
        HeaderName::Static(_) => 2,
        HeaderName::Other(bytes) => HeadWriter::counted_length(bytes.len()),
    };
    let pairs = metadata.pairs().iter();
    let pairs = pairs.map(|(key, value)| name(key) + HeadWriter::counted_length(value.len()));
    HeadWriter::varint_length(metadata.len() as u64) + pairs.sum::<usize>()
}
