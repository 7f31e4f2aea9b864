//! The interface that carries packets to other hosts: packet length, rate, offloads.

use apus_irq::Features;

use crate::device::Device;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Interface;

#[derive(Debug)]
pub(super) struct Interface {
    device: Device,
    features: Result<Features, String>,
    /// The setting `link_mbps`, if it is set.
    link_mbps: Option<String>,
}

impl Interface {
    pub(super) fn gather(device: &Device, link_mbps: Option<String>) -> Self {
        let features = apus_irq::features(&device.name).map_err(|error| error.to_string());
        Self { device: device.clone(), features, link_mbps }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![state(&self.device), mtu(&self.device)];
        if !self.device.is_loopback() {
            findings.push(rate(self));
        }
        match &self.features {
            Ok(features) => findings.extend(OFFLOADS.iter().map(|it| it.finding(self, features))),
            Err(why) => {
                let why = format!("the kernel does not report the offloads: {why}");
                findings.push(Finding::not_known(SUBJECT, "offloads", why));
            }
        }
        findings
    }
}

fn state(device: &Device) -> Finding {
    let name = &device.name;
    let driver = device.driver.as_ref().map_or_else(String::new, |it| format!(", driver {it}"));
    let found = format!("{name} is {}{driver}", device.state);
    // Loopback and tunnels have no carrier, so their state is unknown.
    let verdict = if device.state == "down" { Verdict::Bad } else { Verdict::Good };
    Finding::new(SUBJECT, "interface", verdict, found)
        .apus("follows the kernel's routes; this interface has the address of the setting listen, or the default route")
        .change(format!("sudo ip link set dev {name} up"), "packets can leave")
        .value("device", name.as_str())
}

fn mtu(device: &Device) -> Finding {
    let Some(mtu) = device.mtu else {
        return Finding::not_known(
            SUBJECT,
            "MTU",
            "/sys does not show it; /sys may belong to another network namespace",
        );
    };
    let verdict = match mtu {
        1_500.. => Verdict::Good,
        1_280.. => Verdict::CouldBeBetter,
        _ => Verdict::Bad,
    };
    let name = &device.name;
    Finding::new(SUBJECT, "MTU", verdict, format!("{mtu} bytes on {name}"))
        .apus("sends packets of up to the MTU of the interface, never fragments them, and searches for the longest packet that \
               passes where longer ones are lost")
        .change(
            format!("sudo ip link set dev {name} mtu 1500 # if the network between the hosts carries it"),
            "fewer packets for a message; `apus node probe HOST:PORT` shows whether a peer is still reachable",
        )
        .value("mtu_bytes", mtu)
}

fn rate(interface: &Interface) -> Finding {
    let device = &interface.device;
    let reported =
        device.mbps.map_or_else(|| "reports no rate".to_owned(), |it| format!("reports {it} Mb/s"));
    let (verdict, found) = match &interface.link_mbps {
        Some(set) => {
            (Verdict::Good, format!("{} {reported}; the setting link_mbps is {set}", device.name))
        }
        None => (Verdict::good_if(device.mbps.is_some()), format!("{} {reported}", device.name)),
    };
    Finding::new(SUBJECT, "rate", verdict, found)
        .apus("paces packets to the rate of the interface, so that a long message does not fill the queues of the kernel ahead of \
               short ones")
        .change(
            "export APUS_LINK_MBPS=10000 # the rate of the link, in Mb/s",
            "beside eight bulk senders, a shared engine reduced the p99 of short calls to 0.36 of its value with a known rate, and \
             to 0.76 without (docs/performance.md)",
        )
        .value("mbps", device.mbps)
}

/// An offload that matters to Apus.
struct Offload {
    name: &'static str,
    /// Any of these names of ethtool.
    features: &'static [&'static str],
    /// Name in `ethtool -K`.
    short: &'static str,
    apus: &'static str,
    brings: &'static str,
}

