//! Layers of tower on both sides: services of one type, and their errors as statuses.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use apus::CallError;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt};

use crate::code::Code;
use crate::response::Response;
use crate::status::{Execution, Status};
use crate::timer::sleep;

/// An error of a layer.
pub type LayerError = Box<dyn Error + Send + Sync>;

/// The service below a layer.
pub(crate) type Layered<R> = BoxCloneSyncService<R, Response, LayerError>;

/// Puts a layer around a service.
pub(crate) type LayerOnce<R> = Box<dyn FnOnce(Layered<R>) -> Layered<R> + Send + Sync>;

/// A layer as a function of one type.
pub(crate) fn erased<R, L>(layer: L) -> LayerOnce<R>
where
    R: 'static,
    L: Layer<Layered<R>> + Send + Sync + 'static,
    L::Service: Service<R, Response = Response> + Clone + Send + Sync + 'static,
    <L::Service as Service<R>>::Future: Send + 'static,
    <L::Service as Service<R>>::Error: Into<LayerError> + Send + Sync + 'static,
{
    Box::new(move |inner| {
        let service = layer.layer(inner);
        BoxCloneSyncService::new(tower::util::MapErr::new(service, Into::into))
    })
}

/// Puts layers around a service; the first one is the outermost.
pub(crate) fn around<R>(inner: Layered<R>, layers: Vec<LayerOnce<R>>) -> Layered<R> {
    layers.into_iter().rev().fold(inner, |inner, layer| layer(inner))
}

/// Time after the deadline in which an attempt that has passed all layers ends by itself: its endpoint is charged with it then.
const ATTEMPT_ENDS_WITHIN: Duration = Duration::from_millis(10);

/// Sends a call through layers. It ends when this time has passed, wherever it is.
pub(crate) async fn within_time<R: 'static>(
    layers: Layered<R>,
    request: R,
    passed: Passed,
    time: Option<Duration>,
) -> Result<Response, Status> {
    let late = async {
        match time {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
        if passed.has_any() {
            sleep(ATTEMPT_ENDS_WITHIN).await;
        }
    };
    let (mut response, mut late) = (pin!(layers.oneshot(request)), pin!(late));
    let result = poll_fn(|task| match response.as_mut().poll(task) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => late.as_mut().poll(task).map(|()| {
            let text = "the deadline passed while the call was in the layers of its channel";
            Err(Status::new(Code::DeadlineExceeded, text).into())
        }),
    });
    result.await.map_err(|error| passed.status_of(error))
}

/// Copies of a request that have passed all layers. A layer may repeat a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed(Arc<PassedCopies>);

#[derive(Debug, Default)]
struct PassedCopies {
    all: AtomicUsize,
    /// Those whose status says that they were not executed.
    not_executed: AtomicUsize,
}

impl Passed {
    /// A copy has passed all layers.
    pub(crate) fn note(&self) {
        self.0.all.fetch_add(1, Ordering::AcqRel);
    }

    fn has_any(&self) -> bool {
        self.0.all.load(Ordering::Acquire) > 0
    }

    /// A copy has ended.
    pub(crate) fn note_end<T>(&self, result: &Result<T, Status>) {
        if result.as_ref().is_err_and(|status| !status.may_have_executed()) {
            self.0.not_executed.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The status of a call that ends with this error. A request that has not passed all layers was not executed, and one of which an
    /// earlier copy may have been executed may have been executed.
    pub(crate) fn status_of(&self, error: LayerError) -> Status {
        let status = status_of(error);
        let all = self.0.all.load(Ordering::Acquire);
        let executed = all - self.0.not_executed.load(Ordering::Acquire).min(all);
        match all {
            0 => status.with_execution(Execution::NoneHere),
            1 => status,
            _ if executed == 0 => status,
            _ => status.with_execution(Execution::Possible),
        }
    }
}

/// An error as the status of a call: the status that it is or was made from, or those of tower's own errors.
fn status_of(error: LayerError) -> Status {
    let error = match error.downcast::<Status>() {
        Ok(status) => return *status,
        Err(error) => error,
    };
    let mut source: Option<&(dyn Error + 'static)> = Some(&*error);
    while let Some(known) = source {
        if let Some(status) = known.downcast_ref::<Status>() {
            return status.clone();
        }
        if let Some(error) = known.downcast_ref::<CallError>() {
            return Status::from(error.clone());
        }
        if known.is::<Elapsed>() {
            return Status::new(Code::DeadlineExceeded, "the time of a layer passed");
        }
        if known.is::<Overloaded>() {
            return Status::new(Code::ResourceExhausted, "a layer is at its limit");
        }
        source = known.source();
    }
    Status::new(Code::Unknown, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outside")]
    struct Outside(#[source] Status);

    #[test]
    fn an_error_of_a_layer_has_the_status_within_it() {
        let status = || Status::new(Code::NotFound, "no user");
        let codes = [
            status_of(status().into()),
            status_of(Outside(status()).into()),
            status_of("a text".into()),
            status_of(Overloaded::new().into()),
            status_of(Elapsed::new().into()),
        ];
        let codes = codes.map(|status| status.code());
        let expected = [
            Code::NotFound,
            Code::NotFound,
            Code::Unknown,
            Code::ResourceExhausted,
            Code::DeadlineExceeded,
        ];
        assert_eq!(codes, expected);
        let passed = Passed::default();
        assert!(!passed.status_of("refused".into()).may_have_executed());
        passed.note();
        assert!(passed.status_of("failed".into()).may_have_executed());
    }

    #[test]
    fn a_call_of_which_any_copy_may_have_been_executed_may_have_been_executed() {
        let refused = || Status::new(Code::Unavailable, "refused").not_executed();
        let passed = Passed::default();
        passed.note();
        passed.note_end::<()>(&Err(refused()));
        assert!(!passed.status_of(refused().into()).may_have_executed());
        passed.note();
        passed.note_end::<()>(&Err(refused()));
        assert!(!passed.status_of(refused().into()).may_have_executed(), "all were refused");
        // An earlier copy is executed, and a later one is refused.
        let passed = Passed::default();
        passed.note();
        passed.note_end::<()>(&Err(Status::new(Code::Aborted, "again")));
        passed.note();
        passed.note_end::<()>(&Err(refused()));
        assert!(passed.status_of(refused().into()).may_have_executed());
        // An earlier copy is still under way.
        let passed = Passed::default();
        passed.note();
        passed.note();
        passed.note_end::<()>(&Err(refused()));
        assert!(passed.status_of(refused().into()).may_have_executed());
    }
}
