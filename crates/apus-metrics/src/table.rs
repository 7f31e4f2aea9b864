//! Every counter of Apus: name, unit, meaning. This is the only source: the structs that count, the files of counters, the output
//! of `apus stat` and `docs/metrics.md` derive from it or are checked against it.
//!
//! A row is `name: unit,` under its meaning. Rows after a lone `;` are arrays, with a name for each element. The row of a gauge is
//! `name: unit fold,` with the way in which the values of several engines become one.

/// Passes the table of the protocol's counters to the named macro.
#[macro_export]
macro_rules! protocol_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Calls started.
            calls: calls,
            /// Calls that got their response.
            calls_completed: calls,
            /// Time that all timed calls together took.
            timed_calls_ns: nanoseconds,
            /// Calls that failed, for any reason.
            calls_failed: calls,
            /// Calls aborted by the application.
            calls_aborted: calls,
            /// Calls started while in an incast, and marked so that responses have few unscheduled bytes.
            calls_in_incast: calls,
            /// Requests passed to the application.
            requests: requests,
            /// Requests received by unencrypted packets of a network.
            requests_plain: requests,
            /// Responses of the application.
            responses: responses,
            /// Requests that the application gave up.
            requests_abandoned: requests,
            /// Packets received, of any kind, before any check.
            packets_received: packets,
            /// Packets sent.
            packets_sent: packets,
            /// DATA packets sent, including retransmissions.
            data_packets_sent: packets,
            /// DATA packets of known peers received, including dropped ones.
            data_packets_received: packets,
            /// BUSY packets received.
            busy_received: packets,
            /// NEED_ACK packets received.
            need_acks_received: packets,
            /// ACK packets received.
            acks_received: packets,
            /// CUTOFFS packets received.
            cutoffs_received: packets,
            /// ABORTs received.
            aborts_received: packets,
            /// Bytes of message data received and kept.
            data_bytes_received: bytes,
            /// Bytes of message data sent for the first time.
            data_bytes_sent: bytes,
            /// GRANT packets sent.
            grants_sent: packets,
            /// Bytes granted.
            granted_bytes: bytes,
            /// Bytes granted to the oldest message instead of the shortest.
            fifo_granted_bytes: bytes,
            /// GRANT packets received for a message in transmission.
            grants_received: packets,
            /// GRANT packets that allowed nothing new.
            grants_late: packets,
            /// RESEND packets sent, except those that `probes_sent` counts.
            resends_sent: packets,
            /// RESEND packets sent to peers of this host while the receive buffer had dropped nothing: they ask how far the peer got.
            probes_sent: packets,
            /// Probes that were answered with BUSY: nothing was lost.
            probes_busy: packets,
            /// RESEND packets received.
            resends_received: packets,
            /// RESEND packets not answered with data because the same data was sent moments before.
            resends_limited: packets,
            /// Bytes retransmitted.
            retransmitted_bytes: bytes,
            /// Times that a long first packet was lost so often that a possible black hole on the path was reported to the link.
            black_holes: times,
            /// Messages deferred because too many unscheduled bytes were in flight to the peer.
            messages_deferred: messages,
            /// DATA packets that carried nothing new.
            duplicate_packets: packets,
            /// Gaps seen in incoming messages.
            gaps: gaps,
            /// BUSY packets sent.
            busy_sent: packets,
            /// RPC_UNKNOWN packets sent.
            unknown_sent: packets,
            /// RPC_UNKNOWN packets received for a call.
            unknown_received: packets,
            /// Calls that took longer than the configured limit, so that their traces are kept.
            slow_calls: calls,
            /// FREEZE packets sent, which ask a peer to keep its time trace.
            freezes_sent: packets,
            /// FREEZE packets received.
            freezes_received: packets,
            /// FREEZE packets not obeyed: the peer is not confirmed, another one arrived less than a second before, or there is no
            /// trace.
            freezes_refused: packets,
            /// NEED_ACK packets sent.
            need_acks_sent: packets,
            /// ACK packets sent.
            acks_sent: packets,
            /// Acknowledgements carried by DATA packets sent.
            acks_piggybacked: acknowledgements,
            /// CUTOFFS packets sent.
            cutoffs_sent: packets,
            /// Times that a new computation of the priority cutoffs changed them.
            cutoffs_changed: times,
            /// Responses blocked until their client proves that it receives at its address.
            responses_blocked: responses,
            /// Responses given up because the client never acknowledged them.
            responses_unacknowledged: responses,
            /// Server RPCs given up because the client was silent for too long.
            requests_timed_out: requests,
            /// Requests refused because they were taken before (at most once).
            refused_duplicate_requests: requests,
            /// Requests refused because their numbers are far from those of the client's other requests: changed packets.
            refused_strays: requests,
            /// Requests refused because they are from another incarnation of the client than the current one, until the client
            /// proves that this is the present one.
            refused_stale_incarnation: requests,
            /// Requests given up because they arrived slowly, to make room in a budget.
            requests_too_slow: requests,
            /// Requests refused because a budget was full.
            refused_over_budget: requests,
            /// Requests refused because their port is not served.
            refused_no_port: requests,
            /// Requests and first contacts refused because the rule of the service does not name the client, or because the port
            /// takes sealed packets only.
            refused_not_allowed: requests,
            /// Messages refused because they are longer than the limit.
            refused_too_large: messages,
            /// Packets dropped: not a Homa packet (see the wire errors).
            dropped_malformed: packets,
            /// Packets dropped: from an unknown peer while the peer table is full.
            dropped_peers_full: packets,
            /// Packets dropped: for an unknown RPC.
            dropped_unknown_rpc: packets,
            /// Packets dropped: ports or direction do not match the RPC.
            dropped_mismatch: packets,
            /// Packets dropped: their length or offset contradicts earlier packets of the message.
            dropped_inconsistent: packets,
            /// Packets dropped: the message would have too many gaps, or too wide a gap.
            dropped_gaps: packets,
            /// Packets dropped: a budget had no room for more of their message.
            dropped_over_budget: packets,
            /// Control packets dropped: the queue was full.
            dropped_control: packets,
            /// Packets dropped: an answer to an unconfirmed peer would have been larger than the bytes received from it.
            dropped_unconfirmed: packets,
            /// Packets dropped: unencrypted, from a host with which this node exchanges no plain packets.
            dropped_plain: packets,
            /// Packets dropped: from a node without state here.
            dropped_token: packets,
            /// Packets dropped: from another address than the address of the peer whose token they carry. That peer is asked
            /// whether it has moved there.
            dropped_elsewhere: packets,
            /// Packets dropped: of another version of the wire format.
            dropped_version: packets,
            /// Packets dropped: a CONFIRM that does not prove that its sender receives at its address.
            dropped_proof: packets,
            /// Answers to unknown nodes dropped: the queue was full.
            dropped_replies: packets,
            /// Packets dropped: a MEET, because the queue was full.
            dropped_meets: packets,
            /// OPEN packets sent.
            opens_sent: packets,
            /// OPEN packets received.
            opens_received: packets,
            /// First contacts: peers whose token is known and that know this node's.
            peers_met: peers,
            /// Peers whose run is over, or that had forgotten this node.
            peers_over: peers,
            /// Peers that have moved to another address.
            peers_moved: peers,
            /// MEET packets sent.
            meets_sent: packets,
            /// MEET packets of known peers received, including those dropped because the queue was full.
            meets_received: packets,
            /// ABORTs sent.
            aborts_sent: packets,
            /// Calls that began again because their server was another run when they could be sent, or because the path within the host
            /// ended before they were sent.
            calls_begun_anew: calls,
            /// Requests whose client gave the call up.
            requests_cancelled: requests,
            /// Requests whose client's deadline passed.
            requests_expired: requests,
            /// Requests that a service did not execute because their clients no longer waited for the responses.
            requests_skipped: requests,
            /// Server RPCs given up because the run of their client is over.
            requests_orphaned: requests,
            /// Peers forgotten after they were idle.
            peers_forgotten: peers,
            /// Peers forgotten early, to make room for others.
            peers_evicted: peers,
            ;
            /// Bytes of DATA packets sent, by priority level.
            bytes_by_priority: bytes [
                "priority0_bytes", "priority1_bytes", "priority2_bytes", "priority3_bytes", "priority4_bytes", "priority5_bytes", "priority6_bytes", "priority7_bytes",
            ],
            /// DATA packets sent, by priority level.
            packets_by_priority: packets [
                "priority0_packets", "priority1_packets", "priority2_packets", "priority3_packets", "priority4_packets", "priority5_packets", "priority6_packets", "priority7_packets",
            ],
            /// Bytes of complete messages received, by message length: up to the length in the name, and above the one before.
            received_by_size: bytes [
                "received_bytes_to_64", "received_bytes_to_128", "received_bytes_to_256", "received_bytes_to_512", "received_bytes_to_1024", "received_bytes_to_2048", "received_bytes_to_4096", "received_bytes_to_8192", "received_bytes_to_16384", "received_bytes_to_32768", "received_bytes_to_65536", "received_bytes_to_131072", "received_bytes_to_262144", "received_bytes_to_524288", "received_bytes_to_1048576", "received_bytes_beyond",
            ],
            /// Bytes of messages from the application, by message length: up to the length in the name, and above the one before.
            sent_by_size: bytes [
                "sent_bytes_to_64", "sent_bytes_to_128", "sent_bytes_to_256", "sent_bytes_to_512", "sent_bytes_to_1024", "sent_bytes_to_2048", "sent_bytes_to_4096", "sent_bytes_to_8192", "sent_bytes_to_16384", "sent_bytes_to_32768", "sent_bytes_to_65536", "sent_bytes_to_131072", "sent_bytes_to_262144", "sent_bytes_to_524288", "sent_bytes_to_1048576", "sent_bytes_beyond",
            ],
            /// Timed calls, by the time from the call to its response: up to the microseconds in the name, and above the one before. One call
            /// in about 64 that gets a response is timed. `apus stat --prometheus` shows them as a histogram.
            timed_calls: calls [
                "timed_calls_to_1_us", "timed_calls_to_2_us", "timed_calls_to_4_us", "timed_calls_to_8_us", "timed_calls_to_16_us", "timed_calls_to_32_us", "timed_calls_to_64_us", "timed_calls_to_128_us", "timed_calls_to_256_us", "timed_calls_to_512_us", "timed_calls_to_1024_us", "timed_calls_to_2048_us", "timed_calls_to_4096_us", "timed_calls_to_8192_us", "timed_calls_to_16384_us", "timed_calls_to_32768_us", "timed_calls_to_65536_us", "timed_calls_to_131072_us", "timed_calls_to_262144_us", "timed_calls_to_524288_us", "timed_calls_to_1048576_us", "timed_calls_to_2097152_us", "timed_calls_to_4194304_us", "timed_calls_to_8388608_us", "timed_calls_to_16777216_us", "timed_calls_beyond",
            ],
        }
    };
}

