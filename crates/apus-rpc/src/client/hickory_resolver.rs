//! A resolver that asks name servers itself: times to live, and SRV records.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::process;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, ResolveError};
use futures_core::Stream;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use crate::client::resolve::{BoxError, ENDPOINTS_MAX, Endpoint, EndpointStream, Resolve};
use crate::client::target::Target;

/// UDP port of a node if a target names none.
const UDP_PORT: u16 = 20146;

/// Shortest time between two look-ups of a target.
const LOOK_MIN: Duration = Duration::from_secs(1);

/// Longest time between two look-ups of a target.
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// Time after which a target is looked up again that was not found, and the shortest time to a look-up because an endpoint failed.
const LOOK_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// A resolver that asks name servers itself (feature `hickory`).
///
/// | target | endpoints |
/// |---|---|
/// | `srv:_calc._udp.svc:PORT` | the SRV records of the name with the lowest priority: UDP port and weight are those of a record, the Homa port is that of the target |
/// | `HOST:PORT`, `dns:HOST:PORT`, with `@UDPPORT` behind it or without | all addresses of the name |
///
/// A target is looked up again when the time to live of its records is over (1 s to 1 h), and at most 5 s after a look-up that did not
/// find all names. A host of SRV records that is not found any more keeps the addresses that it had. When an endpoint fails, the target
/// is looked up 5 s after the last time, or at once. Channels with `srv:` targets have this resolver unless they are given another one;
/// all others do if they are given it.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use apus_rpc::{Channel, HickoryResolver};
///
/// let by_records = Channel::builder("srv:_calc._udp.svc.cluster.local:4000").build()?;
/// let by_times = Channel::builder("dns:calc.example:4000").resolver(HickoryResolver::from_system()?).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HickoryResolver {
    resolver: TokioResolver,
    /// Number of requests for a newer list.
    requests: watch::Sender<u64>,
}

impl HickoryResolver {
    /// A resolver with the name servers of the system (`/etc/resolv.conf`) and its file of hosts.
    ///
    /// # Errors
    ///
    /// The configuration of the system cannot be read.
    pub fn from_system() -> Result<Self, BoxError> {
        let mut builder = TokioResolver::builder_tokio()?;
        no_cache(builder.options_mut());
        Ok(Self::new(builder.build()?))
    }

    /// A resolver that asks these name servers, over UDP and, for long answers, TCP.
    ///
    /// # Errors
    ///
    /// `servers` is empty, or the resolver cannot be built.
    pub fn with_servers(servers: &[SocketAddr]) -> Result<Self, BoxError> {
        if servers.is_empty() {
            return Err("no name servers".into());
        }
        let server = |address: &SocketAddr| {
            let mut connections = vec![ConnectionConfig::udp(), ConnectionConfig::tcp()];
            connections.iter_mut().for_each(|connection| connection.port = address.port());
            NameServerConfig::new(address.ip(), true, connections)
        };
        let config =
            ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(server).collect());
        let provider = TokioRuntimeProvider::default();
        let mut builder = TokioResolver::builder_with_config(config, provider);
        no_cache(builder.options_mut());
        Ok(Self::new(builder.build()?))
    }

    fn new(resolver: TokioResolver) -> Self {
        Self { resolver, requests: watch::Sender::new(0) }
    }
}

/// Answers are kept by the channels, and a look-up after a failure is to be a new one.
fn no_cache(options: &mut ResolverOpts) {
    options.cache_size = 0;
}

impl Resolve for HickoryResolver {
    fn watch(&self, target: &Target) -> EndpointStream {
        let (sender, lists) = mpsc::channel(1);
        let failed = |error: BoxError| {
            let _ = sender.try_send(Err(error));
        };
        match (DnsName::of(target), runtime()) {
            (Err(error), _) => failed(error.into()),
            (_, None) => failed("the thread for name servers does not start".into()),
            (Ok(name), Some(runtime)) => {
                let follow = follow(self.resolver.clone(), name, self.requests.subscribe(), sender);
                runtime.spawn(follow);
            }
        }
        Box::pin(DnsWatch { lists })
    }

    fn refresh(&self) {
        self.requests.send_modify(|number| *number += 1);
    }
}

/// The lists of a target. Its task ends when this is dropped.
struct DnsWatch {
    lists: mpsc::Receiver<ListResult>,
}

type ListResult = Result<Vec<Endpoint>, BoxError>;

impl Stream for DnsWatch {
    type Item = ListResult;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<ListResult>> {
        self.lists.poll_recv(task)
    }
}

/// The runtime for look-ups, on a thread of its own. A forked child of the process has a thread of its own.
fn runtime() -> Option<Handle> {
    static RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);
    let mut known = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, handle)) = &*known
        && *process == process::id()
    {
        return Some(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    let thread = thread::Builder::new().name("apus-rpc-dns".to_owned());
    thread.spawn(move || runtime.block_on(pending::<()>())).ok()?;
    *known = Some((process::id(), handle.clone()));
    Some(handle)
}

/// A name of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DnsName {
    Host { name: String, udp_port: u16, port: u16 },
    Service { name: String, port: u16 },
}

