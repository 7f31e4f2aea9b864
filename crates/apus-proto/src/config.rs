//! What can be set about the protocol.

use std::time::Duration;

use apus_wire::MAX_LINUX_MESSAGE;

use crate::link::{FULL_PACKET, LinkRate};

/// Settings of an [`Endpoint`](crate::Endpoint). The defaults suit a datacenter network; what
/// depends on the peer (delay, rate, unscheduled bytes, grant window) is measured, and the values
/// here are where measuring starts and the bounds it stays in. On a link below 2.7 Gb/s, those marked
/// † follow its rate unless they are set (rule `link-1`).
///
/// # Defaults
///
/// | setting | default | range |
/// |---|---|---|
/// | [`message_max`](Self::message_max) | 64 MiB | 1 … 1 GiB |
/// | [`unscheduled`](Self::unscheduled) | 40,000 B † | 0 … 16 MiB |
/// | [`unscheduled_min`](Self::unscheduled_min) | 1,500 B | 0 … 16 MiB |
/// | [`unscheduled_max`](Self::unscheduled_max) | 256 KiB † | `unscheduled` … 16 MiB |
/// | [`max_incoming`](Self::max_incoming) | 400,000 B † | 10,000 … 1 GiB |
/// | [`overcommitment`](Self::overcommitment) | 8 messages | 1 … 64 |
/// | [`priorities`](Self::priorities) | 8 levels | 1 … 8 |
/// | [`window_max`](Self::window_max) | 1 GiB | 1,500 B … 1 GiB |
/// | [`fifo_share`](Self::fifo_share) | 50 thousandths | 0 … 500 |
/// | [`link_mbps`](Self::link_mbps) | the link's, else 25,000 Mb/s | 1 … 10,000,000 |
/// | [`pacing`](Self::pacing) | on (loopback peers are never paced) | |
/// | [`pacing_backlog`](Self::pacing_backlog) | 5 µs † | 0 … 10 ms |
/// | [`burst`](Self::burst) | 60,000 B | 1,500 B … 16 MiB |
/// | [`resend_initial`](Self::resend_initial) | 5 ms | 100 µs … 10 s |
/// | [`resend_min`](Self::resend_min) | 2 ms † | 100 µs … 10 s |
/// | [`peer_timeout`](Self::peer_timeout) | 1 s | 10 ms … 1 h |
/// | [`calls_max`](Self::calls_max) | 65,536 per peer | 1 … 2^20 |
/// | [`peers_max`](Self::peers_max) | 10,000 | 1 … 2^20 |
/// | [`peer_budget`](Self::peer_budget) | 128 MiB | 64 KiB … 1 TiB |
/// | [`socket_budget`](Self::socket_budget) | 512 MiB | 64 KiB … 1 TiB |
/// | [`total_budget`](Self::total_budget) | 1 GiB | 64 KiB … 1 TiB |
/// | [`incast_threshold`](Self::incast_threshold) | 300 calls | 1 … 2^20 |
/// | [`incast_unscheduled`](Self::incast_unscheduled) | 400 B | 0 … 1 MiB |
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) message_max: u32,
    pub(crate) unscheduled: u32,
    pub(crate) unscheduled_min: u32,
    pub(crate) unscheduled_max: u32,
    pub(crate) max_incoming: u64,
    pub(crate) overcommitment: usize,
    pub(crate) priorities: u8,
    pub(crate) fifo_share: u32,
    /// As set; `None` is [`LINK_MBPS`] until the link tells its rate, 0 is [`LINK_MBPS`] whatever it tells.
    pub(crate) link_mbps: Option<u64>,
    pub(crate) pacing: bool,
    pub(crate) pacing_backlog: Duration,
    pub(crate) burst: u64,
    pub(crate) resend_initial: Duration,
    pub(crate) resend_min: Duration,
    pub(crate) peer_timeout: Duration,
    pub(crate) calls_max: u32,
    pub(crate) peers_max: usize,
    pub(crate) peer_budget: u64,
    pub(crate) socket_budget: u64,
    pub(crate) total_budget: u64,
    pub(crate) incast_threshold: u32,
    pub(crate) incast_unscheduled: u32,
    pub(crate) window_max: u64,
    pub(crate) cutoffs: Option<[u32; 8]>,
    pub(crate) confirm_peers: bool,
    pub(crate) learn_cutoffs: bool,
    pub(crate) priority_by_rest: bool,
    pub(crate) keep_payload: bool,
    /// The link's rate, once it is known.
    pub(crate) link: Option<LinkRate>,
    set: Set,
}

