//! A recording ends, resumes, and is changed from outside.

use std::fs::File;
use std::time::Duration;

use apus_trace::{
    EventInfo, Remote, RingStorage, Settings, Trace, controls, freeze, freeze_for, record,
    restore_if_due, start, thaw_if_due,
};

const BEGIN: Settings = Settings { one_in: 64, slower_than: None };

#[test]
fn a_frozen_trace_keeps_what_it_has_until_it_is_thawed() {
    let directory = std::env::temp_dir().join(format!("apus-freezing-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let event = EventInfo { name: "counted", arguments: &["number"], text: "{}" };
    start(&RingStorage::Directory(directory.clone()), &[event], &BEGIN).unwrap();
    let path = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let remote = Remote(&file);
    let last = || Trace::read(&file).unwrap().rings[0].records.last().unwrap().arguments[0];

    record(0, [1, 0, 0, 0]);
    assert!(!remote.is_frozen().unwrap());
    remote.freeze().unwrap();
    record(0, [2, 0, 0, 0]);
    assert_eq!((last(), remote.is_frozen().unwrap()), (1, true));
    remote.thaw().unwrap();
    record(0, [3, 0, 0, 0]);
    assert_eq!((last(), remote.is_frozen().unwrap()), (3, false));

    // Records just after a slow call are kept.
    freeze();
    assert!(remote.is_frozen().unwrap());
    let mut number = 4;
    while last() == number - 1 {
        record(0, [number, 0, 0, 0]);
        number += 1;
    }
    assert!(number > 4);

    // A recording that is frozen for a time resumes by itself, unless it is frozen again.
    remote.thaw().unwrap();
    freeze_for(Duration::from_secs(3_600));
    thaw_if_due();
    assert!(remote.is_frozen().unwrap());
    remote.thaw().unwrap();
    freeze_for(Duration::ZERO);
    assert!(remote.is_frozen().unwrap());
    while remote.is_frozen().unwrap() {
        thaw_if_due();
    }
    freeze();
    freeze_for(Duration::ZERO);
    thaw_if_due();
    assert!(remote.is_frozen().unwrap());

    let here = controls().unwrap();
    assert_eq!((here.settings(), remote.settings().unwrap()), (BEGIN, BEGIN));
    let slow = Settings { one_in: 1, slower_than: Some(Duration::from_micros(5)) };
    remote.set(&slow).unwrap();
    assert_eq!((here.settings(), remote.settings().unwrap()), (slow, slow));

    // Settings of a process without a sign of life are dropped.
    restore_if_due(here, Duration::ZERO);
    assert_eq!(here.settings(), slow);
    for number in 1..3 {
        remote.show_life(number).unwrap();
        restore_if_due(here, Duration::ZERO);
        assert_eq!(here.settings(), slow, "this call sees the number for the first time");
    }
    restore_if_due(here, Duration::from_secs(3_600));
    assert_eq!(here.settings(), slow);
    restore_if_due(here, Duration::ZERO);
    assert_eq!((here.settings(), remote.settings().unwrap()), (BEGIN, BEGIN));
    std::fs::remove_dir_all(&directory).unwrap();
}