impl DnsName {
    fn of(target: &Target) -> Result<Self, ResolveError> {
        let wrong = || ResolveError::Form { text: target.as_str().to_owned() };
        let split = |text: &str| {
            let (name, port) = text.rsplit_once(':')?;
            let port = port.parse().ok()?;
            (!name.is_empty() && port > 0).then(|| (name.to_owned(), port))
        };
        let text = target.as_str();
        if let Some(service) = text.strip_prefix("srv:") {
            let (name, port) = split(service).ok_or_else(wrong)?;
            return Ok(Self::Service { name, port });
        }
        let text = text.strip_prefix("dns:").unwrap_or(text);
        let text = text.strip_prefix("apus://").unwrap_or(text);
        let (text, udp_port) = match text.rsplit_once('@') {
            Some((text, udp_port)) => (text, udp_port.parse().map_err(|_| wrong())?),
            None => (text, UDP_PORT),
        };
        let (name, port) = split(text).ok_or_else(wrong)?;
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self::Host { name, udp_port, port })
    }

    /// The endpoints, and the time until which they hold.
    async fn look(&self, resolver: &TokioResolver, last: &mut HostAnswers) -> LookResult {
        match self {
            Self::Host { name, udp_port, port } => {
                let found = resolver.lookup_ip(name.as_str()).await?;
                let endpoint =
                    |ip| Endpoint::new(Address::new(SocketAddr::new(ip, *udp_port), *port));
                Ok((found.iter().map(endpoint).collect(), found.valid_until()))
            }
            Self::Service { name, port } => services(resolver, name, *port, last).await,
        }
    }
}

type LookResult = Result<(Vec<Endpoint>, Instant), BoxError>;

/// The last addresses of each host of a service.
type HostAnswers = BTreeMap<Name, Vec<IpAddr>>;

/// The servers of a service: the records with the lowest priority.
async fn services(
    resolver: &TokioResolver,
    name: &str,
    port: u16,
    last: &mut HostAnswers,
) -> LookResult {
    let found = resolver.srv_lookup(name).await?;
    let mut list = ServiceList::new(port, found.valid_until());
    let records = found.answers().iter().filter_map(|record| match &record.data {
        RData::SRV(record) => Some(record),
        _ => None,
    });
    // The name "." says that there is no such service.
    let records: Vec<&SRV> = records.filter(|record| !record.target.is_root()).collect();
    let first = records.iter().map(|record| record.priority).min();
    let chosen = records.into_iter().filter(|record| Some(record.priority) == first);
    for record in chosen.take(ENDPOINTS_MAX) {
        let found = resolver.lookup_ip(record.target.clone()).await;
        let found = found.map(|found| (found.iter().collect(), found.valid_until()));
        list.add(record, found.map_err(BoxError::from), last);
    }
    list.finish(name, Instant::now(), last)
}

/// The endpoints of a service, while its hosts are looked up.
struct ServiceList {
    port: u16,
    endpoints: Vec<Endpoint>,
    until: Instant,
    answers: HostAnswers,
    is_any_found: bool,
    failure: Option<BoxError>,
}

impl ServiceList {
    fn new(port: u16, until: Instant) -> Self {
        let (endpoints, answers) = Default::default();
        Self { port, endpoints, until, answers, is_any_found: false, failure: None }
    }

    /// Adds a record whose host was looked up. A host that is not found has its last addresses.
    fn add(
        &mut self,
        record: &SRV,
        found: Result<(Vec<IpAddr>, Instant), BoxError>,
        last: &HostAnswers,
    ) {
        let addresses = match found {
            Ok((addresses, until)) => {
                self.is_any_found = true;
                self.until = self.until.min(until);
                addresses
            }
            Err(error) => {
                self.failure = Some(error);
                last.get(&record.target).cloned().unwrap_or_default()
            }
        };
        self.endpoints.extend(addresses.iter().map(|ip| {
            let host = SocketAddr::new(*ip, record.port);
            Endpoint::new(Address::new(host, self.port)).with_weight(record.weight.into())
        }));
        self.answers.insert(record.target.clone(), addresses);
    }

    /// The list of a service with this name. An error if no host is found.
    fn finish(self, name: &str, now: Instant, last: &mut HostAnswers) -> LookResult {
        match self.failure {
            Some(error) if !self.is_any_found => Err(error),
            _ if self.endpoints.is_empty() => Err(format!("'{name}' has no servers").into()),
            failure => {
                *last = self.answers;
                // The names that were not found are looked up soon.
                let soon = now + LOOK_AFTER_FAILURE;
                let until = if failure.is_some() { self.until.min(soon) } else { self.until };
                Ok((self.endpoints, until))
            }
        }
    }
}

