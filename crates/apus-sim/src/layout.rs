//! Networks of any shape: switches with hosts and the links between them, as listed in a plan's `[topology]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Switches and links. Each host has one link to its switch. Hosts are numbered from 0 in the order of the switches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The switches.
    pub switches: Vec<Switch>,
    /// The links between them.
    #[serde(default)]
    pub links: Vec<Link>,
}

/// A switch and its hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name in links.
    pub name: String,
    /// Number of its hosts. Default 0.
    #[serde(default)]
    pub hosts: usize,
    /// Rate of its hosts' links, in Gb/s; `links.host_gbps` if absent.
    pub gbps: Option<u64>,
    /// Delay of its hosts' cables, in ns; `links.wire_ns` if absent.
    pub wire_ns: Option<u64>,
    /// Upper bound on bytes at each port to a host; only the limit of `buffers` if absent.
    pub port_bytes: Option<u64>,
}

/// A link between two switches. Several links between the same switches are separate paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two switches.
    pub between: [String; 2],
    /// Its rate, in Gb/s; `links.core_gbps` if absent.
    pub gbps: Option<u64>,
    /// Its delay, in ns; `links.core_wire_ns` if absent.
    pub wire_ns: Option<u64>,
    /// Upper bound on bytes at the port of either end; only the limit of `buffers` if absent.
    pub port_bytes: Option<u64>,
}

impl Layout {
    /// Number of hosts at all switches.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.switches.iter().fold(0, |sum: usize, switch| sum.saturating_add(switch.hosts))
    }

    /// Checks that the layout is a usable network.
    ///
    /// # Errors
    ///
    /// If a name or a rate is wrong, or hosts are not connected.
    pub fn validate(&self) -> Result<(), String> {
        if self.switches.len() > 250 {
            return Err(format!(
                "switches cannot be {}; allowed is up to 250",
                self.switches.len()
            ));
        }
        if !(2..=1 << 14).contains(&self.hosts()) {
            let hosts = self.hosts();
            return Err(format!(
                "hosts of all switches together cannot be {hosts}; allowed is 2 to 16384"
            ));
        }
        let mut numbers = BTreeMap::new();
        for (number, switch) in self.switches.iter().enumerate() {
            if numbers.insert(switch.name.as_str(), number).is_some() {
                let name = &switch.name;
                return Err(format!("switch `{name}` occurs twice; allowed is one of each name"));
            }
            check_rate(switch.gbps, || format!("switch `{}`", switch.name))?;
        }
        for (index, link) in self.links.iter().enumerate() {
            if let Some(name) = link.between.iter().find(|name| !numbers.contains_key(&***name)) {
                let link = index + 1;
                return Err(format!(
                    "link {link} ends at `{name}`; allowed are the names in switches"
                ));
            }
            if link.between[0] == link.between[1] {
                let link = index + 1;
                return Err(format!(
                    "link {link} begins and ends at one switch; allowed are two different ones"
                ));
            }
            check_rate(link.gbps, || format!("link {}", index + 1))?;
        }
        self.check_connected()
    }

    /// The number of the switch with this name.
    pub(crate) fn number(&self, name: &str) -> usize {
        let found = self.switches.iter().position(|switch| switch.name == name);
        found.expect("a validated layout's links name its switches")
    }

    fn check_connected(&self) -> Result<(), String> {
        let mut group: Vec<usize> = (0..self.switches.len()).collect();
        for link in &self.links {
            let [one, other] = link.between.each_ref().map(|name| group[self.number(name)]);
            group.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
        let with_hosts = || (0..group.len()).filter(|&number| self.switches[number].hosts > 0);
        let first = with_hosts().next().expect("there are hosts");
        match with_hosts().find(|&number| group[number] != group[first]) {
            None => Ok(()),
            Some(apart) => {
                let [from, to] = [first, apart].map(|number| &self.switches[number].name);
                Err(format!(
                    "no links lead from `{from}` to `{to}`; allowed is a network in which all switches with hosts are connected"
                ))
            }
        }
    }
}

fn check_rate(gbps: Option<u64>, place: impl Fn() -> String) -> Result<(), String> {
    match gbps {
        Some(gbps) if !(1..=800).contains(&gbps) || 8_000 % gbps != 0 => {
            let place = place();
            Err(format!(
                "gbps of {place} cannot be {gbps}; allowed is a divisor of 8000, up to 800"
            ))
        }
        _ => Ok(()),
    }
}
