//! The queues of the emulated switch and of the hosts' links, as the kernel's queueing disciplines.
//!
//! A port towards a host lets packets pass at the chosen rate, and packets of a higher class always first: it is a hierarchical token
//! bucket whose eight classes may all borrow the whole rate, by priority. Kernels with strict priority queues (`prio`, `ets`) would
//! still need a bucket below them, and many minimal kernels have only the bucket, so it is used everywhere. The class of a packet
//! is the upper three bits of its DSCP. Each class has a bounded queue.
//!
//! The bucket lets a packet pass when the previous one would have left a real wire: a packet is not delayed by its own time on the
//! wire. [`crate::ideal`] takes that into account.

use anyhow::Result;

use crate::iproute::{batch, ip, tc};

/// Classes of a port.
pub(crate) const CLASSES: u8 = 8;

/// Lateness of the kernel with a packet above which the link loses time, in seconds.
const SLACK_S: f64 = 50e-6;

/// Rate that every class may send without borrowing, in bit/s: nearly zero, so that all traffic is scheduled by priority.
const OWN_RATE: u32 = 8;

/// Rates and queues of all links.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ports {
    /// Rate of every link, both ways, in Mb/s.
    pub(crate) link_mbps: f64,
    /// Bytes in a class of a port towards a host.
    pub(crate) switch_queue: u32,
    /// Bytes in the queue of a host's own link.
    pub(crate) host_queue: u32,
    /// The discipline of that queue.
    pub(crate) host_discipline: HostDiscipline,
}

/// The queue of a host's own link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostDiscipline {
    /// Fair among flows, and short by itself.
    FqCodel,
    /// First come, first served.
    Fifo,
}

impl HostDiscipline {
    /// The best discipline of this kernel.
    pub(crate) fn probe() -> Self {
        // A pair of links in a temporary namespace.
        let name = format!("apus-lab-probe{}-h0", std::process::id());
        let has = || -> Result<()> {
            ip(&["netns", "add", &name])?;
            batch("ip", &name, &["link add p type veth peer name q".to_owned()])?;
            tc(&["-n", &name, "qdisc", "add", "dev", "p", "root", "fq_codel"]).map(drop)
        };
        let found = has().is_ok();
        // If the namespace could not be created, there is nothing to remove.
        let _ = ip(&["netns", "del", &name]);
        if found { Self::FqCodel } else { Self::Fifo }
    }
}

impl Ports {
    /// `tc` commands for the switch's port towards a host.
    pub(crate) fn towards_host(&self, place: usize) -> Vec<String> {
        let device = format!("p{place}");
        let mut commands = self.root(&device, u32::from(CLASSES));
        for class in 0..u32::from(CLASSES) {
            // The bucket's highest priority is 0; Homa's is 7.
            let (id, prio) = (class + 1, u32::from(CLASSES) - 1 - class);
            commands.push(self.class(&device, id, prio));
            commands.push(format!(
                "qdisc add dev {device} parent 1:{id} handle {id}0: bfifo limit {}",
                self.switch_queue
            ));
            commands.push(format!(
                "filter add dev {device} parent 1: protocol ip prio 1 u32 match ip dsfield {:#04x} 0xe0 flowid 1:{id}",
                class << 5
            ));
        }
        commands
    }

    /// `tc` commands for a host's own link.
    pub(crate) fn of_host(&self) -> Vec<String> {
        let device = "eth0";
        let mut commands = self.root(device, 1);
        commands.push(self.class(device, 1, 0));
        let queue = match self.host_discipline {
            // The limit is in packets, and a little longer than the fifo's, because the queue shortens itself.
            HostDiscipline::FqCodel => {
                format!("fq_codel limit {}", (self.host_queue / 500).max(20))
            }
            HostDiscipline::Fifo => format!("bfifo limit {}", self.host_queue),
        };
        commands.push(format!("qdisc add dev {device} parent 1:1 handle 10: {queue}"));
        commands
    }

    /// The bucket of a device. Packets that match no class go to the first class, which has DSCP 0.
    fn root(&self, device: &str, classes: u32) -> Vec<String> {
        debug_assert!(classes > 0);
        vec![
            format!("qdisc add dev {device} root handle 1: htb default 1"),
            format!("class add dev {device} parent 1: classid 1:ff htb {}", self.rate("rate")),
        ]
    }

    fn class(&self, device: &str, id: u32, prio: u32) -> String {
        format!(
            "class add dev {device} parent 1:ff classid 1:{id} htb rate {OWN_RATE}bit burst 1b {} prio {prio} quantum 1514",
            self.rate("ceil")
        )
    }

    fn rate(&self, word: &str) -> String {
        let bits_per_s = self.link_mbps * 1e6;
        let burst = (bits_per_s / 8.0 * SLACK_S).ceil().max(1.0);
        match word {
            "rate" => format!("rate {bits_per_s:.0}bit burst {burst}b cburst {burst}b"),
            _ => format!("{word} {bits_per_s:.0}bit cburst {burst}b"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: Ports = Ports {
        link_mbps: 50.0,
        switch_queue: 100_000,
        host_queue: 30_000,
        host_discipline: HostDiscipline::Fifo,
    };

    #[test]
    fn every_class_has_its_priority_queue_and_filter() {
        let commands = PORTS.towards_host(3);
        assert!(commands.iter().all(|command| command.contains("dev p3 ")), "{commands:?}");
        let has = |text: &str| commands.iter().any(|command| command.contains(text));
        assert!(
            has("classid 1:8 htb rate 8bit burst 1b ceil 50000000bit cburst 313b prio 0"),
            "{commands:?}"
        );
        assert!(has("dsfield 0xe0 0xe0 flowid 1:8") && has("dsfield 0x00 0xe0 flowid 1:1"));
        assert!(has("parent 1:8 handle 80: bfifo limit 100000"));
    }
}
