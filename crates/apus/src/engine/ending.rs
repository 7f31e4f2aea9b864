//! The end of an engine and of its sockets.

use std::mem;

use apus_net::Link;
use apus_proto::{SocketKey, Time};

use super::Engine;
use crate::delivery::parker::Waiter;
use crate::engine::no_link::NoLink;
use crate::observe::stats::IdentityGauges;
use crate::sync::clock;

impl Engine {
    /// Ends the engine at once: calls end with `Closed`, and all waiters are woken. Returns the link, which the caller closes. The
    /// second call has no effect.
    pub(crate) fn stop(&mut self) -> Box<dyn Link> {
        self.stopped = true;
        self.drain.begun = true;
        self.endpoint.acknowledge();
        self.transmit(clock::now());
        for socket in self.mail.sockets() {
            self.close(socket);
        }
        self.forget_waiting();
        self.mail.wakes.extend(self.leadership.event_loop().map(Waiter::Thread));
        if let Some(mut neighbours) = self.neighbours.take() {
            let now = clock::now();
            neighbours.transmit(now, &mut self.endpoint);
            neighbours.close(now, &mut self.endpoint, &mut *self.link);
        }
        self.identity = IdentityGauges::default();
        if let Some(publication) = &mut self.publication {
            publication.next = Time::ZERO; // Publishes the last counts.
            publication.section.note_closed();
        }
        let nothing = NoLink {
            local_addr: self.link.local_addr(),
            capabilities: self.link.capabilities().clone(),
            counters: self.link.counters(),
        };
        mem::replace(&mut self.link, Box::new(nothing))
    }

    /// Ends a socket.
    pub(crate) fn close(&mut self, socket: SocketKey) {
        let port = self.endpoint.port(socket);
        if let (Some(port), Some(attached)) = (port, self.attached()) {
            attached.close(port);
        }
        self.close_handler(socket);
        let rule = self.mail.rule(socket);
        self.release_rule(rule);
        self.mail.close(socket);
        self.endpoint.close(socket);
    }
}
