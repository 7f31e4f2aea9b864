//! The link on a veth pair between two network namespaces, which end with the test. Needs root; skipped tests say so.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;

use super::namespace::{enter, here, ip, unshare};
use super::sender::NEWS_EVERY;
use super::*;
use crate::conformance::{self, towards};
use crate::skipped::skipped;
use crate::sleeper::Sleeper;

/// Number of queues of each device, each with at most one XSK.
const QUEUES: usize = 8;

/// Two namespaces with the device `wire` in each, joined, and whether links receive by XSKs.
struct Pair([Arc<File>; 2], bool);

impl Pair {
    /// Creates the pair. `None`, with a message: that is not allowed.
    fn new() -> Option<Self> {
        let created = Self::create();
        created.inspect_err(|error| skipped(format_args!("no XSKs on veth: {error}"))).ok()
    }

    fn create() -> io::Result<Self> {
        unshare()?;
        let (there, second) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            there.send(unshare().and_then(|()| here())).expect("the test waits");
            _ = ended.recv();
        });
        let second = second.recv().expect("the thread answers");
        let pair = second.and_then(|(thread, second)| {
            let queues = format!("numtxqueues {QUEUES} numrxqueues {QUEUES}");
            ip(&format!(
                "link add wire {queues} type veth peer name wire {queues} netns {thread}"
            ))?;
            let pair = Self([Arc::new(here()?.1), Arc::new(second)], true);
            for side in [1, 0] {
                enter(&pair.0[side]);
                ip(&format!("link set wire address {}", Self::ethernet(side)))?;
                ip(&format!("addr add {}/24 dev wire", Self::host(4, side)))?;
                ip(&format!("addr add {}/64 dev wire nodad", Self::host(6, side)))?;
                ip("link set wire up")?;
            }
            Ok(pair)
        });
        drop(end);
        other.join().expect("the thread does not panic");
        pair
    }

    fn host(version: u8, side: usize) -> IpAddr {
        match version {
            4 => IpAddr::from([10, 78, 0, side as u8 + 1]),
            _ => IpAddr::from([0xfd78, 0, 0, 0, 0, 0, 0, side as u16 + 1]),
        }
    }

    fn ethernet(side: usize) -> String {
        format!("02:00:00:00:00:{side:02x}")
    }

    /// Makes each side a permanent neighbour of the other, so that only the first datagram to a peer goes by UDP.
    fn introduce(&self) {
        for (side, version) in [(0, 4), (0, 6), (1, 4), (1, 6)] {
            let (peer, ethernet) = (Self::host(version, 1 - side), Self::ethernet(1 - side));
            self.ip(
                side,
                &format!("neigh replace {peer} lladdr {ethernet} dev wire nud permanent"),
            );
        }
    }

    /// Runs `ip` in one of the namespaces.
    fn ip(&self, side: usize, arguments: &str) {
        enter(&self.0[side]);
        ip(arguments).expect("the namespace is ours");
    }

    /// Opens a link in one of the namespaces.
    fn link(&self, version: u8, side: usize) -> Located {
        enter(&self.0[side]);
        let address = (Self::host(version, side), 0).into();
        let config = UdpConfig::default();
        let link = match self.1 {
            true => XdpLink::bind_receiving(address, &config),
            false => XdpLink::bind(address, &config),
        };
        let link = link.expect("the address is ours");
        Located { link, namespace: Arc::clone(&self.0[side]), sent: Arc::default() }
    }
}

/// A link that is examined in its namespace.
struct Located {
    link: XdpLink,
    namespace: Arc<File>,
    /// Datagrams that left by an XSK, added up when links end.
    sent: Arc<AtomicU64>,
}

impl Drop for Located {
    fn drop(&mut self) {
        self.sent.fetch_add(self.link.own_counters().xsk_sent, Ordering::Relaxed);
    }
}

impl PacketSink for Located {
    delegate_paths!(self, self.link);

    fn send(&mut self, packet: Transmit<'_>) {
        self.link.send(packet);
    }
}

impl Link for Located {
    delegate_link!(self, self.link);

