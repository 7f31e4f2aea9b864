//! Budgets: limits of the bytes kept for other nodes, and the room left in each of them (rules `hostile-1`, `hostile-7` and
//! `hostile-8` of docs/protocol.md).
//!
//! Received and granted bytes are charged, not the length that a first packet claims. So more messages may begin to arrive than fit
//! in the end. The rest of the longest arriving message is reserved, so that these messages never wait for each other's room.

use crate::config::Config;
use crate::hosts::{HostKey, Hosts};
use crate::peer::Peer;
use crate::rpc::Rpc;
use crate::rpcs::Rpcs;
use crate::slab::{RpcKey, SocketKey};
use crate::sockets::{Socket, Sockets};
use crate::usage::{Account, Change, Charge, RPC_BYTES, Usage};

/// Reciprocal of the part of the socket's and of the total budget that only responses to own calls may use.
const OWN_PART: u64 = 8;

/// Reciprocal of the part of the total budget that all unconfirmed clients share.
const UNCONFIRMED_PART: u64 = 8;

/// Charges to the total budget.
#[derive(Debug, Default)]
pub(crate) struct Total {
    pub(crate) usage: Usage,
    /// Charges to hosts with several peers.
    pub(crate) hosts: Hosts,
    /// Bytes charged for unconfirmed clients.
    unconfirmed: u64,
}

impl Total {
    /// Returns whether `bytes` more for a peer and a socket fit each budget amply. This check takes a few instructions and nearly
    /// always succeeds.
    #[inline]
    pub(crate) fn has_plenty(
        &self,
        config: &Config,
        peer: &Peer,
        socket: Option<&Socket>,
        others: u64,
        bytes: u64,
    ) -> bool {
        let Config { peer_budget, socket_budget, total_budget, .. } = *config;
        peer.is_confirmed()
            && peer.usage.has_plenty(bytes, 0, peer_budget)
            && peer.host.is_none_or(|host| self.hosts.usage(host).has_plenty(bytes, 0, peer_budget))
            && self.usage.has_plenty(bytes, others, total_budget)
            && socket
                .is_none_or(|socket| socket.usage.has_plenty(bytes, socket.others, socket_budget))
    }

    /// Returns the bytes for which [`has_plenty`](Self::has_plenty) is true: 0 for an unconfirmed peer.
    pub(crate) fn plenty(
        &self,
        config: &Config,
        peer: &Peer,
        socket: Option<&Socket>,
        others: u64,
    ) -> u64 {
        let Config { peer_budget, socket_budget, total_budget, .. } = *config;
        if !peer.is_confirmed() {
            return 0;
        }
        let of_host = peer.host.map(|host| self.hosts.usage(host).plenty(0, peer_budget));
        let of_socket = socket.map(|socket| socket.usage.plenty(socket.others, socket_budget));
        let shared = of_host.into_iter().chain(of_socket).min().unwrap_or(u64::MAX);
        peer.usage.plenty(0, peer_budget).min(self.usage.plenty(others, total_budget)).min(shared)
    }

    /// Removes the charge of an RPC, or of several, from the pool of unconfirmed clients.
    pub(crate) fn end_unconfirmed(&mut self, charge: Charge) {
        if charge.unconfirmed {
            self.unconfirmed -= charge.bytes;
        }
    }

    /// Charges `bytes` for an RPC that begins, to each of its budgets, `ours` of them for a message of this node.
    #[inline(always)]
    pub(crate) fn charge_new(
        &mut self,
        account: Account,
        (bytes, ours): (u64, u64),
        peer: &mut Peer,
        socket: Option<&mut Socket>,
    ) -> Charge {
        let unconfirmed = !peer.is_confirmed();
        let charge = Charge { bytes, ours, unconfirmed };
        self.apply(Change::new(Charge::default(), charge, account), peer, socket);
        if unconfirmed {
            self.unconfirmed += bytes;
        }
        charge
    }

