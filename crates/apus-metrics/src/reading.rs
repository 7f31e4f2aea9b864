//! Parser of a file of counters. A file may contain anything: invalid parts are errors or are left out, and a reading takes memory
//! in proportion to the file.

use std::sync::Arc;

use crate::layout::{ABSENT, FIXED, MAGIC, SECTION_HEADER, SectionType, Start, VERSION, word};
use crate::metric::GaugeFold;

/// The counters of one process at their last publication.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// The process that wrote the file.
    pub start: Start,
    /// Time of the last write, in nanoseconds since the epoch.
    pub written_ns: u64,
    /// Whether the process has closed or dropped each node that it had. A killed process has not.
    pub closed: bool,
    /// The sums of the counters of all engines of the process, and the gauges of all together.
    pub counters: Vec<Counter>,
    /// Processes that use an engine of the process, or have used it recently.
    pub attached: Vec<AttachedCounters>,
    /// Sequences of the sections, to detect writes between two readings. An odd one means that a write is in progress.
    pub sequences: Vec<u64>,
}

/// A counter or gauge as a file names it. The counters of all processes share the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// The group.
    pub group: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The unit.
    pub unit: Arc<str>,
    /// The count, or the value of the gauge; [`ABSENT`] for a gauge without one.
    pub value: u64,
    /// `None` for a counter.
    pub gauge: Option<GaugeFold>,
}

impl Counter {
    /// Takes the value of another engine.
    fn add(&mut self, value: u64) {
        let present = |value| (value != ABSENT).then_some(value);
        self.value = match self.gauge {
            None => self.value.wrapping_add(value),
            Some(gauge) => gauge.fold(present(self.value), present(value)).unwrap_or(ABSENT),
        };
    }
}

/// A process that uses an engine of the process that wrote the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachedCounters {
    /// PID in the pid namespace of the engine.
    pub pid: u32,
    /// User of the process.
    pub uid: u32,
    /// Whether the process has ended or no longer uses the engine.
    pub ended: bool,
    /// The engine's counters about the process.
    pub counters: Vec<Counter>,
}

