//! Findings about programs: their waits, and the NAPI instances of their packets.

use std::collections::BTreeSet;

use apus_irq::{Socket, ThreadState};

use super::kernel::{ProgramOrDevice, Suspension};
use crate::finding::{Finding, Subject};

const SUBJECT: Subject = Subject::Program;

/// The findings, in the order of the report.
pub(super) fn findings(suspension: &Suspension) -> Vec<Finding> {
    if let Some(why) = &suspension.unreadable {
        let why = format!(
            "the program is not readable ({why}): reading needs its user or CAP_SYS_PTRACE (see /proc/sys/kernel/yama/ptrace_scope)"
        );
        return vec![Finding::not_known(SUBJECT, "program", why).command_if(suspension.as_root())];
    }
    let all = [epoll, waiting, io_uring, so_busy_poll, prefer, napi_ids, stale, mixed];
    all.map(|finding| finding(suspension)).into()
}

/// The advice for a program that cannot use suspension: deferral.
fn defer_only(suspension: &Suspension) -> String {
    let device = suspension.slots().next().map_or("DEV", |(device, _)| &device.name);
    format!("sudo apus irq set {device} --preset defer:20 # deferral alone works with any program")
}

fn epoll(suspension: &Suspension) -> Finding {
    let name = "epoll";
    let (sets, sockets) =
        suspension.epoll_sets().fold((0, 0), |(sets, sum), (_, set)| (sets + 1, sum + set.sockets));
    if sets > 0 {
        return Finding::good(SUBJECT, name, format!("{sets} epoll sets watch {sockets} sockets"));
    }
    if suspension.sockets().next().is_none() {
        return Finding::not_known(SUBJECT, name, "the program has no internet socket")
            .command(format!("{} # again, once it has one", suspension.again()));
    }
    let found =
        "no epoll set watches a socket, and the kernel suspends interrupts for epoll_wait only";
    Finding::bad(SUBJECT, name, found, defer_only(suspension))
}

/// Threads that wait for packets by a call other than `epoll_wait`.
fn waiting(suspension: &Suspension) -> Finding {
    let name = "waiting";
    let [mut epoll, mut poll, mut receive] = [(); 3].map(|()| BTreeSet::new());
    for program in &suspension.programs {
        let receives = |fd: i32| program.sockets.iter().any(|it| it.fd == fd && !it.listens);
        for (thread, wait) in &program.waits {
            match wait {
                ThreadState::Epoll(_) => epoll.insert(thread),
                ThreadState::Poll | ThreadState::Select => poll.insert(thread),
                ThreadState::Receive(fd) if receives(*fd) => receive.insert(thread),
                _ => false,
            };
        }
    }
    let seen = format!(
        "{} threads wait in epoll_wait, {} in poll or select, {} in a blocking receive",
        epoll.len(),
        poll.len(),
        receive.len()
    );
    let has_sets = suspension.epoll_sets().next().is_some();
    if !receive.is_empty() || !poll.is_empty() && !has_sets {
        let found = format!("{seen}; the kernel does not suspend interrupts for such waits");
        return Finding::bad(SUBJECT, name, found, defer_only(suspension));
    }
    if epoll.is_empty() {
        let why = "no thread was seen waiting: all were busy, or tracing is not permitted";
        return Finding::not_known(SUBJECT, name, why);
    }
    Finding::good(SUBJECT, name, seen)
}

fn io_uring(suspension: &Suspension) -> Finding {
    let name = "io_uring";
    let rings: usize = suspension.programs.iter().map(|it| it.io_urings).sum();
    let in_ring = suspension.programs.iter().flat_map(|it| &it.waits);
    let threads = in_ring.filter(|(_, wait)| *wait == ThreadState::IoUring).count();
    if rings == 0 && threads == 0 {
        return Finding::good(SUBJECT, name, "the program does not use io_uring");
    }
    let found = format!("{rings} rings; {threads} threads wait in io_uring_enter");
    if threads == 0 && suspension.epoll_sets().next().is_some() {
        return Finding::good(SUBJECT, name, format!("{found}; epoll sets watch the sockets"));
    }
    let found = format!("{found}; the kernel does not suspend interrupts for rings");
    Finding::bad(SUBJECT, name, found, defer_only(suspension))
}

