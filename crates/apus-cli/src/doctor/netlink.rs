//! What only generic netlink tells: the offloads of an interface, and the parameters of its NAPIs. All of it without privilege.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NlasIterator, ParseableParametrized, parse_string, parse_u32, parse_u64,
};
use netlink_packet_generic::constants::GENL_ID_CTRL;
use netlink_packet_generic::ctrl::nlas::{GenlCtrlAttrs, OpAttrs};
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

/// Offloads of an interface, by the names that `ethtool -k` shows in parentheses or alone.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Features {
    /// Those that are on.
    pub(super) active: BTreeSet<String>,
    /// Those that can be turned on and off.
    pub(super) changeable: BTreeSet<String>,
}

/// One receive context of an interface.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Napi {
    pub(super) id: u32,
    pub(super) defer_hard_irqs: u64,
    pub(super) gro_flush_timeout_ns: u64,
    /// None on a kernel that does not know it (before Linux 6.13).
    pub(super) irq_suspend_timeout_ns: Option<u64>,
}

/// The offloads of an interface.
///
/// # Errors
/// When the kernel has no such family (before Linux 5.6), or refuses.
pub(super) fn features(device: &str) -> io::Result<Features> {
    let mut name = device.as_bytes().to_vec();
    name.push(0);
    let header = DefaultNla::new(
        ETHTOOL_A_FEATURES_HEADER | NESTED,
        bytes(&[DefaultNla::new(ETHTOOL_A_HEADER_DEV_NAME, name)]),
    );
    let family = family("ethtool")?;
    let replies = ask(family.id, ETHTOOL_MSG_FEATURES_GET, vec![header], false)?;
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

/// The NAPIs of an interface that the driver tells; many do not.
///
/// # Errors
/// When the kernel has no such family or command (before Linux 6.8), or refuses.
pub(super) fn napis(index: u32) -> io::Result<Vec<Napi>> {
    let family = family("netdev")?;
    let index = DefaultNla::new(NETDEV_A_NAPI_IFINDEX, index.to_ne_bytes().to_vec());
    let replies = ask(family.id, NETDEV_CMD_NAPI_GET, vec![index], true)?;
    replies.iter().map(|reply| Napi::parse(reply)).collect()
}

/// Whether the parameters of single NAPIs can be set, as IRQ suspension needs.
///
/// # Errors
/// When the kernel does not answer.
pub(super) fn napis_can_be_set() -> io::Result<bool> {
    match family("netdev") {
        Ok(family) => Ok(family.commands.contains(&u32::from(NETDEV_CMD_NAPI_SET))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Napi {
    fn parse(reply: &[u8]) -> io::Result<Self> {
        let mut napi = Self::default();
        for (kind, value) in attributes(reply)? {
            // A number of the type "uint" has 4 or 8 bytes.
            let number = match value.len() {
                8 => parse_u64(&value).map_err(invalid)?,
                4 => u64::from(parse_u32(&value).map_err(invalid)?),
                _ => continue,
            };
            match kind {
                NETDEV_A_NAPI_ID => napi.id = u32::try_from(number).unwrap_or(u32::MAX),
                NETDEV_A_NAPI_DEFER_HARD_IRQS => napi.defer_hard_irqs = number,
                NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT => napi.gro_flush_timeout_ns = number,
                NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT => napi.irq_suspend_timeout_ns = Some(number),
                _ => {}
            }
        }
        Ok(napi)
    }
}

/// The names in a bit set of ethtool whose bits are set.
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

/// A family as the kernel has registered it.
struct Family {
    id: u16,
    commands: BTreeSet<u32>,
}

/// Asks for a family by its name; `NotFound` if the kernel does not have it.
fn family(name: &str) -> io::Result<Family> {
    let request = GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name.to_owned())],
    };
    let replies: Vec<GenlCtrl> = exchange(GENL_ID_CTRL, request, false)?;
    let attributes = replies.into_iter().flat_map(|reply| reply.nlas);
    let mut family = Family { id: 0, commands: BTreeSet::new() };
    for attribute in attributes {
        match attribute {
            GenlCtrlAttrs::FamilyId(id) => family.id = id,
            GenlCtrlAttrs::Ops(operations) => {
                let attributes = operations.into_iter().flatten();
                family.commands.extend(attributes.filter_map(|attribute| match attribute {
                    OpAttrs::Id(id) => Some(id),
                    OpAttrs::Flags(_) => None,
                }));
            }
            _ => {}
        }
    }
    Ok(family)
}

/// A message of any family: its command and its attributes as bytes.
#[derive(Clone, Debug)]
struct Plain {
    command: u8,
    attributes: Vec<u8>,
}

impl GenlFamily for Plain {
    fn family_name() -> &'static str {
        "" // It is named by its number.
    }

    fn command(&self) -> u8 {
        self.command
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Plain {
    fn buffer_len(&self) -> usize {
        self.attributes.len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        buffer[..self.attributes.len()].copy_from_slice(&self.attributes);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Plain {
    fn parse_with_param(bytes: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        Ok(Self { command: header.cmd, attributes: bytes.to_vec() })
    }
}

/// The attributes of each reply.
fn ask(
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
    dump: bool,
) -> io::Result<Vec<Vec<u8>>> {
    let request = Plain { command, attributes: bytes(&attributes) };
    let replies: Vec<Plain> = exchange(family, request, dump)?;
    Ok(replies.into_iter().map(|reply| reply.attributes).collect())
}

/// Sends a request, and takes replies until the last one.
fn exchange<P>(family: u16, request: P, dump: bool) -> io::Result<Vec<P>>
where
    P: GenlFamily + Emitable + std::fmt::Debug + ParseableParametrized<[u8], GenlHeader>,
{
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S))?;
    let header = GenlHeader { cmd: request.command(), version: request.version() };
    let request = GenlMessage::new(header, request, family);
    let mut netlink = NetlinkHeader::default();
    netlink.flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { 0 };
    netlink.message_type = family;
    let mut request = NetlinkMessage::new(netlink, NetlinkPayload::from(request));
    request.finalize();
    let mut buffer = vec![0; request.buffer_len()];
    request.serialize(&mut buffer);
    socket.send(&buffer, 0)?;
    let mut replies = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<GenlMessage<P>>::deserialize(rest).map_err(invalid)?;
            let length = (message.header.length as usize).next_multiple_of(4).min(rest.len());
            rest = &rest[length.max(1)..];
            match message.payload {
                NetlinkPayload::InnerMessage(reply) => replies.push(reply.payload),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(replies),
                _ => {}
            }
        }
        if !dump && !replies.is_empty() {
            return Ok(replies);
        }
    }
}

