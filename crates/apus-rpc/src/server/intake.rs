//! From a message to the handler of its method.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Waker};

use apus::{Address, Bytes, Peer, Request};

use crate::code::Code;
use crate::context::Context;
use crate::envelope::{EnvelopeError, MethodPath, Opening, RequestHead};
use crate::metadata::Metadata;
use crate::server::admission::{Admission, Permit};
use crate::server::answer;
use crate::server::counters::count;
use crate::server::handling::Accepted;
use crate::server::in_service::InService;
use crate::server::method::Method;
use crate::spawning::Spawn;
use crate::status::{Execution, Status};

/// Longest body whose handler is polled on the thread that has received the request, in bytes. Decoding a longer one would delay the
/// requests behind it.
const INLINE_MAX: usize = 16 << 10;

/// A request before its handler, for an interceptor.
pub struct IncomingCall<'a> {
    request: &'a Request,
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
    body: Bytes,
    permit: Permit,
}

/// Sees a request before its handler, and may refuse it.
pub(crate) type Interceptor =
    Box<dyn Fn(&mut IncomingCall<'_>) -> Result<(), Status> + Send + Sync>;

/// All that a server needs for a request.
pub(crate) struct Intake {
    pub(crate) methods: HashMap<String, Box<dyn Method>>,
    pub(crate) interceptors: Vec<Interceptor>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) in_service: Arc<InService>,
    pub(crate) spawner: Arc<dyn Spawn>,
    pub(crate) draining: AtomicBool,
}

impl Intake {
    /// Takes a request: it is answered, or its handler goes on in a task.
    pub(crate) fn take(&self, mut request: Request) {
        let message = request.take_body();
        match self.choose(&request, &message) {
            Ok(chosen) => self.begin(request, chosen),
            Err(status) => {
                let (metadata, trailers) = Default::default();
                answer::fail(request, metadata, trailers, &status, &self.in_service.limits);
            }
        }
    }

    /// Calls the handler and polls its future once. It goes on in a task if it has to wait, or if the body is long.
    fn begin(&self, request: Request, chosen: Chosen<'_>) {
        let Chosen { method, path, metadata, body, permit } = chosen;
        let length = body.len();
        let context = Context::new(path, metadata, request, Arc::clone(&self.spawner));
        let accepted = Accepted::new(context, &self.in_service, permit);
        let Some(mut task) = method.begin(accepted, body) else { return };
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
    fn choose(&self, request: &Request, message: &Bytes) -> Result<Chosen<'_>, Status> {
        let counters = &self.in_service.counters;
        let admitted = self.admission.admit(request.from().host);
        let permit = admitted.inspect_err(|_| count(&counters.over_limits))?;
        let (opening, body) = self.opening(message)?;
        let Opening { path, mut metadata, .. } = opening;
        let Some(method) = self.methods.get(path.as_str()) else {
            count(&counters.unknown_methods);
            let status = Status::new(Code::Unimplemented, format!("no method {path} is served"));
            return Err(status.not_executed());
        };
        for interceptor in &self.interceptors {
            let mut call = IncomingCall { request, path: &path, metadata: &mut metadata };
            if let Err(status) = interceptor(&mut call) {
                count(&counters.intercepted);
                return Err(status.not_executed());
            }
        }
        Ok(Chosen { method: &**method, path, metadata, body, permit })
    }

    /// A panic outside of a handler, as of an interceptor.
    #[cold]
    pub(crate) fn note_panic(&self) {
        count(&self.in_service.counters.panics);
    }

    /// The head and the body of a request for a method without streams.
    //= docs/rpc-wire.md#E15
    fn opening(&self, message: &Bytes) -> Result<(Opening, Bytes), Status> {
        let refused = |error: EnvelopeError| {
            self.in_service.counters.refusals.count(&error);
            error.of_request()
        };
        let (head, body) =
            RequestHead::decode(message, &self.in_service.limits).map_err(refused)?;
        self.in_service.limits.check_frame(body.len()).map_err(refused)?;
        //= docs/rpc-wire.md#E14
        if self.draining.load(Ordering::Acquire) {
            count(&self.in_service.counters.drained);
            let status = Status::new(Code::Unavailable, "the server is about to end");
            return Err(status.with_execution(Execution::NoneByDraining));
        }
        //= docs/rpc-wire.md#E11
        match head {
            RequestHead::Open(opening) if opening.ends => Ok((opening, body)),
            _ => {
                count(&self.in_service.counters.unknown_methods);
                let text = "the message belongs to a stream, which no method here has";
                Err(Status::new(Code::Unimplemented, text).not_executed())
            }
        }
    }
}
