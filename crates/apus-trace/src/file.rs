//! Files of a time trace: reading them, and writing those that are not made from rings.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{Ordering, fence};

use crate::controls::{self, Settings};
use crate::event::EventInfo;
use crate::layout::{
    ANCHOR_AT, ANCHORS_AT, CAPACITY_AT, CLOCK_AT, COMPLETE_AT, CONTROLS_AT, HEAD_AT, HEADER,
    HEADER_BYTES_AT, MACHINE_AT, MAGIC, NAME_AT, PID_AT, PROGRAM_AT, REALTIME_AT, RECORD,
    RING_HEADER, TABLE_AT, TABLE_BYTES_AT, THREAD_AT, VERSION, VERSION_AT, WITHOUT_RING_AT,
};
use crate::stamp::Clock;

/// Upper bound on rings of a file: threads, or hosts of a simulation.
const RINGS_MAX: usize = 65_536;

/// Upper bound on bytes of a header.
const HEADER_MAX: usize = 1 << 20;

/// Upper bound on events of a table. Each takes about a hundred bytes.
const EVENTS_MAX: usize = 4_096;

/// Upper bound on ring bytes read from a sparse file, such as the file of a process.
const SPARSE_MAX: u64 = 128 << 20;

/// A reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file is not a time trace.
    #[error("the file is not a time trace")]
    NotTrace,
    /// The file has the format of a later version.
    #[error("the trace has format version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// The file contradicts itself, or ends too early.
    #[error("the trace is damaged: {0}")]
    Damaged(&'static str),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// One moment, by the clock of the trace and in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anchor {
    /// Time, by the clock of the trace.
    pub ticks: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`, or of a simulation.
    pub nanos: u64,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Time, by the clock of the trace.
    pub ticks: u64,
    /// The number of the event.
    pub event: u16,
    /// Its arguments; unused ones are 0.
    pub arguments: [u32; 4],
}

/// An event as the table of a file describes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EventNames {
    /// Its number in records.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Names of its arguments.
    pub arguments: Vec<String>,
    /// Its line of text, in the form of [`EventInfo::text`].
    pub text: String,
}

impl EventNames {
    /// Whether its records are about one call: the first arguments are the call's id and pair.
    #[must_use]
    pub fn is_of_call(&self) -> bool {
        self.arguments.len() >= 2 && self.arguments[0] == "id" && self.arguments[1] == "pair"
    }

    /// The text of a record.
    #[must_use]
    pub fn format(&self, arguments: &[u32; 4]) -> String {
        let mut line = String::with_capacity(self.text.len() + 20);
        let (mut rest, mut values) = (&*self.text, arguments.iter());
        while let Some(at) = rest.find('{') {
            line.push_str(&rest[..at]);
            rest = &rest[at..];
            let hexadecimal = rest.starts_with("{x}");
            let place = if hexadecimal { "{x}" } else { "{}" };
            match values.next().filter(|_| rest.starts_with(place)) {
                Some(value) if hexadecimal => line.push_str(&format!("0x{value:08x}")),
                Some(value) => line.push_str(&value.to_string()),
                None => {
                    line.push_str(rest);
                    return line;
                }
            }
            rest = &rest[place.len()..];
        }
        line.push_str(rest);
        line
    }
}

/// The records of one thread or one simulated host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RingTrace {
    /// The name of the thread or of the host.
    pub name: String,
    /// The thread's number in its system.
    pub thread: u32,
    /// Records in the order in which they were written, which is the order of time if the clock is monotonic.
    pub records: Vec<Record>,
    /// Records that were overwritten before the file was read.
    pub overwritten: u64,
}

/// A time trace of one process, or of one simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The unit of the stamps.
    pub clock: Clock,
    /// The name of the program.
    pub program: String,
    /// The process.
    pub pid: u32,
    /// The boot id of the host. Traces with the same boot id have the same clock.
    pub machine: [u8; 16],
    /// Nanoseconds since 1970 at the first of the [`anchors`](Self::anchors).
    pub realtime: u64,
    /// Moments that map ticks to nanoseconds. The first two are the file's, and the others are one per ring.
    pub anchors: Vec<Anchor>,
    /// The descriptions of the events.
    pub events: Vec<EventNames>,
    /// The rings.
    pub rings: Vec<RingTrace>,
    /// Threads that found all rings of the process taken at their first record.
    pub without_ring: u64,
}

impl Trace {
    /// Reads a trace, even while its process writes it. Records that are overwritten during the read are left out.
    ///
    /// # Errors
    ///
    /// [`TraceError`]. A damaged or malicious file never takes much more memory than it takes on its disk, or 128 MiB.
    pub fn read(file: &File) -> Result<Self, TraceError> {
        let length = file.metadata()?.len();
        let mut start = [0; TABLE_AT];
        read_at(file, &mut start, 0, length)?;
        let header_bytes = checked_start(&start)?;
        let mut header = vec![0; header_bytes];
        read_at(file, &mut header, 0, length)?;
        let FileHeader { clock, pid, machine, realtime, anchors, program, events } =
            FileHeader::parse(&header)?;
        let mut anchors = anchors.to_vec();
        let mut rings = Vec::new();
        let mut left = SPARSE_MAX.max(file.metadata()?.blocks().saturating_mul(512));
        let mut offset = header_bytes as u64;
        while offset + RING_HEADER as u64 <= length {
            let mut ring_header = [0; RING_HEADER];
            read_at(file, &mut ring_header, offset, length)?;
            let capacity = u64_at(&ring_header, CAPACITY_AT);
            if capacity == 0 {
                break;
            }
            if rings.len() == RINGS_MAX {
                return Err(TraceError::Damaged("it has too many rings"));
            }
            let bytes = capacity.checked_mul(RECORD as u64);
            let after = bytes.and_then(|bytes| left.checked_sub(bytes));
            left = after.ok_or(TraceError::Damaged("its rings are longer than it says"))?;
            rings.push(read_ring(file, &ring_header, offset, capacity, length)?);
            let [ticks, nanos] = words(&ring_header[ANCHOR_AT]);
            if ticks > 0 {
                anchors.push(Anchor { ticks, nanos });
            }
            offset += RING_HEADER as u64 + capacity * RECORD as u64;
        }
        let without_ring = u64_at(&start, WITHOUT_RING_AT);
        Ok(Self { clock, program, pid, machine, realtime, anchors, events, rings, without_ring })
    }

    /// The PID of the process that wrote the file, according to the file.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if the file is not a time trace.
    pub fn process_of(file: &File) -> Result<u32, TraceError> {
        let mut start = [0; TABLE_AT];
        read_at(file, &mut start, 0, file.metadata()?.len())?;
        checked_start(&start)?;
        Ok(u32_at(&start, PID_AT))
    }

    /// Writes the trace to a file that is no longer than its records need.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let widest = self.widest_anchors();
        let header = FileHeader {
            clock: self.clock,
            pid: self.pid,
            machine: self.machine,
            realtime: self.realtime,
            anchors: widest,
            program: self.program.clone(),
            events: self.events.clone(),
        };
        // No process records to this file.
        to.write_all(&header.emit(&Settings { one_in: 1, slower_than: None }, self.without_ring))?;
        for ring in self.rings.iter().filter(|ring| !ring.records.is_empty()) {
            let records = ring.records.len() as u64;
            let mut header = [0; RING_HEADER];
            header[CAPACITY_AT].copy_from_slice(&records.to_le_bytes());
            // The number of the first kept record is a multiple of the capacity, so that this record is at the start.
            let head = records * ring.overwritten.div_ceil(records).saturating_add(1);
            header[HEAD_AT].copy_from_slice(&head.to_le_bytes());
            header[THREAD_AT].copy_from_slice(&ring.thread.to_le_bytes());
            header[COMPLETE_AT].copy_from_slice(&1u32.to_le_bytes());
            put_text(&mut header[NAME_AT], &ring.name);
            to.write_all(&header)?;
            for record in &ring.records {
                to.write_all(&emit_record(record))?;
            }
        }
        to.flush()
    }

    /// The earliest and the latest anchor.
    #[must_use]
    pub fn widest_anchors(&self) -> [Anchor; 2] {
        let by_ticks = |anchor: &&Anchor| anchor.ticks;
        let earliest = self.anchors.iter().min_by_key(by_ticks).copied().unwrap_or_default();
        [earliest, self.anchors.iter().max_by_key(by_ticks).copied().unwrap_or_default()]
    }

    /// The number of the event with this name, if the trace's table has it.
    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<u16> {
        self.events.iter().find(|event| event.name == name).map(|event| event.number)
    }
}

/// The boot id of this host; zeros if the system does not report it.
#[must_use]
pub fn machine() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}

/// The events of a table, numbered from 0.
pub(crate) fn names(events: &[EventInfo]) -> Vec<EventNames> {
    let names = events.iter().zip(0..).map(|(event, number)| EventNames {
        number,
        name: event.name.to_owned(),
        arguments: event.arguments.iter().map(|&name| name.to_owned()).collect(),
        text: event.text.to_owned(),
    });
    names.collect()
}

impl From<EventInfo> for EventNames {
    fn from(event: EventInfo) -> Self {
        names(&[event]).swap_remove(0)
    }
}

/// The header of a file.
#[derive(Debug)]
pub(crate) struct FileHeader {
    pub(crate) clock: Clock,
    pub(crate) pid: u32,
    pub(crate) machine: [u8; 16],
    pub(crate) realtime: u64,
    pub(crate) anchors: [Anchor; 2],
    pub(crate) program: String,
    pub(crate) events: Vec<EventNames>,
}

impl FileHeader {
    pub(crate) fn emit(&self, settings: &Settings, without_ring: u64) -> Vec<u8> {
        let lines = self.events.iter().map(|event| {
            let arguments = event.arguments.join(",");
            format!("{}\t{}\t{arguments}\t{}\n", event.number, event.name, event.text)
        });
        let table: String = lines.collect();
        let length = (TABLE_AT + table.len()).next_multiple_of(HEADER);
        let mut bytes = vec![0; length];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
        bytes[HEADER_BYTES_AT].copy_from_slice(&(length as u32).to_le_bytes());
        bytes[CLOCK_AT].copy_from_slice(&self.clock.number().to_le_bytes());
        bytes[PID_AT].copy_from_slice(&self.pid.to_le_bytes());
        bytes[MACHINE_AT].copy_from_slice(&self.machine);
        bytes[REALTIME_AT].copy_from_slice(&self.realtime.to_le_bytes());
        let [first, last] = self.anchors;
        let anchors = [first.ticks, first.nanos, last.ticks, last.nanos];
        for (to, value) in bytes[ANCHORS_AT].chunks_exact_mut(8).zip(anchors) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        bytes[TABLE_BYTES_AT].copy_from_slice(&(table.len() as u32).to_le_bytes());
        put_text(&mut bytes[PROGRAM_AT], &self.program);
        bytes[CONTROLS_AT].copy_from_slice(&controls::emit(settings, without_ring));
        bytes[TABLE_AT..TABLE_AT + table.len()].copy_from_slice(table.as_bytes());
        bytes
    }

    /// Parses a header whose start was checked.
    fn parse(bytes: &[u8]) -> Result<Self, TraceError> {
        let clock = Clock::from_number(u32_at(bytes, CLOCK_AT));
        let [ticks, nanos, later_ticks, later_nanos] = words(&bytes[ANCHORS_AT]);
        let table_bytes = u32_at(bytes, TABLE_BYTES_AT) as usize;
        let table = bytes
            .get(TABLE_AT..TABLE_AT + table_bytes)
            .and_then(|table| std::str::from_utf8(table).ok())
            .filter(|table| !table.contains(is_unprintable))
            .ok_or(TraceError::Damaged("its table of events is not text"))?;
        if table.lines().nth(EVENTS_MAX).is_some() {
            return Err(TraceError::Damaged("its table has too many events"));
        }
        let events = table.lines().map(parse_event).collect::<Option<_>>();
        Ok(Self {
            clock: clock.ok_or(TraceError::Damaged("its clock is unknown"))?,
            pid: u32_at(bytes, PID_AT),
            machine: bytes[MACHINE_AT].try_into().expect("the range has 16 bytes"),
            realtime: u64_at(bytes, REALTIME_AT),
            anchors: [Anchor { ticks, nanos }, Anchor { ticks: later_ticks, nanos: later_nanos }],
            program: text(&bytes[PROGRAM_AT]),
            events: events.ok_or(TraceError::Damaged("a line of its table has too few fields"))?,
        })
    }
}

/// Checks the start of a file. Returns the header's length in bytes.
fn checked_start(start: &[u8; TABLE_AT]) -> Result<usize, TraceError> {
    if start[..MAGIC.len()] != MAGIC {
        return Err(TraceError::NotTrace);
    }
    let version = u32_at(start, VERSION_AT);
    if version != VERSION {
        return Err(TraceError::Version(version));
    }
    let header_bytes = u32_at(start, HEADER_BYTES_AT) as usize;
    if (TABLE_AT..=HEADER_MAX).contains(&header_bytes) {
        Ok(header_bytes)
    } else {
        Err(TraceError::Damaged("the length of its header is wrong"))
    }
}

fn parse_event(line: &str) -> Option<EventNames> {
    let mut fields = line.splitn(4, '\t');
    Some(EventNames {
        number: fields.next()?.parse().ok()?,
        name: fields.next()?.to_owned(),
        arguments: fields.next()?.split(',').map(str::to_owned).take(4).collect(),
        text: fields.next()?.to_owned(),
    })
}

/// Copies a ring that may be written at the same time.
fn read_ring(
    file: &File,
    header: &[u8; RING_HEADER],
    offset: u64,
    capacity: u64,
    length: u64,
) -> Result<RingTrace, TraceError> {
    let bytes = capacity.checked_mul(RECORD as u64).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes =
        bytes.filter(|&bytes| (bytes as u64) <= length.saturating_sub(offset + RING_HEADER as u64));
    let bytes = bytes.ok_or(TraceError::Damaged("a ring is longer than the file"))?;
    let head = u64_at(header, HEAD_AT);
    let mut copy = vec![0; bytes];
    read_at(file, &mut copy, offset + RING_HEADER as u64, length)?;
    fence(Ordering::Acquire);
    let mut after = [0; 8];
    read_at(file, &mut after, offset + HEAD_AT.start as u64, length)?;
    let after = u64::from_le_bytes(after);
    // The record with the number `after` may be half written over the record of the previous round, even if the number has not
    // changed: its thread may have been stopped or killed while it wrote.
    let is_complete = after == head && u32_at(header, COMPLETE_AT) != 0;
    let torn = if is_complete { 0 } else { after.saturating_add(1).saturating_sub(capacity) };
    let first = head.saturating_sub(capacity).max(torn).min(head);
    let records = (first..head).map(|number| {
        let at = (number % capacity) as usize * RECORD;
        parse_record(&copy[at..at + RECORD])
    });
    Ok(RingTrace {
        name: text(&header[NAME_AT]),
        thread: u32_at(header, THREAD_AT),
        records: records.collect(),
        overwritten: first,
    })
}

fn parse_record(bytes: &[u8]) -> Record {
    let [ticks, event, ab, cd] = words(bytes);
    Record {
        ticks,
        event: event as u16,
        arguments: [ab as u32, (ab >> 32) as u32, cd as u32, (cd >> 32) as u32],
    }
}

fn emit_record(record: &Record) -> [u8; RECORD] {
    let [a, b, c, d] = record.arguments.map(u64::from);
    let words = [record.ticks, record.event.into(), a | b << 32, c | d << 32];
    let mut bytes = [0; RECORD];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads exactly `to.len()` bytes, and reports a file that is too short.
fn read_at(file: &File, to: &mut [u8], offset: u64, length: u64) -> Result<(), TraceError> {
    if offset + to.len() as u64 > length {
        return Err(TraceError::Damaged("it ends too early"));
    }
    Ok(file.read_exact_at(to, offset)?)
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|index| u64_at(bytes, index * 8..index * 8 + 8))
}

fn u64_at(bytes: &[u8], at: Range<usize>) -> u64 {
    u64::from_le_bytes(bytes[at].try_into().expect("the range has eight bytes"))
}

fn u32_at(bytes: &[u8], at: Range<usize>) -> u32 {
    u32::from_le_bytes(bytes[at].try_into().expect("the range has four bytes"))
}

/// Text up to the first zero. Control characters are replaced.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let replace = |it: char| if it.is_control() { char::REPLACEMENT_CHARACTER } else { it };
    String::from_utf8_lossy(bytes).chars().map(replace).collect()
}

/// Whether no field of a table of events may contain the character.
fn is_unprintable(it: char) -> bool {
    it.is_control() && !matches!(it, '\n' | '\t')
}

/// Copies as much of a text as fits.
fn put_text(to: &mut [u8], text: &str) {
    let length = text.len().min(to.len());
    to[..length].copy_from_slice(&text.as_bytes()[..length]);
}

#[cfg(test)]
mod tests;