    /// Charges `bytes` for an RPC to each of its budgets, in place of its earlier charge.
    #[inline(always)]
    pub(crate) fn charge(
        &mut self,
        rpc: &mut Rpc,
        bytes: u64,
        peer: &mut Peer,
        socket: Option<&mut Socket>,
    ) {
        let ours = rpc.outgoing().map_or(0, |message| RPC_BYTES + u64::from(message.length()));
        let before = rpc.charge;
        let unconfirmed = !peer.is_confirmed();
        rpc.charge = Charge { bytes, ours, unconfirmed };
        self.apply(Change::new(before, rpc.charge, rpc.account()), peer, socket);
        if before.unconfirmed || unconfirmed {
            self.unconfirmed -= if before.unconfirmed { before.bytes } else { 0 };
            self.unconfirmed += if unconfirmed { bytes } else { 0 };
        }
    }

    /// Removes all charges for an RPC.
    #[inline(always)]
    pub(crate) fn discharge(
        &mut self,
        rpc: &mut Rpc,
        peer: &mut Peer,
        socket: Option<&mut Socket>,
    ) {
        let before = std::mem::take(&mut rpc.charge);
        self.apply(Change::new(before, Charge::default(), rpc.account()), peer, socket);
        if before.unconfirmed {
            self.unconfirmed -= before.bytes;
        }
    }

    /// Applies a change to each of the budgets.
    #[inline(always)]
    pub(crate) fn apply(&mut self, change: Change, peer: &mut Peer, socket: Option<&mut Socket>) {
        change.apply(&mut peer.usage);
        if let Some(socket) = socket {
            change.apply(&mut socket.usage);
        }
        change.apply(&mut self.usage);
        if let Some(host) = peer.host {
            self.apply_to_host(host, change);
        }
    }

    /// Applies the change to the host of a peer that is not its only one.
    #[cold]
    #[inline(never)]
    fn apply_to_host(&mut self, host: HostKey, change: Change) {
        if change.is_for_others() {
            change.apply(self.hosts.usage_mut(host));
        }
    }
}

/// Inputs of the budgets other than the peer.
#[derive(Clone, Copy)]
pub(crate) struct Books<'a> {
    pub(crate) config: &'a Config,
    pub(crate) rpcs: &'a Rpcs,
    pub(crate) sockets: &'a Sockets,
    pub(crate) total: &'a Total,
    /// Bytes charged by the other endpoints of the host.
    pub(crate) others: u64,
}

/// One budget, and the charges to it.
#[derive(Clone, Copy)]
struct Budget<'a> {
    all: u64,
    /// Part of the budget that requests of others may use, in bytes.
    theirs: u64,
    others: u64,
    usage: &'a Usage,
    /// Outgoing bytes that count against arriving messages, for each account.
    counted: [u64; 2],
}

impl Budget<'_> {
    /// Returns the charged bytes that count against an arriving message, which has `longest` bytes if no other one is longer.
    fn taken(&self, longest: u32) -> u64 {
        let ours: u64 = self.usage.ours.iter().sum();
        let counted: u64 = self.counted.iter().sum();
        let counted = counted.min(self.counted_max(self.all, longest));
        self.others + self.usage.charged.saturating_sub(ours) + counted
    }

    /// Returns the part of these bytes for requests of others and their responses.
    fn taken_by_others(&self, longest: u32) -> u64 {
        let theirs = Account::Theirs as usize;
        let counted = self.counted[theirs].min(self.counted_max(self.theirs, longest));
        self.others + self.usage.theirs.saturating_sub(self.usage.ours[theirs]) + counted
    }

    /// Returns the upper bound on the outgoing bytes that count. A message of half the budget, and the longest one in any case, fits
    /// beside them, so that two nodes never wait for each other's room.
    fn counted_max(&self, budget: u64, longest: u32) -> u64 {
        //= docs/protocol.md#hostile-9
        let beside = budget.saturating_sub(longest.into()).min(self.all / 2);
        beside.saturating_sub(2 * RPC_BYTES)
    }
}

