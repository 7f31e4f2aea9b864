//! Real NAPI instances: those of a veth pair with GRO, in a network namespace of the test's thread.

use std::process::Command;

use apus_irq::{
    Again, Device, Error, LinkEvents, Mode, NapiParameters, ProcessId, StateDirectory, napis,
    napis_can_be_set, queues, set, set_feature,
};
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
        threaded: None,
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 20_000,
        irq_suspend_timeout_ns: 5_000_000_000,
    };
    if !can_set(index) {
        return;
    }
    set(before[1].id, &wanted).unwrap();
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

/// A state directory of a test's own, gone with it.
struct OwnState(StateDirectory);

impl OwnState {
    fn new(test: &str) -> Self {
        let name = format!("apus-irq-{test}-{}", std::process::id());
        Self(StateDirectory::at(std::env::temp_dir().join(name)))
    }
}

impl Drop for OwnState {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.directory());
    }
}

/// Whether this kernel and this user can set instances; says so otherwise. Another error is a failure.
fn can_set(index: u32) -> bool {
    let napi = &napis(index).unwrap()[0];
    if !napis_can_be_set().unwrap() {
        skipped("this kernel has no napi-set (Linux 6.13 and newer do)");
        return false;
    }
    match set(napi.id, &napi.parameters()) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            skipped("no CAP_NET_ADMIN in the initial user namespace");
            false
        }
        done => done.is_ok() || panic!("{done:?}"),
    }
}

#[test]
fn a_thread_that_a_mode_asks_for_is_put_back() {
    let Some(index) = veth(1) else { return };
    if !can_set(index) {
        return;
    }
    let now = || (napis(index).unwrap()[0].threaded, napis(index).unwrap()[0].parameters());
    let silent = NapiParameters { defer_hard_irqs: 4, ..NapiParameters::default() };
    let threaded = NapiParameters { threaded: Some(1), ..silent };
    match set(napis(index).unwrap()[0].id, &threaded) {
        // Of an attribute that is not among those of the command.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return skipped(
                "this kernel sets no threads of single NAPI instances (Linux 6.17 and newer do)",
            );
        }
        done => done.unwrap(),
    }
    set(napis(index).unwrap()[0].id, &NapiParameters { threaded: Some(0), ..silent }).unwrap();
    let state = OwnState::new("thread");
    let device = Device::named("receiver").unwrap();
    let change = |wanted: NapiParameters| {
        let slots = device.slots_of(None).unwrap();
        state.0.set_device(&device, &slots, |_| wanted, None).unwrap();
    };
    change(silent);
    change(threaded);
    assert_eq!(now(), (Some(1), silent));
    assert_eq!(state.0.set_device_again(&device).unwrap(), Some(Again::default()));
    // A mode that says nothing about threads, after one that does.
    change(silent);
    assert_eq!(now(), (Some(0), silent));
    change(threaded);
    state.0.restore_device(&state.0.devices().unwrap()[0]).unwrap();
    assert_eq!(now(), (Some(0), silent));
}

#[test]
fn what_was_set_is_restored_also_after_the_link_was_down() {
    let Some(index) = veth(2) else { return };
    if !can_set(index) {
        return;
    }
    let state = OwnState::new("restore");
    let device = Device::named("receiver").unwrap();
    let mode: Mode = "suspend:20".parse().unwrap();
    let parameters = || napis(index).unwrap().iter().map(|it| it.parameters()).collect::<Vec<_>>();
    let before = NapiParameters { gro_flush_timeout_ns: 7_000, ..NapiParameters::default() };
    set(napis(index).unwrap()[1].id, &before).unwrap();
    let original = parameters();
    // Set twice: the values before are those before the first time.
    for _ in 0..2 {
        let slots = device.slots_of(None).unwrap();
        assert_eq!(slots.iter().map(|it| &it.name[..]).collect::<Vec<_>>(), ["napi-0", "napi-1"]);
        state.0.set_device(&device, &slots, |_| mode.napi(), None).unwrap();
        assert_eq!(parameters(), [mode.napi(); 2]);
    }
    let held = &state.0.devices().unwrap()[0];
    assert!(ip("link set receiver down"));
    assert!(matches!(state.0.restore_device(held), Err(Error::Absent { .. })));
    assert!(ip("link set receiver up"));
    let again = |lost, new| Some(Again { lost, new });
    assert_eq!(state.0.set_device_again(&device).unwrap(), again(2, 0), "the link has lost them");
    assert_eq!(state.0.set_device_again(&device).unwrap(), again(0, 0));
    assert_eq!(parameters(), [mode.napi(); 2]);
    state.0.restore_device(held).unwrap();
    assert_eq!(parameters(), original);
    state.0.restore_device(held).unwrap();
    assert!(state.0.devices().unwrap().is_empty());
    assert_eq!(state.0.set_device_again(&device).unwrap(), None);
}

