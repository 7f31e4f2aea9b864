//! More threads than rings.

use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use apus_trace::{EventInfo, RingStorage, Settings, Trace, record, start};

/// Rings of a process.
const RINGS: u32 = 32;

/// A thread that records the numbers that it receives, and confirms each.
struct Worker {
    numbers: Sender<u32>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start() -> Self {
        let ((numbers, received), (answers, done)) = (channel(), channel());
        let thread = thread::spawn(move || {
            for number in received {
                record(0, [number, 0, 0, 0]);
                answers.send(()).unwrap();
            }
        });
        Self { numbers, done, thread }
    }

    fn record(&self, number: u32) {
        self.numbers.send(number).unwrap();
        self.done.recv().unwrap();
    }

    fn end(self) {
        drop(self.numbers);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_thread_that_found_all_rings_taken_records_when_one_is_free() {
    let directory = std::env::temp_dir().join(format!("apus-threads-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let event = EventInfo { name: "counted", arguments: &["number"], text: "{}" };
    let settings = Settings { one_in: 1, slower_than: None };
    start(&RingStorage::Directory(directory.clone()), &[event], &settings).unwrap();
    let path = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    let read = || Trace::read(&File::open(&path).unwrap()).unwrap();
    let has = |trace: &Trace, number| {
        trace.rings.iter().any(|ring| ring.records.iter().any(|it| it.arguments[0] == number))
    };

    let mut workers: Vec<_> = (0..RINGS).map(|_| Worker::start()).collect();
    workers.iter().zip(0..).for_each(|(worker, number)| worker.record(number));
    let late = Worker::start();
    late.record(100);
    late.record(101);
    let trace = read();
    assert!(has(&trace, RINGS - 1) && !has(&trace, 100) && !has(&trace, 101));
    assert_eq!(trace.without_ring, 1, "a thread is counted once");

    workers.pop().unwrap().end();
    late.record(102);
    let trace = read();
    assert!(has(&trace, 102));
    assert_eq!(trace.without_ring, 1);
    late.end();
    workers.into_iter().for_each(Worker::end);
    std::fs::remove_dir_all(&directory).unwrap();
}
