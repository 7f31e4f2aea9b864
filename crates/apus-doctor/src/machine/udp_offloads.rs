//! UDP segmentation and joining (GSO, GRO), tried on a socket, and the capabilities that Apus' own link finds.

use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use apus::Capabilities;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt};

use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::UdpOffloads;

#[derive(Debug)]
pub(super) struct UdpOffloads {
    /// Whether one send of several packets arrived as several packets.
    gso: Result<(), String>,
    /// Whether such packets arrived joined.
    gro: Result<(), String>,
    /// Whether sends to 127.0.0.1 fail because the loopback interface is down.
    loopback_down: bool,
    /// The capabilities that a link with the settings of the environment found.
    link: Result<Capabilities, String>,
}

impl UdpOffloads {
    pub(super) fn gather(link: &Result<Capabilities, String>) -> Self {
        let (gso, gro) = (segments(false), segments(true));
        let down = |it: &io::Result<()>| {
            it.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NetworkUnreachable)
        };
        let loopback_down = down(&gso);
        let in_words = |it: io::Result<()>| it.map_err(|error| error.to_string());
        Self { gso: in_words(gso), gro: in_words(gro), loopback_down, link: link.clone() }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![gso(self), gro(self), link(self)];
        if self.loopback_down {
            for finding in &mut findings {
                finding.verdict = Verdict::Bad;
                finding.change =
                    Some("sudo ip link set dev lo up # in this network namespace".to_owned());
                finding.brings = Some("nodes of this host reach each other".to_owned());
            }
        }
        findings
    }
}

/// Sends [`SEGMENTS`] packets as one over loopback, and receives them.
fn segments(joined: bool) -> io::Result<()> {
    let (sender, receiver) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    receiver.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    if joined {
        setsockopt(&receiver, UdpGroSegment, &true)?;
    }
    setsockopt(&sender, UdpGsoSegment, &i32::from(SEGMENT))?;
    let packets = [7; SEGMENTS * SEGMENT as usize];
    sender.send_to(&packets, receiver.local_addr()?)?;
    let mut bytes = [0; 2 * SEGMENTS * SEGMENT as usize];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(i32);
    let received = recvmsg::<SockaddrIn>(
        receiver.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )?;
    let segment = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::UdpGroSegments(length) => Some(length),
        _ => None,
    });
    let expected = if joined { packets.len() } else { usize::from(SEGMENT) };
    if received.bytes == expected && (!joined || segment == Some(i32::from(SEGMENT))) {
        return Ok(());
    }
    Err(io::Error::other(format!("{} bytes arrived instead of {expected}", received.bytes)))
}

fn gso(udp_offloads: &UdpOffloads) -> Finding {
    let (verdict, found) = match &udp_offloads.gso {
        Ok(()) => (
            Verdict::Good,
            format!("one send transmitted {SEGMENTS} packets, which arrived one by one"),
        ),
        Err(why) => {
            (Verdict::CouldBeBetter, format!("one send cannot transmit several packets ({why})"))
        }
    };
    Finding::new(SUBJECT, "segmentation (GSO)", verdict, found)
        .apus("transmits packets of equal length to one peer with one send; without GSO, each is a separate message of sendmmsg")
        .change("uname -r # a kernel of Linux 4.18 or newer has UDP_SEGMENT", THROUGHPUT)
        .value("works", udp_offloads.gso.is_ok())
}

fn gro(udp_offloads: &UdpOffloads) -> Finding {
    let (verdict, found) = match &udp_offloads.gro {
        Ok(()) => (Verdict::Good, format!("{SEGMENTS} packets arrived as one")),
        Err(why) => (Verdict::CouldBeBetter, format!("the kernel does not join packets ({why})")),
    };
    Finding::new(SUBJECT, "joining (GRO)", verdict, found)
        .apus("turns it on at the first packet from another machine; packets on loopback have full length and need no joining")
        .change("uname -r # a kernel of Linux 5.0 or newer has UDP_GRO", THROUGHPUT)
        .value("works", udp_offloads.gro.is_ok())
}

fn link(udp_offloads: &UdpOffloads) -> Finding {
    let capabilities = match &udp_offloads.link {
        Ok(capabilities) => capabilities,
        Err(why) => {
            return Finding::new(
                SUBJECT,
                "link",
                Verdict::Bad,
                format!("no UDP link can be opened: {why}"),
            )
            .apus("cannot reach other hosts without a link");
        }
    };
    // The others are findings of their own, or depend on settings.
    let needed = [
        ("error queue", capabilities.error_queue),
        ("no fragments", capabilities.path_mtu),
        ("drop counter", capabilities.drop_counter),
        ("connected sends", capabilities.connected_sends),
        ("socket for long packets", capabilities.long_socket),
    ];
    let missing: Vec<_> =
        needed.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
    let found = match missing.is_empty() {
        true => format!("has everything: {capabilities}"),
        false => format!("is without {}: {capabilities}", missing.join(", ")),
    };
    let mut finding = Finding::new(SUBJECT, "link", Verdict::good_if(missing.is_empty()), found)
        .apus("uses these capabilities as docs/links.md describes, with a fallback for each");
    if !missing.is_empty() {
        finding.brings = Some(
            "a kernel with all of them (Linux 4.12, outside a sandbox that filters socket options) detects lost peers at once and \
             separates short packets from long ones (docs/links.md)"
                .to_owned(),
        );
    }
    finding.value("missing", missing)
}

const THROUGHPUT: &str =
    "packets of 1,472 B: 71 Gb/s with GSO and GRO, 4.8 Gb/s without, over loopback (docs/links.md)";

/// Number of packets in one send.
const SEGMENTS: usize = 3;

/// Length of these packets, in bytes.
const SEGMENT: u16 = 100;

/// Time limit of a receive. Loopback delivers within the send.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let udp_offloads = UdpOffloads {
            gso: Err("ENOPROTOOPT".to_owned()),
            gro: Ok(()),
            loopback_down: false,
            link: Ok(Capabilities::default()),
        };
        let [gso, gro, link] = udp_offloads.findings().try_into().unwrap();
        assert_eq!((gso.verdict, gro.verdict), (Verdict::CouldBeBetter, Verdict::Good));
        assert!(gso.found.contains("ENOPROTOOPT") && gso.brings.unwrap().contains("docs/links.md"));
        assert!(link.found.contains("error queue") && link.verdict == Verdict::CouldBeBetter);
        let udp_offloads = UdpOffloads { link: Err("in use".to_owned()), ..udp_offloads };
        assert_eq!(udp_offloads.findings()[2].verdict, Verdict::Bad);
        let gso = (UdpOffloads { loopback_down: true, ..udp_offloads }).findings().remove(0);
        assert!(gso.change.is_some_and(|it| it.starts_with("sudo ip link set dev lo up")));
    }

    #[test]
    fn a_trial_ends() {
        // The results depend on the kernel.
        let _ = (segments(false), segments(true));
    }
}
