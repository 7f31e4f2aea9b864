//! The CPUs that handle interrupts and packets of an interface: IRQ affinity, RPS, RFS, XPS, and drops before any socket.
//!
//! The performance notes of the Homa module give the reasons: one CPU that takes all packets limits a node (lesson 1), packets that
//! are spread over CPUs arrive later at low load (lessons 1 and 6), an application beside the interrupts of its CPU has the worst
//! tail (lesson 20), and one on a CPU that shares no cache with them loses throughput (lessons 39 and 52).

use std::collections::{BTreeMap, BTreeSet};

use super::cpu_list;
use crate::device::Device;
use crate::files::{Files, number};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Interrupts;

#[derive(Debug)]
pub(super) struct Interrupts {
    device: String,
    loopback: bool,
    /// CPUs that this process may run on.
    allowed: BTreeSet<usize>,
    lines: Vec<IrqLine>,
    receive_queues: usize,
    transmit_queues: usize,
    /// CPUs that any queue hands packets to after the interrupt.
    rps: BTreeSet<usize>,
    /// Numbers of flows of the queues, and of the host, whose packets go to the CPU of their application.
    rfs_flows: (u64, u64),
    /// Number of transmit queues that belong to some CPUs only; `None` if the kernel does not report it.
    xps: Option<usize>,
    softnet: Softnet,
}

/// An interrupt of the interface.
#[derive(Clone, PartialEq, Debug)]
struct IrqLine {
    number: u32,
    name: String,
    /// Interrupts since the boot, by CPU.
    counts: BTreeMap<usize, u64>,
    affinity: BTreeSet<usize>,
}

/// The kernel's counters before packets reach a socket, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Softnet {
    packets: u64,
    /// Packets dropped because the queue of a CPU was full.
    dropped: u64,
    /// Rounds of the network softirq that ended with packets left.
    squeezed: u64,
}