/// Room for further charges for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// The message that the room is kept for in the tightest budget, if it is another one.
    pub(crate) kept_for: Option<RpcKey>,
}

impl Room {
    pub(crate) const NONE: Self = Self { bytes: 0, kept_for: None };

    fn least(self, other: Self) -> Self {
        if other.bytes < self.bytes { other } else { self }
    }
}

impl<'a> Books<'a> {
    /// Returns the room for further charges for an RPC, or for a new one, whose message has `length` bytes.
    pub(crate) fn room(
        &self,
        peer: &Peer,
        socket: SocketKey,
        account: Account,
        (rpc, length): (Option<RpcKey>, u32),
    ) -> Room {
        //= docs/protocol.md#hostile-1
        let budgets = self.budgets(peer, socket, account).into_iter().flatten();
        let rooms = budgets.map(|budget| self.left(budget, account, (rpc, length)));
        let room = rooms.reduce(Room::least).unwrap_or(Room::NONE);
        let exempt = rpc.is_some_and(|rpc| self.total.usage.is_longest(account, rpc));
        if peer.is_confirmed() || exempt {
            return room;
        }
        room.least(Room {
            bytes: self.pool().saturating_sub(self.total.unconfirmed),
            kept_for: None,
        })
    }

    /// Returns whether a new message of `length` bytes may begin to arrive. `unasked` bytes of it may arrive without a grant.
    pub(crate) fn admits(
        &self,
        peer: &Peer,
        socket: SocketKey,
        account: Account,
        length: u32,
        unasked: u32,
    ) -> bool {
        let fits = |budget: Budget<'_>| {
            //= docs/protocol.md#hostile-7
            let longest = budget.usage.longest(account);
            let rest = longest.filter(|&(longest, _)| longest >= length);
            let (bytes, longest) = if rest.is_some() { (unasked, 0) } else { (length, length) };
            let needed = u64::from(bytes) + RPC_BYTES;
            let kept = rest.map_or(0, |rest| self.rest(rest));
            let other = budget.usage.longest(account.other()).map_or(0, |rest| self.rest(rest));
            budget.taken(longest) + kept + other + needed <= budget.all
                && (account == Account::Own
                    || budget.taken_by_others(longest) + kept + needed <= budget.theirs)
        };
        let cost = RPC_BYTES + u64::from(length);
        self.budgets(peer, socket, account).into_iter().flatten().all(fits)
            && (peer.is_confirmed() || self.total.unconfirmed + cost <= self.pool())
    }

    /// Returns the room for an outgoing message whose charge replaces `before`.
    pub(crate) fn room_to_send(
        &self,
        peer: &Peer,
        socket: SocketKey,
        account: Account,
        before: u64,
    ) -> u64 {
        //= docs/protocol.md#hostile-9
        let room = |budget: Budget<'_>| {
            let ours = budget.usage.ours[account as usize];
            if ours == 0 {
                return u64::MAX;
            }
            let half = (budget.all / 2).saturating_sub(ours);
            half.min(self.left(budget, account, (None, 0)).bytes + before)
        };
        self.budgets(peer, socket, account).into_iter().flatten().map(room).min().unwrap_or(0)
    }

    /// Returns for each budget (the peer's, the host's, the socket's and the total one) whether an outgoing message with a charge of
    /// `ours` bytes has no room there, and is charged nevertheless, as the only one of its kind.
    pub(crate) fn without_room(
        &self,
        peer: &Peer,
        socket: SocketKey,
        account: Account,
        ours: u64,
    ) -> [bool; 4] {
        //= docs/protocol.md#hostile-9
        let is_full = |budget: Budget<'_>| {
            let longest = [account, account.other()].map(|account| budget.usage.longest(account));
            let [same, other] = longest.map(|message| message.map_or(0, |it| self.rest(it)));
            budget.taken(0) + same + other > budget.all
                || account == Account::Theirs && budget.taken_by_others(0) + same > budget.theirs
        };
        let is_only = |budget: Budget<'_>| budget.usage.ours[account as usize] == ours;
        let budgets = self.budgets(peer, socket, account);
        budgets.map(|budget| budget.is_some_and(|budget| is_only(budget) && is_full(budget)))
    }

    fn budgets(
        &self,
        peer: &'a Peer,
        socket: SocketKey,
        account: Account,
    ) -> [Option<Budget<'a>>; 4] {
        let Config { peer_budget, socket_budget, total_budget, .. } = *self.config;
        let budget = |usage, all, theirs, others| Budget {
            all,
            theirs,
            others,
            usage,
            counted: [Account::Own, Account::Theirs].map(|account| self.counted(usage, account)),
        };
        let of_peer = budget(&peer.usage, peer_budget, peer_budget, 0);
        //= docs/protocol.md#hostile-12
        let host = peer.host.filter(|_| account == Account::Theirs);
        let of_host =
            host.map(|host| budget(self.total.hosts.usage(host), peer_budget, peer_budget, 0));
        let of_socket = self.sockets.get(socket).map(|socket| {
            budget(&socket.usage, socket_budget, for_others(socket_budget), socket.others)
        });
        //= docs/protocol.md#host-4
        let theirs = for_others(total_budget);
        let of_all = budget(&self.total.usage, total_budget, theirs, self.others);
        [Some(of_peer), of_host, of_socket, Some(of_all)]
    }

    /// Returns the outgoing bytes of an account that count against arriving messages.
    fn counted(&self, usage: &Usage, account: Account) -> u64 {
        //= docs/protocol.md#hostile-9
        let exempt = usage.exempt[account as usize].and_then(|key| self.rpcs.get(key));
        let exempt = exempt.filter(|rpc| rpc.account() == account).map_or(0, |rpc| rpc.charge.ours);
        usage.ours[account as usize].saturating_sub(exempt)
    }

    fn left(
        &self,
        budget: Budget<'_>,
        account: Account,
        (rpc, length): (Option<RpcKey>, u32),
    ) -> Room {
        //= docs/protocol.md#hostile-7
        let longest = budget.usage.longest(account);
        let same = longest.filter(|&(_, longest)| rpc != Some(longest));
        let other = budget.usage.longest(account.other());
        let longest = if same.is_none_or(|(longest, _)| longest < length) { length } else { 0 };
        let rest = |message: Option<_>| message.map_or(0, |message| self.rest(message));
        let of_all = budget.all.saturating_sub(budget.taken(longest) + rest(same) + rest(other));
        //= docs/protocol.md#hostile-8
        let taken_by_others = budget.taken_by_others(longest) + rest(same);
        let of_theirs = budget.theirs.saturating_sub(taken_by_others);
        let bytes = if account == Account::Own { of_all } else { of_all.min(of_theirs) };
        Room { bytes, kept_for: same.or(other).map(|(_, longest)| longest) }
    }

    /// Returns the uncharged bytes of an arriving message.
    fn rest(&self, (length, rpc): (u32, RpcKey)) -> u64 {
        let message = self.rpcs.get(rpc).and_then(|rpc| rpc.incoming());
        u64::from(length.saturating_sub(message.map_or(0, |message| message.charged)))
    }

    /// Returns the bytes that the total budget keeps free.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved_of(&self.total.usage)
    }

    pub(crate) fn reserved_of(&self, usage: &Usage) -> u64 {
        let longest = [Account::Own, Account::Theirs].map(|account| usage.longest(account));
        longest.into_iter().flatten().map(|message| self.rest(message)).sum()
    }

    fn pool(&self) -> u64 {
        self.config.total_budget / UNCONFIRMED_PART
    }
}

/// Returns the part of a budget that requests of others may use.
pub(crate) fn for_others(budget: u64) -> u64 {
    budget - budget / OWN_PART
}

impl Config {
    /// Returns the bytes that requests may use of the smallest budget. A longer request never fits.
    pub(crate) fn least_budget(&self) -> u64 {
        let shared = self.socket_budget.min(self.total_budget);
        self.peer_budget.min(for_others(shared))
    }
}
