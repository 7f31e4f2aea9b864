//! Streams of other hosts' carriers: trust and limits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use apus::{Address, Stream, StreamListener};

use crate::joining::{ANSWER_WAIT, named};
use crate::reactor::within;
use crate::shared::CarrierState;
use crate::status::Incident;
use crate::tasks::spawn;

/// Upper bound on a host's streams that have not yet named a connection. An honest carrier names one at once.
const UNNAMED_MAX: usize = 64;

/// Accepts streams of other carriers.
pub(crate) async fn accept(shared: Arc<CarrierState>, streams: StreamListener) {
    let unnamed = Arc::new(Unnamed::default());
    while let Ok((stream, from)) = streams.accept_async().await {
        let host = from.host.ip().to_canonical();
        if let Some((event, line)) = refusal(&shared, from) {
            shared.counters.note(event, || line);
            continue;
        }
        let Some(permit) = UnnamedPermit::take(&unnamed, host) else {
            too_many(&shared, host);
            continue;
        };
        spawn(bring(Arc::clone(&shared), stream, permit));
    }
}

/// The reason for which a stream is refused before it is read.
fn refusal(shared: &CarrierState, from: Address) -> Option<(Incident, String)> {
    let at = from.host;
    if at.port() != shared.port {
        // Any user of that host may have a node at another port, and would be trusted about the connections of all other users.
        return Some((
            Incident::ForeignPort,
            format!("refused a node at {at}, which is not a carrier"),
        ));
    }
    if !shared.hosts.have(at.ip()) {
        return Some((
            Incident::ForeignHost,
            format!("refused the carrier at {at}: it is not in --hosts"),
        ));
    }
    let is_off = !shared.carries.load(Ordering::Relaxed);
    is_off.then(|| {
        (Incident::Off, format!("the carrier is switched off: refused the carrier at {at}"))
    })
}

fn too_many(shared: &CarrierState, host: IpAddr) {
    let line = || format!("refused a stream: too many wait for programs, most of them from {host}");
    shared.counters.note(Incident::TooMany, line);
}

/// Passes a stream to the program whose connection it names.
async fn bring(shared: Arc<CarrierState>, stream: Stream, permit: UnnamedPermit) {
    let host = permit.host;
    let Some(Some(tuple)) = within(ANSWER_WAIT, named(&stream)).await else { return };
    drop(permit);
    if host != tuple.client.ip() {
        let line = || {
            format!(
                "refused a stream of the carrier at {host}, which names a client at another host"
            )
        };
        return shared.counters.note(Incident::ForeignClient, line);
    }
    if let Some(loser) = shared.pairing.bring(tuple, stream, Instant::now()) {
        too_many(&shared, loser);
    }
}

/// Number of streams that have not yet named a connection, by host.
#[derive(Default)]
struct Unnamed(Mutex<HashMap<IpAddr, usize>>);

/// Permit of a stream that has not yet named a connection, one of [`UNNAMED_MAX`] of its host.
struct UnnamedPermit {
    unnamed: Arc<Unnamed>,
    host: IpAddr,
}

impl UnnamedPermit {
    fn take(unnamed: &Arc<Unnamed>, host: IpAddr) -> Option<Self> {
        let mut hosts = unnamed.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = hosts.entry(host).or_default();
        if *count == UNNAMED_MAX {
            return None;
        }
        *count += 1;
        drop(hosts);
        Some(Self { unnamed: Arc::clone(unnamed), host })
    }
}

impl Drop for UnnamedPermit {
    fn drop(&mut self) {
        let mut hosts = self.unnamed.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}
