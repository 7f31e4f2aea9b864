//! From a message to the handler of its method.

use std::collections::HashMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Waker};

use apus::{Address, Bytes, Peer};

use crate::code::Code;
use crate::context::Context;
use crate::envelope::{EnvelopeError, MethodPath, Opening, RequestHead};
use crate::metadata::Metadata;
use crate::observe;
use crate::server::admission::{Admission, Permit};
use crate::server::answer;
use crate::server::counters::count;
use crate::server::handling::Accepted;
use crate::server::in_service::InService;
use crate::server::method::{Method, OpenedCall};
use crate::server::stream_table::StreamTable;
use crate::spawning::Spawn;
use crate::status::{Execution, Status};
use crate::transport::{Deliver, Incoming, MemoryRequest};

/// Longest body whose handler is polled on the thread that has received the request, in bytes. Decoding a longer one would delay the
/// requests behind it.
const INLINE_MAX: usize = 16 << 10;

/// A request before its handler, for an interceptor.
pub struct IncomingCall<'a> {
    request: &'a Incoming,
    path: &'a MethodPath,
    metadata: &'a mut Metadata,
}

impl IncomingCall<'_> {
    /// The path of the method.
    #[must_use]
    pub fn path(&self) -> &MethodPath {
        self.path
    }

    /// The client's node and port. The address is not authenticated; [`identity`](Self::identity) is.
    #[must_use]
    pub fn peer(&self) -> Address {
        self.request.from()
    }

    /// The client as its certificate names it. `None` if the request came in plain packets.
    #[must_use]
    pub fn identity(&self) -> Option<Peer> {
        self.request.peer()
    }

    /// The metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// The metadata, to be changed for the handler.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata
    }
}

/// A request with its method.
struct Chosen<'a> {
    method: &'a dyn Method,
    path: MethodPath,
    metadata: Metadata,
    id: u64,
    ends: bool,
    holds: bool,
    body: Bytes,
    permit: Permit,
}

/// Sees a request before its handler, and may refuse it.
pub(crate) type Interceptor =
    Box<dyn Fn(&mut IncomingCall<'_>) -> Result<(), Status> + Send + Sync>;

/// All that a server needs for a request.
pub(crate) struct Intake {
    pub(crate) methods: HashMap<String, Arc<dyn Method>>,
    pub(crate) fallback: Option<Arc<dyn Method>>,
    pub(crate) interceptors: Vec<Interceptor>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) in_service: Arc<InService>,
    pub(crate) streams: Arc<StreamTable>,
    pub(crate) spawner: Arc<dyn Spawn>,
    /// Called when the server begins to end.
    pub(crate) at_end: Vec<Box<dyn Fn() + Send + Sync>>,
    pub(crate) draining: AtomicBool,
}

impl Intake {
    /// Takes a request: it is answered, or its handler goes on in a task.
    pub(crate) fn take(&self, mut request: Incoming) {
        let message = request.take_body();
        if RequestHead::is_about_stream(&message) {
            return self.take_about_stream(request, &message);
        }
        match self.choose(&request, &message) {
            Ok(chosen) => self.begin(request, chosen),
            Err(status) => {
                if let Some(id) = RequestHead::followed_id(&message) {
                    self.streams.note_over(request.from(), id);
                }
                let (metadata, trailers) = Default::default();
                answer::fail(request, metadata, trailers, &status, &self.in_service.limits);
            }
        }
    }

    /// Takes a message about a call with streams that goes on.
    fn take_about_stream(&self, request: Incoming, message: &Bytes) {
        let limits = &self.in_service.limits;
        match RequestHead::decode(message, limits).map_err(|error| self.refused(error)) {
            Ok((head, chunk)) => self.streams.take(head, chunk, request, &*self.spawner),
            Err(status) => {
                let (metadata, trailers) = Default::default();
                answer::fail(request, metadata, trailers, &status, limits);
            }
        }
    }

