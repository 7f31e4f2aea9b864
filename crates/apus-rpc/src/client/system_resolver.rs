//! The built-in resolver: numbers, the system's resolver, and files.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::mem;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use apus::{Address, ResolveError};
use async_task::FallibleTask;
use futures_core::Stream;

use crate::client::resolve::{BoxError, ENDPOINTS_MAX, Endpoint, EndpointStream, Resolve};
use crate::client::target::{HostSource, Target};
use crate::client::task_thread::LOOKUPS;
use crate::timer::{Sleep, sleep};

/// Time between two look-ups of a name.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Time between two looks into a file, and the shortest time between two look-ups when endpoints fail.
const LOOK_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Longest file with hosts, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// The resolver of channels that have no other: it takes the targets that [`Target`] lists.
///
/// Names are looked up with the system's resolver, all addresses of both families. Each target is looked up by one task, on at most 16
/// threads that all channels of the process share. Names are looked up again every 30 s, and after a failure of an endpoint once in 5 s.
/// Files are read every 5 s. A name that is not found any more keeps the addresses that it had.
#[derive(Clone, Default)]
pub struct SystemResolver {
    requests: Arc<Mutex<Requests>>,
}

/// Requests for a newer list.
#[derive(Default)]
struct Requests {
    number: u64,
    /// Tasks of watches, by the number of the watch.
    waiting: BTreeMap<u64, Waker>,
    next: u64,
}

impl SystemResolver {
    /// A resolver. Channels that share it share its [`refresh`](Resolve::refresh).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

fn lock(requests: &Mutex<Requests>) -> MutexGuard<'_, Requests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Resolve for SystemResolver {
    fn watch(&self, target: &Target) -> EndpointStream {
        let stage = match target.source() {
            Ok(source) => match source.numeric() {
                Some(addresses) => WatchStage::Last(Some(Ok(endpoints(addresses)))),
                None => WatchStage::Due(source),
            },
            Err(error) => WatchStage::Last(Some(Err(error.into()))),
        };
        let number = {
            let mut requests = lock(&self.requests);
            requests.next += 1;
            requests.next
        };
        Box::pin(HostWatch {
            requests: Arc::clone(&self.requests),
            number,
            seen: 0,
            answers: Answers::new(),
            stage,
        })
    }

    fn refresh(&self) {
        let waiting = {
            let mut requests = lock(&self.requests);
            requests.number += 1;
            mem::take(&mut requests.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }
}

/// The list of a target, again and again.
struct HostWatch {
    requests: Arc<Mutex<Requests>>,
    number: u64,
    /// Number of the last request that this watch has followed.
    seen: u64,
    answers: Answers,
    stage: WatchStage,
}

/// The last addresses of each host of a source.
type Answers = BTreeMap<String, Vec<Address>>;

type ListResult = Result<Vec<Endpoint>, BoxError>;

enum WatchStage {
    /// A list that does not change, and then the end.
    Last(Option<ListResult>),
    Due(HostSource),
    Looking(HostSource, FallibleTask<(ListResult, Answers)>),
    Waiting(HostSource, Times, Sleep),
    Over,
}

/// The times at which a source is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Times {
    last: Instant,
    every: Duration,
}

impl Times {
    /// The time of the next look-up.
    fn next(self, requested: bool) -> Instant {
        self.last + if requested { LOOK_AFTER_FAILURE } else { self.every }
    }
}

impl HostWatch {
    /// Whether a newer list was requested since the last look-up. The task is woken with the next request otherwise.
    fn is_requested(&self, task: &Context<'_>) -> bool {
        let mut requests = lock(&self.requests);
        if requests.number > self.seen {
            return true;
        }
        match requests.waiting.get_mut(&self.number) {
            Some(waker) => waker.clone_from(task.waker()),
            None => _ = requests.waiting.insert(self.number, task.waker().clone()),
        }
        false
    }

