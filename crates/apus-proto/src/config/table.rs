//! The protocol's settings: the one place where their names, defaults, ranges and texts stand.

/// Passes the table to the named macro, after tokens for that macro in braces.
///
/// A row is `name: type = default, low ..= high;`. Numbers have a unit: `B` to `TiB`, `us` to `h`, or the name of the counted
/// things, which the range may omit. A switch has no unit and no range. `| follows_link` marks a setting that follows the rate of a
/// slow link unless it is set.
#[doc(hidden)]
#[macro_export]
macro_rules! protocol_settings {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }

            /// Length of the longest message sent or received, in bytes. A Linux peer accepts at most 1,000,000 bytes, also with a
            /// larger setting.
            message_max: u32 = 64 MiB, 1 B ..= 1 GiB;

            /// Bytes of a message that are sent without a grant, until the round trip to the peer is measured (the module's
            /// `unsched_bytes`). Afterwards, the number of bytes that the path carries in one round trip.
            unscheduled: u32 = 40_000 B, 0 B ..= 16 MiB | follows_link;

            /// Lower bound on the measured unscheduled bytes, unless `unscheduled` is less. The default is a full Ethernet packet.
            /// If it equals `unscheduled` and `unscheduled_max`, the number is fixed as in the SIGCOMM paper.
            unscheduled_min: u32 = 1_500 B, 0 B ..= 16 MiB;

            /// Upper bound on the measured unscheduled bytes. Must not be below `unscheduled`, and follows `unscheduled` unless
            /// set. A higher value needs more receive buffer at every peer with many incoming messages.
            unscheduled_max: u32 = 256 KiB, 0 B ..= 16 MiB | follows_link;

            /// Initial number of bytes granted or unscheduled and not yet received, over all senders (the module's `max_incoming`).
            /// Grows with the product of measured round trip and rate, up to three eighths of the link's receive buffer.
            max_incoming: u64 = 400_000 B, 10_000 B ..= 1 GiB | follows_link;

            /// Number of messages granted at the same time, each from another sender (degree of overcommitment, SIGCOMM 2018
            /// section 3.5; the module's `max_overcommit`).
            overcommitment: usize = 8 messages, 1 ..= 64;

            /// Number of priority levels used, from the lowest (`num_priorities`).
            priorities: u8 = 8 levels, 1 ..= 8;

            /// Upper bound on the granted bytes of one message that have not arrived, for any measured round trip. For networks
            /// with a known round trip, such as the network of the SIGCOMM paper.
            window_max: u64 = 1 GiB, 1_500 B ..= 1 GiB;

            /// Thousandths of the granted bytes, and of the sent bytes if several messages wait, that go to the oldest message
            /// instead of the shortest, so that none starves (`grant_fifo_fraction`, `pacer_fifo_fraction`).
            fifo_share: u32 = 50 thousandths, 0 ..= 500;

            /// Rate of the host's link in 10^6 bit/s. A rate that is set takes precedence over the rate that the link
            /// reports: behind a slower switch port, or on a virtual interface that reports a wrong rate. Unless set, it is
            /// the rate that the link reports, and the default if the link reports none. 0 means that the rate is unknown
            /// and that the report of the link is wrong.
            link_mbps: u64 = 25_000 Mbps, 0 ..= 10_000_000;

            /// Whether packets are paced to the link's rate. Packets to loopback peers never are.
            pacing: bool = true;

            /// Time by which packets may be passed to the link ahead of the wire (`max_nic_est_backlog_usecs`). Unless set, at
            /// least the time of a full packet.
            pacing_backlog: Duration = 5 us, 0 us ..= 10 ms | follows_link;

            /// Upper bound on the bytes passed to the link in one turn, which also bounds the wait of packets that arrive
            /// meanwhile.
            burst: u64 = 60_000 B, 1_500 B ..= 16 MiB;

            /// Initial RTO, the time until a side probes for a missing answer, before the first measurement of a peer
            /// (`resend_ticks`).
            resend_initial: Duration = 5 ms, 100 us ..= 10 s;

            /// Lower bound on the RTO, also after short measured delays, so that late packets are not retransmitted (lesson 55 of
            /// the module's notes). Unless set, at least the time that the link needs for `max_incoming`.
            resend_min: Duration = 2 ms, 100 us ..= 10 s | follows_link;

            /// Time without a packet after which a peer counts as lost and a call fails (`timeout_ticks`).
            peer_timeout: Duration = 1 s, 10 ms ..= 1 h;

            /// Upper bound on the outstanding calls to one peer.
            calls_max: u32 = 65_536 calls, 1 ..= 1_048_576;

            /// Upper bound on the peers known at the same time. Packets from further peers are dropped and counted until known
            /// peers are forgotten.
            peers_max: usize = 10_000 peers, 1 ..= 1_048_576;

            /// Upper bound on the bytes charged to one peer: its incoming messages, requests in service, unacknowledged responses,
            /// and the record of its past requests.
            peer_budget: u64 = 128 MiB, 64 KiB ..= 1 TiB;

            /// Upper bound on the bytes charged to one socket.
            socket_budget: u64 = 512 MiB, 64 KiB ..= 1 TiB;

            /// Upper bound on the bytes charged to all peers together.
            total_budget: u64 = 1 GiB, 64 KiB ..= 1 TiB;

            /// Number of outstanding calls at which a client begins to request responses with few unscheduled bytes (incast
            /// control, SIGCOMM 2018 section 3.6).
            incast_threshold: u32 = 300 calls, 1 ..= 1_048_576;

            /// Unscheduled bytes of a response to a client in an incast.
            incast_unscheduled: u32 = 400 B, 0 B ..= 1 MiB;

            /// Whether a peer gets no more bytes than it sent until it has proved that it receives at its address (rule
            /// `hostile-2`). Turn it off only in a network in which no host can forge addresses. Clients of the stripped Linux
            /// module need it off, because they never prove it.
            confirm_peers: bool = true;

            /// Whether the node computes the cutoffs from the observed traffic. If not, the cutoffs set by `cutoffs` stay.
            learn_cutoffs: bool = true;

            /// Whether a packet's level follows the remaining bytes of its message instead of the whole length. Unscheduled packets
            /// then rise from packet to packet, and the last round trip of a scheduled message uses the level of an unscheduled
            /// message of that length. The simulations of the SIGCOMM paper do so (`STATIC_CBF_GRADUATED` and `boostTailBytesPrio`
            /// in their configuration); the Linux module does not.
            priority_by_rest: bool = false;
        }
    };
}