/// `SO_BUSY_POLL`, which is often taken for a switch of `epoll_wait`.
fn so_busy_poll(suspension: &Suspension) -> Finding {
    let name = "SO_BUSY_POLL";
    let sockets = suspension.sockets().filter(|socket| socket.busy_poll_usecs > 0).count();
    let prefers = suspension.epoll_sets().any(|(_, set)| set.parameters.prefer_busy_poll);
    let found = format!("{sockets} sockets have it");
    if sockets == 0 || prefers {
        return Finding::good(SUBJECT, name, found);
    }
    let found = format!(
        "{found}; it affects blocking receives only; epoll_wait uses the parameters of the epoll set"
    );
    Finding::bad(SUBJECT, name, found, suspension.attach())
}

fn prefer(suspension: &Suspension) -> Finding {
    let name = "prefer";
    let all = suspension.epoll_sets().count();
    let without = suspension.epoll_sets().filter(|(_, set)| !set.parameters.prefer_busy_poll);
    let without: Vec<_> =
        without.map(|(it, set)| format!("{} of process {}", set.fd, it.process.pid)).collect();
    match (all, without.len()) {
        (0, _) => Finding::not_known(SUBJECT, name, "the program has no epoll set with sockets"),
        (_, 0) => Finding::good(SUBJECT, name, format!("all {all} epoll sets prefer busy polling")),
        (_, some) => {
            let list = listed(&without);
            let found = format!("{some} of {all} epoll sets do not prefer busy polling: {list}");
            Finding::bad(SUBJECT, name, found, suspension.attach())
        }
    }
}

/// Whether any packet of the connections comes by a NAPI instance.
fn napi_ids(suspension: &Suspension) -> Finding {
    let name = "NAPI ids of sockets";
    let connected: Vec<_> = suspension.sockets().filter(|it| it.peer.is_some()).collect();
    let with = connected.iter().filter(|it| it.napi.is_some()).count();
    let (local, without): (Vec<_>, Vec<_>) = connected
        .iter()
        .copied()
        .filter(|it| it.napi.is_none())
        .partition(|it| it.is_of_loopback());
    let all = connected.len();
    if let Some(first) = without.first() {
        let (why, change) = why_without(suspension, first);
        let found = format!("{} of {all} connected sockets have no NAPI id: {why}", without.len());
        return Finding::bad(SUBJECT, name, found, change);
    }
    if with > 0 {
        let local = match local.len() {
            0 => String::new(),
            some => format!("; {some} others are on loopback, which has no NAPI instance"),
        };
        return Finding::good(
            SUBJECT,
            name,
            format!("{with} of {all} connected sockets have a NAPI id{local}"),
        );
    }
    if !local.is_empty() {
        let found =
            format!("all {all} connected sockets are on loopback, which has no NAPI instance");
        let again = format!("{} # while clients of other hosts are connected", suspension.again());
        return Finding::bad(SUBJECT, name, found, again);
    }
    if suspension.sockets().any(|it| it.napi.is_some()) {
        return Finding::good(SUBJECT, name, "sockets without a connection have a NAPI id");
    }
    Finding::not_known(SUBJECT, name, "no socket is connected")
        .command(format!("{} # while clients are connected", suspension.again()))
}

/// The reason why no packet of a socket comes by a NAPI instance, and the remedy.
fn why_without(suspension: &Suspension, socket: &Socket) -> (String, String) {
    let local = socket.local.map(|it| it.ip().to_canonical());
    let device =
        suspension.devices.iter().find(|it| local.is_some_and(|ip| it.addresses.contains(&ip)));
    let Some(device) = device else {
        let why = "their device is not in this network namespace".to_owned();
        return (why, "apus irq show".to_owned());
    };
    let name = &device.name;
    if device.is_tun {
        let why = format!("{name} is a tun or tap device, whose NAPI instances cannot be polled");
        return (why, defer_only(suspension));
    }
    if !device.slots.is_empty() {
        let why = format!(
            "packets bypass the NAPI instances of {name}. On veth, TSO must be off at the sender's end (run the command there), \
             and UDP needs rx-udp-gro-forwarding at this end"
        );
        let change = "sudo ethtool -K PEER tx-tcp-segmentation off tx-tcp6-segmentation off tx-tcp-ecn-segmentation off \
                    tx-tcp-mangleid-segmentation off";
        return (why, change.to_owned());
    }
    match device.gro {
        Some(false) => (
            format!("{name} has no NAPI instance, because GRO is off"),
            format!("sudo ethtool -K {name} gro on"),
        ),
        _ => (
            format!("{name} has no NAPI instance that its driver reports"),
            format!("apus irq show {name}"),
        ),
    }
}

