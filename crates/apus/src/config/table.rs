//! The node's own settings: the one place where their names, defaults, ranges and texts stand. The protocol's are in
//! `apus-proto`, in the same form.

/// Gives the table of the settings that are numbers to the macro that is named. A row is as in
/// `apus_proto::protocol_settings`.
macro_rules! node_settings {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }

            /// Engines that share the node's address, each with its link, its background thread and the traffic of
            /// some of the peers, chosen by their addresses.
            ///
            /// One shard serves some million short messages a second. More are for nodes that are called by many
            /// peers on many cores, with at least as many threads as shards at a service: a thread turns the engine of
            /// one shard, and takes messages of the others when nobody else does. While all threads of a shard
            /// compute, its packets wait for the delivery mode's suspend timeout.
            shards: usize = 1 shard, 1 ..= 64;

            /// Receive buffer that each link asks the kernel for. A process without privilege gets no more than
            /// `net.core.rmem_max`, which is no error: `Node::capabilities` says what was granted.
            receive_buffer: usize = 8 MiB, 4 KiB ..= 1 GiB;

            /// Send buffer that each link asks the kernel for; `net.core.wmem_max` limits it.
            send_buffer: usize = 4 MiB, 4 KiB ..= 1 GiB;

            /// Whether runs of equal UDP packets are sent in one go where the kernel can (`UDP_SEGMENT`, Linux 4.18).
            gso: bool = true;

            /// Whether the kernel may join UDP packets of one flow as they arrive (`UDP_GRO`, Linux 5.0).
            gro: bool = true;

            /// Whether small packets for one peer share a datagram. Bundles that arrive are taken apart either way.
            bundles: bool = true;

            /// Longest packet, header and payload, even where the path takes more; at least 556 bytes on a raw link.
            max_packet: usize = 65_507 B, 548 B ..= 65_507 B;
        }
    };
}

/// Gives the table of the other settings to the macro that is named, in rows `name: type = default, parser;`.
macro_rules! text_settings {
    ($with:ident!) => {
        $with! {
            /// Local IP address and UDP port. Port 0: the system chooses one. `0.0.0.0` is all of IPv4, `[::]` all of IPv6 and,
            /// where the system allows it, of IPv4.
            listen: SocketAddr = "0.0.0.0:0", parse_address;

            /// The links that carry the messages: `udp`, `raw` or `both`.
            link: Links = "udp", parse_links;

            /// How messages get to the application: a mode and its parameters, like `suspend:20,budget=32`.
            delivery: Delivery = "suspend", parse_delivery;
        }
    };
}