/// What was set of that which follows the link's rate otherwise.
#[derive(Clone, Copy, Default, Debug)]
struct Set {
    unscheduled: Option<u32>,
    unscheduled_max: Option<u32>,
    max_incoming: Option<u64>,
    pacing_backlog: Option<Duration>,
    resend_min: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            message_max: 64 << 20,
            unscheduled: UNSCHEDULED,
            unscheduled_min: 1_500,
            unscheduled_max: UNSCHEDULED_MAX,
            max_incoming: INCOMING * u64::from(UNSCHEDULED),
            overcommitment: 8,
            priorities: 8,
            fifo_share: 50,
            link_mbps: None,
            pacing: true,
            pacing_backlog: PACING_BACKLOG,
            burst: 60_000,
            resend_initial: Duration::from_millis(5),
            resend_min: RESEND_MIN,
            peer_timeout: Duration::from_secs(1),
            calls_max: 1 << 16,
            peers_max: 10_000,
            peer_budget: 128 << 20,
            socket_budget: 512 << 20,
            total_budget: 1 << 30,
            incast_threshold: 300,
            incast_unscheduled: 400,
            window_max: 1 << 30,
            cutoffs: None,
            confirm_peers: true,
            learn_cutoffs: true,
            priority_by_rest: false,
            keep_payload: true,
            link: None,
            set: Set::default(),
        }
    }
}

/// Rate taken for a link that does not know its own, in 10^6 bit/s.
pub(crate) const LINK_MBPS: u64 = 25_000;

/// Payload taken for a full packet until one was seen: Ethernet's.
pub(crate) const PACKET_PAYLOAD: u32 = 1_500;

/// Defaults of what follows the link's rate, on a link that is fast enough.
const UNSCHEDULED: u32 = 40_000;
const UNSCHEDULED_MAX: u32 = 256 << 10;
const PACING_BACKLOG: Duration = Duration::from_micros(5);
const RESEND_MIN: Duration = Duration::from_millis(2);

/// Round trip of a network that was not measured, without the time of the packets themselves.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// Full packets whose time is in a round trip: DATA on the links of both hosts, and one that its GRANT
/// waits for on each.
const ROUND_TRIP_PACKETS: u64 = 4;
/// Unscheduled parts of messages that may be expected at a time.
const INCOMING: u64 = 10;

