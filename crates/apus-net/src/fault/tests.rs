use super::*;
use crate::recorder::{PEER, Recorder};

const COUNT: u32 = 10_000;

/// Sends numbered packets through a link with these faults, and flushes it at the end.
fn run(faults: &str, count: u32) -> FaultLink<Recorder> {
    let mut link = FaultLink::new(Recorder::default(), faults.parse().unwrap()).unwrap();
    for number in 0..count {
        let body = Bytes::from(number.to_be_bytes().to_vec());
        link.send(Transmit {
            path: PEER,
            priority: Priority::LOWEST,
            header: &[9; 56],
            body: &body,
            range: 0..4,
        });
    }
    link.flush();
    link
}

fn numbers(link: &FaultLink<Recorder>) -> Vec<u32> {
    link.inner()
        .sent
        .iter()
        .map(|packet| u32::from_be_bytes(packet[56..60].try_into().unwrap()))
        .collect()
}

/// Returns whether a count is within 10 % and a constant of the expectation.
fn about(count: u64, probability: f64) -> bool {
    let expected = probability * f64::from(COUNT);
    (count as f64 - expected).abs() < 0.1 * expected + 20.0
}

#[test]
fn without_faults_everything_passes_in_order_at_once() {
    let link = run("", 100);
    assert_eq!(numbers(&link), (0..100).collect::<Vec<_>>());
    assert_eq!(link.due_in(), None);
    assert_eq!(link.counters(), LinkCounters::default());
}

#[test]
fn as_many_are_lost_as_asked_for_and_always_the_same() {
    let link = run("loss=0.1,seed=3", COUNT);
    assert!(about(link.counters().fault_lost, 0.1));
    assert_eq!(numbers(&link).len() as u64 + link.counters().fault_lost, u64::from(COUNT));
    assert_eq!(numbers(&link), numbers(&run("loss=0.1,seed=3", COUNT)));
    assert_ne!(numbers(&link), numbers(&run("loss=0.1,seed=4", COUNT)));
    assert!(numbers(&run("loss=1", COUNT)).is_empty());
}

#[test]
fn doubled_packets_come_twice() {
    let link = run("dup=0.05", COUNT);
    assert!(about(link.counters().fault_duplicated, 0.05));
    assert_eq!(numbers(&link).len() as u64, u64::from(COUNT) + link.counters().fault_duplicated);
}

#[test]
fn reordered_packets_are_passed_and_none_is_lost() {
    let mut link = run("reorder=0.05", COUNT);
    while let Some(due) = link.due_in() {
        std::thread::yield_now();
        if due.is_zero() {
            link.flush();
        }
    }
    assert!(about(link.counters().fault_reordered, 0.05));
    let mut numbers = numbers(&link);
    let late = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!(late > 0);
    for (at, &number) in numbers.iter().enumerate() {
        assert!(at.abs_diff(number as usize) <= 8, "{number} at {at}");
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..COUNT));
}

#[test]
fn a_corrupted_packet_differs_in_one_bit_and_its_message_stays_as_it_is() {
    let body = Bytes::from(vec![5; 1_000]);
    let mut link = FaultLink::new(Recorder::default(), "corrupt=1".parse().unwrap()).unwrap();
    for _ in 0..200 {
        link.send(Transmit {
            path: PEER,
            priority: Priority::LOWEST,
            header: &[9; 56],
            body: &body,
            range: 100..600,
        });
    }
    let clean = [&[9; 56][..], &[5; 500]].concat();
    let mut in_header = 0;
    for packet in &link.inner().sent {
        let wrong: u32 = packet.iter().zip(&clean).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(wrong, 1);
        in_header += usize::from(packet[..56] != clean[..56]);
    }
    assert!((1..200).contains(&in_header));
    assert!(body.iter().all(|&byte| byte == 5));
}

#[test]
fn delayed_packets_leave_in_time_and_not_before() {
    let start = Instant::now();
    let mut link = run("delay=5ms,jitter=1ms", 100);
    assert!(link.inner().sent.is_empty() || start.elapsed() >= Duration::from_millis(5));
    assert_eq!(link.counters().fault_delayed, 100);
    while link.due_in().is_some() {
        std::thread::yield_now();
        link.recv(&mut |_, _: &[u8]| ());
    }
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert!(link.inner().flushes >= 2, "releasing packets flushes them");
    let mut numbers = numbers(&link);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..100));
}

#[test]
fn no_more_is_held_than_may_be() {
    let link = run("delay=10s", HELD_MAX as u32 + 5);
    assert_eq!(link.counters().fault_overflow, 5);
}

#[test]
fn descriptions_are_read_and_written() {
    let text = "loss=0.1,dup=0.05,reorder=0.05,corrupt=0.001,delay=50us,jitter=10us,seed=7";
    let faults: Faults = text.parse().unwrap();
    assert_eq!(faults.loss, 0.1);
    assert_eq!(faults.delay, Duration::from_micros(50));
    assert_eq!(faults.seed, 7);
    assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults);
    assert_eq!("".parse::<Faults>().unwrap(), Faults::default());
}

#[test]
fn wrong_descriptions_are_refused_by_name() {
    for (text, expected) in [
        ("loss=1.5", "loss=1.5: must be a probability from 0 to 1"),
        ("dup=-0.1", "dup=-0.1: must be a probability from 0 to 1"),
        ("loss=NaN", "loss=NaN: must be a probability from 0 to 1"),
        ("corrupt=x", "corrupt=x: must be a probability from 0 to 1"),
        ("delay=5", "delay=5: must be a whole number with a unit (ns, us, ms, s), at most 10s"),
        (
            "jitter=11s",
            "jitter=11s: must be a whole number with a unit (ns, us, ms, s), at most 10s",
        ),
        ("seed=-1", "seed=-1: must be a whole number from 0 to 18446744073709551615"),
        (
            "drop=1",
            "drop=1: must be one of loss=, dup=, reorder=, corrupt=, delay=, jitter=, seed=",
        ),
    ] {
        assert_eq!(text.parse::<Faults>().unwrap_err().to_string(), expected);
    }
    let faults = Faults { reorder: 2.0, ..Faults::default() };
    assert!(FaultLink::new(Recorder::default(), faults).is_err());
}
