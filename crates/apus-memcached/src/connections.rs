//! The connections of one thread, with an epoll set, and the choice among them.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;

use super::answer::Answer;
use super::connection::{Bytes, Connection, Query};
use super::protocol::Protocol;
use super::records::Records;
use super::server::ServerAddress;
use super::stamps::Stamps;

/// Upper bound on events of one `epoll_wait`.
const EVENTS: usize = 64;

/// Number of connections with the oldest requests that a spinning thread reads directly, without epoll.
const DIRECT_READS: usize = 4;

/// Interval, in turns of a spinning thread, at which it polls epoll in any case: only epoll reports connections that end.
const EPOLL_EVERY: u32 = 64;

/// Upper bound on bytes of one read.
const READ_SIZE: usize = 64 << 10;

/// Connections to one server.
pub(super) struct Connections {
    server: ServerAddress,
    pub(super) records: Arc<Records>,
    epoll: Epoll,
    list: Vec<PooledConnection>,
    /// Upper bound on outstanding requests of a connection.
    depth: usize,
    /// Connections with room: number of outstanding requests, the change that led to this number, index in the list. The first
    /// connection has the fewest requests, and among those has had them for longest.
    order: BTreeSet<(usize, u64, usize)>,
    /// Number of changes of that order.
    changes: u64,
    outstanding: usize,
    /// Indices of connections with outstanding requests, in the order of their first writes.
    awaited: VecDeque<usize>,
    /// Turns since epoll was last polled.
    turns: u32,
    /// Number of connections registered for writability.
    full: usize,
    /// Indices of connections with queued requests.
    queued: Vec<usize>,
    scratch: Vec<u8>,
    /// Present if the kernel stamps packets.
    stamps: Option<Stamps>,
    /// Requests that were alone on their connection, each with the time between its packet and its answer's.
    pub(super) stamped: Vec<(Query, Duration)>,
}

/// A connection of the pool, with its place in the orders.
struct PooledConnection {
    connection: Connection,
    /// The change that led to its number of outstanding requests.
    since: u64,
    /// Whether it is among those with queued requests.
    is_queued: bool,
    /// Whether it is registered for writability because the socket buffer was full.
    waits_for_room: bool,
}

