//! Counters for everything sent, received, granted, retried, refused, late and dropped.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an [`Endpoint`](crate::Endpoint) has done since it was made. Only ever grows.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes of DATA packets sent, by priority level.
            pub bytes_by_priority: [u64; 8],
        }

        impl Counters {
            /// Adds what another endpoint of the same host has done.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                for (mine, theirs) in self.bytes_by_priority.iter_mut().zip(other.bytes_by_priority) {
                    *mine += theirs;
                }
            }

            /// Every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                const LEVELS: [&str; 8] = [
                    "priority0_bytes", "priority1_bytes", "priority2_bytes", "priority3_bytes",
                    "priority4_bytes", "priority5_bytes", "priority6_bytes", "priority7_bytes",
                ];
                [$((stringify!($name), self.$name)),*]
                    .into_iter()
                    .chain(LEVELS.into_iter().zip(self.bytes_by_priority))
            }
        }
    };
}

counters! {
    /// Calls started.
    calls,
    /// Calls that got their response.
    calls_completed,
    /// Calls that failed, for any reason.
    calls_failed,
    /// Calls aborted by the application.
    calls_aborted,
    /// Calls started while in an incast: marked so that responses come with few unscheduled bytes.
    calls_in_incast,
    /// Requests handed to the application.
    requests,
    /// Responses given by the application.
    responses,
    /// Requests the application gave up on.
    requests_abandoned,
    /// Packets received, of any kind, before they were looked at.
    packets_received,
    /// Packets sent.
    packets_sent,
    /// Bytes of message data received in order to be kept.
    data_bytes_received,
    /// Bytes of message data sent for the first time.
    data_bytes_sent,
    /// GRANT packets sent.
    grants_sent,
    /// Bytes granted.
    granted_bytes,
    /// Bytes granted to the oldest message instead of the shortest.
    fifo_granted_bytes,
    /// GRANT packets received for a message that is being sent.
    grants_received,
    /// GRANT packets that allowed nothing new.
    grants_late,
    /// RESEND packets sent.
    resends_sent,
    /// RESEND packets received.
    resends_received,
    /// RESEND packets not answered with data because the same was sent moments before.
    resends_limited,
    /// Bytes sent again.
    retransmitted_bytes,
    /// Times a long first packet was lost so often that the link was told that the path may swallow such packets.
    black_holes,
    /// Messages not begun at once because too many unscheduled bytes were in flight to the peer.
    messages_deferred,
    /// DATA packets that carried nothing new.
    duplicate_packets,
    /// Gaps seen in incoming messages.
    gaps,
    /// BUSY packets sent.
    busy_sent,
    /// RPC_UNKNOWN packets sent.
    unknown_sent,
    /// RPC_UNKNOWN packets received for a call.
    unknown_received,
    /// NEED_ACK packets sent.
    need_acks_sent,
    /// ACK packets sent.
    acks_sent,
    /// Acknowledgements carried by DATA packets sent.
    acks_piggybacked,
    /// CUTOFFS packets sent.
    cutoffs_sent,
    /// Times the priority cutoffs were computed anew and differed.
    cutoffs_changed,
    /// Responses held back until their client shows that it receives at its address.
    responses_blocked,
    /// Responses given up because the client never acknowledged them.
    responses_unacknowledged,
    /// Server RPCs given up because the client fell silent.
    requests_timed_out,
    /// Requests refused because they were taken before (at most once).
    refused_duplicate_requests,
    /// Requests refused because they are from another incarnation of the client than the current
    /// one, until it shows that it is the present one.
    refused_stale_incarnation,
    /// Requests refused because a budget was full.
    refused_over_budget,
    /// Requests refused for a port nobody serves.
    refused_no_port,
    /// Messages refused because they are longer than the limit.
    refused_too_large,
    /// Packets dropped: not a Homa packet (see the wire errors).
    dropped_malformed,
    /// Packets dropped: from an unknown peer while the peer table is full.
    dropped_peers_full,
    /// Packets dropped: for an RPC that is not known.
    dropped_unknown_rpc,
    /// Packets dropped: ports or direction do not fit the RPC.
    dropped_mismatch,
    /// Packets dropped: their length or offset contradicts earlier packets of the message.
    dropped_inconsistent,
    /// Packets dropped: the message would have too many gaps, or too wide a one.
    dropped_gaps,
    /// Packets dropped: a budget had no room for more of their message.
    dropped_over_budget,
    /// Control packets dropped: too many waited to be sent.
    dropped_control,
    /// Packets dropped: an answer to an unconfirmed peer would have been larger than what it sent.
    dropped_unconfirmed,
    /// Packets dropped: from a node that is not known here, or no longer; no state is kept for such.
    dropped_token,
    /// Packets dropped: from another address than that of the peer whose token they carry, which is asked
    /// whether it has moved there.
    dropped_elsewhere,
    /// Packets dropped: of another version of the wire format.
    dropped_version,
    /// Packets dropped: a CONFIRM that does not show that its sender receives at its address.
    dropped_proof,
    /// Answers to unknown nodes dropped: too many waited to be sent.
    dropped_replies,
    /// Packets dropped: a MEET, because too many waited to be taken.
    dropped_meets,
    /// OPEN packets sent.
    opens_sent,
    /// OPEN packets received.
    opens_received,
    /// Peers met: each knows the other's token.
    peers_met,
    /// Peers whose run is over, or that had forgotten this node.
    peers_over,
    /// Peers that have moved to another address.
    peers_moved,
    /// MEET packets sent.
    meets_sent,
    /// MEET packets of known peers received, also those that were dropped because too many waited.
    meets_received,
    /// ABORTs sent.
    aborts_sent,
    /// Calls begun anew because their server was another run by the time they could be sent, or because the path within the host
    /// ended before they were sent.
    calls_begun_anew,
    /// Requests whose client has given the call up.
    requests_cancelled,
    /// Requests whose client's deadline has passed.
    requests_expired,
    /// Server RPCs given up because the run of their client is over.
    requests_orphaned,
    /// Peers forgotten after they were idle.
    peers_forgotten,
    /// Peers forgotten early, to make room for others.
    peers_evicted,
}
