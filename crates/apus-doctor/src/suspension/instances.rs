//! Findings about the kernel, of this process, and of NAPI instances.

use std::collections::{BTreeMap, BTreeSet};

use apus_irq::{Napi, NapiParameters, THREADED_BUSY_POLL, users_besides};

use super::kernel::{Interface, ProgramOrDevice, Suspension};
use crate::finding::{Finding, Subject};

const RIGHTS: Subject = Subject::SuspensionRights;
const SUBJECT: Subject = Subject::ReceiveQueues;

/// The findings that precede those about the program.
pub(super) fn before(suspension: &Suspension) -> Vec<Finding> {
    [kernel, rights, network].map(|finding| finding(suspension)).into()
}

/// The findings that follow those about the program.
pub(super) fn findings(suspension: &Suspension) -> Vec<Finding> {
    let mut findings = vec![
        instances(suspension),
        parameter(suspension, "defer", "defer-hard-irqs", |napi| napi.defer_hard_irqs > 0),
        parameter(suspension, "gro-flush", "gro-flush-timeout", |napi| {
            napi.gro_flush_timeout_ns > 0
        }),
        parameter(suspension, "irq-suspend", "irq-suspend-timeout", |napi| {
            napi.irq_suspend_timeout_ns.is_some_and(|it| it > 0)
        }),
    ];
    findings.extend([kept, threads, shared].map(|finding| finding(suspension)));
    findings
}

fn kernel(suspension: &Suspension) -> Finding {
    let name = "kernel";
    match &suspension.can_be_set {
        Ok(true) => Finding::good(RIGHTS, name, "the kernel can suspend interrupts"),
        Ok(false) => {
            let found =
                "the kernel cannot set single NAPI instances, which suspension needs (Linux 6.13)";
            Finding::bad(RIGHTS, name, found, "uname -r")
        }
        Err(why) => Finding::not_known(RIGHTS, name, why.as_str()),
    }
}

fn rights(suspension: &Suspension) -> Finding {
    let name = "right to set";
    if suspension.may_set {
        return Finding::good(RIGHTS, name, "this process may set NAPI instances");
    }
    let needs = "this process may not set NAPI instances: it needs CAP_NET_ADMIN in the initial user namespace, which root of a \
                 rootless container lacks";
    if suspension.slots().all(|(_, slot)| is_set(&slot.napi)) && suspension.slots().next().is_some()
    {
        return Finding::good(RIGHTS, name, format!("{needs}; all values are already set"));
    }
    Finding::bad(RIGHTS, name, needs, suspension.attach())
}

fn is_set(napi: &Napi) -> bool {
    let parameters = napi.parameters();
    parameters.defer_hard_irqs > 0
        && parameters.gro_flush_timeout_ns > 0
        && parameters.irq_suspend_timeout_ns > 0
}

fn network(suspension: &Suspension) -> Finding {
    let name = "network namespace";
    if suspension.same_network {
        return Finding::good(
            RIGHTS,
            name,
            "the program shares the network namespace of this process",
        );
    }
    let pid = match suspension.inspected {
        ProgramOrDevice::Program { pid, .. } => pid,
        ProgramOrDevice::Device(_) => 0,
    };
    let found =
        "the program is in another network namespace, whose devices this process cannot see";
    Finding::bad(RIGHTS, name, found, format!("sudo nsenter -t {pid} -n apus irq doctor {pid}"))
}

fn instances(suspension: &Suspension) -> Finding {
    let name = "NAPI instances";
    let found: Vec<_> =
        suspension.slots().map(|(it, slot)| format!("{} of {}", slot.name, it.name)).collect();
    if !found.is_empty() {
        return Finding::good(SUBJECT, name, found.join(", "));
    }
    match &suspension.inspected {
        ProgramOrDevice::Program { .. } => Finding::not_known(
            SUBJECT,
            name,
            "no existing NAPI instance received a packet of the program",
        )
        .command(format!("{} # under load", suspension.again())),
        ProgramOrDevice::Device(device) => {
            let interface = suspension.devices.iter().find(|it| it.name == *device);
            let why = match interface {
                _ if device == "lo" => "loopback has no NAPI instance",
                Some(Interface { is_tun: true, .. }) => {
                    "NAPI instances of tun and tap devices cannot be polled"
                }
                Some(Interface { gro: Some(false), .. }) => {
                    "the kernel reports none; a veth device has none without GRO"
                }
                _ => {
                    "the kernel reports none: the device is down, or its driver does not report them"
                }
            };
            let found = format!("{device}: {why}");
            let has_none = device == "lo" || interface.is_some_and(|it| it.is_tun);
            let command = match has_none {
                true => "apus irq show # devices with NAPI instances".to_owned(),
                false => format!("sudo ethtool -K {device} gro on; apus irq show {device}"),
            };
            Finding::bad(SUBJECT, name, found, command)
        }
    }
}