/// Looks a name up again and again, until its watch has gone.
async fn follow(
    resolver: TokioResolver,
    name: DnsName,
    mut requests: watch::Receiver<u64>,
    sender: mpsc::Sender<ListResult>,
) {
    let mut answers = HostAnswers::new();
    loop {
        requests.mark_unchanged();
        let begun = Instant::now();
        let found = name.look(&resolver, &mut answers).await;
        let until = found.as_ref().ok().map(|(_, until)| *until);
        if sender.send(found.map(|(list, _)| bounded(list))).await.is_err() {
            return;
        }
        let is_over = {
            let mut closed = pin!(sender.closed());
            let mut requested = pin!(requests.changed());
            let mut time = pin!(sleep_until(next(begun, until, false)));
            let mut is_waiting = true;
            poll_fn(|task| {
                if closed.as_mut().poll(task).is_ready() {
                    return Poll::Ready(true);
                }
                if is_waiting && let Poll::Ready(changed) = requested.as_mut().poll(task) {
                    is_waiting = false;
                    // An error says that the resolver has gone.
                    if changed.is_ok() {
                        time.as_mut().reset(next(begun, until, true));
                    }
                }
                time.as_mut().poll(task).map(|()| false)
            })
            .await
        };
        if is_over {
            return;
        }
    }
}

/// The time of the look-up after one that has begun at a time. `until`: the time until which its records hold, if it found any.
fn next(begun: Instant, until: Option<Instant>, is_requested: bool) -> tokio::time::Instant {
    let by_records = match until {
        Some(until) => until.clamp(begun + LOOK_MIN, begun + LOOK_MAX),
        None => begun + LOOK_AFTER_FAILURE,
    };
    let at = if is_requested { by_records.min(begun + LOOK_AFTER_FAILURE) } else { by_records };
    at.into()
}

/// Each endpoint once, up to the limit.
fn bounded(list: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut once: Vec<Endpoint> = Vec::new();
    for endpoint in list {
        let is_known = once.iter().any(|known| known.address() == endpoint.address());
        if !is_known && once.len() < ENDPOINTS_MAX {
            once.push(endpoint);
        }
    }
    once
}

impl fmt::Debug for HickoryResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HickoryResolver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_targets() {
        let host = |name: &str, udp_port, port| DnsName::Host { name: name.into(), udp_port, port };
        let service = |name: &str, port| DnsName::Service { name: name.into(), port };
        let table = [
            ("a.example:1", Some(host("a.example", 20146, 1))),
            ("dns:a.example:1@7", Some(host("a.example", 7, 1))),
            ("apus://a.example:1", Some(host("a.example", 20146, 1))),
            ("dns:[::1]:1", Some(host("::1", 20146, 1))),
            ("srv:_calc._udp.svc:4000", Some(service("_calc._udp.svc", 4000))),
            ("srv:_calc._udp.svc", None),
            ("srv::4000", None),
            ("a.example", None),
            ("a.example:0", None),
            ("a.example:1@x", None),
        ];
        for (text, expected) in table {
            assert_eq!(DnsName::of(&Target::new(text)).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_host_that_is_not_found_keeps_its_last_addresses_and_is_looked_up_soon() {
        let now = Instant::now();
        let record = |host| SRV::new(0, 1, 7, Name::from_ascii(host).expect("a name"));
        let records = [record("a.svc."), record("b.svc.")];
        let mut last = HostAnswers::new();
        let mut look = |found: [Option<u8>; 2]| {
            let mut list = ServiceList::new(1, now + Duration::from_secs(60));
            for (record, found) in records.iter().zip(found) {
                let address = |it| vec![IpAddr::from([10, 0, 0, it])];
                let found = found.map(|it| (address(it), now + Duration::from_secs(30)));
                list.add(record, found.ok_or_else(|| "not found".into()), &last);
            }
            let (list, until) = list.finish("svc.", now, &mut last).ok()?;
            let hosts: Vec<_> = list.iter().map(|it| it.address().host.to_string()).collect();
            Some((hosts.join(" "), until.duration_since(now).as_secs()))
        };
        let expected = |hosts: &str, seconds| Some((hosts.to_owned(), seconds));
        assert_eq!(look([None, None]), None);
        assert_eq!(look([Some(1), None]), expected("10.0.0.1:7", 5));
        assert_eq!(look([Some(1), Some(2)]), expected("10.0.0.1:7 10.0.0.2:7", 30));
        assert_eq!(look([None, Some(3)]), expected("10.0.0.1:7 10.0.0.3:7", 5));
        assert_eq!(look([None, None]), None, "an error leaves the list before in place");
        assert_eq!(look([Some(4), None]), expected("10.0.0.4:7 10.0.0.3:7", 5));
    }

    #[test]
    fn records_and_failures_say_when_to_look_again() {
        let begun = Instant::now();
        let seconds = |number| begun + Duration::from_secs(number);
        let next = |until: Option<u64>, requested| {
            let at = next(begun, until.map(seconds), requested).into_std();
            at.duration_since(begun).as_secs()
        };
        assert_eq!(
            [next(Some(0), false), next(Some(30), false), next(Some(9999), false)],
            [1, 30, 3600]
        );
        assert_eq!([next(None, false), next(None, true)], [5, 5]);
        assert_eq!([next(Some(2), true), next(Some(30), true)], [2, 5]);
    }
}
