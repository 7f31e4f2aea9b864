//! Servers.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use apus_rpc::envelope::EnvelopeLimits;
use apus_rpc::{ServeError, Server, Serving, Spawn};
use pyo3::prelude::*;

use crate::errors::{IntoException, OrRaise};
use crate::node::{PyNode, seconds};
use crate::reactor::{Outcome, Reactor, Receiver};
use crate::rpc::handled::{beginning, handle};
use crate::rpc::server_call::RpcServerCall;
use crate::rpc::tasks::{GiveTasks, LoopTasks, QueueTasks, Task, TaskQueue};

impl IntoException for ServeError {
    fn class(&self) -> &'static str {
        "OpenError"
    }
}

/// The longest end of a server. The program ends the handlers that take longer than it wants.
const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// A wish that a server ends.
#[derive(Default)]
struct Shutdown {
    is_wanted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Shutdown {
    fn want(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, task: &Context<'_>) -> Poll<()> {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_wanted.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        *waker = Some(task.waker().clone());
        Poll::Pending
    }
}

/// Opens the port of a server. An earlier server of the node that has ended at this port gives it up.
fn serve(
    py: Python<'_>,
    node: &PyNode,
    options: &Options,
    spawner: impl Spawn,
    shutdown: &Arc<Shutdown>,
) -> PyResult<Serving> {
    let (shutdown, longest) = (Arc::clone(shutdown), options.longest_received);
    let wanted = poll_fn(move |task| shutdown.poll(task));
    node.ended_ports().close(options.port);
    let serving = node.with(py, |node| {
        let server = Server::builder(node)
            .limits(EnvelopeLimits::new().frame_max(usize::MAX))
            .concurrency(options.concurrency.unwrap_or(usize::MAX))
            .fallback(move |context, requests, responses| {
                handle(context, requests, responses, longest)
            })
            .spawner(spawner);
        server.serve(options.port, wanted).drain(DRAIN_MAX)
    })?;
    serving.check().or_raise(py)?;
    Ok(serving)
}

struct Options {
    port: u16,
    concurrency: Option<usize>,
    longest_received: usize,
}

/// A server whose handlers run on threads.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct RpcServer {
    tasks: Arc<TaskQueue>,
    shutdown: Arc<Shutdown>,
}

#[pymethods]
impl RpcServer {
    /// Serves a port of the node on a thread.
    #[new]
    fn new(
        py: Python<'_>,
        node: &PyNode,
        port: u16,
        concurrency: Option<usize>,
        longest_received: usize,
    ) -> PyResult<Self> {
        let (tasks, shutdown) = (Arc::<TaskQueue>::default(), Arc::<Shutdown>::default());
        let options = Options { port, concurrency, longest_received };
        let spawner = QueueTasks(Arc::clone(&tasks));
        let serving = serve(py, node, &options, spawner, &shutdown)?;
        let (ended, ports) = (Arc::clone(&tasks), Arc::clone(node.ended_ports()));
        let run = move || {
            match serving.wait() {
                Ok(drained) => ports.hold(port, drained),
                // The port was opened, so the system gives no thread.
                Err(error) => Python::attach(|py| error.exception(py).write_unraisable(py, None)),
            }
            ended.close();
        };
        thread::Builder::new().name("apus-grpc".to_owned()).spawn(run)?;
        Ok(Self { tasks, shutdown })
    }

    /// Waits for the next request; ``None`` when the server has ended.
    fn next_call(&self, py: Python<'_>) -> Option<RpcServerCall> {
        let next = py.detach(|| self.tasks.next());
        next.map(|(call, task)| RpcServerCall::new(call, Task::Shared(task)))
    }

    /// Refuses further requests. The server ends when its handlers have ended.
    fn shutdown(&self) {
        self.shutdown.want();
    }

    /// Waits until the server has ended, for at most this many seconds. Returns whether it has.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout)?;
        Ok(py.detach(|| self.tasks.wait_closed(timeout)))
    }
}

/// A server whose handlers run in an event loop.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct AsyncRpcServer {
    shutdown: Arc<Shutdown>,
}

/// Takes the tasks of a server in an event loop.
struct TaskReceiver {
    tasks: Arc<LoopTasks>,
    reactor: Py<Reactor>,
    taker: Py<PyAny>,
}

impl TaskReceiver {
    fn take(&self, py: Python<'_>, task: apus_rpc::BoxTask) -> PyResult<()> {
        let reactor = self.reactor.get();
        let mut number = 0;
        let Some(call) = beginning(|| number = reactor.start_task(py, task)) else { return Ok(()) };
        let task = Task::InLoop(self.reactor.clone_ref(py), number);
        self.taker.call1(py, (RpcServerCall::new(call, task),)).map(drop)
    }
}

impl Receiver for TaskReceiver {
    fn look(&self, py: Python<'_>, task: &mut Context<'_>) -> bool {
        while let Some(next) = self.tasks.take(task.waker()) {
            if let Err(error) = self.take(py, next) {
                error.write_unraisable(py, None);
            }
        }
        false
    }
}

#[pymethods]
impl AsyncRpcServer {
    /// Serves a port of the node in an event loop. ``taker`` takes each request, and ``ended`` is a future that gets ``None`` at the end.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "those of a server")]
    fn new(
        py: Python<'_>,
        node: &PyNode,
        port: u16,
        concurrency: Option<usize>,
        longest_received: usize,
        reactor: Py<Reactor>,
        taker: Py<PyAny>,
        ended: Py<PyAny>,
    ) -> PyResult<Self> {
        let (tasks, shutdown) = (Arc::<LoopTasks>::default(), Arc::<Shutdown>::default());
        let options = Options { port, concurrency, longest_received };
        let spawner = GiveTasks(Arc::clone(&tasks));
        let serving = serve(py, node, &options, spawner, &shutdown)?;
        let receiver = TaskReceiver { tasks, reactor: reactor.clone_ref(py), taker };
        let source = reactor.get().add_receiver(Arc::new(receiver));
        let (in_loop, ports) = (reactor.clone_ref(py), Arc::clone(node.ended_ports()));
        let operation = Box::pin(async move {
            let result = serving.await;
            Box::new(move |py: Python<'_>| {
                in_loop.get().remove(source);
                let drained = result.or_raise(py)?;
                in_loop.get().start_task(py, Box::pin(drained.refuse()));
                ports.hold(port, drained);
                Ok(py.None())
            }) as Outcome
        });
        reactor.get().run(py, operation, ended)?;
        Ok(Self { shutdown })
    }

    /// Refuses further requests. The server ends when its handlers have ended.
    fn shutdown(&self) {
        self.shutdown.want();
    }
}