/// Passes the table of a link's counters to the named macro.
#[macro_export]
macro_rules! link_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Homa packets that `send` took.
            packets_sent: packets,
            /// Datagrams that the kernel took (a GSO segment counts as a datagram).
            datagrams_sent: datagrams,
            /// Bytes of the datagrams sent.
            bytes_sent: bytes,
            /// System calls for sending.
            send_calls: system_calls,
            /// Datagrams that left by an XSK, past the network stack.
            xsk_sent: datagrams,
            /// Datagrams that arrived by an XSK, past the network stack.
            xsk_received: datagrams,
            /// Frames that an XSK received with a wrong length or checksum, and dropped.
            xsk_corrupted: datagrams,
            /// XSKs closed because their device was gone or down.
            xsk_closed: times,
            /// Bundles among the datagrams sent.
            bundles_sent: bundles,
            /// Segments sent as part of a GSO batch.
            gso_segments: segments,
            /// Homa packets passed to the handler.
            packets_received: packets,
            /// Datagrams received (a GRO segment counts as a datagram).
            datagrams_received: datagrams,
            /// Bytes of the datagrams received.
            bytes_received: bytes,
            /// System calls for receiving that returned datagrams.
            receive_calls: system_calls,
            /// System calls for receiving that returned nothing.
            empty_receive_calls: system_calls,
            /// Datagrams whose payload the kernel wrote in place into the message.
            received_in_place: datagrams,
            /// Bundles among the datagrams received.
            bundles_received: bundles,
            /// Segments received as part of a GRO batch.
            gro_segments: segments,
            /// Sealed datagrams sent.
            sealed_sent: datagrams,
            /// Sealed datagrams opened.
            sealed_received: datagrams,
            /// Packets dropped because their sealed path had no keys.
            waiting_for_keys: packets,
            /// Sealed datagrams dropped because no node of this version sends such bytes.
            sealed_malformed: datagrams,
            /// Sealed datagrams dropped because this node does not have their keys, or no more.
            dropped_unknown_keys: datagrams,
            /// Sealed datagrams dropped because their tag does not fit: they were forged or changed.
            dropped_forged: datagrams,
            /// Sealed datagrams dropped because their number was received before.
            dropped_replay: datagrams,
            /// Sealed datagrams dropped because their number is too old to know whether it was received.
            replay_too_old: datagrams,
            /// Sealed datagrams dropped because too many wait for the end of a handshake.
            dropped_unverified: datagrams,
            /// Hints sent, each in answer to a sealed datagram whose keys this node does not have.
            hints_sent: datagrams,
            /// Hints received that put a path in doubt.
            hints_believed: datagrams,
            /// Hints received and ignored.
            hints_ignored: datagrams,
            /// Updates of keys with which this node seals.
            key_updates: times,
            /// Datagrams that the kernel dropped because the receive buffer was full.
            receive_buffer_drops: datagrams,
            /// Bundles dropped, from the first bad entry on, because their inner lengths are wrong.
            malformed_bundles: bundles,
            /// Datagrams dropped because they were longer than any packet may be.
            truncated: datagrams,
            /// Packets of the Linux module with several segments, which were split.
            split_packets: packets,
            /// Packets of the Linux module dropped because their segments are ambiguous.
            bad_segments: packets,
            /// Datagrams dropped because they were empty or came from an address that is neither IPv4 nor IPv6.
            unusable: datagrams,
            /// Receive calls that failed for another reason than a pending error of a peer.
            receive_errors: system_calls,
            /// Packets dropped because their path was forgotten.
            path_forgotten: packets,
            /// Datagrams dropped because the kernel had no room for them (`EAGAIN`, `ENOBUFS`, `ENOMEM`).
            send_blocked: datagrams,
            /// Datagrams dropped because they were longer than the path allows; the path's size has been corrected.
            send_too_big: datagrams,
            /// Datagrams dropped because the peer's host or network is unreachable.
            send_unreachable: datagrams,
            /// Datagrams dropped because a firewall or a missing permission forbids them.
            send_denied: datagrams,
            /// Datagrams dropped for any other reason.
            send_errors: datagrams,
            /// Sends repeated because they failed with another peer's error, or for lack of room.
            send_retries: times,
            /// Errors taken from the error queue: port unreachable.
            port_unreachable: errors,
            /// Errors taken from the error queue: host or network unreachable.
            host_unreachable: errors,
            /// Errors taken from the error queue: protocol unreachable.
            protocol_unreachable: errors,
            /// Errors taken from the error queue: forbidden.
            permission_denied: errors,
            /// Times that a path turned out to allow only shorter packets than was known.
            path_shrunk: times,
            /// Times that a path counted as a black hole for long packets, so that shorter ones are sent.
            black_holes: times,
            /// Errors dropped because they were not read in time.
            errors_discarded: errors,
            /// System calls for sending by a connected socket.
            connected_send_calls: system_calls,
            /// Times that GSO was turned off because a device refused it.
            gso_disabled: times,
            /// Packets answered with ICMP port unreachable.
            refusals_sent: packets,
            /// Packets dropped on purpose by a fault link.
            fault_lost: packets,
            /// Packets duplicated by a fault link.
            fault_duplicated: packets,
            /// Packets reordered by a fault link.
            fault_reordered: packets,
            /// Packets corrupted by a fault link.
            fault_corrupted: packets,
            /// Packets delayed by a fault link.
            fault_delayed: packets,
            /// Packets dropped by a fault link because it held the maximum already.
            fault_overflow: packets,
            /// Packets written by a capture link.
            captured: packets,
            /// Packets that a capture link could not write.
            capture_errors: packets,
        }
    };
}