/// Kind and value of each attribute.
fn attributes(bytes: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    NlasIterator::new(bytes)
        .map(|attribute| {
            let attribute = attribute.map_err(invalid)?;
            Ok((attribute.kind(), attribute.value().to_vec()))
        })
        .collect()
}

fn bytes(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// How long the kernel may take to answer, in seconds.
const PATIENCE_S: i64 = 1;

// Of linux/netlink.h, linux/ethtool_netlink.h and linux/netdev.h.
const NESTED: u16 = 0x8000;
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_HW: u16 = 2;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_NOMASK: u16 = 1;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_CMD_NAPI_SET: u8 = 14;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_DEFER_HARD_IRQS: u16 = 5;
const NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
const NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT: u16 = 7;

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
    fn a_napi_has_numbers_of_both_lengths() {
        let reply = bytes(&[
            nla(2, &513_u32.to_ne_bytes()),
            nla(5, &100_u32.to_ne_bytes()),
            nla(6, &20_000_u64.to_ne_bytes()),
            nla(7, &20_000_000_u32.to_ne_bytes()),
        ]);
        let napi = Napi::parse(&reply).unwrap();
        assert_eq!((napi.id, napi.defer_hard_irqs, napi.gro_flush_timeout_ns), (513, 100, 20_000));
        assert_eq!(napi.irq_suspend_timeout_ns, Some(20_000_000));
        assert!(Napi::parse(&[1, 2, 3]).is_err());
    }

    #[test]
    fn the_kernel_tells_the_offloads_of_loopback() {
        // Before Linux 5.6 there is no such family.
        let Ok(features) = features("lo") else { return };
        assert!(!features.active.is_empty() && !features.changeable.is_empty());
        assert!(super::features("no such device").is_err());
        assert!(family("no-such-family").is_err());
    }
}