    /// Enters the namespace, whose addresses the link compares with those of senders.
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        enter(&self.namespace);
        self.link.recv(receiver)
    }

    fn flush(&mut self) {
        self.link.flush();
    }

    fn due_in(&self) -> Option<Duration> {
        self.link.due_in()
    }

    fn look_everywhere(&mut self) {
        self.link.look_everywhere();
    }

    fn descriptors(&self) -> Descriptors {
        self.link.descriptors()
    }

    fn capabilities(&self) -> &Capabilities {
        self.link.capabilities()
    }

    /// Enters the namespace, so that the caller runs the examination there.
    fn examination(&self, path: PathId) -> Option<Examination> {
        enter(&self.namespace);
        self.link.examination(path)
    }

    fn examined(&mut self, examined: Examined) {
        self.link.examined(examined);
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

/// Runs the conformance suite on links of one IP version. Returns the number of datagrams that left by an XSK.
fn conform(pair: &Pair, version: u8) -> u64 {
    pair.introduce();
    let sent = Arc::default();
    let link = |side| {
        let mut link = pair.link(version, side);
        link.sent = Arc::clone(&sent);
        link
    };
    conformance::run(|| (link(0), link(1)));
    sent.load(Ordering::Relaxed)
}

#[test]
fn conformance_over_ipv4() {
    let Some(pair) = Pair::new() else { return };
    let sent = conform(&pair, 4);
    assert!(sent > 700, "{sent} datagrams left by an XSK");
}

#[test]
fn conformance_over_ipv6() {
    let Some(pair) = Pair::new() else { return };
    let sent = conform(&pair, 6);
    assert!(sent > 700, "{sent} datagrams left by an XSK");
}

#[test]
fn conformance_with_long_packets_and_reception_by_udp() {
    let Some(mut pair) = Pair::new() else { return };
    pair.1 = false;
    (0..2).for_each(|side| pair.ip(side, "link set wire mtu 9000"));
    let sent = conform(&pair, 4);
    assert!(sent > 700, "{sent} datagrams left by an XSK");
}

/// Sends a packet of 100 bytes with a number, and waits for it.
fn pass(from: &mut Located, to: &mut Located, number: u32) {
    let path = towards(from, to.local_addr());
    let mut header = [0; 56];
    header[0] = 1;
    header[12] = 0xE0;
    header[20..24].copy_from_slice(&number.to_be_bytes());
    let body = Bytes::from_static(&[7; 44]);
    from.send(Transmit {
        path,
        priority: Priority::HIGHEST,
        header: &header,
        body: &body,
        range: 0..44,
    });
    from.flush();
    let sleeper = Sleeper::new().expect("a descriptor is left");
    let start = Instant::now();
    loop {
        let mut seen = None;
        to.recv(&mut |_, packet: &[u8]| seen = Some(packet.to_vec()));
        if let Some(seen) = seen {
            return assert_eq!((&seen[..56], &seen[56..]), (&header[..], &body[..]));
        }
        let left = Duration::from_secs(20).saturating_sub(start.elapsed());
        assert!(!left.is_zero(), "packet {number} is lost: {:?}", from.link.refusal());
        from.flush();
        sleeper.sleep(to.descriptors(), Some(from.due_in().unwrap_or(left).min(left)));
    }
}

fn sent(link: &Located) -> u64 {
    link.own_counters().xsk_sent
}

/// Sends packets until one leaves by an XSK.
fn until_by_xsk(from: &mut Located, to: &mut Located) {
    let (start, before) = (Instant::now(), sent(from));
    while sent(from) == before {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", from.link.refusal());
        pass(from, to, 0);
        std::thread::yield_now();
    }
}

#[test]
fn no_packet_is_lost_while_the_neighbour_is_flushed() {
    let Some(pair) = Pair::new() else { return };
    for version in [4, 6] {
        let (mut a, mut b) = (pair.link(version, 0), pair.link(version, 1));
        for round in 0..20 {
            until_by_xsk(&mut a, &mut b);
            (0..10).for_each(|number| pass(&mut a, &mut b, 10 * round + number));
            pair.ip(0, "neigh flush dev wire");
            (0..10).for_each(|number| pass(&mut a, &mut b, 10 * round + number));
        }
        assert!(sent(&a) >= 100, "{} datagrams left by an XSK", sent(&a));
    }
}

#[test]
fn a_device_that_goes_down_and_up_is_used_again() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (pair.link(4, 0), pair.link(4, 1));
    until_by_xsk(&mut a, &mut b);
    pair.ip(0, "link set wire down");
    let path = a.find(b.local_addr()).unwrap();
    for _ in 0..3 {
        a.send(Transmit::control(path, Priority::LOWEST, &[1; 60]));
        a.flush();
    }
    pair.ip(0, "link set wire up");
    while a.poll_error().is_some() {}
    until_by_xsk(&mut a, &mut b);
}

#[test]
fn a_change_of_routes_ends_the_way() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (pair.link(4, 0), pair.link(4, 1));
    until_by_xsk(&mut a, &mut b);
    pair.ip(0, &format!("route add {}/32 dev lo", Pair::host(4, 1)));
    let before = sent(&a);
    let start = Instant::now();
    let path = a.find(b.local_addr()).unwrap();
    // The news are looked at once per millisecond.
    while start.elapsed() < NEWS_EVERY {
        std::thread::yield_now();
    }
    a.send(Transmit::control(path, Priority::LOWEST, &[1; 60]));
    a.flush();
    assert_eq!(sent(&a), before, "a packet left by the old way");
}

