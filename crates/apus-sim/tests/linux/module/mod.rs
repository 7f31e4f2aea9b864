//! The Linux Homa module as a test peer, on a virtual clock.
//!
//! Written from a description of the module of July 2026 and from captures of it, byte by byte and without `apus-wire`, so that an
//! error there does not cancel out here. Defects of the module that show on the wire are kept: first transmissions carry no segment
//! offset, DATA that partly repeats received bytes is dropped, GRANTs are sent after everything was granted, NEED_ACK is sent every
//! millisecond for ever, and clients send no BUSY.
//!
//! The model also checks each packet of a peer more strictly than the module does ([`inspect`]). A packet that the module would not
//! have sent is a complaint ([`Module::complaints`]).
//!
//! | module | contents |
//! |---|---|
//! | `format` | packets as bytes |
//! | [`inspect`] | checks that the module could have sent a packet |
//! | `message` | segmentation and reassembly of messages |
//! | `receive` | handling of arriving packets |
//! | `grants` | grants |
//! | `tick` | the timer that runs every millisecond |

mod format;
mod grants;
pub(crate) mod inspect;
pub(crate) mod message;
mod receive;
pub(crate) mod settings;
mod tick;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use apus_wire::PathId;

use self::format::{Header, Kind};
use self::message::{Incoming, Outgoing};
use self::settings::Settings;

/// The source port of all calls.
const CLIENT_PORT: u16 = 32_768;
/// Upper bound on acknowledgements kept for a peer.
const ACKS: usize = 5;
const PRIORITY_MAX: u8 = 7;
/// The module's table of cutoffs.
const CUTOFFS: [u32; 8] = [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200];
/// Version of the table.
const CUTOFF_VERSION: u16 = 1;
/// Least interval of CUTOFFS packets: one jiffy.
const CUTOFFS_INTERVAL: Duration = Duration::from_millis(4);

/// The output of a host to the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Emitted {
    /// A packet of IP protocol 146.
    Packet {
        /// The destination.
        to: PathId,
        /// The priority level in its TOS byte.
        priority: u8,
        /// The bytes from the start of the Homa header.
        bytes: Vec<u8>,
    },
    /// ICMP port unreachable.
    Unreachable {
        /// The destination.
        to: PathId,
        /// The first 8 bytes of the offending packet.
        head: [u8; 8],
    },
}

/// An event for a host's applications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Happened {
    /// A whole request.
    Request {
        /// The client.
        from: PathId,
        /// The RPC as the server knows it.
        id: u64,
        /// The request.
        body: Vec<u8>,
    },
    /// The response of a call.
    Response {
        /// The call.
        id: u64,
        /// The response.
        body: Vec<u8>,
    },
    /// A call ended with an error.
    Failed {
        /// The call.
        id: u64,
        /// The error's name.
        error: &'static str,
    },
}

/// Counters of packets and reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub(crate) struct Counts {
    /// Packets shorter than their type.
    pub(crate) short: u64,
    /// Packets of an unknown type, or of a type that this build does not have.
    pub(crate) unknown_type: u64,
    /// DATA beyond the end of its message.
    pub(crate) past_end: u64,
    /// DATA that had arrived completely before.
    pub(crate) duplicates: u64,
    /// DATA that had arrived in part before, and was dropped.
    pub(crate) overlaps: u64,
    /// Packets for unknown RPCs.
    pub(crate) unknown_rpc: u64,
    /// RESENDs sent.
    pub(crate) resends: u64,
    /// NEED_ACKs sent.
    pub(crate) need_acks: u64,
    /// GRANTs sent.
    pub(crate) grants: u64,
    /// RPC_UNKNOWNs received for RPCs without a sent RESEND.
    pub(crate) unasked_unknown: u64,
}

/// The active messages, with their remaining bytes when they became active: the module does not update them.
#[derive(Debug, Default)]
struct Grants {
    active: Vec<(Key, u32)>,
    fifo_at: Duration,
}

