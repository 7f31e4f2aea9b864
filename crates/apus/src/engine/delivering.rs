//! Delivers messages that have arrived: to the application, or to processes that the engine works for.

use apus_proto::Event;
use apus_proto::slab::Handle;
use apus_wire::PathId;

use super::Engine;
use crate::host::neighbours::Neighbours;
use crate::mail::CallKey;
use crate::secure::SealedPeers;
use crate::shared_engine::described;
use crate::shared_engine::forwarder::Forwarder;

impl Engine {
    #[inline]
    pub(crate) fn deliver(&mut self) {
        let Self { endpoint, mail, link, neighbours, sealed_peers, .. } = self;
        while let Some(event) = endpoint.poll_event() {
            if let (Event::Connected { cookie, .. }, Some(neighbours)) = (&event, &mut *neighbours)
                && neighbours.waits_for_meeting(CallKey::from_bits(cookie.number()))
            {
                continue;
            }
            let address = |path: PathId| match &*neighbours {
                Some(neighbours) if path.is_local() => neighbours.address(path),
                _ => link.address(path),
            };
            let owner = neighbours
                .as_ref()
                .and_then(|it| it.attachments.forwarder.as_ref()?.owner(event.socket()));
            match owner {
                None => {
                    let mark = match &event {
                        Event::Request { rpc, .. } => endpoint.take_trace_mark(*rpc),
                        Event::Failed { socket, cookie, path: Some(path), error, .. } => {
                            let rule = mail.rule(*socket);
                            if let Some(peers) = sealed_peers
                                && let Some(error) = peers.contact_error(*path, rule, error)
                            {
                                mail.fail_call(*socket, *cookie, error);
                                continue;
                            }
                            None
                        }
                        _ => None,
                    };
                    mail.deliver(event, mark, address);
                }
                Some(owner) => {
                    let client = match &event {
                        Event::Request { from, .. } => address(from.path).map(|address| {
                            let shown_by = shown_by(neighbours.as_deref(), from.path);
                            let peer = sealed_peers.as_ref().and_then(|it| it.peer(shown_by));
                            (address, peer)
                        }),
                        _ => None,
                    };
                    if let Some(forwarder) =
                        neighbours.as_mut().and_then(|it| it.attachments.forwarder.as_mut())
                    {
                        let event = in_words(event, forwarder, sealed_peers.as_deref());
                        forwarder.event(owner, event, client, endpoint);
                    }
                }
            }
        }
        if let Some(neighbours) = neighbours {
            neighbours.meetings.connected.drain(..).for_each(|call| mail.connected(call));
        }
    }
}

/// The path on which the peer at the end of a path has shown its identity: its path over the network.
#[cold]
fn shown_by(neighbours: Option<&Neighbours>, path: PathId) -> PathId {
    let local = neighbours.filter(|_| path.is_local());
    local.and_then(|neighbours| neighbours.udp(path)).unwrap_or(path)
}

/// An event of a process's socket. An error of the first contact is given in words, because the process does not know the path.
fn in_words(event: Event, forwarder: &Forwarder, peers: Option<&SealedPeers>) -> Event {
    match (event, peers) {
        (Event::Failed { socket, rpc, cookie, path: Some(path), error }, Some(peers)) => {
            let words = peers.contact_error(path, forwarder.rule(socket), &error);
            let error = words.map_or(error, |words| described::describe(&words));
            Event::Failed { socket, rpc, cookie, path: Some(path), error }
        }
        (event, _) => event,
    }
}