impl Connections {
    /// Opens `count` connections with at most `depth` outstanding requests each.
    ///
    /// # Errors
    /// If the kernel or the server refuses.
    pub(super) fn open(
        server: &ServerAddress,
        protocol: Protocol,
        count: u32,
        depth: u32,
        records: &Arc<Records>,
    ) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")?;
        let (mut list, mut order) = (Vec::new(), BTreeSet::new());
        for number in 0..count as usize {
            let socket = server.connect()?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
            epoll.add(&socket, event).context("epoll_ctl")?;
            order.insert((0, number as u64, number));
            list.push(PooledConnection {
                connection: Connection::new(socket, protocol),
                since: number as u64,
                is_queued: false,
                waits_for_room: false,
            });
        }
        Ok(Self {
            server: server.clone(),
            records: Arc::clone(records),
            epoll,
            list,
            depth: depth as usize,
            order,
            changes: count.into(),
            outstanding: 0,
            awaited: VecDeque::new(),
            turns: 0,
            full: 0,
            queued: Vec::new(),
            scratch: vec![0; READ_SIZE],
            stamps: None,
            stamped: Vec::new(),
        })
    }

    /// Makes the kernel stamp the packets of all connections.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn stamp(&mut self) -> Result<()> {
        for pooled in &self.list {
            Stamps::turn_on(&pooled.connection.socket).context("SO_TIMESTAMPING")?;
        }
        self.stamps = Some(Stamps::new());
        Ok(())
    }

    /// Whether a connection has room for a request.
    pub(super) fn has_room(&self) -> bool {
        !self.order.is_empty()
    }

    /// Number of outstanding requests.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The outstanding requests.
    pub(super) fn queries(&self) -> impl Iterator<Item = Query> {
        self.list.iter().flat_map(|pooled| pooled.connection.outstanding())
    }

    /// Bytes written and read since the start.
    pub(super) fn bytes(&self) -> Bytes {
        self.list.iter().fold(Bytes::default(), |sum, pooled| Bytes {
            sent: sum.sent + pooled.connection.bytes.sent,
            received: sum.received + pooled.connection.bytes.received,
        })
    }

    /// Queues a request on the connection with the fewest outstanding requests. Returns `false` if none has room.
    /// [`flush`](Self::flush) writes it.
    pub(super) fn send(&mut self, query: Query) -> bool {
        let Some((_, _, number)) = self.order.pop_first() else { return false };
        let pooled = &mut self.list[number];
        pooled.connection.push(query, &self.records);
        if pooled.connection.outstanding().len() == 1 {
            self.awaited.push_back(number);
        }
        if !pooled.is_queued && !pooled.waits_for_room {
            pooled.is_queued = true;
            self.queued.push(number);
        }
        self.outstanding += 1;
        self.put_in_order(number);
        true
    }

    /// Writes queued requests, as far as the sockets accept them.
    ///
    /// # Errors
    /// If a connection is broken.
    pub(super) fn flush(&mut self) -> Result<()> {
        while let Some(number) = self.queued.pop() {
            self.list[number].is_queued = false;
            self.write(number)?;
        }
        Ok(())
    }

    /// Waits at most `timeout` for answers, and calls `each` for every answer. Returns whether there were any events.
    ///
    /// # Errors
    /// If a connection is broken, or bytes are not an answer.
    pub(super) fn receive(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(Query, Answer),
    ) -> Result<bool> {
        if !timeout.is_zero() {
            // `ppoll` counts in nanoseconds, `epoll_wait` in milliseconds.
            let mut ready = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut ready, Some(TimeSpec::from_duration(timeout)), None) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("ppoll"),
            }
        }
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            ready => ready.context("epoll_wait")?,
        };
        for event in &events[..ready] {
            let number = event.data() as usize;
            if event.events().contains(EpollFlags::EPOLLOUT) {
                self.write(number)?;
            }
            self.read(number, &mut each)?;
        }
        Ok(ready > 0)
    }

    /// Takes available answers like [`receive`](Self::receive) without a timeout, but polls epoll only if more than a few
    /// connections can have answers. A poll of epoll takes microseconds, in which an available answer waits.
    ///
    /// # Errors
    /// The errors of [`receive`](Self::receive).
    pub(super) fn take(&mut self, mut each: impl FnMut(Query, Answer)) -> Result<bool> {
        let before = self.outstanding;
        for index in (0..self.awaited.len().min(DIRECT_READS)).rev() {
            self.read(self.awaited[index], &mut each)?;
        }
        if self.outstanding < before {
            return Ok(true);
        }
        self.turns += 1;
        if self.awaited.len() <= DIRECT_READS && self.full == 0 && self.turns < EPOLL_EVERY {
            return Ok(false);
        }
        self.turns = 0;
        self.receive(Duration::ZERO, each)
    }

    fn read(&mut self, number: usize, each: &mut impl FnMut(Query, Answer)) -> Result<()> {
        let pooled = &mut self.list[number];
        let before = pooled.connection.outstanding().len();
        let mut answered = None;
        let note = |query, answer| {
            answered = Some(query);
            each(query, answer);
        };
        pooled
            .connection
            .read(&self.records, &mut self.scratch, self.stamps.as_mut(), note)
            .with_context(|| format!("server {}", self.server))?;
        let after = pooled.connection.outstanding().len();
        if let (Some(stamps), Some(query)) = (&mut self.stamps, answered) {
            let between = stamps.between(&pooled.connection.socket);
            let alone = between.filter(|_| before == 1 && after == 0);
            self.stamped.extend(alone.map(|time| (query, time)));
        }
        if after != before {
            self.order.remove(&(before, pooled.since, number));
            self.outstanding -= before - after;
            if after == 0 {
                self.awaited.retain(|it| *it != number);
            }
            self.put_in_order(number);
        }
        Ok(())
    }

    /// Adds a connection to the order after its number of outstanding requests has changed.
    fn put_in_order(&mut self, number: usize) {
        let pooled = &mut self.list[number];
        let outstanding = pooled.connection.outstanding().len();
        self.changes += 1;
        pooled.since = self.changes;
        if outstanding < self.depth {
            self.order.insert((outstanding, pooled.since, number));
        }
    }

    /// Writes, and registers for writability if the socket is full.
    fn write(&mut self, number: usize) -> Result<()> {
        let pooled = &mut self.list[number];
        let written = pooled.connection.write();
        let waits = !written.with_context(|| format!("server {}", self.server))?;
        if waits != pooled.waits_for_room {
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN | room, number as u64);
            self.epoll.modify(&pooled.connection.socket, &mut event).context("epoll_ctl")?;
            pooled.waits_for_room = waits;
            self.full = if waits { self.full + 1 } else { self.full - 1 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::super::answer::Operation;
    use super::super::records::Length;
    use super::*;

    /// Two connections of depth 2, and the server's ends of them.
    fn two(test: &str) -> (Connections, [UnixStream; 2]) {
        let name = format!("apus-connections-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let records = Arc::new(Records::new(10, Length::Fixed(3), Length::Fixed(5)));
        let server = ServerAddress::Unix(path.clone());
        let connections = Connections::open(&server, Protocol::Text, 2, 2, &records).unwrap();
        std::fs::remove_file(path).unwrap();
        (connections, [(); 2].map(|()| listener.accept().unwrap().0))
    }

    fn get(record: u32) -> Query {
        Query { operation: Operation::Get, record, due_ns: 0 }
    }

    #[test]
    fn requests_go_where_the_fewest_are_outstanding() {
        let (mut connections, mut servers) = two("fewest");
        assert!((0..4).all(|record| connections.send(get(record))));
        assert!(!connections.has_room() && !connections.send(get(4)));
        connections.flush().unwrap();
        let mut bytes = [0; 18];
        for (server, asked) in
            servers.iter_mut().zip([b"get 000\r\nget 002\r\n", b"get 001\r\nget 003\r\n"])
        {
            server.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, asked);
        }
        servers[1].write_all(b"END\r\nEND\r\n").unwrap();
        let mut answered = Vec::new();
        let note = |query: Query, _| answered.push(query.record);
        assert!(connections.receive(Duration::from_secs(60), note).unwrap());
        assert_eq!(answered, [1, 3]);
        assert_eq!(connections.outstanding(), 2);
        assert_eq!(connections.queries().map(|query| query.record).collect::<Vec<_>>(), [0, 2]);
        assert!((5..7).all(|record| connections.send(get(record))));
        assert!(!connections.has_room());
        connections.flush().unwrap();
        servers[1].read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"get 005\r\nget 006\r\n");
    }

    #[test]
    fn answers_are_taken_without_epoll_and_an_end_is_seen_with_it() {
        let (mut connections, mut servers) = two("direct");
        assert!(!connections.take(|_, _| {}).unwrap());
        assert!((0..3).all(|record| connections.send(get(record))));
        connections.flush().unwrap();
        servers[1].write_all(b"END\r\n").unwrap();
        let mut answered = Vec::new();
        assert!(connections.take(|query, _| answered.push(query.record)).unwrap());
        servers[0].write_all(b"END\r\nEND\r\n").unwrap();
        assert!(connections.take(|query, _| answered.push(query.record)).unwrap());
        assert_eq!((answered, connections.awaited.len()), (vec![1, 0, 2], 0));
        drop(servers);
        let ended = (0..=EPOLL_EVERY).find_map(|_| connections.take(|_, _| {}).err());
        assert!(ended.is_some(), "epoll was not polled");
    }
}