/// Reason why bytes are not a file of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unreadable {
    /// The bytes do not begin as a file of counters.
    NotCounters,
    /// The format has a version that this program does not know.
    Version(u32),
    /// The header contradicts itself or the length of the file.
    Malformed,
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotCounters => f.write_str("not a file of counters"),
            Self::Version(version) => {
                write!(
                    f,
                    "a file of counters of version {version}; this program reads version {VERSION}"
                )
            }
            Self::Malformed => f.write_str("a file of counters with a malformed header"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Upper bound on the length of a file, in bytes.
pub const FILE_MAX: usize = 16 << 20;

/// Upper bound on the counters that a file names, and on the examined sections.
const MOST: usize = 16_384;

/// Upper bound on the processes that use an engine. Counters take many times the 8 bytes of their values.
const ATTACHED_MAX: usize = 4_096;
/// Upper bound on the counters of each such process.
const ATTACHED_COUNTERS_MAX: usize = 64;

/// Upper bound on the length of a name, in bytes.
const NAME_MAX: usize = 64;

/// Returns the time at which the counters of a file were last written, or the file was created, in nanoseconds since the epoch.
/// Costs little beside [`Reading::parse`].
#[must_use]
pub fn last_written(file: &[u8]) -> Option<u64> {
    let number = |at| half(file, at).and_then(|number| usize::try_from(number).ok());
    let (header, section, capacity) = (number(12)?, number(16)?, number(20)?);
    if file.get(..MAGIC.len()) != Some(&MAGIC) || number(8)? != VERSION as usize {
        return None;
    }
    if header < FIXED || section < SECTION_HEADER {
        return None;
    }
    let sections = file.get(header..)?.chunks_exact(section).take(capacity.min(MOST));
    let written = sections.filter_map(|section| whole(section, word::WRITTEN)).max();
    Some(written.unwrap_or(0).max(whole(file, 56)?))
}

impl Reading {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    ///
    /// [`Unreadable`].
    pub fn parse(file: &[u8]) -> Result<Self, Unreadable> {
        if file.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(Unreadable::NotCounters);
        }
        let version = half(file, 8).ok_or(Unreadable::Malformed)?;
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        Self::parse_first(file).ok_or(Unreadable::Malformed)
    }

    fn parse_first(file: &[u8]) -> Option<Self> {
        let number = |at| half(file, at).and_then(|number| usize::try_from(number).ok());
        let (header, section, capacity) = (number(12)?, number(16)?, number(20)?);
        let (names, names_length) = (number(24)?, number(28)?);
        let text = file.get(names..names.checked_add(names_length)?)?;
        let start = Start {
            pid: half(file, 32)?,
            ticks: whole(file, 40)?,
            namespace: whole(file, 48)?,
            made_ns: whole(file, 56)?,
            program: printable(file.get(64..128)?),
            version: printable(file.get(128..160)?),
        };
        if header < FIXED || section < SECTION_HEADER || !section.is_multiple_of(8) {
            return None;
        }
        let counters = parse_names(text)?;
        let mut reading = Self { start, counters, ..Self::default() };
        let (mut engines, mut closed) = (0_usize, 0_usize);
        let sections = file.get(header..)?.chunks_exact(section);
        for section in sections.take(capacity.min(MOST)) {
            // One that is not understood is left out.
            if reading.add(section) == Some(SectionType::Engine) {
                engines += 1;
                closed += usize::from(whole(section, word::CLOSED) == Some(1));
            }
        }
        reading.closed = engines > 0 && closed == engines;
        Some(reading)
    }

    /// Takes a section, unless it is free or not understood. Returns its kind.
    fn add(&mut self, section: &[u8]) -> Option<SectionType> {
        let kind = SectionType::of(whole(section, word::KIND)?)?;
        self.sequences.push(whole(section, word::SEQUENCE)?);
        self.written_ns = self.written_ns.max(whole(section, word::WRITTEN)?);
        let first = usize::try_from(whole(section, word::FIRST)?).ok()?;
        let count = usize::try_from(whole(section, word::COUNT)?).ok()?;
        let values = section.get(word::VALUES..)?.chunks_exact(8).take(count);
        let values = values.map(|value| value.try_into().map_or(0, u64::from_ne_bytes));
        let named = self.counters.get_mut(first..)?;
        match kind {
            SectionType::Engine => {
                for (counter, value) in named.iter_mut().zip(values) {
                    counter.add(value);
                }
            }
            SectionType::Attached | SectionType::Detached
                if self.attached.len() >= ATTACHED_MAX => {}
            SectionType::Attached | SectionType::Detached => {
                let counters = named.iter().zip(values).take(ATTACHED_COUNTERS_MAX);
                let counters = counters.map(|(named, value)| Counter { value, ..named.clone() });
                let owner = whole(section, word::OWNER)?;
                self.attached.push(AttachedCounters {
                    pid: u32::try_from(owner >> 32).ok()?,
                    uid: u32::try_from(owner & u64::from(u32::MAX)).ok()?,
                    ended: kind == SectionType::Detached,
                    counters: counters.collect(),
                });
            }
        }
        Some(kind)
    }

    /// Returns the value of a counter; 0 if the file does not name it. Gauges are in [`counters`](Self::counters).
    #[must_use]
    pub fn value(&self, group: &str, name: &str) -> u64 {
        let mut counters = self.counters.iter();
        counters.find(|it| *it.group == *group && *it.name == *name).map_or(0, |it| it.value)
    }

    /// Returns whether `self` and `other`, two successive readings of one file, show that no write happened in between.
    #[must_use]
    pub fn is_steady(&self, other: &Self) -> bool {
        self.sequences == other.sequences && self.sequences.iter().all(|it| it.is_multiple_of(2))
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn whole(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Returns a text that ends at the first zero. Characters other than printable ASCII become question marks, because the text may go
/// to a terminal.
fn printable(bytes: &[u8]) -> String {
    let text = bytes.iter().take_while(|byte| **byte != 0);
    text.map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { byte.into() } else { '?' })
        .collect()
}

fn parse_names(text: &[u8]) -> Option<Vec<Counter>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut counters = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ').map(|word| is_name(word).then(|| Arc::from(word)));
        let (group, name, unit) = (words.next()??, words.next()??, words.next()??);
        if counters.len() == MOST {
            return None;
        }
        let gauge = words.next().flatten().and_then(|word| GaugeFold::of_word(&word));
        counters.push(Counter { group, name, unit, value: gauge.map_or(0, |_| ABSENT), gauge });
    }
    Some(counters)
}