impl Grants {
    fn forget(&mut self, key: Key) {
        self.active.retain(|(active, _)| *active != key);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Outgoing,
    Incoming,
    InService,
}

#[derive(Debug)]
struct Rpc {
    /// The id in the model's form.
    id: u64,
    peer: PathId,
    local_port: u16,
    peer_port: u16,
    state: State,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// Ticks since the peer's last packet.
    silent: u32,
    /// The tick at which the response was found to be sent.
    sent_at: Option<u64>,
    asked: bool,
}

impl Rpc {
    fn is_client(&self) -> bool {
        self.id & 1 == 0
    }

    fn header(&self, kind: Kind) -> Header {
        Header { source: self.local_port, dest: self.peer_port, kind, id: self.id }
    }
}

/// A client's RPC is found by its id alone, a server's by address and id.
type Key = (Option<PathId>, u64);

#[derive(Debug, Default)]
struct Peer {
    cutoffs: Option<([u32; 8], u16)>,
    cutoffs_sent: Option<Duration>,
    acks: Vec<(u64, u16)>,
}

/// A host with the module.
#[derive(Debug)]
pub(crate) struct Module {
    settings: Settings,
    ports: Vec<u16>,
    rpcs: BTreeMap<Key, Rpc>,
    peers: BTreeMap<PathId, Peer>,
    grants: Grants,
    next_id: u64,
    births: u64,
    ticks: u64,
    emitted: VecDeque<Emitted>,
    happened: VecDeque<Happened>,
    counts: Counts,
    complaints: Vec<String>,
}

impl Module {
    /// A host that has just started, with servers on these ports.
    #[must_use]
    pub(crate) fn new(settings: Settings, ports: &[u16]) -> Self {
        Self {
            settings,
            ports: ports.to_vec(),
            rpcs: BTreeMap::new(),
            peers: BTreeMap::new(),
            grants: Grants::default(),
            next_id: 2,
            births: 0,
            ticks: 0,
            emitted: VecDeque::new(),
            happened: VecDeque::new(),
            counts: Counts::default(),
            complaints: Vec::new(),
        }
    }

    /// `sendmsg` of a request. Returns the RPC's id.
    ///
    /// # Panics
    ///
    /// If the message has no byte or more than [`MESSAGE_MAX`] (`EINVAL`).
    pub(crate) fn call(&mut self, peer: PathId, port: u16, body: Vec<u8>) -> u64 {
        let id = self.next_id;
        self.next_id += 2;
        let outgoing = Outgoing::new(body, &self.settings);
        self.rpcs.insert(
            (None, id),
            Rpc {
                id,
                peer,
                local_port: CLIENT_PORT,
                peer_port: port,
                state: State::Outgoing,
                outgoing: Some(outgoing),
                incoming: None,
                silent: 0,
                sent_at: None,
                asked: false,
            },
        );
        self.transmit((None, id));
        id
    }

    /// `sendmsg` of a response. Does nothing if the RPC is gone, like the module.
    pub(crate) fn reply(&mut self, peer: PathId, id: u64, body: Vec<u8>) {
        let key = (Some(peer), id);
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        assert_eq!(rpc.state, State::InService, "EINVAL: the request is not in service");
        rpc.state = State::Outgoing;
        rpc.outgoing = Some(Outgoing::new(body, &self.settings));
        self.transmit(key);
    }

    /// The next packet for the network.
    pub(crate) fn poll_emitted(&mut self) -> Option<Emitted> {
        self.emitted.pop_front()
    }

    /// The next event for the applications.
    pub(crate) fn poll_happened(&mut self) -> Option<Happened> {
        self.happened.pop_front()
    }

    /// All counters.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Complaints about packets that the module would not have sent.
    #[must_use]
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Number of unfinished RPCs of both roles.
    #[must_use]
    pub(crate) fn rpcs(&self) -> usize {
        self.rpcs.len()
    }

    fn packet(&mut self, to: PathId, priority: u8, bytes: Vec<u8>) {
        self.emitted.push_back(Emitted::Packet { to, priority, bytes });
    }