/// Passes the table of the counters of memory between processes to the named macro.
#[macro_export]
macro_rules! memory_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Nodes with which memory was shared.
            pairs_met: pairs,
            /// Nodes with which memory is no longer shared. `pairs_met - pairs_ended` nodes are reached through memory now.
            pairs_ended: pairs,
            /// Nodes that shared memory and broke the protocol.
            pairs_broken: pairs,
            /// Processes that listened at the place of a node of this host and did not prove in time that they are that node; and
            /// processes that connected to this node and did not prove which node they are.
            meetings_failed: meetings,
            /// Messages to other processes, including refusals and probes.
            messages_sent: messages,
            /// Messages from other processes.
            messages_received: messages,
            /// Bytes of the bodies sent.
            bytes_sent: bytes,
            /// Bytes of the bodies received.
            bytes_received: bytes,
        }
    };
}

/// Passes the table of the counters of delivery to the named macro.
#[macro_export]
macro_rules! delivery_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Turns of the engine, by any thread.
            turns: turns,
            /// Turns of the engine by the background thread.
            background_turns: turns,
            /// Times that the safety timer forced the background thread, because no thread had turned the engine for the mode's
            /// suspend timeout.
            safety_turns: turns,
            /// Delivered messages: requests, and results of calls.
            messages: messages,
            /// Sleeps of threads and tasks that ended with a message. See `PortStats::handoffs`.
            handoffs: sleeps,
            /// Times that another thread woke a sleeping thread or a task, for a message or to lead.
            wake_ups: times,
            /// Sleeps of waiting threads that ended without a message for them: by a packet that completed no message, by a timer,
            /// or to lead.
            sleeps_in_vain: sleeps,
            /// Times that a waiting thread slept on the link.
            link_sleeps: sleeps,
            /// Times that a waiting thread or the background thread slept on a timer instead.
            deferred_sleeps: sleeps,
            /// Times that a waiting thread slept until another thread woke it.
            parks: sleeps,
            /// Waits in which polling found the message.
            spins_won: waits,
            /// Waits in which polling found no message.
            spins_lost: waits,
            /// Panics of handlers in `Port::serve`.
            handler_panics: panics,
            /// Calls that waited for room in the limits and budgets of the node.
            calls_waited: calls,
            /// Waits for a message that had arrived already.
            found_at_once: waits,
            /// Time for which waiting threads polled. Only in the modes in which threads turn the engine while they wait.
            polling_ns: nanoseconds,
            /// Time from the end of polling to the end of the wait, over waits in which the thread slept. In the same modes.
            sleeping_ns: nanoseconds,
            /// Times that a thread did not get the lock of the engine at once.
            lock_misses: times,
        }
    };
}