/// One of the three parameters, which must be above 0 in all instances of interest.
fn parameter(
    suspension: &Suspension,
    name: &'static str,
    parameter: &str,
    is_set: impl Fn(&Napi) -> bool,
) -> Finding {
    let all = suspension.slots().count();
    let without = suspension.slots().filter(|(_, slot)| !is_set(&slot.napi));
    let without: Vec<_> =
        without.map(|(it, slot)| format!("{} of {}", slot.name, it.name)).collect();
    if all == 0 {
        return Finding::not_known(SUBJECT, name, "no NAPI instance to examine");
    }
    if without.is_empty() {
        return Finding::good(
            SUBJECT,
            name,
            format!("{parameter} is above 0 in all {all} NAPI instances"),
        );
    }
    let found = format!(
        "{parameter} is 0 in {}, so no interrupts are suspended; the kernel reports no error",
        without.join(", ")
    );
    let change = match &suspension.inspected {
        ProgramOrDevice::Program { .. } => suspension.attach(),
        ProgramOrDevice::Device(device) => {
            format!("sudo apus irq set {device} --preset suspend:20")
        }
    };
    Finding::bad(SUBJECT, name, found, change)
}

/// Whether the values that were set are still in force. A link that goes down and up may lose them, and a write to sysfs sets all
/// instances of the device.
fn kept(suspension: &Suspension) -> Finding {
    let name = "kept values";
    let devices: BTreeMap<&str, &Interface> =
        suspension.slots().map(|(it, _)| (it.name.as_str(), it)).collect();
    let mut lost: Vec<(&Interface, &str, NapiParameters)> = Vec::new();
    let mut kept = 0;
    for device in devices.values() {
        for slot in &device.slots {
            let Some(set) = device.kept.get(&slot.name) else { continue };
            kept += 1;
            if !slot.napi.has(set) {
                lost.push((device, &slot.name, *set));
            }
        }
    }
    let Some((device, _, set)) = lost.first() else {
        return match kept {
            0 => Finding::good(SUBJECT, name, "apus irq has set no values"),
            some => Finding::good(
                SUBJECT,
                name,
                format!("{some} instances have the values that apus irq set"),
            ),
        };
    };
    let names: Vec<_> = lost.iter().map(|(it, slot, _)| format!("{slot} of {}", it.name)).collect();
    let found = format!(
        "{} lost the values that apus irq set: the link went down and up, or a write to napi_defer_hard_irqs or gro_flush_timeout \
         in sysfs set all instances",
        names.join(", ")
    );
    if device.is_kept_by_process {
        let again =
            format!("{} # a running apus irq sets them again within 200 ms", suspension.again());
        return Finding::bad(SUBJECT, name, found, again);
    }
    let change = format!(
        "sudo apus irq set {} --defer {} --gro-flush {} --suspend {}",
        device.name,
        set.defer_hard_irqs,
        set.gro_flush_timeout_ns / 1_000,
        set.irq_suspend_timeout_ns / 1_000_000
    );
    Finding::bad(SUBJECT, name, found, change)
}

/// Kernel threads that poll instead of softirqs.
fn threads(suspension: &Suspension) -> Finding {
    let name = "threaded";
    let of = |wanted: u32| {
        suspension.slots().filter(move |(_, slot)| slot.napi.threaded == Some(wanted))
    };
    if let Some((device, slot)) = of(THREADED_BUSY_POLL).next() {
        let found = format!(
            "a kernel thread busy-polls {} of {}, so the application can neither poll nor suspend interrupts",
            slot.name, device.name
        );
        let of_apus = device.kept.get(&slot.name).is_some_and(|set| set.threaded.is_some());
        let change = match of_apus {
            true => "sudo apus irq restore; or end the `apus irq` that set threadbusy".to_owned(),
            false => format!("echo 0 | sudo tee /sys/class/net/{}/threaded", device.name),
        };
        return Finding::bad(SUBJECT, name, found, change);
    }
    match of(1).count() {
        0 => Finding::good(SUBJECT, name, "no kernel thread polls"),
        some => Finding::good(
            SUBJECT,
            name,
            format!(
                "kernel threads poll {some} NAPI instances; suspension defers them as it defers softirqs"
            ),
        ),
    }
}

