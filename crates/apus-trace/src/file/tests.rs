use super::*;
use crate::layout::HEADER;

const HELLO: EventInfo =
    EventInfo { name: "hello", arguments: &["whom", "key"], text: "hello {}, key {x}" };

fn trace() -> Trace {
    let record = |ticks| Record { ticks, event: 0, arguments: [ticks as u32, 1, u32::MAX, 3] };
    let ring = RingTrace {
        name: "host0".to_owned(),
        thread: 7,
        records: (0..10).map(record).collect(),
        overwritten: 0,
    };
    Trace {
        clock: Clock::Virtual,
        program: "test".to_owned(),
        pid: 3,
        machine: [9; 16],
        realtime: 5,
        anchors: vec![Anchor::default(), Anchor { ticks: 1_000, nanos: 2_000 }],
        events: names(&[HELLO]),
        rings: vec![ring.clone(), RingTrace { name: "host1".to_owned(), ..ring }],
        without_ring: 2,
    }
}

fn bytes(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let file = File::from(
        nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::empty()).unwrap(),
    );
    file.write_all_at(bytes, 0).unwrap();
    Trace::read(&file)
}

#[test]
fn what_is_written_is_read() {
    assert_eq!(read(&bytes(&trace())).unwrap(), trace());
}

#[test]
fn overwritten_records_are_counted_approximately() {
    let mut before = trace();
    before.rings[0].overwritten = 25;
    let after = read(&bytes(&before)).unwrap();
    assert_eq!(after.rings[0].records, before.rings[0].records);
    assert!((25..35).contains(&after.rings[0].overwritten));
}

/// A thread that stopped in the middle of a record has half overwritten the oldest one.
#[test]
fn the_oldest_record_of_a_full_ring_is_left_out_unless_the_ring_is_complete() {
    let mut full = bytes(&trace());
    assert_eq!(read(&full).unwrap().rings[0].records.len(), 10);
    full[HEADER + COMPLETE_AT.start] = 0;
    let ring = read(&full).unwrap().rings.swap_remove(0);
    assert_eq!((ring.records.len(), ring.records[0].ticks, ring.overwritten), (9, 1, 1));
}

/// A header has room for tens of thousands of lines, each of which takes more memory than its length.
#[test]
fn a_table_with_too_many_events_is_refused() {
    let mut many = trace();
    let event = EventNames { name: String::new(), arguments: Vec::new(), ..many.events[0].clone() };
    many.events = vec![EventNames { text: String::new(), ..event }; EVENTS_MAX];
    assert_eq!(read(&bytes(&many)).unwrap().events.len(), EVENTS_MAX);
    many.events.push(many.events[0].clone());
    assert!(matches!(read(&bytes(&many)), Err(TraceError::Damaged(_))));
}

#[test]
fn text_of_a_record() {
    let event = EventNames::from(HELLO);
    assert_eq!(event.format(&[5, 255, 0, 0]), "hello 5, key 0x000000ff");
    let wrong = EventNames { text: "{} {a} {".to_owned(), ..event };
    assert_eq!(wrong.format(&[5, 255, 0, 0]), "5 {a} {");
}

#[test]
fn no_damage_panics_or_takes_much_memory() {
    let whole = bytes(&trace());
    // Every length behind the header, and some within it.
    for length in (0..HEADER).step_by(37).chain(HEADER..whole.len()) {
        let _ = read(&whole[..length]);
    }
    // Wrong values in every byte of both headers.
    for at in (0..400).chain(HEADER..HEADER + RING_HEADER) {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            let _ = read(&damaged);
        }
    }
    let mut long = whole.clone();
    long[HEADER..HEADER + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(read(&long), Err(TraceError::Damaged(_))));
    let mut later = whole;
    later[VERSION_AT.start] = 2;
    assert!(matches!(read(&later), Err(TraceError::Version(2))));
    assert!(matches!(read(&[0; 300]), Err(TraceError::NotTrace)));
}
