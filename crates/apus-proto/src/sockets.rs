//! The sockets of an endpoint, by handle and by port.

use std::collections::BTreeMap;

use crate::error::OpenError;
use crate::slab::{Slab, SocketKey};
use crate::usage::Usage;

/// First port that is assigned to clients. Ports below are for services.
pub const FIRST_CLIENT_PORT: u16 = 32_768;

#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) port: u16,
    /// The bit of its rule.
    pub(crate) rule: u64,
    /// Charges to the socket's budget.
    pub(crate) usage: Usage,
    /// Part of these bytes for responses that wait for the application.
    pub(crate) undelivered: u64,
    /// Bytes charged to the ends of this socket at other endpoints of the host.
    pub(crate) others: u64,
}

/// A socket that serves a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedBy {
    pub(crate) socket: SocketKey,
    /// The bit of its rule.
    pub(crate) rule: u64,
}

/// The bit of the rule that a socket has at the beginning.
const FIRST_RULE: u64 = 1;

#[derive(Debug)]
pub(crate) struct Sockets {
    slots: Slab<SocketKey, Socket>,
    ports: BTreeMap<u16, SocketKey>,
    /// The socket opened last that serves a port: most nodes have one.
    serves_last: Option<(u16, ServedBy)>,
    next_port: u16,
}

impl Sockets {
    pub(crate) fn new() -> Self {
        let (ports, serves_last) = Default::default();
        Self { slots: Slab::new(), ports, serves_last, next_port: FIRST_CLIENT_PORT }
    }

    pub(crate) fn open(&mut self, port: Option<u16>) -> Result<SocketKey, OpenError> {
        let port = match port {
            Some(port) if !(1..FIRST_CLIENT_PORT).contains(&port) => {
                return Err(OpenError::PortOutOfRange(port));
            }
            Some(port) if self.ports.contains_key(&port) => return Err(OpenError::PortInUse(port)),
            Some(port) => port,
            None => self.free_port().ok_or(OpenError::NoPortLeft)?,
        };
        let usage = Usage::default();
        let rule = FIRST_RULE;
        let socket = self.slots.insert(Socket { port, rule, usage, undelivered: 0, others: 0 });
        self.ports.insert(port, socket);
        if port < FIRST_CLIENT_PORT {
            self.serves_last = Some((port, ServedBy { socket, rule }));
        }
        Ok(socket)
    }

    fn free_port(&mut self) -> Option<u16> {
        for _ in FIRST_CLIENT_PORT..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_CLIENT_PORT);
            if !self.ports.contains_key(&port) {
                return Some(port);
            }
        }
        None
    }

    pub(crate) fn close(&mut self, socket: SocketKey) {
        if let Some(port) = self.port(socket) {
            self.slots.remove(socket);
            self.ports.remove(&port);
            self.serves_last = self.serves_last.filter(|(of_last, _)| *of_last != port);
        }
    }

    pub(crate) fn set_rule(&mut self, socket: SocketKey, rule: u8) {
        let Some(it) = self.slots.get_mut(socket) else { return };
        it.rule = 1 << rule;
        let rule = it.rule;
        if let Some((_, last)) = self.serves_last.as_mut().filter(|(_, it)| it.socket == socket) {
            last.rule = rule;
        }
    }

    #[inline]
    pub(crate) fn get(&self, socket: SocketKey) -> Option<&Socket> {
        self.slots.get(socket)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, socket: SocketKey) -> Option<&mut Socket> {
        self.slots.get_mut(socket)
    }

    #[inline]
    pub(crate) fn port(&self, socket: SocketKey) -> Option<u16> {
        self.get(socket).map(|socket| socket.port)
    }

    /// Returns the lowest open port.
    pub(crate) fn first_port(&self) -> Option<u16> {
        self.ports.keys().next().copied()
    }

    /// Returns the socket that serves a port.
    #[inline]
    pub(crate) fn serves(&self, port: u16) -> Option<ServedBy> {
        match self.serves_last {
            Some((of_last, served)) if of_last == port => Some(served),
            _ => self.find_service(port),
        }
    }

    #[inline(never)]
    fn find_service(&self, port: u16) -> Option<ServedBy> {
        if port >= FIRST_CLIENT_PORT {
            return None;
        }
        let socket = self.ports.get(&port).copied()?;
        Some(ServedBy { socket, rule: self.get(socket)?.rule })
    }
}