/// Other programs whose packets wait while this one is busy.
fn shared(suspension: &Suspension) -> Finding {
    let name = "own queue";
    if suspension.slots().next().is_none() {
        return Finding::not_known(SUBJECT, name, "no NAPI instance to examine");
    }
    let own: BTreeSet<_> = match suspension.inspected {
        ProgramOrDevice::Program { .. } => {
            suspension.programs.iter().map(|it| it.process).collect()
        }
        ProgramOrDevice::Device(_) => BTreeSet::new(),
    };
    for (device, slot) in suspension.slots() {
        let others: BTreeMap<&str, i32> = users_besides(&suspension.users, slot.napi.id, &own)
            .iter()
            .map(|it| (it.name.as_str(), it.process.pid))
            .collect();
        let allowed = usize::from(matches!(suspension.inspected, ProgramOrDevice::Device(_)));
        if others.len() > allowed {
            let others = others.iter().map(|(name, pid)| format!("{name} (pid {pid})"));
            let others = others.collect::<Vec<_>>().join(", ");
            let found = format!(
                "{} of {} also receives packets for {others}, which wait while a program is busy",
                slot.name, device.name
            );
            let port = suspension.sockets().find(|it| it.listens).and_then(|it| it.local);
            let port = port.map_or_else(|| "PORT".to_owned(), |it| it.port().to_string());
            let change = format!(
                "sudo ethtool -N {} flow-type tcp4 dst-port {port} action QUEUE # if the device has flow rules; else {} --force",
                device.name,
                suspension.attach()
            );
            return Finding::bad(SUBJECT, name, found, change);
        }
    }
    match suspension.unreadable_users {
        0 => Finding::good(
            SUBJECT,
            name,
            "no other program was seen to receive packets through these instances",
        ),
        some => Finding::not_known(
            SUBJECT,
            name,
            format!(
                "no other program was seen, but {some} processes of other users are not readable"
            ),
        )
        .command_if(suspension.as_root()),
    }
}

#[cfg(test)]
mod tests {
    use apus_irq::{NapiUser, ProcessId};

    use super::super::kernel::made::{ID, suspension};
    use super::*;
    use crate::finding::Verdict;

    fn changed(change: impl FnOnce(&mut Suspension)) -> Suspension {
        let mut suspension = suspension();
        change(&mut suspension);
        suspension
    }

    fn of_device(change: impl FnOnce(&mut Suspension)) -> Suspension {
        changed(|it| {
            it.inspected = ProgramOrDevice::Device("eth0".to_owned());
            change(it);
        })
    }

    /// Asserts that exactly one finding is not good, with these words in its text and command.
    fn only(suspension: &Suspension, verdict: Verdict, name: &str, words: &[&str]) {
        let mut all = before(suspension);
        all.extend(findings(suspension));
        let others: Vec<_> = all.iter().filter(|it| it.verdict != Verdict::Good).collect();
        let [finding] = &others[..] else { panic!("{others:?}") };
        let text = format!("{} {}", finding.found, finding.change.as_deref().unwrap_or_default());
        assert_eq!((finding.verdict, finding.name), (verdict, name));
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {finding:?}");
    }

    #[test]
    fn all_is_right_for_a_program_and_for_a_device() {
        for suspension in [suspension(), of_device(|_| ())] {
            let mut all = before(&suspension);
            all.extend(findings(&suspension));
            assert!(all.iter().all(|it| it.verdict == Verdict::Good), "{all:?}");
        }
    }

    #[test]
    fn each_parameter_has_a_finding() {
        let napi = |change: fn(&mut Napi)| changed(|it| change(&mut it.devices[0].slots[0].napi));
        let words = ["rx-0 of eth0", "attach 7 --mode suspend:20 eth0"];
        only(&napi(|it| it.defer_hard_irqs = 0), Verdict::Bad, "defer", &words);
        only(&napi(|it| it.gro_flush_timeout_ns = 0), Verdict::Bad, "gro-flush", &words);
        for none in [Some(0), None] {
            let suspension =
                changed(|it| it.devices[0].slots[0].napi.irq_suspend_timeout_ns = none);
            only(&suspension, Verdict::Bad, "irq-suspend", &words);
        }
        let suspension = of_device(|it| it.devices[0].slots[0].napi.defer_hard_irqs = 0);
        only(&suspension, Verdict::Bad, "defer", &["set eth0 --preset suspend:20"]);
    }

