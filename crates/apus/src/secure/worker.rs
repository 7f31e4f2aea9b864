//! The thread that does the public-key work of handshakes, without the engine's lock. A flight of TLS takes 100 to 200 µs.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use apus_proto::RpcKey;
use apus_seal::{
    ClientHandshake, ClientOffer, ClientStep, HandshakeError, Identity, LoggedKey, Name, Role,
    TlsConfig, TlsError, TlsSession, Work, Worked,
};
use apus_wire::PathId;
use bytes::Bytes;

use crate::address::Address;
use crate::engine::lock::Shared;
use crate::error::IdentityError;
use crate::observe::events;
use crate::secure::node_identity::NodeIdentity;
use crate::sync::mpsc;
use crate::sync::thread;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// Work for the thread.
pub(super) enum Job {
    /// A client begins.
    Begin { attempt: u64, tls: Arc<TlsConfig>, name: Option<Name>, to: IpAddr, offer: ClientOffer },
    /// A client has a response.
    Response { attempt: u64, handshake: Box<ClientHandshake<TlsSession>>, body: Bytes },
    /// A server has a request.
    Request { held: HeldRequest, work: Work<TlsSession> },
    /// The files of the identity are to be looked at.
    Reload { node: Arc<NodeIdentity> },
    /// Keys are to be written to the node's key log.
    LogKeys { node: Arc<NodeIdentity>, keys: Vec<LoggedKey> },
    /// Peers are judged again. Their roles are those of the handshakes.
    Judge { tls: Arc<TlsConfig>, peers: Vec<(PathId, Arc<Identity>, Role)> },
}

/// A request of a handshake that is not answered yet.
pub(super) struct HeldRequest {
    pub(super) rpc: RpcKey,
    pub(super) path: PathId,
    pub(super) from: Address,
}

/// Work that is done.
pub(super) enum JobDone {
    Begun { attempt: u64, result: Result<BegunHandshake, HandshakeError> },
    Stepped { attempt: u64, handshake: Box<ClientHandshake<TlsSession>>, result: StepResult },
    Answered { held: HeldRequest, worked: Worked<TlsSession> },
    Reloaded { result: Result<bool, IdentityError> },
    KeysLogged,
    Judged { verdicts: Vec<Verdict> },
}

/// The result for a peer that was judged again.
pub(super) struct Verdict {
    pub(super) path: PathId,
    /// The peer as it was judged.
    pub(super) peer: Arc<Identity>,
    pub(super) result: Result<Arc<Identity>, TlsError>,
}

/// A client's handshake, and the body of its first call.
pub(super) type BegunHandshake = (Box<ClientHandshake<TlsSession>>, Vec<u8>);

pub(super) type StepResult = Result<ClientStep, HandshakeError>;

impl Job {
    fn urgency(&self) -> Urgency {
        let is_refresh = match self {
            Self::Begin { offer, .. } => offer.refresh.is_some(),
            Self::Response { .. } | Self::LogKeys { .. } => true,
            Self::Request { work, .. } => work.is_refresh(),
            Self::Judge { .. } => return Urgency::Judgement,
            Self::Reload { .. } => false,
        };
        if is_refresh { Urgency::Refresh } else { Urgency::Other }
    }

    fn run(self) -> JobDone {
        match self {
            Self::Begin { attempt, tls, name, to, offer } => {
                let session = tls.client_session(name.as_ref(), to).map_err(HandshakeError::Tls);
                let begin = |session| {
                    let (handshake, body) = ClientHandshake::begin(offer, session);
                    (Box::new(handshake), body)
                };
                JobDone::Begun { attempt, result: session.map(begin) }
            }
            Self::Response { attempt, mut handshake, body } => {
                let result = handshake.handle_response(&body);
                let result = result.inspect_err(events::handshake_failed);
                JobDone::Stepped { attempt, handshake, result }
            }
            Self::Request { held, work } => JobDone::Answered { held, worked: work.run() },
            Self::Reload { node } => {
                let result = node.look();
                node.warn_of_expiry();
                JobDone::Reloaded { result }
            }
            Self::LogKeys { node, keys } => {
                node.key_log.iter().for_each(|log| log.write(&keys));
                JobDone::KeysLogged
            }
            Self::Judge { tls, peers } => {
                let judge = |(path, peer, role): (PathId, Arc<Identity>, Role)| {
                    let result = tls.judge(&peer, role).map(Arc::new);
                    Verdict { path, peer, result }
                };
                JobDone::Judged { verdicts: peers.into_iter().map(judge).collect() }
            }
        }
    }
}