/// Passes the table of the counters of handshakes to the named macro.
#[macro_export]
macro_rules! handshake_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Handshakes that this node began, refreshes included.
            client_begun: handshakes,
            /// Handshakes that this node began and that gave a path its keys.
            client_done: handshakes,
            /// Handshakes that this node began and that failed.
            client_failed: handshakes,
            /// Handshakes of others that this node took.
            server_begun: handshakes,
            /// Handshakes of others that gave a path its keys.
            server_done: handshakes,
            /// Handshakes of others that failed: a certificate was refused, or the time was over.
            server_failed: handshakes,
            /// Requests of handshakes that were refused, because of a limit or because no frame could be read.
            refused: requests,
            /// Handshakes over sealed paths that gave them new keys, of both sides.
            refreshes: handshakes,
            /// Handshakes over sealed paths that failed, of both sides. The paths keep their earlier keys until these end.
            refresh_failures: handshakes,
            /// Times that the files of the node's identity had changed and were read again.
            reloads: times,
            /// Times that they had changed and could not be used.
            reload_failures: times,
        }
    };
}

/// Passes the table of the gauges of a node's identity to the named macro.
#[macro_export]
macro_rules! identity_gauges {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Time until the node's certificate, or one between it and a root, expires. Computed every 10 s.
            certificate_expires_s: seconds Least,
            /// Time for which that certificate is valid in all.
            certificate_life_s: seconds Least,
            /// Time until the first certificate of a peer with a sealed path expires. Computed every 10 s.
            peer_certificate_expires_s: seconds Least,
            /// Is 1 while the keys of sealed paths are written to a key log, whose readers can read all messages.
            keylog: key_logs Greatest,
            /// Is 1 if the node has no certificate and speaks plain with everybody (setting insecure).
            insecure: nodes Greatest,
        }
    };
}

