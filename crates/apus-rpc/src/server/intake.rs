//! From a message to the handler of its method.

use std::borrow::Cow;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apus::{Address, Bytes, Peer};
use bytes::Buf;

use crate::code::Code;
use crate::envelope::{EnvelopeError, MethodPath, Opening, PlainOpen, RequestHead};
use crate::metadata::Metadata;
use crate::observe;
use crate::server::admission::Permit;
use crate::server::answer;
use crate::server::counters::count;
use crate::server::handling::Arrival;
use crate::server::in_service::InService;
use crate::server::method::{Method, OpenedCall};
use crate::server::methods::Methods;
use crate::server::stream_table::StreamTable;
use crate::status::{Execution, Status};
use crate::transport::{Deliver, Incoming, MemoryRequest};

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
    path: Cow<'a, MethodPath>,
    metadata: Metadata,
    id: u64,
    ends: bool,
    holds: bool,
    body: Bytes,
}

/// The path of a method in figures. `None` for a fallback, whose paths are those of clients.
#[allow(clippy::ptr_arg, reason = "an owned path is that of a client")]
fn name<'p>(path: &'p Cow<'_, MethodPath>) -> Option<&'p MethodPath> {
    match path {
        Cow::Borrowed(path) => Some(path),
        Cow::Owned(_) => None,
    }
}

/// Sees a request before its handler, and may refuse it.
pub(crate) type Interceptor =
    Box<dyn Fn(&mut IncomingCall<'_>) -> Result<(), Status> + Send + Sync>;

/// All that a server needs for a request.
pub(crate) struct Intake {
    pub(crate) methods: Methods,
    pub(crate) fallback: Option<Arc<dyn Method>>,
    pub(crate) interceptors: Vec<Interceptor>,
    pub(crate) in_service: Arc<InService>,
    pub(crate) streams: Arc<StreamTable>,
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
        let followed = RequestHead::followed_id(&message);
        match self.choose(&request, message) {
            Ok((chosen, permit)) => self.begin(request, chosen, permit),
            Err(status) => {
                if let Some(id) = followed {
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
            Ok((head, chunk)) => self.streams.take(head, chunk, request, &*self.in_service.spawner),
            Err(status) => {
                let (metadata, trailers) = Default::default();
                answer::fail(request, metadata, trailers, &status, limits);
            }
        }
    }

    /// Calls the handler. It goes on in a task if it has to wait, or if the body is long.
    fn begin(&self, request: Incoming, chosen: Chosen<'_>, permit: Permit<'_>) {
        let Chosen { method, path, metadata, id, ends, holds, body } = chosen;
        let in_service = &self.in_service;
        let is_fallback = name(&path).is_none();
        let arrival = Arrival { path: &path, metadata, request, permit, in_service, is_fallback };
        let opened = OpenedCall { id, ends, holds, body, streams: &self.streams };
        if let Some(task) = method.begin(arrival, opened) {
            in_service.spawner.spawn(task);
        }
    }

    /// The method of a request, unless the request is refused.
    //= docs/rpc-wire.md#E14
    fn choose(
        &self,
        request: &Incoming,
        mut message: Bytes,
    ) -> Result<(Chosen<'_>, Permit<'_>), Status> {
        let unknown = |status: &Status| observe::refused(None, status.code());
        let chosen = match self.plain(&mut message) {
            Some(chosen) => self.check_draining().map(|()| chosen),
            None => self.opening(&message).and_then(|opening| self.find(opening)),
        };
        let chosen = chosen.inspect_err(unknown)?;
        let permit = self.admit(request, &chosen)?;
        Ok((self.check(request, chosen)?, permit))
    }

    /// A place for a request. Those of built-in methods have one beyond the limits.
    fn admit(&self, request: &Incoming, chosen: &Chosen<'_>) -> Result<Permit<'_>, Status> {
        let admission = &self.in_service.admission;
        if chosen.method.is_built_in() {
            return Ok(admission.admit_built_in());
        }
        admission.admit(request.from().host).inspect_err(|status| {
            count(&self.in_service.counters.over_limits);
            observe::refused(name(&chosen.path), status.code());
        })
    }

    /// The method of an OPEN in its most frequent form, of a method with a path of its own. Takes the message then.
    fn plain(&self, message: &mut Bytes) -> Option<Chosen<'_>> {
        let PlainOpen { id, ends, holds, path, length } =
            PlainOpen::read(message, &self.in_service.limits)?;
        // The path is that of a method, so it is valid.
        let (path, method) = self.methods.get(path)?;
        let (path, metadata) = (Cow::Borrowed(path), Metadata::new());
        message.advance(length);
        let body = mem::take(message);
        Some(Chosen { method, path, metadata, id, ends, holds, body })
    }

    /// The method of an OPEN.
    fn find(&self, (opening, body): (Opening, Bytes)) -> Result<Chosen<'_>, Status> {
        let Opening { id, ends, holds, path, metadata } = opening;
        let (path, method) = match (self.methods.get(path.bytes()), &self.fallback) {
            (Some((path, method)), _) => (Cow::Borrowed(path), method),
            (None, Some(fallback)) => (Cow::Owned(path), &**fallback),
            (None, None) => {
                count(&self.in_service.counters.unknown_methods);
                let text = format!("no method {path} is served");
                return Err(Status::new(Code::Unimplemented, text).not_executed());
            }
        };
        Ok(Chosen { method, path, metadata, id, ends, holds, body })
    }

    /// Checks a request, and shows it to the interceptors.
    fn check<'a>(&self, request: &Incoming, mut chosen: Chosen<'a>) -> Result<Chosen<'a>, Status> {
        let Chosen { method, path, metadata, ends, body, .. } = &mut chosen;
        let name = name(path);
        let path: &MethodPath = path;
        let refusal = |status: Status| {
            observe::refused(name, status.code());
            status.not_executed()
        };
        if !method.is_stream() {
            //= docs/rpc-wire.md#E11
            if !*ends {
                let status = Status::new(Code::Unimplemented, format!("{path} takes one message"));
                return Err(refusal(status));
            }
            let checked = self.in_service.limits.check_frame(body.len());
            checked.map_err(|error| refusal(self.refused(error)))?;
        }
        for interceptor in &self.interceptors {
            let mut call = IncomingCall { request, path, metadata };
            if let Err(status) = interceptor(&mut call) {
                count(&self.in_service.counters.intercepted);
                return Err(refusal(status));
            }
        }
        Ok(chosen)
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
        self.check_draining()?;
        match head {
            RequestHead::Open(opening) => Ok((opening, body)),
            // Other kinds go another way.
            _ => Err(Status::new(Code::Internal, "the message is no OPEN").not_executed()),
        }
    }

    //= docs/rpc-wire.md#E14
    fn check_draining(&self) -> Result<(), Status> {
        if !self.draining.load(Ordering::Acquire) {
            return Ok(());
        }
        count(&self.in_service.counters.drained);
        let status = Status::new(Code::Unavailable, "the server is about to end");
        Err(status.with_execution(Execution::NoneByDraining))
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