#[test]
fn queues_that_come_and_a_device_that_is_made_anew_are_set_and_restored() {
    let Some(index) = veth(2) else { return };
    if !can_set(index) {
        return;
    }
    let channels = |count: u32| {
        let number = count.to_string();
        let ethtool = Command::new("ethtool").args(["-L", "receiver", "rx", &number]).output();
        ethtool.is_ok_and(|output| output.status.success())
    };
    if !channels(1) {
        return skipped("no ethtool");
    }
    let state = OwnState::new("later");
    let device = Device::named("receiver").unwrap();
    let links = LinkEvents::open().unwrap();
    let mode: Mode = "suspend:20".parse().unwrap();
    let parameters = || {
        let napis = napis(if_nametoindex("receiver").unwrap()).unwrap();
        napis.iter().map(|it| it.parameters()).collect::<Vec<_>>()
    };
    let again = |lost, new| Some(Again { lost, new });
    let slots = device.slots().unwrap();
    assert_eq!(slots.len(), 1);
    let wanted = mode.napi();
    state.0.set_whole_device(&device, &slots, |_| wanted, Some(wanted), None).unwrap();
    assert!(channels(2));
    let found = state.0.set_device_again(&device).unwrap().unwrap();
    assert_eq!(found.new, 1, "{found:?}");
    assert_eq!(parameters(), [wanted; 2]);
    assert!(!state.0.keep(&device, None).unwrap() || state.0.held(&device).unwrap().is_some());
    assert!(ip("link del receiver"));
    assert!(links.take() && matches!(state.0.set_device_again(&device), Err(Error::NoDevice(_))));
    assert!(ip("link add receiver numrxqueues 2 numtxqueues 2 type veth peer name sender"));
    assert!(ip("link set receiver up") && ip("link set sender up"));
    set_feature("receiver", "rx-gro", true).unwrap();
    let original = parameters();
    assert_eq!(state.0.set_device_again(&device).unwrap(), again(0, 2));
    assert_eq!(parameters(), [wanted; 2]);
    state.0.restore_device(&state.0.devices().unwrap()[0]).unwrap();
    assert_eq!(parameters(), original);
}

#[test]
fn a_device_that_another_process_holds_is_refused() {
    let Some(index) = veth(1) else { return };
    if !can_set(index) {
        return;
    }
    let state = OwnState::new("held");
    let device = Device::named("receiver").unwrap();
    let slots = device.slots_of(Some(0)).unwrap();
    let set = |owner| state.0.set_device(&device, &slots, |_| NapiParameters::default(), owner);
    let own = ProcessId::own().unwrap();
    set(Some(own)).unwrap();
    let error = set(None).unwrap_err().to_string();
    assert!(error.contains(&format!("process {}", own.pid)), "{error}");
    state.0.restore_of(own).unwrap();
    set(None).unwrap();
    assert!(set(Some(own)).unwrap_err().to_string().contains("apus irq restore"));
    assert!(matches!(device.slots_of(Some(9)), Err(Error::NoQueue { .. })));
}
