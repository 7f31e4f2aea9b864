//! The attempts of a call with one request and one response, in a task or a thread.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::Pin;
use std::task::{self, Poll};
use std::thread;

use crate::blocking::block_on;
use crate::client::attempts::Attempts;
use crate::client::endpoint_state::InFlight;
use crate::client::failure::EndpointOutcome;
use crate::client::hedging::Hedging;
use crate::client::unary::{Judged, UnaryCall, finish};
#[cfg(feature = "tower")]
use crate::layering;
use crate::response::Response;
use crate::status::Status;
use crate::timer::{Sleep, sleep};
use crate::transport::Outgoing;

impl UnaryCall<'_> {
    /// Sends the request and blocks the thread until the response is there.
    ///
    /// # Errors
    ///
    /// The [`Status`] of the call: from the server, or from the transport with [`Status::call_error`].
    pub fn wait(mut self) -> Result<Response, Status> {
        self.observe();
        let scope = self.scope();
        scope.enter(|| self.wait_in_scope())
    }

    fn wait_in_scope(mut self) -> Result<Response, Status> {
        self.begin().inspect_err(|status| self.note_failed(status))?;
        #[cfg(feature = "tower")]
        if self.calls().layers.is_some() {
            let mut future = UnaryFuture::new(self, CallStage::Due);
            future.enter_layers();
            return block_on(future);
        }
        if self.hedge().is_some() {
            return block_on(UnaryFuture::new(self, CallStage::Due));
        }
        let mut attempts = Attempts::default();
        loop {
            let begun = self.attempt(&attempts);
            let (flight, call) = begun.inspect_err(|status| self.note_failed(status))?;
            let result = finish(self.calls(), call.wait());
            match self.judge(&mut attempts, flight, result) {
                Judged::Over(result) => {
                    self.note_end(&result);
                    return result;
                }
                Judged::Again(None) => {}
                Judged::Again(Some(pause)) => thread::sleep(pause),
            }
        }
    }
}

impl<'c> IntoFuture for UnaryCall<'c> {
    type Output = Result<Response, Status>;
    type IntoFuture = UnaryFuture<'c>;

    fn into_future(self) -> UnaryFuture<'c> {
        UnaryFuture::new(self, CallStage::New)
    }
}

/// A [`UnaryCall`] as a future, for any executor. The request is sent when it is first polled.
#[must_use = "a future does nothing unless it is polled"]
pub struct UnaryFuture<'c> {
    call: UnaryCall<'c>,
    attempts: Attempts,
    stage: CallStage<'c>,
    /// Of the first attempt, if it may have a second copy.
    hedging: Option<Box<Hedging<'c>>>,
}

enum CallStage<'c> {
    New,
    /// An attempt is due.
    Due,
    Sent(InFlight, Outgoing<'c>),
    Pausing(Sleep),
    /// The call passes the layers of its channel.
    #[cfg(feature = "tower")]
    Layers(Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>>),
    Over,
}

impl<'c> UnaryFuture<'c> {
    fn new(call: UnaryCall<'c>, stage: CallStage<'c>) -> Self {
        Self { call, attempts: Attempts::default(), stage, hedging: None }
    }

    /// A call that has passed the layers of its channel.
    #[cfg(feature = "tower")]
    pub(crate) fn within_layers(call: UnaryCall<'c>) -> Self {
        Self::new(call, CallStage::Due)
    }

    /// Sends the call through the layers of its channel, if there are any, before its first attempt.
    #[cfg(feature = "tower")]
    fn enter_layers(&mut self) {
        if let Some(request) = self.call.take_request()
            && let Some(layers) = self.call.calls().layers.clone()
        {
            let (passed, time) = (request.passed.clone(), request.remaining());
            let response = layering::within_time(layers, request, passed, time);
            self.stage = CallStage::Layers(Box::pin(response));
        }
    }