    #[test]
    fn an_old_kernel_and_another_namespace_are_named() {
        only(&changed(|it| it.can_be_set = Ok(false)), Verdict::Bad, "kernel", &["6.13"]);
        let silent = changed(|it| it.can_be_set = Err("no answer".to_owned()));
        only(&silent, Verdict::NotKnown, "kernel", &["no answer"]);
        let words = ["nsenter -t 7 -n apus irq doctor 7"];
        only(&changed(|it| it.same_network = false), Verdict::Bad, "network namespace", &words);
    }

    #[test]
    fn a_missing_right_matters_while_something_is_to_be_set() {
        let suspension = changed(|it| it.may_set = false);
        assert_eq!(rights(&suspension).verdict, Verdict::Good);
        let suspension = changed(|it| {
            it.may_set = false;
            it.devices[0].slots[0].napi.defer_hard_irqs = 0;
        });
        assert_eq!(rights(&suspension).verdict, Verdict::Bad);
        assert!(rights(&suspension).found.contains("initial user namespace"));
    }

    #[test]
    fn a_device_without_instances_has_a_reason() {
        let of = |change: fn(&mut Interface)| {
            instances(&of_device(|it| {
                it.devices[0].slots.clear();
                change(&mut it.devices[0]);
            }))
        };
        assert!(of(|_| ()).found.contains("driver does not report"));
        assert!(of(|it| it.gro = Some(false)).found.contains("without GRO"));
        assert!(of(|it| it.is_tun = true).found.contains("tun and tap"));
        let loopback = changed(|it| it.inspected = ProgramOrDevice::Device("lo".to_owned()));
        assert!(instances(&loopback).found.contains("loopback has no NAPI instance"));
        let idle = changed(|it| it.programs[0].sockets.clear());
        assert_eq!(instances(&idle).verdict, Verdict::NotKnown);
    }

    #[test]
    fn overwritten_values_are_noticed() {
        let suspension = |owned: bool| {
            changed(|it| {
                let device = &mut it.devices[0];
                let set =
                    NapiParameters { defer_hard_irqs: 1, ..device.slots[0].napi.parameters() };
                device.kept.insert("rx-0".to_owned(), set);
                device.is_kept_by_process = owned;
            })
        };
        let words = ["sysfs", "set eth0 --defer 1 --gro-flush 20 --suspend 20"];
        only(&suspension(false), Verdict::Bad, "kept values", &words);
        only(&suspension(true), Verdict::Bad, "kept values", &["200 ms"]);
        let mut same = suspension(false);
        let parameters = same.devices[0].slots[0].napi.parameters();
        same.devices[0].kept.insert("rx-0".to_owned(), parameters);
        assert!(kept(&same).found.contains("1 instances have"));
    }

    #[test]
    fn a_thread_that_always_polls_is_bad() {
        let threaded = |value| changed(|it| it.devices[0].slots[0].napi.threaded = Some(value));
        only(&threaded(2), Verdict::Bad, "threaded", &["/sys/class/net/eth0/threaded"]);
        assert!(threads(&threaded(1)).found.contains("kernel threads poll 1"));
        let own = changed(|it| {
            let device = &mut it.devices[0];
            device.slots[0].napi.threaded = Some(2);
            let parameters = device.slots[0].napi.parameters();
            let set = NapiParameters { threaded: Some(2), ..parameters };
            device.kept.insert("rx-0".to_owned(), set);
        });
        only(&own, Verdict::Bad, "threaded", &["apus irq restore"]);
        assert_eq!(kept(&own).verdict, Verdict::Good);
    }

    #[test]
    fn programs_that_share_a_queue_are_named() {
        let other = || NapiUser {
            process: ProcessId { pid: 22, started: 1 },
            name: "sshd".to_owned(),
            sockets: [(ID, [22].into())].into(),
        };
        let words = ["sshd (pid 22)", "--force"];
        only(&changed(|it| it.users.push(other())), Verdict::Bad, "own queue", &words);
        only(&of_device(|it| it.users.push(other())), Verdict::Bad, "own queue", &words);
        let elsewhere = changed(|it| {
            it.users.push(NapiUser { sockets: [(ID + 1, [22].into())].into(), ..other() })
        });
        assert_eq!(shared(&elsewhere).verdict, Verdict::Good);
        only(
            &changed(|it| it.unreadable_users = 3),
            Verdict::NotKnown,
            "own queue",
            &["3 processes"],
        );
    }

    #[test]
    fn nobody_is_advised_to_look_again_at_the_same() {
        let advice = |is_root: bool| {
            let facts = changed(|it| (it.unreadable_users, it.is_root) = (3, is_root));
            shared(&facts).change
        };
        assert!(advice(false).is_some_and(|it| it.starts_with("sudo apus irq doctor ")));
        assert_eq!(advice(true), None);
    }
}