    fn control(&mut self, to: PathId, header: Header, body: &[u8]) {
        self.packet(to, PRIORITY_MAX, header.control(body));
    }

    /// Requests the retransmission of a range; with `None`, of everything.
    fn resend(&mut self, key: Key, range: Option<(u32, u32)>, priority: u8) {
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        rpc.asked = true;
        let (peer, header) = (rpc.peer, rpc.header(Kind::Resend));
        self.counts.resends += 1;
        let (offset, length) = range.map_or((0, u32::MAX), |(start, end)| (start, end - start));
        let mut body = [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat();
        if !self.settings.stripped {
            body.push(priority);
        }
        self.control(peer, header, &body);
    }

    /// Requests the retransmission of every gap and of the granted rest.
    fn request_retransmission(&mut self, key: Key) {
        let Some(rpc) = self.rpcs.get(&key) else { return };
        let ranges = match &rpc.incoming {
            None => vec![None],
            Some(message) => message.missing().into_iter().map(Some).collect(),
        };
        for range in ranges {
            self.resend(key, range, PRIORITY_MAX);
        }
    }

    /// Sends the granted packets that were not sent.
    fn transmit(&mut self, key: Key) {
        loop {
            let Some(rpc) = self.rpcs.get_mut(&key) else { return };
            let (peer, header) = (rpc.peer, rpc.header(Kind::Data));
            let Some(message) = &mut rpc.outgoing else { return };
            let Some((start, end)) = message.next() else { return };
            let known = self.peers.entry(peer).or_default();
            let priority = if start < message.unscheduled {
                unscheduled_priority(known.cutoffs.as_ref(), message.length())
            } else {
                message.scheduled_priority
            };
            let ack = known.acks.pop().unwrap_or_default();
            let incoming = if self.settings.stripped { 0 } else { message.unscheduled };
            let data = format::Data {
                length: message.length(),
                incoming,
                ack,
                version: known.version(self.settings.stripped),
                retransmit: false,
                offset: start,
                // The stripped build does not rely on the receiver's GRO.
                explicit: self.settings.stripped,
            };
            let bytes = header.data(&data, &message.body[start as usize..end as usize]);
            self.packet(peer, priority, bytes);
        }
    }

    /// Retransmits the original packets that overlap a range.
    fn retransmit(&mut self, key: Key, range: (u32, u32), priority: u8) {
        let Some(rpc) = self.rpcs.get(&key) else { return };
        let (peer, header) = (rpc.peer, rpc.header(Kind::Data));
        let Some(message) = &rpc.outgoing else { return };
        let version = self.peers.entry(peer).or_default().version(self.settings.stripped);
        let again: Vec<_> = message.overlapping(range).collect();
        let packets: Vec<_> = again
            .into_iter()
            .map(|(start, end)| {
                let data = format::Data {
                    length: message.length(),
                    incoming: if self.settings.stripped { 0 } else { range.1.min(message.sent()) },
                    ack: (0, 0),
                    version,
                    retransmit: true,
                    offset: start,
                    explicit: true,
                };
                header.data(&data, &message.body[start as usize..end as usize])
            })
            .collect();
        for bytes in packets {
            self.packet(peer, priority, bytes);
        }
    }

    /// Ends an RPC.
    fn end(&mut self, key: Key) -> Option<Rpc> {
        self.grants.forget(key);
        self.rpcs.remove(&key)
    }
}

impl Peer {
    fn version(&self, stripped: bool) -> u16 {
        if stripped { 0 } else { self.cutoffs.map_or(0, |(_, version)| version) }
    }
}

/// The highest level whose cutoff the message does not exceed; 6 if the cutoffs are unknown.
fn unscheduled_priority(known: Option<&([u32; 8], u16)>, length: u32) -> u8 {
    match known {
        None => 6,
        Some((table, _)) => (1..8).rev().find(|&level| table[level] >= length).unwrap_or(0) as u8,
    }
}