    /// Steps once; `None` if another step is possible.
    fn step(
        &mut self,
        stage: WatchStage,
        task: &mut Context<'_>,
    ) -> Option<Poll<Option<ListResult>>> {
        match stage {
            WatchStage::Last(list) => return Some(Poll::Ready(list)),
            WatchStage::Over => return Some(Poll::Ready(None)),
            WatchStage::Due(source) => {
                self.seen = lock(&self.requests).number;
                let (looked, mut answers) = (source.clone(), mem::take(&mut self.answers));
                let found = LOOKUPS.spawn(async move {
                    let list = look(&looked, &mut answers, apus::resolve_all);
                    (list, answers)
                });
                self.stage = WatchStage::Looking(source, found);
            }
            WatchStage::Looking(source, mut found) => match Pin::new(&mut found).poll(task) {
                Poll::Pending => {
                    self.stage = WatchStage::Looking(source, found);
                    return Some(Poll::Pending);
                }
                Poll::Ready(found) => {
                    let every =
                        if source.file().is_some() { LOOK_AFTER_FAILURE } else { LOOK_EVERY };
                    let times = Times { last: Instant::now(), every };
                    self.stage = WatchStage::Waiting(source, times, sleep(every));
                    let gone = || (Err("the thread for look-ups is gone".into()), Answers::new());
                    let (list, answers) = found.unwrap_or_else(gone);
                    self.answers = answers;
                    return Some(Poll::Ready(Some(list)));
                }
            },
            WatchStage::Waiting(source, times, mut time) => {
                if self.is_requested(task) {
                    time = sleep(times.next(true).saturating_duration_since(Instant::now()));
                }
                if Pin::new(&mut time).poll(task).is_pending() {
                    self.stage = WatchStage::Waiting(source, times, time);
                    return Some(Poll::Pending);
                }
                self.stage = WatchStage::Due(source);
            }
        }
        None
    }
}

impl Drop for HostWatch {
    fn drop(&mut self) {
        let waker = lock(&self.requests).waiting.remove(&self.number);
        drop(waker);
    }
}

impl Stream for HostWatch {
    type Item = ListResult;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<ListResult>> {
        let this = &mut *self;
        loop {
            let stage = mem::replace(&mut this.stage, WatchStage::Over);
            if let Some(polled) = this.step(stage, task) {
                return polled;
            }
        }
    }
}

/// The endpoints with these addresses, each once, up to [`ENDPOINTS_MAX`].
fn endpoints(addresses: Vec<Address>) -> Vec<Endpoint> {
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for address in addresses {
        if endpoints.len() == ENDPOINTS_MAX {
            break;
        }
        if !endpoints.iter().any(|known| known.address() == address) {
            endpoints.push(Endpoint::new(address));
        }
    }
    endpoints
}

/// The text of a regular file.
fn read(path: &Path) -> io::Result<String> {
    // A pipe without a writer is opened at once, so that it does not hold up the thread.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        return Err(io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

/// The hosts in a file, one or more.
fn hosts_in(path: &Path) -> Result<Vec<String>, BoxError> {
    let named = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let hosts = HostSource::hosts_in(&read(path).map_err(named)?);
    if hosts.is_empty() {
        return Err(format!("{} has no hosts", path.display()).into());
    }
    Ok(hosts)
}

/// Looks all hosts of a source up. One that is not found has its last addresses. An error if none is found.
fn look(
    source: &HostSource,
    last: &mut Answers,
    resolve: impl Fn(&str) -> Result<Vec<Address>, ResolveError>,
) -> ListResult {
    let texts = match source {
        HostSource::Hosts { texts, .. } => texts.clone(),
        HostSource::File(path) => hosts_in(path)?,
    };
    let (mut answers, mut addresses) = (Answers::new(), Vec::new());
    let (mut is_any_found, mut failure) = (false, None);
    for text in texts.into_iter().take(ENDPOINTS_MAX) {
        let found = match resolve(&text) {
            Ok(found) => {
                is_any_found = true;
                found
            }
            Err(error) => {
                failure = Some(error);
                last.get(&text).cloned().unwrap_or_default()
            }
        };
        addresses.extend_from_slice(&found);
        answers.insert(text, found);
    }
    *last = answers;
    match failure {
        Some(error) if !is_any_found => Err(error.into()),
        _ => Ok(endpoints(addresses)),
    }
}

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemResolver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures_lite::StreamExt;
    use futures_lite::future::block_on;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn first(text: &str) -> ListResult {
        let mut lists = SystemResolver::new().watch(&Target::new(text));
        block_on(lists.next()).expect("a list")
    }

    #[test]
    fn numbers_are_one_list_without_duplicates() {
        let mut lists =
            SystemResolver::new().watch(&Target::new("static:10.0.0.1:1,[::1]:1,10.0.0.1:1"));
        let list = block_on(lists.next()).expect("a list").expect("addresses");
        let addresses: Vec<_> = list.iter().map(|it| it.address().to_string()).collect();
        assert_eq!(addresses, ["10.0.0.1:1", "[::1]:1"]);
        assert!(block_on(lists.next()).is_none());
    }

    #[test]
    fn names_are_looked_up_on_threads_of_the_process() {
        for text in ["localhost:1", "dns:localhost:1@7", "static:localhost:1,10.0.0.1:1"] {
            let list = first(text).expect(text);
            assert!(list.iter().all(|it| it.address().port == 1 && it.weight() == 1), "{text}");
            assert!(list[0].address().host.ip().is_loopback());
        }
        assert_eq!(
            first("nothing").expect_err("no port").to_string().split(':').next(),
            Some("address 'nothing'")
        );
    }

    #[test]
    fn a_file_names_hosts() {
        let path = std::env::temp_dir().join(format!("apus-rpc-hosts-{}", std::process::id()));
        fs::write(&path, "10.0.0.1:1 # one\n10.0.0.2:1\n").expect("a file");
        let list = first(&format!("file:{}", path.display())).expect("addresses");
        assert_eq!(list.len(), 2);
        fs::remove_file(&path).expect("the file");
        let error = first(&format!("file:{}", path.display())).expect_err("no file").to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }

    #[test]
    fn a_name_that_is_not_found_keeps_its_last_addresses() {
        let source = Target::new("static:a:1,b:1").source().expect("hosts");
        let mut answers = Answers::new();
        let mut look = |known: &[&str]| {
            let list = look(&source, &mut answers, |text| match known.contains(&text) {
                true if text == "a:1" => Ok(vec!["10.0.0.1:1".parse().expect("an address")]),
                true => Ok(vec!["10.0.0.2:1".parse().expect("an address")]),
                false => Err(ResolveError::Form { text: text.to_owned() }),
            });
            list.map_or(0, |list| list.len())
        };
        assert_eq!([look(&["a:1"]), look(&["a:1", "b:1"])], [1, 2]);
        assert_eq!([look(&["b:1"]), look(&["a:1"]), look(&["b:1"])], [2; 3]);
        assert_eq!([look(&[]), look(&["a:1"])], [0, 2], "an error leaves the list before in place");
    }

    #[test]
    fn a_file_is_regular_and_short_and_has_hosts() {
        let path = std::env::temp_dir().join(format!("apus-rpc-refused-{}", std::process::id()));
        let refusal = || {
            let error = first(&format!("file:{}", path.display())).expect_err("refused");
            fs::remove_file(&path).expect("the file");
            error.to_string()
        };
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        assert!(refusal().ends_with(": not a regular file"));
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(refusal().ends_with(": not a regular file"));
        fs::write(&path, "#".repeat((1 << 20) + 1)).expect("a file");
        assert!(refusal().ends_with(": longer than 1 MiB"));
        fs::write(&path, "# none\n").expect("a file");
        assert!(refusal().ends_with(" has no hosts"));
    }

    #[test]
    fn a_target_has_a_bound() {
        let hosts: Vec<_> = (1..=ENDPOINTS_MAX + 1).map(|it| format!("10.0.0.1:{it}")).collect();
        assert_eq!(first(&format!("static:{}", hosts.join(","))).expect("a list").len(), 1_000);
    }

    #[test]
    fn a_failure_brings_the_next_look_up_forward_but_not_at_once() {
        let last = Instant::now();
        let times = Times { last, every: LOOK_EVERY };
        assert_eq!(times.next(false), last + Duration::from_secs(30));
        assert_eq!(times.next(true), last + Duration::from_secs(5));
    }

    #[test]
    fn a_request_wakes_a_watch_that_waits() {
        let resolver = SystemResolver::new();
        let mut lists = resolver.watch(&Target::new("localhost:1"));
        block_on(lists.next()).expect("a list").expect("addresses");
        let woken = Arc::new(Flag(false.into()));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(lists.as_mut().poll_next(&mut Context::from_waker(&waker)).is_pending());
        resolver.refresh();
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst));
    }

    #[test]
    fn a_watch_that_is_dropped_leaves_no_waker() {
        let resolver = SystemResolver::new();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let mut lists = resolver.watch(&Target::new("localhost:1"));
            block_on(lists.next()).expect("a list").expect("addresses");
            assert!(lists.as_mut().poll_next(&mut context).is_pending());
            assert_eq!(lock(&resolver.requests).waiting.len(), 1);
        }
        assert!(lock(&resolver.requests).waiting.is_empty());
    }

    struct Flag(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}
