//! iceoryx2: its request-response service in shared memory, both sides polling.
//!
//! A request is written into shared memory once and read in place, and so is a reply.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::spin_loop;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use apus_node::message::{MESSAGE_MAX, MessageHeader, build, check_last};
use apus_node::transport::interface::{Client, Ended, Failed, Request, Server};
use apus_node::transport::over_apus::{Bodies, read_reply};
use iceoryx2::active_request::ActiveRequest;
use iceoryx2::pending_response::PendingResponse;
use iceoryx2::port::client::Client as RequestPort;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::request_response::PortFactory as CallFactory;

type Service = CallFactory<ipc::Service, [u8], (), [u8], ()>;
type Pending = PendingResponse<ipc::Service, [u8], (), [u8], ()>;
type Active = ActiveRequest<ipc::Service, [u8], (), [u8], ()>;

/// Upper bound on outstanding requests; further ones wait in the client. A server checks the slots of all of them for each reply, so
/// a larger number slows down every call.
const ACTIVE_MAX: usize = 16;

/// Upper bound on a message, in bytes: more than the longest of the mix. Each request and reply has a slot of this length.
const LONGEST: usize = 1 << 20;

/// Polls between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// Upper bound on the time in which a server opens its ports.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The services of one benchmark.
struct Services {
    calls: Service,
    _node: Node<ipc::Service>,
}

impl Services {
    fn open(address: SocketAddr) -> Result<Self> {
        set_log_level(LogLevel::Error);
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let name = |of: &str| ServiceName::new(&format!("apus-rivals/{}/{of}", address.port()));
        let calls = node
            .service_builder(&name("calls")?)
            .request_response::<[u8], [u8]>()
            .max_clients(1)
            .max_servers(1)
            .max_active_requests_per_client(ACTIVE_MAX)
            .max_response_buffer_size(1)
            .max_borrowed_responses_per_pending_response(1)
            .enable_safe_overflow_for_requests(false)
            .enable_safe_overflow_for_responses(false)
            .open_or_create()?;
        Ok(Self { calls, _node: node })
    }
}

/// The client's side.
struct Iceoryx2Client {
    bodies: Bodies,
    queued: VecDeque<Request>,
    /// Calls without a reply and their tags: one server answers one client in order.
    pending: VecDeque<(u64, Pending)>,
    port: RequestPort<ipc::Service, [u8], (), [u8], ()>,
    _services: Services,
}

/// Connects a client.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect(server: SocketAddr) -> Result<Box<dyn Client>> {
    let services = Services::open(server)?;
    let port = services
        .calls
        .client_builder()
        .initial_max_slice_len(LONGEST)
        .allocation_strategy(AllocationStrategy::Static)
        .create()?;
    let start = Instant::now();
    while services.calls.dynamic_config().number_of_servers() == 0 {
        ensure!(start.elapsed() < TIMEOUT, "the server did not open its port");
        thread::yield_now();
    }
    Ok(Box::new(Iceoryx2Client {
        bodies: Bodies::ready(),
        queued: VecDeque::new(),
        pending: VecDeque::new(),
        port,
        _services: services,
    }))
}

impl Client for Iceoryx2Client {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.queued.push_back(request);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        let before = ended.len();
        let mut deadline = None;
        for spins in 1_u32.. {
            self.send_queued()?;
            self.take_replies(ended)?;
            if timeout.is_zero() || ended.len() > before {
                break;
            }
            if spins.is_multiple_of(SPINS_PER_CLOCK) {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + timeout) {
                    break;
                }
            }
            spin_loop();
        }
        Ok(())
    }
}

impl Iceoryx2Client {
    fn send_queued(&mut self) -> Result<()> {
        while self.pending.len() < ACTIVE_MAX
            && let Some(request) = self.queued.pop_front()
        {
            let body = self.bodies.body(request);
            let memory = self.port.loan_slice_uninit(body.len())?;
            let pending = memory.write_from_slice(&body).send()?;
            self.pending.push_back((request.tag, pending));
        }
        Ok(())
    }

    fn take_replies(&mut self, ended: &mut Vec<Ended>) -> Result<()> {
        while let Some((tag, pending)) = self.pending.front()
            && let Some(reply) = pending.receive()?
        {
            ended.push(read_reply(*tag, &reply).map_err(|why| Failed::wrong(*tag, why)));
            drop(reply);
            self.pending.pop_front();
        }
        Ok(())
    }
}

/// The server's side. The serving thread opens the ports, because they cannot change threads.
struct Iceoryx2Server {
    address: SocketAddr,
    /// Keeps the port whose number is in the names of the services.
    _reserved: UdpSocket,
}

/// Opens a server.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind() -> Result<Box<dyn Server>> {
    let reserved = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("UDP socket")?;
    let address = reserved.local_addr().context("UDP local address")?;
    Ok(Box::new(Iceoryx2Server { address, _reserved: reserved }))
}

impl Server for Iceoryx2Server {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn run(self: Box<Self>) -> Result<Infallible> {
        let services = Services::open(self.address)?;
        let port = services
            .calls
            .server_builder()
            .initial_max_slice_len(LONGEST)
            .allocation_strategy(AllocationStrategy::Static)
            .create()?;
        loop {
            while let Some(request) = port.receive()? {
                answer(&request)?;
            }
            spin_loop();
        }
    }
}

/// Answers like the servers of the other transports.
fn answer(request: &Active) -> Result<()> {
    let body = request.payload();
    let Some(header) = MessageHeader::from_bytes(body) else { bail!("a request without a header") };
    check_last(&body[MessageHeader::LEN..], body.len())?;
    let short = (1..=MESSAGE_MAX).contains(&header.other_length).then(|| {
        let reply = header.answer(body.len() as u32);
        build(reply, reply.length as usize)
    });
    let reply = short.as_deref().unwrap_or(body);
    request.loan_slice_uninit(reply.len())?.write_from_slice(reply).send()?;
    Ok(())
}

/// Removes the shared memory of killed servers, which every new node does.
///
/// # Errors
/// If no node can be created.
pub(crate) fn clean_up() -> Result<()> {
    NodeBuilder::new().create::<ipc::Service>().map(drop).context("cannot make a node")
}
