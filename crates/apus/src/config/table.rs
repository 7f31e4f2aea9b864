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

            /// Whether the node with `link = xdp` also receives short datagrams past the network stack. That needs `listen` with one
            /// address, `CAP_BPF`, `CAP_NET_ADMIN`, and a device without another XDP program; the node receives by UDP otherwise, and
            /// always with several shards. Firewalls do not see these datagrams, and long TCP streams to the device become slower.
            xdp_receive: bool = false;

            /// Whether services skip unwanted requests: the client has given the call up or is lost, or its deadline has passed. A
            /// request whose response would probably come after the deadline yields to others. Turn it off for a service that must
            /// execute every request.
            skip_unwanted: bool = true;

            /// Whether a node without a certificate speaks plain with everybody, where anybody on the way reads and forges its packets.
            /// Without it, such a node speaks with its own machine and the hosts of `tls_plain_peers` only. Raw links, which are never
            /// encrypted, take everybody's packets with it.
            insecure: bool = false;

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

            /// How the node reaches others: `auto` (memory shared with nodes of this host, else UDP), `udp`, `xdp` (UDP; short packets
            /// leave past the network stack), `raw` or `both`.
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

            /// A file to which the keys of sealed paths are appended, so that `apus capture open` and Wireshark can show captured packets:
            /// `none`, or an absolute path. The node makes the file with mode 0600, and does not start with a file that other users
            /// can read. Readers of the file can read all messages; a line on standard error says so at the start. For tests only.
            keylog: Option<PathBuf> = "none", tls::parse_file;

            /// Packet delivery: a mode and its parameters, such as `suspend:20,budget=32`.
            delivery: Delivery = "suspend", parse_delivery;

            /// Directory in which the process publishes its counters for `apus stat`: `auto` (a directory of the user in
            /// `/dev/shm`), `off`, or an absolute path, which is created if it is missing. The first node of a process that
            /// publishes decides for all. A process that cannot create its file there publishes nothing, which is no error.
            metrics: MetricsAt = "auto", parse_metrics;

            /// Agent that gives the certificate and the roots by the SPIFFE Workload API: `none`, `environment` (the agent that
            /// `SPIFFE_ENDPOINT_SOCKET` names), `unix:/PATH`, or `tcp:IP:PORT`. For the program `apus`, and for programs with the crate
            /// `apus-spiffe`.
            tls_spiffe: Option<String> = "none", tls::parse_spiffe;

            /// File with the certificate of this node and those between it and a root, in PEM: `none`, or an absolute path. With it,
            /// the node speaks sealed to every `apus://` address, and `tls_key` and `tls_ca` or `tls_trust` are needed.
            tls_cert: Option<PathBuf> = "none", tls::parse_file;

            /// File with the private key of the certificate, in PEM (PKCS#8, PKCS#1 or SEC1): `none`, or an absolute path. Users
            /// other than its owner and its group may not write to it.
            tls_key: Option<PathBuf> = "none", tls::parse_file;

            /// Files with the roots of the certificates of peers, in PEM: `none`, or absolute paths with commas between them. They are
            /// private roots: with public ones, everybody in the world with a certificate is `any`.
            tls_ca: Vec<PathBuf> = "none", tls::parse_files;

            /// Roots of SPIFFE trust domains: `none`, or `DOMAIN=FILE` with commas between them. They vouch for SPIFFE ids of their
            /// domain, and for nothing else.
            tls_trust: Vec<(String, PathBuf)> = "none", tls::parse_trust;

            /// Files with revocation lists, in PEM or DER: `none`, or absolute paths with commas between them. With any, every issuer
            /// of a chain needs one that has not expired.
            tls_crl: Vec<PathBuf> = "none", tls::parse_files;

            /// The servers that clients without a rule of their own may call at bare IP addresses: `none`, or patterns of names such
            /// as `spiffe://example.org/*` with commas between them. A server whose certificate has the address, or the name by which
            /// the address was found, is expected anyway.
            tls_servers: PeerRule = "none", tls::parse_rule;

            /// The clients that services admit: `none`, or `PORT=PATTERN,...` with semicolons between ports. Services at other ports
            /// admit `any`, which is every peer with a certificate of the configured roots.
            tls_allow: BTreeMap<u16, PeerRule> = "none", tls::parse_allow;

            /// Peers that are refused although their certificates are valid: `none`, or patterns of names and
            /// `serial:HEX@ISSUER`, with commas between them.
            tls_deny: DeniedPeers = "none", tls::parse_denied;

            /// Time after which a path gets new keys by another handshake: 1 s to 24 h, give or take a tenth.
            tls_rekey: Duration = "1h", tls::parse_rekey;

            /// Ciphers of sealed datagrams, the preferred one first, with commas between them: `aes-128-gcm`, `aes-256-gcm` and
            /// `chacha20-poly1305`, or `all` for these three in this order. A path has the first one of its client that its server
            /// allows as well; without any, handshakes fail.
            tls_suites: Vec<Suite> = "all", tls::parse_suites;

            /// The use of plain packets by a node with a certificate: `refuse`, `accept` (calls are sealed, requests may be plain), or
            /// `use` (calls are plain, requests may be either). They are the steps by which a cluster moves.
            tls_plain: Plain = "refuse", tls::parse_plain;

            /// Other hosts with which the node exchanges unencrypted packets: `none`, or IP addresses and networks such as
            /// `10.1.0.0/16` with commas between them. The setting is for raw links, and for nodes without a certificate. Over UDP, a
            /// node with a certificate follows `tls_plain`.
            tls_plain_peers: Networks = "none", tls::parse_networks;
        }
    };
}
