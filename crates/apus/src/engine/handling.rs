//! Sockets whose messages a handler takes when they arrive.

use std::sync::Arc;

use apus_proto::{SocketKey, Time};

use super::{Engine, Handler, Next};
use crate::sync::clock;

impl Engine {
    /// Registers a handler for the messages of a socket.
    pub(crate) fn add_handler(&mut self, socket: SocketKey, handler: Arc<dyn Handler>) {
        self.mail.hand_to_handler(socket);
        self.handlers.insert(socket, handler);
    }

    /// Runs handlers that have messages or are due, and transmits their packets.
    #[inline]
    pub(super) fn run_handlers(&mut self, now: Time) {
        let is_due = self.handlers.due().is_some_and(|due| due <= now);
        if self.mail.has_handled() || is_due {
            self.run_due_handlers(now, is_due);
        }
    }

    fn run_due_handlers(&mut self, now: Time, is_due: bool) {
        while let Some(socket) = self.mail.take_handled() {
            self.run_handler(socket, now);
        }
        if is_due {
            for socket in self.handlers.take_due(now) {
                self.run_handler(socket, now);
            }
        }
        self.transmit(now);
    }

    /// Runs the handler of a socket. Nothing is transmitted yet.
    pub(crate) fn run_handler(&mut self, socket: SocketKey, now: Time) {
        let Some(handler) = self.handlers.find(socket) else { return };
        match handler.handle(self, now) {
            Next::At(due) => self.handlers.set_due(socket, Some(due)),
            Next::Message => self.handlers.set_due(socket, None),
            Next::Never => self.remove_handler(socket),
        }
    }

    /// Has the driver of sealed paths see to events of the link.
    #[inline]
    pub(super) fn tend_sealed(&mut self, now: Time) {
        if let Some(peers) = &self.sealed_peers {
            let driver = peers.driver();
            if self.link.sealed_paths().is_some_and(|sealed| sealed.has_seal_events()) {
                self.run_handler(driver, now);
            }
        }
    }

    /// Has the driver of sealed paths see to work that was done outside the lock.
    pub(crate) fn run_driver(&mut self) {
        let now = clock::now();
        if let Some(driver) = self.sealed_peers.as_ref().map(|peers| peers.driver()) {
            self.run_handler(driver, now);
        }
        // The turn takes datagrams that came before the keys of their path.
        self.turn(now);
        self.transmit(now);
        self.transmit_due(now);
    }

    /// The handler of a socket is to be called at this time at the latest.
    pub(crate) fn handler_is_due(&mut self, socket: SocketKey, due: Time) {
        self.handlers.set_due_by(socket, due);
    }

    /// The handler of a socket is needed no more.
    pub(crate) fn remove_handler(&mut self, socket: SocketKey) {
        drop(self.handlers.remove(socket)); // Not the last reference: the lock is held.
    }

    /// Notifies the handler of a socket that the socket is closed.
    pub(super) fn close_handler(&mut self, socket: SocketKey) {
        if let Some(handler) = self.handlers.remove(socket) {
            handler.closed(self);
        }
    }

    /// The same for all.
    pub(super) fn close_handlers(&mut self) {
        for socket in self.handlers.keys() {
            self.close_handler(socket);
        }
    }
}