/// The way to the thread, for the engine of one shard. The thread ends with the last of these.
pub(super) struct Worker {
    queue: Arc<JobQueue>,
    wake: mpsc::Sender<()>,
}

#[derive(Default)]
struct JobQueue {
    jobs: Mutex<Jobs<Job>>,
    done: Mutex<VecDeque<JobDone>>,
}

/// Work by its urgency, the most urgent first.
#[derive(Clone, Copy, Debug)]
enum Urgency {
    /// A path gets new keys, or its server has answered.
    Refresh,
    /// Peers may have to go. All peers of a node take long, so refreshes go first.
    Judgement,
    Other,
}

/// Work that waits, oldest first for each urgency.
struct Jobs<J>([VecDeque<J>; 3]);

impl<J> Default for Jobs<J> {
    fn default() -> Self {
        Self(Default::default())
    }
}

impl<J> Jobs<J> {
    fn push(&mut self, urgency: Urgency, job: J) {
        self.0[urgency as usize].push_back(job);
    }

    fn take(&mut self) -> Option<J> {
        self.0.iter_mut().find_map(VecDeque::pop_front)
    }

    //= docs/protocol.md#seal-4
    fn is_behind(&self) -> bool {
        self.0[Urgency::Other as usize].len() >= BEHIND
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> MutexGuard<'_, VecDeque<JobDone>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Starts the thread, which has the engine take its results.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
    pub(super) fn start(engine: Weak<Shared>) -> io::Result<Self> {
        let queue = Arc::<JobQueue>::default();
        let (wake, woken) = mpsc::channel();
        let jobs = Arc::clone(&queue);
        let thread = thread::Builder::new().name("apus-tls".to_owned());
        thread.spawn(move || run(&jobs, &woken, &engine))?;
        Ok(Self { queue, wake })
    }

    pub(super) fn push(&self, job: Job) {
        self.queue.lock().push(job.urgency(), job);
        // The thread ends after the last sender.
        let _ = self.wake.send(());
    }

    /// Returns whether the thread is so far behind that handshakes of others are refused. Their places may be free again although their
    /// work still waits.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.lock().is_behind()
    }

    /// Takes the next result.
    pub(super) fn poll_done(&self) -> Option<JobDone> {
        self.queue.done().pop_front()
    }
}

/// Upper bound on the work that waits for handshakes of others: 0.3 s, and some 25 MB.
const BEHIND: usize = 2_048;

fn run(queue: &JobQueue, woken: &mpsc::Receiver<()>, engine: &Weak<Shared>) {
    apus_net::cpu::lower_priority();
    while woken.recv().is_ok() {
        let Some(job) = queue.lock().take() else { continue };
        if engine.strong_count() == 0 && !matches!(job, Job::LogKeys { .. }) {
            continue; // The node has stopped.
        }
        let done = job.run();
        queue.done().push_back(done);
        if let Some(shared) = engine.upgrade()
            && let Ok(mut engine) = shared.enter()
        {
            engine.run_driver();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    //= docs/protocol.md#seal-4
    #[test]
    fn handshakes_of_others_are_refused_while_2048_pieces_of_work_wait() {
        let mut jobs = Jobs::default();
        for number in 0..2_048 {
            assert!(!jobs.is_behind(), "{number} wait");
            jobs.push(Urgency::Other, number);
        }
        assert!(jobs.is_behind());
        assert_eq!(jobs.take(), Some(0));
        assert!(!jobs.is_behind());
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn refreshes_go_first_then_peers_are_judged() {
        let mut jobs = Jobs::default();
        for number in 0..3 {
            jobs.push(Urgency::Other, 20 + number);
            jobs.push(Urgency::Judgement, 10 + number);
            jobs.push(Urgency::Refresh, number);
        }
        let order: Vec<_> = iter::from_fn(|| jobs.take()).collect();
        assert_eq!(order, [0, 1, 2, 10, 11, 12, 20, 21, 22]);
    }
}