    /// Sends an attempt.
    fn send(&mut self) -> Result<CallStage<'c>, Status> {
        let (flight, call) = self.call.attempt(&self.attempts)?;
        if self.attempts.is_first()
            && let Some(hedge) = self.call.hedge()
        {
            self.hedging = Hedging::begin(self.call.calls(), hedge, &flight);
        }
        Ok(CallStage::Sent(flight, call.into_future()))
    }

    /// Polls the attempt that is under way, and its copy. Ready when the call has a result, or another attempt is due.
    fn poll_sent(&mut self, task: &mut task::Context<'_>) -> Poll<Judged> {
        let CallStage::Sent(_, first) = &mut self.stage else { unreachable!("the stage is Sent") };
        let Poll::Ready(result) = Pin::new(first).poll(task) else {
            return self.poll_copy(task);
        };
        let CallStage::Sent(flight, _) = mem::replace(&mut self.stage, CallStage::Over) else {
            unreachable!("the stage is Sent")
        };
        let result = finish(self.call.calls(), result);
        let copy = self.hedging.take().and_then(|hedging| hedging.first_ended(self.call.calls()));
        match copy {
            Some(copy) if !self.call.is_final(&result) => {
                self.note_failure(&flight, &result);
                self.stage = CallStage::Sent(copy.flight, copy.call);
                self.poll_sent(task)
            }
            // The other copy is given up here.
            copy => {
                self.attempts.may_have_executed |= copy.is_some();
                Poll::Ready(self.call.judge(&mut self.attempts, flight, result))
            }
        }
    }

    /// Polls the second copy, or sends it when its time has come.
    fn poll_copy(&mut self, task: &mut task::Context<'_>) -> Poll<Judged> {
        let Some(hedging) = &mut self.hedging else { return Poll::Pending };
        let Poll::Ready((flight, result)) = hedging.poll(&mut self.call, &self.attempts, task)
        else {
            return Poll::Pending;
        };
        if self.call.is_final(&result) {
            hedging.first_given_up(self.call.calls());
            (self.stage, self.hedging) = (CallStage::Over, None);
            self.attempts.may_have_executed = true;
            return Poll::Ready(self.call.judge(&mut self.attempts, flight, result));
        }
        self.note_failure(&flight, &result);
        Poll::Pending
    }

    /// A copy has failed, and the other one goes on.
    fn note_failure(&mut self, flight: &InFlight, result: &Result<Response, Status>) {
        if let Err(status) = result {
            self.attempts.copy_failed(flight.state.number, status);
        }
        self.call.calls().endpoints.ended(&flight.state, EndpointOutcome::of(result));
    }
}

impl Future for UnaryFuture<'_> {
    type Output = Result<Response, Status>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.stage, CallStage::New) {
            this.call.observe();
        }
        let scope = this.call.scope();
        let polled = scope.enter(|| this.poll_stages(task));
        if let Poll::Ready(result) = &polled {
            this.call.note_end(result);
        }
        polled
    }
}

impl UnaryFuture<'_> {
    fn poll_stages(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Response, Status>> {
        let this = self;
        loop {
            let judged = match &mut this.stage {
                CallStage::New => match this.call.begin() {
                    #[cfg(feature = "tower")]
                    Ok(()) if this.call.calls().layers.is_some() => {
                        this.enter_layers();
                        continue;
                    }
                    Ok(()) => Judged::Again(None),
                    Err(status) => Judged::failed(status),
                },
                CallStage::Due => match this.send() {
                    Ok(sent) => {
                        this.stage = sent;
                        continue;
                    }
                    Err(status) => Judged::failed(status),
                },
                CallStage::Sent(..) => match this.poll_sent(task) {
                    Poll::Ready(judged) => judged,
                    Poll::Pending => return Poll::Pending,
                },
                CallStage::Pausing(pause) => match Pin::new(pause).poll(task) {
                    Poll::Ready(()) => Judged::Again(None),
                    Poll::Pending => return Poll::Pending,
                },
                #[cfg(feature = "tower")]
                CallStage::Layers(response) => match response.as_mut().poll(task) {
                    Poll::Ready(result) => Judged::Over(result),
                    Poll::Pending => return Poll::Pending,
                },
                CallStage::Over => panic!("a call has one result"),
            };
            this.stage = match judged {
                Judged::Again(None) => CallStage::Due,
                Judged::Again(Some(pause)) => CallStage::Pausing(sleep(pause)),
                Judged::Over(result) => {
                    this.stage = CallStage::Over;
                    return Poll::Ready(result);
                }
            };
        }
    }
}

impl fmt::Debug for UnaryFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryFuture").field("call", &self.call).finish_non_exhaustive()
    }
}