macro_rules! setter {
    ($(#[$doc:meta])* $name:ident: $type:ty, $low:expr, $high:expr) => {
        $(#[$doc])*
        ///
        /// Values outside the range are brought to its nearer end.
        pub fn $name(&mut self, $name: $type) -> &mut Self {
            self.$name = $name.clamp($low, $high);
            self
        }
    };
}

/// A setter of what follows the link's rate otherwise.
macro_rules! set_or_follow {
    ($(#[$doc:meta])* $name:ident: $type:ty, $low:expr, $high:expr) => {
        $(#[$doc])*
        ///
        /// Values outside the range are brought to its nearer end.
        pub fn $name(&mut self, $name: $type) -> &mut Self {
            self.$name = $name.clamp($low, $high);
            self.set.$name = Some(self.$name);
            self
        }
    };
}

impl Config {
    setter! {
        /// Largest message sent or received, in bytes. Towards a Linux peer the limit is
        /// 1,000,000 whatever is set here.
        message_max: u32, 1, 1 << 30
    }
    set_or_follow! {
        /// Bytes of a message sent without a grant to a peer that was not measured yet (the
        /// module's `unsched_bytes`). Afterwards: what the path carries in one round trip.
        unscheduled: u32, 0, 16 << 20
    }
    setter! {
        /// Least unscheduled bytes, whatever was measured. The default is a full Ethernet packet; set
        /// to the same as the other two, the number is fixed as in the SIGCOMM paper.
        unscheduled_min: u32, 0, 16 << 20
    }
    set_or_follow! {
        /// Bound of the measured unscheduled bytes. Raising it costs receive buffer at every peer
        /// that many messages arrive at.
        unscheduled_max: u32, 0, 16 << 20
    }
    set_or_follow! {
        /// Bytes granted or unscheduled and not yet received, over all senders (the module's
        /// `max_incoming`), to start with. Grows with the measured round trip times rate, never
        /// beyond half of what the link's receive buffer holds.
        max_incoming: u64, 10_000, 1 << 30
    }
    setter! {
        /// Messages granted at the same time, each from another sender (degree of overcommitment,
        /// SIGCOMM 2018 section 3.5; the module's `max_overcommit`).
        overcommitment: usize, 1, 64
    }
    setter! {
        /// Priority levels used, from the lowest (`num_priorities`).
        priorities: u8, 1, 8
    }
    setter! {
        /// Thousandths of the granted bytes, and of the sent bytes when several messages wait, that
        /// go to the oldest message instead of the shortest, so that none starves
        /// (`grant_fifo_fraction`, `pacer_fifo_fraction`).
        fifo_share: u32, 0, 500
    }
    set_or_follow! {
        /// How far ahead of the wire packets may be handed to the link
        /// (`max_nic_est_backlog_usecs`). Unset, no less than the time of a full packet.
        pacing_backlog: Duration, Duration::ZERO, Duration::from_millis(10)
    }
    setter! {
        /// Bytes handed to the link by one [`poll_transmit`](crate::Endpoint::poll_transmit): how
        /// long a packet that arrives meanwhile may have to wait.
        burst: u64, 1_500, 16 << 20
    }
    setter! {
        /// Silence before asking a peer that was not measured yet (`resend_ticks`).
        resend_initial: Duration, Duration::from_micros(100), Duration::from_secs(10)
    }
    set_or_follow! {
        /// Least silence before asking again, however short the measured delay: packets that are
        /// only late must not be sent twice (lesson 55 of the module's notes). Unset, no less than the
        /// link takes for `max_incoming`.
        resend_min: Duration, Duration::from_micros(100), Duration::from_secs(10)
    }
    setter! {
        /// Silence after which a peer counts as lost and a call fails (`timeout_ticks`).
        peer_timeout: Duration, Duration::from_millis(10), Duration::from_secs(3600)
    }
    setter! {
        /// Calls outstanding to one peer.
        calls_max: u32, 1, 1 << 20
    }
    setter! {
        /// Peers remembered. Packets from further ones are dropped and counted until old ones age.
        peers_max: usize, 1, 1 << 20
    }
    setter! {
        /// Bytes held for one peer: its incoming messages, requests in service, responses it has
        /// not acknowledged, and what is remembered of it.
        peer_budget: u64, 64 << 10, 1 << 40
    }
    setter! {
        /// Bytes held for one socket.
        socket_budget: u64, 64 << 10, 1 << 40
    }
    setter! {
        /// Bytes held for all peers together.
        total_budget: u64, 64 << 10, 1 << 40
    }
    setter! {
        /// Outstanding calls from which on responses are asked to come with few unscheduled bytes
        /// (incast control, SIGCOMM 2018 section 3.6).
        incast_threshold: u32, 1, 1 << 20
    }
    setter! {
        /// Unscheduled bytes of a response to a client in an incast.
        incast_unscheduled: u32, 0, 1 << 20
    }

    /// Rate of the host's link in 10^6 bit/s. What is set here holds, also where the link reports another
    /// rate: behind a slower switch port, or on a virtual interface that reports what it likes. Unset:
    /// what the link reports, 25,000 where it reports nothing. 0: it is not known, and what the link reports is not
    /// believed, for a virtual interface whose host carries less.
    ///
    /// Values above 10,000,000 are brought to that.
    pub fn link_mbps(&mut self, link_mbps: u64) -> &mut Self {
        self.link_mbps = Some(link_mbps.min(10_000_000));
        self
    }

    /// The rate of the link that was set, if one was.
    pub(crate) fn link_mbps_set(&self) -> Option<u64> {
        self.link_mbps.filter(|rate| *rate > 0)
    }

    /// Priority cutoffs for messages to this node until enough traffic was seen to compute them
    /// (`unsched_cutoffs`): `cutoffs[i]` is the longest message whose unscheduled packets use level
    /// `i` or a higher one. Default: the module's, as far as they fit the levels used. For a node
    /// whose traffic is known beforehand.
    pub fn cutoffs(&mut self, cutoffs: [u32; 8]) -> &mut Self {
        self.cutoffs = Some(cutoffs);
        self
    }

    /// Whether a peer gets no more bytes than it sent until it has shown that it receives at its address (rule `hostile-2`).
    /// Default: yes. Only a network in which nobody can forge addresses can do without; one with clients of the stripped Linux
    /// module must, because these never show it.
    pub fn confirm_peers(&mut self, confirm_peers: bool) -> &mut Self {
        self.confirm_peers = confirm_peers;
        self
    }

    setter! {
        /// Most bytes of one message that are granted and have not come, however long its path is
        /// measured to be. For networks whose round trip is known, as the SIGCOMM paper's is.
        window_max: u64, 1_500, 1 << 30
    }

    /// Whether the cutoffs are computed anew from the traffic seen. Default: yes. When not, those of
    /// [`cutoffs`](Self::cutoffs) stay.
    pub fn learn_cutoffs(&mut self, learn_cutoffs: bool) -> &mut Self {
        self.learn_cutoffs = learn_cutoffs;
        self
    }

    /// Whether a packet's level follows what is left of its message rather than the whole length:
    /// unscheduled packets rise from packet to packet, and the last round trip of a scheduled
    /// message goes at the level of an unscheduled one of that length. Default: no, as in the Linux
    /// module; the simulations of the SIGCOMM paper did (`STATIC_CBF_GRADUATED` and
    /// `boostTailBytesPrio` in their configuration).
    pub fn priority_by_rest(&mut self, priority_by_rest: bool) -> &mut Self {
        self.priority_by_rest = priority_by_rest;
        self
    }

    /// Whether the payload of messages of several packets is kept. Default: yes. When not, they are
    /// delivered with an empty body and take no memory, for simulations in which only time counts;
    /// all else is the same.
    pub fn keep_payload(&mut self, keep_payload: bool) -> &mut Self {
        self.keep_payload = keep_payload;
        self
    }

    /// Whether packets are paced to the link's rate. Loopback peers never are.
    pub fn pacing(&mut self, pacing: bool) -> &mut Self {
        self.pacing = pacing;
        self
    }

    /// What was not set follows a link of this rate.
    pub(crate) fn follow_link(&mut self, link_mbps: u64) {
        //= docs/protocol.md#link-1
        let link = LinkRate::from_mbps(link_mbps);
        let round_trip = link.bytes_in(ROUND_TRIP) + ROUND_TRIP_PACKETS * u64::from(PACKET_PAYLOAD);
        let begun = u32::try_from(round_trip).map_or(UNSCHEDULED, |bytes| bytes.min(UNSCHEDULED));
        let all = INCOMING * u64::from(begun);
        let most = u32::try_from(all).map_or(UNSCHEDULED_MAX, |bytes| bytes.min(UNSCHEDULED_MAX));
        let Set { unscheduled, unscheduled_max, max_incoming, pacing_backlog, resend_min } =
            self.set;
        self.unscheduled = unscheduled.unwrap_or(begun);
        self.unscheduled_max = unscheduled_max.unwrap_or(most);
        self.max_incoming = max_incoming.unwrap_or(all);
        //= docs/protocol.md#pace-1
        let packet = link.time_of(FULL_PACKET);
        self.pacing_backlog = pacing_backlog.unwrap_or_else(|| PACING_BACKLOG.max(packet));
        //= docs/protocol.md#loss-2
        let granted = link.time_of(self.max_incoming).min(self.peer_timeout / 4);
        self.resend_min = resend_min.unwrap_or_else(|| RESEND_MIN.max(granted));
        self.link = Some(link);
    }

    /// Longest silence before a peer is asked again: a quarter of what makes it lost.
    pub(crate) fn rto_max(&self) -> Duration {
        (self.peer_timeout / 4).max(self.resend_min)
    }

    /// The largest message set.
    #[must_use]
    pub fn message_limit(&self) -> u32 {
        self.message_max
    }

    /// Largest message the Linux module takes, in bytes.
    #[must_use]
    pub const fn linux_message_limit() -> u32 {
        MAX_LINUX_MESSAGE
    }
}