/// Takes all capabilities from this thread.
fn drop_capabilities() -> bool {
    // struct __user_cap_header_struct of version 3, for this thread, and two of __user_cap_data_struct.
    let header = [0x2008_0522u32, 0];
    let none = [0u32; 6];
    // SAFETY: both structures live during the call, which reads them.
    unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) == 0 }
}

#[test]
fn without_the_capability_the_link_is_a_udp_link() {
    assert!(drop_capabilities(), "capabilities can always be dropped");
    let make = || XdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    let link = make();
    let refusal = link.refusal().and_then(io::Error::raw_os_error);
    assert!([Some(libc::EPERM), Some(libc::EAFNOSUPPORT)].contains(&refusal), "{refusal:?}");
    assert_eq!(link.capabilities().kind, "udp");
    conformance::run(|| (make(), make()));
}

#[test]
fn conformance_on_loopback_where_no_xsk_is_used() {
    let make = || XdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    conformance::run(|| (make(), make()));
    let (mut a, b) = (make(), make());
    let path = towards(&mut a, b.local_addr());
    a.send(Transmit::control(path, Priority::LOWEST, &[1; 60]));
    a.flush();
    assert_eq!(a.counters().xsk_sent, 0);
}

#[test]
#[ignore = "it is a process of nothing_stays_at_a_device_when_its_process_is_killed"]
fn helper_that_receives() {
    // SAFETY: takes a string that ends with a zero.
    let device = unsafe { libc::if_nametoindex(c"wire".as_ptr()) };
    let xsk = socket::Xsk::open(device, Some("10.78.0.1:7".parse().unwrap())).unwrap();
    println!("\nreceives: {}", xsk.receives());
    loop {
        std::thread::park();
    }
}

#[test]
fn nothing_stays_at_a_device_when_its_process_is_killed() {
    let Some(pair) = Pair::new() else { return };
    enter(&pair.0[0]);
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "xdp::tests::helper_that_receives", "--ignored", "--nocapture"]);
    let mut helper = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("receives: "));
    let is_attached = || {
        let shown = Command::new("ip").args(["link", "show", "wire"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap().contains("xdp")
    };
    let attached = is_attached();
    helper.kill().unwrap();
    helper.wait().unwrap();
    if line.as_deref() != Some("receives: true") {
        return skipped("no program can be attached");
    }
    assert!(attached);
    let start = Instant::now();
    while is_attached() {
        assert!(start.elapsed() < Duration::from_secs(20), "the program stays");
    }
}

/// Sends a datagram from the first side to the second, as a frame with any sender. `spoil`: with a wrong byte.
fn inject(xsk: &mut socket::Xsk, (from, to): (&str, SocketAddr), spoil: bool) {
    let ethernet = headers::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 0], true);
    let pushed = xsk.push(|frame| {
        frame[..14].copy_from_slice(&ethernet);
        let from = from.parse().unwrap();
        let len = headers::write_packet(&mut frame[14..], from, to, 0, &[7; 60]);
        frame[60] ^= u8::from(spoil);
        14 + len
    });
    assert!(pushed);
    xsk.flush().unwrap();
}

#[test]
fn corrupted_frames_and_those_of_impossible_senders_are_counted_and_dropped() {
    let Some(pair) = Pair::new() else { return };
    let (mut a, mut b) = (pair.link(4, 0), pair.link(4, 1));
    until_by_xsk(&mut a, &mut b);
    until_by_xsk(&mut b, &mut a);
    if b.link.own_counters().xsk_received == 0 {
        (0..100).for_each(|number| pass(&mut a, &mut b, number));
    }
    if b.link.own_counters().xsk_received == 0 {
        return skipped("no program can be attached");
    }
    let to = b.local_addr();
    drop(a);
    enter(&pair.0[0]);
    // SAFETY: takes a string that ends with a zero.
    let device = unsafe { libc::if_nametoindex(c"wire".as_ptr()) };
    let mut xsk = socket::Xsk::open(device, None).unwrap();
    let frames = [("10.78.0.1:9", true), ("127.0.0.1:9", false), ("10.78.0.2:9", false)];
    for (number, (from, spoil)) in frames.into_iter().enumerate() {
        inject(&mut xsk, (from, to), spoil);
        let start = Instant::now();
        while b.link.own_counters().xsk_corrupted <= number as u64 {
            b.recv(&mut |path, packet: &[u8]| panic!("{path:?}: {packet:?}"));
            assert!(start.elapsed() < Duration::from_secs(20), "{from} is not counted");
        }
    }
}