/// Passes the table of the counters of byte streams to the named macro.
#[macro_export]
macro_rules! stream_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Streams that this node began to open.
            opened: streams,
            /// Streams that were opened at its listeners and may be accepted.
            accepted: streams,
            /// Streams that were refused because the backlog was full, or the listener was dropped.
            refused_backlog: streams,
            /// Messages about streams that the listener does not know.
            refused_unknown: messages,
            /// Messages to listeners that belong to no stream.
            refused_malformed: messages,
            /// Streams that ended because the peer violated the rules of streams.
            violations: streams,
            /// Streams that ended, or were not opened, because the peer was unreachable.
            lost: streams,
            /// Streams that the peer ended before both sides had received everything.
            reset_by_peer: streams,
            /// Streams that this side ended early: the application dropped them before it had read everything.
            reset: streams,
        }
    };
}

/// Passes the table of a shared engine's counters about each process that uses it to the named macro.
#[macro_export]
macro_rules! process_counters {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }
            /// Calls of the process.
            calls: calls,
            /// Requests passed to the process.
            requests: requests,
            /// Calls that were deferred because too many bytes of the process were outstanding.
            over_budget: calls,
            /// Bytes of requests and responses sent by the process.
            bytes_sent: bytes,
            /// Bytes of requests and responses sent to the process.
            bytes_received: bytes,
        }
    };
}