fn is_name(word: &str) -> bool {
    let plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_';
    let begins = word.bytes().next().is_some_and(|it| it.is_ascii_lowercase());
    begins && word.len() <= NAME_MAX && word.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::{header, section_length};
    use crate::metric::{engine_metrics, metrics, process_metrics};

    fn section(kind: SectionType, owner: u64, first: usize, values: &[u64]) -> Vec<u8> {
        let mut words = vec![0; section_length() / 8];
        let head = [2, kind.code(), 77, owner, first as u64, values.len() as u64];
        words[..head.len()].copy_from_slice(&head);
        words[word::VALUES / 8..][..values.len()].copy_from_slice(values);
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn file() -> Vec<u8> {
        let start = Start {
            pid: 7,
            ticks: 8,
            namespace: 9,
            made_ns: 10,
            program: "server\x1b[2J".to_owned(),
            version: "0.1.0".to_owned(),
        };
        let mut file = header(&start);
        file.extend(section(SectionType::Engine, 0, 0, &[1, 2]));
        file.extend(section(SectionType::Engine, 0, 0, &[10]));
        let first = engine_metrics().count();
        file.extend(section(SectionType::Attached, (5 << 32) | 1000, first, &[3]));
        file.extend(vec![0; section_length()]);
        file
    }

    #[test]
    fn sections_of_engines_are_summed_and_those_of_processes_are_not() {
        let reading = Reading::parse(&file()).unwrap();
        assert_eq!(reading.counters.len(), metrics().count());
        assert_eq!((reading.start.pid, reading.start.program.as_str()), (7, "server?[2J"));
        let values: Vec<_> = reading.counters.iter().map(|it| it.value).take(3).collect();
        assert_eq!((values, reading.written_ns), (vec![11, 2, 0], 77));
        assert_eq!(last_written(&file()), Some(77));
        assert_eq!(reading.value("protocol", "calls"), 11);
        let [attached] = reading.attached.as_slice() else { panic!("{reading:?}") };
        let first = process_metrics().next().unwrap();
        assert_eq!((attached.pid, attached.uid, attached.ended), (5, 1000, false));
        assert_eq!((&*attached.counters[0].name, attached.counters[0].value), (first.name, 3));
        assert!(reading.is_steady(&reading));
    }

    #[test]
    fn gauges_of_engines_are_folded_and_have_no_value_before_one_is_written() {
        let gauges = |engines: &[[u64; 3]]| {
            let mut file = header(&Start::default());
            let first = engine_metrics().position(|it| it.gauge.is_some()).unwrap();
            for values in engines {
                file.extend(section(SectionType::Engine, 0, first, values));
            }
            let reading = Reading::parse(&file).unwrap();
            let gauges = reading.counters.into_iter().filter(|it| it.gauge.is_some());
            gauges.map(|it| it.value).take(3).collect::<Vec<_>>()
        };
        assert_eq!(gauges(&[]), [ABSENT; 3]);
        assert_eq!(gauges(&[[7, ABSENT, 3], [5, ABSENT, 4]]), [5, ABSENT, 3]);
        assert_eq!(gauges(&[[ABSENT, 0, 3], [ABSENT, ABSENT, ABSENT]]), [ABSENT, 0, 3]);
    }

    #[test]
    fn a_process_has_closed_its_nodes_if_it_has_closed_each_of_them() {
        let start = Start { pid: 7, ..Start::default() };
        let of = |engines: &[u64]| {
            let mut file = header(&start);
            for &closed in engines {
                let mut engine = section(SectionType::Engine, 0, 0, &[1]);
                engine[word::CLOSED..][..8].copy_from_slice(&closed.to_ne_bytes());
                file.extend(engine);
            }
            file.extend(section(SectionType::Detached, 0, 0, &[]));
            Reading::parse(&file).unwrap().closed
        };
        assert_eq!(
            [of(&[]), of(&[0]), of(&[1]), of(&[1, 0]), of(&[1, 1])],
            [false, false, true, false, true]
        );
    }

    /// A file may have any number of sections for processes that use an engine.
    #[test]
    fn a_long_file_takes_no_more_memory_than_a_few_times_its_length() {
        let mut long = file();
        long.truncate(header(&Start::default()).len());
        let values = vec![1; process_metrics().count()];
        let first = engine_metrics().count();
        let sections = 2 * ATTACHED_MAX;
        long[20..24].copy_from_slice(&u32::try_from(sections).unwrap().to_ne_bytes());
        long.extend(section(SectionType::Attached, 1, first, &values).repeat(sections));
        let reading = Reading::parse(&long).unwrap();
        assert_eq!(reading.attached.len(), ATTACHED_MAX);
        let counters = reading.attached.iter().map(|it| it.counters.len()).sum::<usize>();
        assert!(counters * size_of::<Counter>() < 4 * long.len());
        // All of them share one name.
        let [one, other] = [0, ATTACHED_MAX - 1].map(|at| &reading.attached[at].counters[0].name);
        assert!(Arc::ptr_eq(one, other));
    }

    #[test]
    fn what_is_no_file_of_counters_is_refused() {
        assert_eq!(Reading::parse(b""), Err(Unreadable::NotCounters));
        assert_eq!(Reading::parse(&MAGIC), Err(Unreadable::Malformed));
        let mut newer = file();
        newer[8..12].copy_from_slice(&2u32.to_ne_bytes());
        assert_eq!(Reading::parse(&newer), Err(Unreadable::Version(2)));
        let whole = file();
        for length in 0..header(&Start::default()).len() {
            assert!(Reading::parse(&whole[..length]).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = Reading::parse(&bytes);
            let _ = Reading::parse(&[&MAGIC[..], &VERSION.to_ne_bytes(), &bytes].concat());
        }

        #[test]
        fn a_damaged_file_never_panics(
            damage in proptest::collection::vec((0usize..8_192, any::<u64>()), 0..8),
            length in 0usize..32_768,
        ) {
            let mut file = file();
            for (at, value) in damage {
                let at = at % (file.len() - 8);
                file[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
            file.truncate(length);
            if let Ok(reading) = Reading::parse(&file) {
                prop_assert!(reading.counters.len() <= file.len());
                prop_assert!(reading.attached.len() * SECTION_HEADER <= file.len());
            }
        }
    }
}
