//! The Linux Homa module as a test peer: what it sends, what it takes and what it drops, on a virtual clock.
//!
//! Written from a description of the module of July 2026 and from captures of it, byte by byte and without `apus-wire`, so that an
//! error there does not cancel out here. Its defects are kept where they show on the wire: first transmissions carry no segment
//! offset, DATA that partly repeats what is there is dropped, GRANTs are sent after everything was granted, NEED_ACK comes every
//! millisecond for ever, and its clients do not say BUSY.
//!
//! Everything a peer sends is also looked at more strictly than the module does ([`inspect`]); what it would not have sent itself
//! is a complaint ([`Module::complaints`]).
//!
//! | module | what |
//! |---|---|
//! | `format` | bytes of packets |
//! | [`inspect`] | what the module would have sent |
//! | `message` | cutting messages up and putting them together |
//! | `receive` | what arrives |
//! | `grants` | who may send |
//! | `tick` | what happens every millisecond |

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

/// The port all calls come from.
const CLIENT_PORT: u16 = 32_768;
/// Acknowledgements kept for a peer.
const ACKS: usize = 5;
const PRIORITY_MAX: u8 = 7;
/// The module's table of cutoffs, and its version.
const CUTOFFS: [u32; 8] = [0, 0, 0, 0, 1_000_000, 15_000, 2_800, 200];
const CUTOFF_VERSION: u16 = 1;
/// One CUTOFFS a jiffy.
const CUTOFFS_INTERVAL: Duration = Duration::from_millis(4);

/// What a host puts on the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Emitted {
    /// A packet of IP protocol 146.
    Packet {
        /// To whom.
        to: PathId,
        /// The priority level in its TOS byte.
        priority: u8,
        /// From the first byte of the Homa header on.
        bytes: Vec<u8>,
    },
    /// ICMP port unreachable.
    Unreachable {
        /// To whom.
        to: PathId,
        /// The first 8 bytes of the packet it is about.
        head: [u8; 8],
    },
}

/// What a host tells its applications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Happened {
    /// A whole request.
    Request {
        /// Who asks.
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

/// What was counted, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub(crate) struct Counts {
    /// Packets shorter than their type.
    pub(crate) short: u64,
    /// Packets of no type, or of one this build does not know.
    pub(crate) unknown_type: u64,
    /// DATA beyond the end of its message.
    pub(crate) past_end: u64,
    /// DATA all of which was there.
    pub(crate) duplicates: u64,
    /// DATA of which a part was there: dropped.
    pub(crate) overlaps: u64,
    /// Packets for RPCs that are not known.
    pub(crate) unknown_rpc: u64,
    /// RESENDs sent.
    pub(crate) resends: u64,
    /// NEED_ACKs sent.
    pub(crate) need_acks: u64,
    /// GRANTs sent.
    pub(crate) grants: u64,
    /// RPC_UNKNOWNs received although no RESEND was sent for the RPC.
    pub(crate) unasked_unknown: u64,
}

/// The active messages, with the bytes they had left when they became so: the module does not update that.
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
    /// In our form.
    id: u64,
    peer: PathId,
    local_port: u16,
    peer_port: u16,
    state: State,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// Ticks without a sign of life.
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

/// Clients' RPCs are found by their id alone, servers' by address and id.
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

    /// `sendmsg` of a request; returns the RPC's id.
    ///
    /// # Panics
    ///
    /// When the message has no byte or more than [`MESSAGE_MAX`] (`EINVAL`).
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

    /// `sendmsg` of a response. Silent when the RPC is gone, as the module is.
    pub(crate) fn reply(&mut self, peer: PathId, id: u64, body: Vec<u8>) {
        let key = (Some(peer), id);
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        assert_eq!(rpc.state, State::InService, "EINVAL: the request is not in service");
        rpc.state = State::Outgoing;
        rpc.outgoing = Some(Outgoing::new(body, &self.settings));
        self.transmit(key);
    }

    /// What was put on the network since the last time.
    pub(crate) fn poll_emitted(&mut self) -> Option<Emitted> {
        self.emitted.pop_front()
    }

    /// What happened since the last time.
    pub(crate) fn poll_happened(&mut self) -> Option<Happened> {
        self.happened.pop_front()
    }

    /// Everything counted.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// What a peer sent that the module would not have.
    #[must_use]
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// RPCs of both roles that have not ended.
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

    /// Asks for a range again; `None` for everything.
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

    /// Asks for every gap and for the granted rest.
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

    /// Sends what is granted and was not sent.
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
                // Where the module relies on the receiver's GRO.
                explicit: self.settings.stripped,
            };
            let bytes = header.data(&data, &message.body[start as usize..end as usize]);
            self.packet(peer, priority, bytes);
        }
    }

    /// Sends original packets again that overlap a range.
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

    /// An RPC ends.
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

/// From the most urgent level down, the first whose cutoff the message does not exceed; 6 where nothing is known.
fn unscheduled_priority(known: Option<&([u32; 8], u16)>, length: u32) -> u8 {
    match known {
        None => 6,
        Some((table, _)) => (1..8).rev().find(|&level| table[level] >= length).unwrap_or(0) as u8,
    }
}