const OFFLOADS: &[Offload] = &[
    Offload {
        name: "checksums",
        features: &["tx-checksum-ip-generic", "tx-checksum-ipv4"],
        short: "tx",
        apus: "a device without checksum offload refuses segments; the link then turns GSO off",
        brings: "GSO: packets of 1,472 B at 71 Gb/s instead of 4.8, over loopback (docs/links.md)",
    },
    Offload {
        name: "segmentation by the device",
        features: &["tx-udp-segmentation"],
        short: "tx-udp-segmentation",
        apus: "without it, the kernel segments a send just before the driver, which is nearly as good",
        brings: "less CPU time for each packet sent; not measured here",
    },
    Offload {
        name: "generic segmentation",
        features: &["tx-generic-segmentation"],
        short: "gso",
        apus: "one walk through the network stack for many packets",
        brings: "packets of 1,472 B at 71 Gb/s instead of 4.8, over loopback (docs/links.md)",
    },
    Offload {
        name: "joining on receive",
        features: &["rx-gro"],
        short: "gro",
        apus: "turns UDP_GRO on at the first packet from another machine",
        brings: "one receive call for many packets of a message (docs/links.md)",
    },
];

impl Offload {
    fn finding(&self, interface: &Interface, features: &Features) -> Finding {
        let device = &interface.device.name;
        let on = self.features.iter().find(|name| features.active.contains(**name));
        let fixed = !self.features.iter().any(|name| features.changeable.contains(*name));
        let (verdict, found) = match on {
            Some(name) => (Verdict::Good, format!("{name} is on")),
            None if fixed => {
                let found =
                    format!("{} is off, and the driver cannot turn it on", self.features[0]);
                // Only missing checksums justify another device.
                (Verdict::good_if(self.short != "tx"), found)
            }
            None => (Verdict::CouldBeBetter, format!("{} is off", self.features[0])),
        };
        let finding = Finding::new(SUBJECT, self.name, verdict, found).apus(self.apus);
        let finding = finding.value("on", on.is_some());
        if fixed {
            return finding;
        }
        finding.change(format!("sudo ethtool -K {device} {} on", self.short), self.brings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(active: &[&str], changeable: &[&str]) -> Interface {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Interface {
            device: Device {
                name: "eth0".to_owned(),
                mtu: Some(1_400),
                state: "up".to_owned(),
                ..Device::default()
            },
            features: Ok(Features { active: set(active), changeable: set(changeable) }),
            link_mbps: None,
        }
    }

    fn of(interface: &Interface, name: &str) -> Finding {
        interface.findings().into_iter().find(|it| it.name == name).unwrap()
    }

    #[test]
    fn a_short_mtu_and_no_rate_could_be_better() {
        let mut interface = interface(&[], &[]);
        assert_eq!(of(&interface, "MTU").verdict, Verdict::CouldBeBetter);
        assert_eq!(of(&interface, "rate").verdict, Verdict::CouldBeBetter);
        interface.link_mbps = Some("10000".to_owned());
        interface.device.mtu = Some(1_000);
        assert_eq!(of(&interface, "rate").verdict, Verdict::Good);
        assert_eq!(of(&interface, "MTU").verdict, Verdict::Bad);
        interface.device.state = "down".to_owned();
        assert_eq!(of(&interface, "interface").change.unwrap(), "sudo ip link set dev eth0 up");
    }

    #[test]
    fn an_offload_that_can_be_turned_on_has_its_command() {
        let interface =
            interface(&["rx-gro", "tx-checksum-ip-generic"], &["tx-generic-segmentation"]);
        assert_eq!(of(&interface, "joining on receive").verdict, Verdict::Good);
        let generic = of(&interface, "generic segmentation");
        assert_eq!(generic.change.unwrap(), "sudo ethtool -K eth0 gso on");
        let device = of(&interface, "segmentation by the device");
        assert_eq!((device.verdict, device.change), (Verdict::Good, None));
    }

    #[test]
    fn a_kernel_that_reports_no_rate_is_no_fault() {
        let interface = Interface { features: Err("ENOENT".to_owned()), ..interface(&[], &[]) };
        assert_eq!(of(&interface, "offloads").verdict, Verdict::NotKnown);
    }
}