impl Interrupts {
    pub(super) fn gather(files: &dyn Files, device: &Device, allowed: &[usize]) -> Self {
        let name = &device.name;
        let queues = format!("/sys/class/net/{name}/queues");
        let names = files.names(&queues);
        let of =
            |kind: &str| names.iter().filter(|queue| queue.starts_with(kind)).collect::<Vec<_>>();
        let (receive, transmit) = (of("rx-"), of("tx-"));
        let rps = receive.iter().filter_map(|it| files.text(&format!("{queues}/{it}/rps_cpus")));
        let flows =
            receive.iter().filter_map(|it| number(files, &format!("{queues}/{it}/rps_flow_cnt")));
        let xps = transmit.iter().map(|it| files.text(&format!("{queues}/{it}/xps_cpus")));
        let xps = xps.collect::<Option<Vec<_>>>();
        let host_flows = number(files, "/proc/sys/net/core/rps_sock_flow_entries");
        Self {
            device: name.clone(),
            loopback: device.is_loopback(),
            allowed: allowed.iter().copied().collect(),
            lines: lines(files, device),
            receive_queues: receive.len(),
            transmit_queues: transmit.len(),
            rps: rps.flat_map(|mask| cpu_list::of_mask(&mask)).collect(),
            rfs_flows: (flows.sum(), host_flows.unwrap_or(0)),
            xps: xps
                .map(|masks| masks.iter().filter(|it| !cpu_list::of_mask(it).is_empty()).count()),
            softnet: files
                .text("/proc/net/softnet_stat")
                .map(|it| softnet(&it))
                .unwrap_or_default(),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.loopback {
            findings.push(
                Finding::new(SUBJECT, "interrupts", Verdict::Good, "loopback has no interrupts")
                    .apus("the sender's CPU delivers each packet to the receiver's socket"),
            );
        } else {
            findings.extend([affinity(self), rps(self), rfs(self), xps(self)]);
        }
        findings.push(drops(self));
        findings
    }
}

/// The interrupts whose name includes the name of the interface or of its device.
fn lines(files: &dyn Files, device: &Device) -> Vec<IrqLine> {
    let table = files.text("/proc/interrupts").unwrap_or_default();
    let mut rows = table.lines();
    let cpus = rows.next().unwrap_or_default().split_whitespace();
    let cpus: Vec<usize> = cpus.filter_map(|it| it.strip_prefix("CPU")?.parse().ok()).collect();
    let owners: Vec<&str> =
        [Some(device.name.as_str()), device.bus_name.as_deref()].into_iter().flatten().collect();
    let mut lines: Vec<IrqLine> = rows.filter_map(|row| line(row, &cpus, &owners)).collect();
    for line in &mut lines {
        let affinity = files.text(&format!("/proc/irq/{}/smp_affinity_list", line.number));
        line.affinity = affinity.map(|it| cpu_list::of_list(&it)).unwrap_or_default();
    }
    lines
}

fn line(row: &str, cpus: &[usize], owners: &[&str]) -> Option<IrqLine> {
    let (number, rest) = row.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let mut words = rest.split_whitespace();
    let counts = cpus.iter().map(|&cpu| Some((cpu, words.next()?.parse().ok()?)));
    let counts = counts.collect::<Option<BTreeMap<usize, u64>>>()?;
    let name = words.last()?;
    // Names are like `eth0-TxRx-0`, `virtio2-input.0`, `mlx5_comp0@pci:0000:00:03.0`; `eth1` is not `eth10`.
    let belongs = |owner: &&str| {
        name.match_indices(*owner).any(|(at, _)| {
            let after = name[at + owner.len()..].chars().next();
            !after.is_some_and(|it| it.is_ascii_digit())
        })
    };
    owners.iter().any(belongs).then(|| IrqLine {
        number,
        name: name.to_owned(),
        counts,
        affinity: BTreeSet::new(),
    })
}

/// Parses one line for each CPU; its first three numbers are hexadecimal.
fn softnet(text: &str) -> Softnet {
    text.lines().fold(Softnet::default(), |sum, line| {
        let mut numbers =
            line.split_whitespace().map(|it| u64::from_str_radix(it, 16).unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Softnet {
            packets: sum.packets + next(),
            dropped: sum.dropped + next(),
            squeezed: sum.squeezed + next(),
        }
    })
}

fn affinity(interrupts: &Interrupts) -> Finding {
    let Interrupts { device, lines, receive_queues, allowed, .. } = interrupts;
    if lines.is_empty() {
        let why = format!("no interrupt in /proc/interrupts names {device}");
        return Finding::not_known(SUBJECT, "interrupts", why);
    }
    let mut busy: BTreeMap<usize, u64> = BTreeMap::new();
    for (&cpu, &count) in lines.iter().flat_map(|line| &line.counts) {
        *busy.entry(cpu).or_default() += count;
    }
    busy.retain(|_, count| *count > 0);
    let taken: BTreeSet<usize> = busy.keys().copied().collect();
    let free: BTreeSet<usize> = allowed.difference(&taken).copied().collect();
    let shares: Vec<_> = busy.iter().map(|(cpu, count)| format!("{count} at CPU {cpu}")).collect();
    let found = format!(
        "{device} has {} interrupt lines and {receive_queues} receive queues; interrupts since the boot: {}",
        lines.len(),
        shares.join(", ")
    );
    // A node that keeps a core busy should not share it with interrupts, if there are other cores.
    let verdict = Verdict::good_if(allowed.len() < 2 || !free.is_empty());
    let finding = Finding::new(SUBJECT, "interrupts", verdict, found).value("lines", lines.len());
    let apus = "a polling thread has the lowest tail latency on a CPU without interrupts (lesson 20 of the Homa module's notes), \
                close to the CPU that handles them (lessons 39 and 52)";
    if !free.is_empty() {
        let free = cpu_list::text(&free);
        return finding.apus(format!("{apus}: here CPU {free} (`taskset -c {free} PROGRAM`)"));
    }
    let first = allowed.first().copied().unwrap_or(0);
    let commands =
        lines.iter().filter(|line| line.affinity.len() != 1 || !line.affinity.contains(&first));
    let numbers: Vec<_> = commands.map(|it| it.number.to_string()).collect();
    finding.apus(apus).change(
        format!("for irq in {}; do echo {first} | sudo tee /proc/irq/$irq/smp_affinity_list; done # irqbalance may undo it", numbers.join(" ")),
        format!("the other CPUs have no interrupts of {device}; not measured here"),
    )
}

fn rps(interrupts: &Interrupts) -> Finding {
    let device = &interrupts.device;
    let is_on = !interrupts.rps.is_empty();
    let found = match is_on {
        true => {
            format!("RPS passes packets of {device} to CPU {}", cpu_list::text(&interrupts.rps))
        }
        false => "off: the CPU that handles the interrupt handles the packet".to_owned(),
    };
    Finding::new(SUBJECT, "RPS", Verdict::good_if(!is_on), found)
        .apus("handles packets in the polling thread; RPS adds an interprocessor interrupt to each packet")
        .change(
            format!("echo 0 | sudo tee /sys/class/net/{device}/queues/rx-*/rps_cpus"),
            "lower latency at low load (lessons 1 and 6 of the Homa module's notes); less throughput where one CPU cannot handle \
             all packets",
        )
        .value("cpus", interrupts.rps.len())
}

fn rfs(interrupts: &Interrupts) -> Finding {
    let (queues, host) = interrupts.rfs_flows;
    let is_on = queues > 0 && host > 0;
    let found = match is_on {
        true => format!("on for {queues} flows of {}", interrupts.device),
        false => "off".to_owned(),
    };
    // Both settings are right for some programs.
    Finding::new(SUBJECT, "RFS", Verdict::Good, found)
        .apus("receives the packets of all peers of a node or shard at one socket, so RFS has no separate flow to steer")
        .value("flows", queues)
}

fn xps(interrupts: &Interrupts) -> Finding {
    let Interrupts { device, transmit_queues, allowed, .. } = interrupts;
    let queues = format!("{transmit_queues} transmit queues");
    let (verdict, found) = match interrupts.xps {
        _ if *transmit_queues <= 1 => {
            (Verdict::Good, "one transmit queue, so XPS has no effect".to_owned())
        }
        None => (Verdict::NotKnown, format!("the kernel does not report it; {queues}")),
        Some(0) => (
            Verdict::good_if(allowed.len() < 2),
            format!("off, with {queues}: the flow of a packet selects its queue"),
        ),
        Some(set) => (Verdict::Good, format!("on for {set} of {queues}")),
    };
    let finding = Finding::new(SUBJECT, "XPS", verdict, found)
        .apus("sends from several CPUs; with XPS the sending CPU selects the queue, so threads do not wait for each other");
    if verdict != Verdict::CouldBeBetter {
        return finding;
    }
    let masks = (0..*transmit_queues.min(&32)).map(|queue| {
        format!(
            "echo {:x} | sudo tee /sys/class/net/{device}/queues/tx-{queue}/xps_cpus",
            1u64 << queue
        )
    });
    finding.change(
        masks.collect::<Vec<_>>().join("; "),
        "sending CPUs share no lock; not measured here",
    )
}

fn drops(interrupts: &Interrupts) -> Finding {
    let Softnet { packets, dropped, squeezed } = interrupts.softnet;
    if packets == 0 {
        return Finding::not_known(SUBJECT, "backlog", "/proc/net/softnet_stat counts nothing");
    }
    let found = format!(
        "of {packets} packets since the boot, {dropped} were dropped because the queue of a CPU was full; the softirq ended \
         {squeezed} times with packets left"
    );
    Finding::new(SUBJECT, "backlog", Verdict::good_if(dropped == 0), found)
        .apus("loopback packets and packets of RPS wait in this queue; a dropped packet is retransmitted after the RTO")
        .change("sudo sysctl -w net.core.netdev_max_backlog=10000", "bursts of more than 1,000 packets are queued instead of \
                                                                     dropped")
        .value("packets", packets)
        .value("dropped", dropped)
        .value("squeezed", squeezed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    const INTERRUPTS: &str = "\
           CPU0       CPU1       
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 37:          0          0 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0       9560 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:       6346          0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
 41:      14382          0 PCI-MSIX-0000:00:04.0   1-edge      virtio21-rx
NMI:          0          0   Non-maskable interrupts
LOC:   39895521   38348795   Local timer interrupts
ERR:          0
";
    const SOFTNET: &str = "\
00f2c4d1 00000000 00000012 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
0000000a 00000003 00000001 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 00000000 00000000
";
    const FILES: FakeFiles = FakeFiles(&[
        ("/proc/interrupts", INTERRUPTS),
        ("/proc/irq/38/smp_affinity_list", "0-1\n"),
        ("/proc/net/softnet_stat", SOFTNET),
        ("/proc/sys/net/core/rps_sock_flow_entries", "0\n"),
        ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "3\n"),
        ("/sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "0\n"),
        ("/sys/class/net/eth0/queues/tx-0/xps_cpus", "0\n"),
        ("/sys/class/net/eth0/queues/tx-1/xps_cpus", "0\n"),
    ]);

    fn interrupts(allowed: &[usize]) -> Interrupts {
        let bus_name = Some("virtio2".to_owned());
        let device = Device { name: "eth0".to_owned(), bus_name, ..Device::default() };
        Interrupts::gather(&FILES, &device, allowed)
    }

    #[test]
    fn interrupts_of_the_interface_are_found() {
        let interrupts = interrupts(&[0, 1]);
        assert_eq!(interrupts.lines.iter().map(|it| it.number).collect::<Vec<_>>(), [37, 38, 39]);
        assert_eq!(interrupts.lines[1].counts, [(0, 0), (1, 9_560)].into());
        assert_eq!(interrupts.lines[1].affinity, [0, 1].into());
        let finding = affinity(&interrupts);
        assert!(finding.found.contains("6346 at CPU 0, 9560 at CPU 1"), "{}", finding.found);
        assert!(finding.change.unwrap().starts_with("for irq in 37 38 39; do echo 0 "));
    }

    #[test]
    fn a_cpu_without_interrupts_is_named() {
        let finding = affinity(&interrupts(&[0, 1, 2, 3]));
        assert_eq!(finding.verdict, Verdict::Good);
        assert!(finding.apus.contains("taskset -c 2-3 PROGRAM"), "{}", finding.apus);
    }

    #[test]
    fn steering_is_read() {
        let all = interrupts(&[0, 1]).findings();
        let verdicts: Vec<_> = all.iter().map(|it| (it.name, it.verdict)).collect();
        let better = Verdict::CouldBeBetter;
        let expected = [
            ("interrupts", better),
            ("RPS", better),
            ("RFS", Verdict::Good),
            ("XPS", better),
            ("backlog", better),
        ];
        assert_eq!(verdicts, expected);
        assert_eq!(softnet(SOFTNET), Softnet { packets: 15_910_107, dropped: 3, squeezed: 19 });
        assert!(
            all[3]
                .change
                .as_ref()
                .unwrap()
                .contains("echo 2 | sudo tee /sys/class/net/eth0/queues/tx-1/xps_cpus")
        );
    }

    #[test]
    fn an_interface_without_interrupts_is_not_known() {
        let device = Device { name: "veth1".to_owned(), ..Device::default() };
        let interrupts = Interrupts::gather(&FILES, &device, &[0]);
        assert_eq!(affinity(&interrupts).verdict, Verdict::NotKnown);
        let lo = Device { name: "lo".to_owned(), ..Device::default() };
        assert_eq!(Interrupts::gather(&FILES, &lo, &[0]).findings().len(), 2);
    }
}