/// Numbers of NAPI instances that no device has any more.
fn stale(suspension: &Suspension) -> Finding {
    let name = "present NAPI ids";
    if !suspension.same_network {
        return Finding::not_known(
            SUBJECT,
            name,
            "devices of another network namespace are not visible",
        );
    }
    let there: BTreeSet<u32> =
        suspension.devices.iter().flat_map(|it| it.slots.iter().map(|slot| slot.napi.id)).collect();
    let ids = suspension.socket_ids();
    let gone: Vec<_> = ids.iter().filter(|id| !there.contains(id)).map(u32::to_string).collect();
    if ids.is_empty() {
        return Finding::not_known(SUBJECT, name, "no socket has a NAPI id");
    }
    if gone.is_empty() {
        return Finding::good(
            SUBJECT,
            name,
            format!("all {} NAPI ids belong to devices", ids.len()),
        );
    }
    let found = format!(
        "no device reports {}: its link went down and up since the last packet, or its driver does not report ids. The next packet \
         of a connection corrects its id",
        listed(&gone)
    );
    Finding::bad(SUBJECT, name, found, format!("{} # after the next packets", suspension.again()))
}

/// Epoll sets whose sockets use several NAPI instances, since the kernel polls only one of them.
fn mixed(suspension: &Suspension) -> Finding {
    let name = "one NAPI instance per epoll set";
    let sets = suspension.epoll_sets().filter(|(_, set)| set.napis.len() > 1);
    let sets: Vec<_> = sets
        .map(|(it, set)| {
            format!("{} of process {} ({} instances)", set.fd, it.process.pid, set.napis.len())
        })
        .collect();
    if suspension.epoll_sets().next().is_none() {
        return Finding::not_known(SUBJECT, name, "the program has no epoll set with sockets");
    }
    if sets.is_empty() {
        return Finding::good(SUBJECT, name, "no epoll set mixes NAPI instances");
    }
    let found = format!(
        "the kernel polls one NAPI instance at a time, and these epoll sets mix several: {}",
        listed(&sets)
    );
    let steer = match suspension.inspected {
        ProgramOrDevice::Program { .. } => format!("{} --steer", suspension.attach()),
        ProgramOrDevice::Device(_) => suspension.attach(),
    };
    Finding::bad(
        SUBJECT,
        name,
        found,
        format!("{steer} # or, for memcached, one thread per queue: -N"),
    )
}

/// The first few of a list.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match all.len() {
        ..=SHOWN => shown,
        more => format!("{shown} and {} more", more - SHOWN),
    }
}

#[cfg(test)]
mod tests {
    use apus_irq::EpollParameters;

    use super::super::kernel::made::{set, socket, suspension};
    use super::*;
    use crate::finding::Verdict;

    fn changed(change: impl FnOnce(&mut Suspension)) -> Suspension {
        let mut suspension = suspension();
        change(&mut suspension);
        suspension
    }

    /// Asserts a verdict, with these words in the finding's text and command.
    fn is(finding: &Finding, verdict: Verdict, words: &[&str]) {
        let text = format!("{} {}", finding.found, finding.change.as_deref().unwrap_or_default());
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {finding:?}");
        assert_eq!(
            verdict == Verdict::Bad,
            finding.change.is_some() && verdict != Verdict::NotKnown
        );
    }

    #[test]
    fn a_program_for_which_all_is_right_has_good_findings_only() {
        for finding in findings(&suspension()) {
            is(&finding, Verdict::Good, &[]);
        }
    }

    #[test]
    fn a_program_without_epoll_gets_deferral_only() {
        let suspension = changed(|it| {
            it.programs[0].epoll_sets.clear();
            it.programs[0].waits = [(7, ThreadState::Poll)].into();
        });
        is(&epoll(&suspension), Verdict::Bad, &["no epoll set", "set eth0 --preset defer:20"]);
        is(&waiting(&suspension), Verdict::Bad, &["1 in poll or select"]);
        is(&prefer(&suspension), Verdict::NotKnown, &[]);
        let idle = changed(|it| {
            it.programs[0].epoll_sets.clear();
            it.programs[0].sockets.clear();
        });
        is(&epoll(&idle), Verdict::NotKnown, &["no internet socket"]);
    }

    #[test]
    fn blocking_receives_are_seen_and_accepting_is_none() {
        let blocking = changed(|it| it.programs[0].waits = [(8, ThreadState::Receive(9))].into());
        is(&waiting(&blocking), Verdict::Bad, &["1 in a blocking receive"]);
        let pipe = changed(|it| it.programs[0].waits = [(8, ThreadState::Receive(3))].into());
        is(&waiting(&pipe), Verdict::NotKnown, &["no thread was seen waiting"]);
        let accepting = changed(|it| {
            it.programs[0].sockets[0].listens = true;
            it.programs[0].waits.insert((8, ThreadState::Receive(9)));
        });
        is(&waiting(&accepting), Verdict::Good, &["0 in a blocking receive"]);
    }