    /// Calls the handler and polls its future once. It goes on in a task if it has to wait, or if the body is long.
    fn begin(&self, request: Incoming, chosen: Chosen<'_>) {
        let Chosen { method, path, metadata, id, ends, holds, body, permit } = chosen;
        let length = body.len();
        let context = Context::new(path, metadata, request, Arc::clone(&self.spawner));
        let accepted = Accepted::new(context, &self.in_service, permit);
        let opened = OpenedCall { id, ends, holds, body, streams: &self.streams };
        let Some(mut task) = method.begin(accepted, opened) else { return };
        if length <= INLINE_MAX {
            let mut context = task::Context::from_waker(Waker::noop());
            if task.as_mut().poll(&mut context).is_ready() {
                return;
            }
        }
        self.spawner.spawn(task);
    }

    /// The method of a request, unless the request is refused.
    //= docs/rpc-wire.md#E14
    fn choose(&self, request: &Incoming, message: &Bytes) -> Result<Chosen<'_>, Status> {
        let counters = &self.in_service.counters;
        let unknown = |status: &Status| observe::refused(None, status.code());
        let admitted = self.admission.admit(request.from().host);
        let permit = admitted.inspect_err(|_| count(&counters.over_limits)).inspect_err(unknown)?;
        let (opening, body) = self.opening(message).inspect_err(unknown)?;
        self.method(request, opening, body, permit)
    }

    /// The method of an OPEN, unless it is refused.
    fn method(
        &self,
        request: &Incoming,
        opening: Opening,
        body: Bytes,
        permit: Permit,
    ) -> Result<Chosen<'_>, Status> {
        let counters = &self.in_service.counters;
        let Opening { id, ends, holds, path, mut metadata } = opening;
        let method = self.methods.get(path.as_str()).or(self.fallback.as_ref());
        let Some(method) = method else {
            count(&counters.unknown_methods);
            let status = Status::new(Code::Unimplemented, format!("no method {path} is served"));
            observe::refused(None, status.code());
            return Err(status.not_executed());
        };
        let refusal = |status: Status| {
            observe::refused(Some(&path), status.code());
            status.not_executed()
        };
        //= docs/rpc-wire.md#E11
        if !ends && !method.is_stream() {
            let status = Status::new(Code::Unimplemented, format!("{path} takes one message"));
            return Err(refusal(status));
        }
        if !method.is_stream() {
            let checked = self.in_service.limits.check_frame(body.len());
            checked.map_err(|error| refusal(self.refused(error)))?;
        }
        for interceptor in &self.interceptors {
            let mut call = IncomingCall { request, path: &path, metadata: &mut metadata };
            if let Err(status) = interceptor(&mut call) {
                count(&counters.intercepted);
                return Err(refusal(status));
            }
        }
        Ok(Chosen { method: &**method, path, metadata, id, ends, holds, body, permit })
    }

    /// As [`take`](Self::take). A panic of an interceptor ends its request, whose client is notified, and not the server.
    pub(crate) fn take_or_drop(&self, request: Incoming) {
        if panic::catch_unwind(AssertUnwindSafe(|| self.take(request))).is_err() {
            count(&self.in_service.counters.panics);
        }
    }

    /// The head of an OPEN and its chunks.
    fn opening(&self, message: &Bytes) -> Result<(Opening, Bytes), Status> {
        let limits = &self.in_service.limits;
        let decoded = RequestHead::decode(message, limits);
        let (head, body) = decoded.map_err(|error| self.refused(error))?;
        //= docs/rpc-wire.md#E14
        if self.draining.load(Ordering::Acquire) {
            count(&self.in_service.counters.drained);
            let status = Status::new(Code::Unavailable, "the server is about to end");
            return Err(status.with_execution(Execution::NoneByDraining));
        }
        match head {
            RequestHead::Open(opening) => Ok((opening, body)),
            // Other kinds go another way.
            _ => Err(Status::new(Code::Internal, "the message is no OPEN").not_executed()),
        }
    }

    //= docs/rpc-wire.md#E15
    fn refused(&self, error: EnvelopeError) -> Status {
        self.in_service.counters.refusals.count(&error);
        error.of_request()
    }
}

impl Deliver for Intake {
    fn deliver(&self, request: MemoryRequest) {
        self.take_or_drop(Incoming::Memory(request));
    }
}
