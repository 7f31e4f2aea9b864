//! The layout of a file. All numbers are little endian.
//!
//! The rings follow the header without a gap: each is a header and its records. The first ring without room for a record ends the
//! list.

use std::ops::Range;

pub(crate) const MAGIC: [u8; 8] = *b"aputrace";
/// Version of the format. It changes if a reader of an older version would misread the file.
pub(crate) const VERSION: u32 = 1;
/// Bytes before the first ring, in files that this version writes. A multiple of [`RING_HEADER`], which aligns the rings.
pub(crate) const HEADER: usize = 16 << 10;

pub(crate) const VERSION_AT: Range<usize> = 8..12;
pub(crate) const HEADER_BYTES_AT: Range<usize> = 12..16;
pub(crate) const CLOCK_AT: Range<usize> = 16..20;
pub(crate) const PID_AT: Range<usize> = 20..24;
/// The boot id of the host: files of one boot share a clock.
pub(crate) const MACHINE_AT: Range<usize> = 24..40;
/// Time since 1970, in ns, at the first anchor.
pub(crate) const REALTIME_AT: Range<usize> = 40..48;
/// Two anchors: ticks, nanoseconds; ticks, nanoseconds.
pub(crate) const ANCHORS_AT: Range<usize> = 48..80;
pub(crate) const TABLE_BYTES_AT: Range<usize> = 80..84;
pub(crate) const PROGRAM_AT: Range<usize> = 84..116;
/// The controls (`controls`): three words, the number of threads that found no ring, and a sign of life.
pub(crate) const CONTROLS_AT: Range<usize> = 128..168;
pub(crate) const WITHOUT_RING_AT: Range<usize> = 152..160;
pub(crate) const SIGN_OF_LIFE_AT: Range<usize> = 160..168;
/// The table of events: one line each, with fields separated by tabs: number, name, names of arguments separated by commas, text.
pub(crate) const TABLE_AT: usize = 256;

pub(crate) const RING_HEADER: usize = 128;
pub(crate) const CAPACITY_AT: Range<usize> = 0..8;
/// Records written so far. The record with number n is at n modulo the capacity.
pub(crate) const HEAD_AT: Range<usize> = 8..16;
/// An anchor later than the header's anchors: ticks, nanoseconds.
pub(crate) const ANCHOR_AT: Range<usize> = 16..32;
pub(crate) const THREAD_AT: Range<usize> = 32..36;
pub(crate) const NAME_AT: Range<usize> = 40..72;
/// Not 0 in a ring that no thread writes, whose records are all whole. In other rings, the oldest record may be half overwritten.
pub(crate) const COMPLETE_AT: Range<usize> = 72..76;

/// Bytes of a record: the stamp; the event; the arguments, two to a word.
pub(crate) const RECORD: usize = 32;