    #[test]
    fn a_ring_without_epoll_is_bad() {
        let ring = changed(|it| {
            it.programs[0].io_urings = 1;
            it.programs[0].waits = [(7, ThreadState::IoUring)].into();
        });
        is(&io_uring(&ring), Verdict::Bad, &["1 rings", "defer:20"]);
        is(
            &io_uring(&changed(|it| it.programs[0].io_urings = 1)),
            Verdict::Good,
            &["epoll sets watch"],
        );
    }

    #[test]
    fn the_socket_option_alone_does_nothing() {
        let with_option = |it: &mut Suspension| it.programs[0].sockets[0].busy_poll_usecs = 50;
        is(&so_busy_poll(&changed(with_option)), Verdict::Good, &["1 sockets have it"]);
        let suspension = changed(|it| {
            with_option(it);
            it.programs[0].epoll_sets[0].parameters = EpollParameters::default();
        });
        is(
            &so_busy_poll(&suspension),
            Verdict::Bad,
            &["blocking receives only", "attach 7 --mode suspend:20 eth0"],
        );
    }

    #[test]
    fn every_set_with_sockets_has_to_prefer() {
        let suspension = changed(|it| {
            let mut second = set();
            second.fd = 6;
            second.parameters.prefer_busy_poll = false;
            let without_sockets = apus_irq::EpollSet { sockets: 0, ..second.clone() };
            it.programs[0].epoll_sets.extend([second, without_sockets]);
        });
        is(&prefer(&suspension), Verdict::Bad, &["1 of 2", "6 of process 7", "attach 7"]);
    }

    #[test]
    fn sockets_without_an_id_have_a_reason() {
        let of = |change: fn(&mut Suspension)| {
            changed(|it| {
                it.programs[0].sockets[0].napi = None;
                change(it);
            })
        };
        let past = of(|_| ());
        is(
            &napi_ids(&past),
            Verdict::Bad,
            &["bypass the NAPI", "tx-tcp-mangleid-segmentation off"],
        );
        let without_gro = of(|it| {
            it.devices[0].slots.clear();
            it.devices[0].gro = Some(false);
        });
        is(&napi_ids(&without_gro), Verdict::Bad, &["ethtool -K eth0 gro on"]);
        let tun = of(|it| it.devices[0].is_tun = true);
        is(&napi_ids(&tun), Verdict::Bad, &["tun or tap"]);
        let driver = of(|it| it.devices[0].slots.clear());
        is(&napi_ids(&driver), Verdict::Bad, &["driver"]);
        let elsewhere = of(|it| it.devices.clear());
        is(&napi_ids(&elsewhere), Verdict::Bad, &["not in this network namespace"]);
        let local = |it: &mut Socket| {
            it.napi = None;
            (it.local, it.peer) =
                (Some("127.0.0.1:1".parse().unwrap()), Some("127.0.0.1:2".parse().unwrap()));
        };
        let loopback = changed(|it| local(&mut it.programs[0].sockets[0]));
        is(&napi_ids(&loopback), Verdict::Bad, &["all 1", "loopback"]);
        let both = changed(|it| {
            it.programs[0].sockets.push(socket());
            local(&mut it.programs[0].sockets[1]);
        });
        is(&napi_ids(&both), Verdict::Good, &["1 of 2", "loopback"]);
        let idle = changed(|it| it.programs[0].sockets.clear());
        is(&napi_ids(&idle), Verdict::NotKnown, &["no socket is connected"]);
    }

    #[test]
    fn ids_that_no_device_has_are_named() {
        let gone = changed(|it| it.devices[0].slots[0].napi.id += 1);
        is(&stale(&gone), Verdict::Bad, &["513", "down and up"]);
        is(&stale(&changed(|it| it.same_network = false)), Verdict::NotKnown, &["another network"]);
        is(&stale(&changed(|it| it.programs.clear())), Verdict::NotKnown, &["no socket"]);
    }

    #[test]
    fn sets_that_mix_instances_are_named() {
        let suspension = changed(|it| {
            it.programs[0].epoll_sets[0].napis.insert(514, 2);
        });
        is(&mixed(&suspension), Verdict::Bad, &["5 of process 7 (2 instances)", "--steer", "-N"]);
    }

    #[test]
    fn a_program_that_may_not_be_read_has_one_line() {
        let suspension = changed(|it| it.unreadable = Some("EPERM".to_owned()));
        let [only] = &findings(&suspension)[..] else { panic!("one finding") };
        is(only, Verdict::NotKnown, &["EPERM", "CAP_SYS_PTRACE"]);
    }
}
