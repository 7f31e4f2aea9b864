//! Real NAPI instances: those of a veth pair with GRO, in a network namespace of the test's thread.

use std::process::Command;

use apus_irq::{NapiParameters, napis, queues, set, set_feature};
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};

#[path = "../../apus-net/tests/skipped/mod.rs"]
mod skipped;
use skipped::skipped;

/// Runs `ip`; says so when it fails.
fn ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Moves this thread into a network namespace with the pair `receiver`, which has GRO, and `sender`. Returns the index
/// of `receiver`.
fn veth(queues: u32) -> Option<u32> {
    let of = format!("numrxqueues {queues} numtxqueues {queues}");
    let made = unshare(CloneFlags::CLONE_NEWNET).is_ok()
        && ip(&format!("link add receiver {of} type veth peer name sender {of}"))
        && ip("link set receiver up")
        && ip("link set sender up");
    if !made {
        skipped("no network namespaces");
        return None;
    }
    set_feature("receiver", "rx-gro", true).expect("veth has GRO");
    Some(if_nametoindex("receiver").expect("it was made"))
}

#[test]
fn parameters_are_set_and_read_back() {
    let Some(index) = veth(2) else { return };
    let before = napis(index).unwrap();
    assert_eq!(before.len(), 2, "{before:?}");
    assert!(before.iter().all(|napi| napi.ifindex == index && napi.id > 0));
    assert_eq!(before[0].parameters(), NapiParameters::default());
    let wanted = NapiParameters {
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 20_000,
        irq_suspend_timeout_ns: 5_000_000_000,
    };
    match set(before[1].id, &wanted) {
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            return skipped("this kernel has no napi-set");
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return skipped("no CAP_NET_ADMIN in the first user namespace");
        }
        done => done.unwrap(),
    }
    let after = napis(index).unwrap();
    assert_eq!((&after[0], after[1].parameters()), (&before[0], wanted));
    assert!(set(1, &wanted).is_err(), "numbers below that of the CPUs are none");
}

#[test]
fn queues_are_listed_receive_queues_first() {
    let Some(index) = veth(2) else { return };
    let queues: Vec<_> =
        queues(index).unwrap().iter().map(|queue| (queue.transmits, queue.id)).collect();
    assert_eq!(queues, [(false, 0), (false, 1), (true, 0), (true, 1)]);
}

#[test]
fn a_device_without_napi_instances_has_none() {
    let Some(_) = veth(1) else { return };
    assert_eq!(napis(if_nametoindex("sender").unwrap()).unwrap(), []);
    assert!(set_feature("sender", "no-such-offload", true).is_err());
    assert!(set_feature("no such device", "rx-gro", true).is_err());
}
