//! The node's own settings: the one place where their names, defaults, ranges and texts stand. The protocol's are in
//! `apus-proto`, in the same form.

/// Gives the table of the settings that are numbers to the macro that is named. A row is as in
/// `apus_proto::protocol_settings`.
macro_rules! node_settings {
    ($with:ident! { $($tokens:tt)* }) => {
        $with! {
            { $($tokens)* }

            /// Number of engines that share the node's address. Each has a link, a background thread and the traffic of a
            /// part of the peers, selected by their addresses.
            ///
            /// One shard serves about a million short messages per second. Use more for a node that is called by many peers
            /// on many cores, with at least as many threads as shards at a service: a thread turns the engine of one shard,
            /// and takes messages of the others while no other thread does. While all threads of a shard compute, its
            /// packets wait for the delivery mode's suspend timeout.
            shards: usize = 1 shard, 1 ..= 64;

            /// Receive buffer that each link requests from the kernel. A process without privilege gets at most
            /// `net.core.rmem_max`, which is not an error: `Node::capabilities` shows the granted size.
            receive_buffer: usize = 8 MiB, 4 KiB ..= 1 GiB;

            /// Send buffer that each link requests from the kernel; `net.core.wmem_max` limits it.
            send_buffer: usize = 4 MiB, 4 KiB ..= 1 GiB;

            /// Whether consecutive UDP packets of equal length are sent by one system call where the kernel can
            /// (`UDP_SEGMENT`, Linux 4.18).
            gso: bool = true;

            /// Whether the kernel may join UDP packets of one flow as they arrive (`UDP_GRO`, Linux 5.0).
            gro: bool = true;

            /// Whether small packets for one peer share a datagram. Received bundles are accepted either way.
            bundles: bool = true;

            /// Whether services skip unwanted requests: the client has given the call up or is lost, or its deadline has passed. A
            /// request whose response would probably come after the deadline yields to others. Turn it off for a service that must
            /// execute every request.
            skip_unwanted: bool = true;

            /// Longest packet, header and payload, even if the path carries more; at least 556 bytes on a raw link.
            max_packet: usize = 65_507 B, 548 B ..= 65_507 B;
        }
    };
}

/// Gives the table of the other settings to the macro that is named, in rows `name: type = default, parser;`.
macro_rules! text_settings {
    ($with:ident!) => {
        $with! {
            /// Local IP address and UDP port. With port 0 the system chooses a port. `0.0.0.0` is all of IPv4. `[::]` is
            /// all of IPv6 and, where the system allows it, of IPv4.
            listen: SocketAddr = "0.0.0.0:0", parse_address;

            /// How the node reaches others: `auto` (memory shared with nodes of this host, else UDP), `udp`, `raw` or `both`.
            link: Links = "auto", parse_links;

            /// A directory that containers of this host share, so that nodes in different network namespaces share memory as well:
            /// `none`, or the absolute path, of up to 54 bytes, of a directory that exists. The node has a file there for each
            /// address at which other namespaces reach it, and looks there for the addresses that it calls. Nodes still prove
            /// over UDP which address is theirs, so UDP must reach them there.
            shm_dir: Option<PathBuf> = "none", parse_directory;

            /// The engine that runs the protocol: `own`, or the one of another process of this host (`apus daemon`), which listens at
            /// `unix:PATH`. That engine has the links, the address and most settings; `delivery`, `message_max` and the budgets of
            /// this process apply as well.
            engine: EngineAt = "own", parse_engine;

            /// A file to which all packets of the node are appended, for Wireshark: `none`, or an absolute path. A node with
            /// a capture shares no memory with other nodes of its host, because messages in memory have no packets. Several nodes,
            /// also of several processes, may append to one file.
            capture: Option<PathBuf> = "none", parse_capture;

            /// Packet delivery: a mode and its parameters, such as `suspend:20,budget=32`.
            delivery: Delivery = "suspend", parse_delivery;

            /// Directory in which the process publishes its counters for `apus stat`: `auto` (a directory of the user in
            /// `/dev/shm`), `off`, or an absolute path, which is created if it is missing. The first node of a process that
            /// publishes decides for all. A process that cannot create its file there publishes nothing, which is no error.
            metrics: MetricsAt = "auto", parse_metrics;
        }
    };
}
