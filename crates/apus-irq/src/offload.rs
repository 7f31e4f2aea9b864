//! Offloads of an interface, over the family `ethtool`.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{DefaultNla, parse_string};

use crate::netlink::{Answer, ask, attributes, bytes, family, invalid};

/// Offloads of an interface, by the names that `ethtool -k` shows in parentheses or alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// The offloads that are on.
    pub active: BTreeSet<String>,
    /// The offloads that can be turned on and off.
    pub changeable: BTreeSet<String>,
}

/// The offloads of an interface.
///
/// # Errors
/// When the kernel has no such family (before Linux 5.6), or refuses.
pub fn features(device: &str) -> io::Result<Features> {
    let family = family("ethtool")?;
    let replies = ask(family.id, ETHTOOL_MSG_FEATURES_GET, vec![header(device)], Answer::One)?;
    let mut features = Features::default();
    for reply in &replies {
        for attribute in attributes(reply)? {
            match attribute.0 {
                ETHTOOL_A_FEATURES_ACTIVE => features.active = names_set(&attribute.1)?,
                ETHTOOL_A_FEATURES_HW => features.changeable = names_set(&attribute.1)?,
                _ => {}
            }
        }
    }
    Ok(features)
}

/// Turns an offload of an interface on or off, by its name in the kernel (`rx-gro`, `tx-tcp-segmentation`).
///
/// # Errors
/// When there is no such interface or offload, it cannot be changed, or the caller lacks `CAP_NET_ADMIN`.
pub fn set_feature(device: &str, feature: &str, on: bool) -> io::Result<()> {
    let mut name = feature.as_bytes().to_vec();
    name.push(0);
    let mut bit = vec![DefaultNla::new(ETHTOOL_A_BITSET_BIT_NAME, name)];
    bit.extend(on.then(|| DefaultNla::new(ETHTOOL_A_BITSET_BIT_VALUE, Vec::new())));
    let bit = DefaultNla::new(ETHTOOL_A_BITSET_BITS_BIT | NESTED, bytes(&bit));
    let bits = DefaultNla::new(ETHTOOL_A_BITSET_BITS | NESTED, bytes(&[bit]));
    let wanted = DefaultNla::new(ETHTOOL_A_FEATURES_WANTED | NESTED, bytes(&[bits]));
    let request = vec![header(device), wanted];
    ask(family("ethtool")?.id, ETHTOOL_MSG_FEATURES_SET, request, Answer::Done)?;
    Ok(())
}

fn header(device: &str) -> DefaultNla {
    let mut name = device.as_bytes().to_vec();
    name.push(0);
    let name = DefaultNla::new(ETHTOOL_A_HEADER_DEV_NAME, name);
    DefaultNla::new(ETHTOOL_A_FEATURES_HEADER | NESTED, bytes(&[name]))
}

/// The names of a bit set of ethtool whose bits are set.
fn names_set(set: &[u8]) -> io::Result<BTreeSet<String>> {
    let parts = attributes(set)?;
    // Without a mask, only bits that are set are listed.
    let all_set = parts.iter().any(|(kind, _)| *kind == ETHTOOL_A_BITSET_NOMASK);
    let mut names = BTreeSet::new();
    for (_, bits) in parts.iter().filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS) {
        for (_, bit) in attributes(bits)? {
            let bit = attributes(&bit)?;
            let part =
                |wanted| bit.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
            let Some(name) = part(ETHTOOL_A_BITSET_BIT_NAME) else { continue };
            if all_set || part(ETHTOOL_A_BITSET_BIT_VALUE).is_some() {
                names.insert(parse_string(name).map_err(invalid)?);
            }
        }
    }
    Ok(names)
}

// Constants of linux/netlink.h and linux/ethtool_netlink.h.
const NESTED: u16 = 0x8000;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn nla(kind: u16, value: &[u8]) -> DefaultNla {
        DefaultNla::new(kind, value.to_vec())
    }

    #[test]
    fn a_bit_set_is_read_with_and_without_a_mask() {
        let bit = |name: &str, value: &[DefaultNla]| {
            let mut bit = vec![nla(1, &[0; 4]), nla(2, format!("{name}\0").as_bytes())];
            bit.extend_from_slice(value);
            nla(1, &bytes(&bit))
        };
        let set = |nomask: bool| {
            let bits = [bit("tx-udp-segmentation", &[nla(3, &[])]), bit("rx-gro", &[])];
            let mut parts = vec![nla(2, &[64, 0, 0, 0]), nla(3, &bytes(&bits))];
            parts.extend(nomask.then(|| nla(1, &[])));
            names_set(&bytes(&parts)).unwrap().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(set(false), ["tx-udp-segmentation"]);
        assert_eq!(set(true), ["rx-gro", "tx-udp-segmentation"]);
    }

    #[test]
    fn the_kernel_reports_the_offloads_of_loopback() {
        // There is no such family before Linux 5.6.
        let Ok(features) = features("lo") else { return };
        assert!(!features.active.is_empty() && !features.changeable.is_empty());
        assert!(super::features("no such device").is_err());
    }
}
