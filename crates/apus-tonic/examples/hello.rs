//! Measures one generated service over four transports in one run: tonic's TCP and unix sockets, and Apus in shared memory and over
//! UDP.
//!
//! ```text
//! cargo run --release -p apus-tonic --example hello [SECONDS]
//! ```
//!
//! Client and server are threads of one process, each with a runtime of one thread. Rounds go over all transports in turn, so that what
//! else the machine does is spread over them; each figure is the median of seven rounds. SECONDS (default 14) is the time of all rounds.
//! Ratios within a run mean something; times of different runs are not to be compared on a machine that does other work.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Config, Links, Node};
use hello_world::greeter_client::GreeterClient;
use hello_world::greeter_server::{Greeter, GreeterServer};
use hello_world::{HelloReply, HelloRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

#[allow(warnings, reason = "generated")]
mod hello_world {
    include!("../proto/generated/helloworld.rs");
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

type AnyChannel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

const ROUNDS: usize = 7;

/// Calls at a time in the second measurement.
const OUTSTANDING: usize = 64;

/// Port of the servers over Apus.
const PORT: u16 = 4000;

struct MyGreeter;

#[tonic::async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> std::result::Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply { message: request.into_inner().name }))
    }
}

fn greeter() -> GreeterServer<MyGreeter> {
    GreeterServer::new(MyGreeter)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Serves on a thread. The server says first where it is.
async fn on_a_thread<A, S>(
    serve: impl FnOnce(oneshot::Sender<A>) -> S + Send + 'static,
) -> Result<A>
where
    A: Send + 'static,
    S: Future<Output = Result<()>>,
{
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let ended = runtime().map_err(Into::into).and_then(|it| it.block_on(serve(sender)));
        if let Err(error) = ended {
            eprintln!("a server has ended: {error}");
        }
    });
    Ok(receiver.await?)
}

async fn over_tcp() -> Result<AnyChannel> {
    let address = on_a_thread(async |sender| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let _ = sender.send(listener.local_addr()?);
        let incoming =
            tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = tonic::transport::Server::builder().add_service(greeter());
        Ok(server.serve_with_incoming(incoming).await?)
    });
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", address.await?))?;
    let channel = endpoint.tcp_nodelay(true).connect().await?;
    Ok(BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into()))))
}

async fn over_unix() -> Result<AnyChannel> {
    let path = std::env::temp_dir().join(format!("apus-hello-{}.sock", std::process::id()));
    let path = on_a_thread(async move |sender| {
        let listener = UnixListener::bind(&path)?;
        let _ = sender.send(path);
        let server = tonic::transport::Server::builder().add_service(greeter());
        Ok(server.serve_with_incoming(UnixListenerStream::new(listener)).await?)
    });
    let path = path.await?;
    let to = path.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = to.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector).await?;
    std::fs::remove_file(path)?;
    Ok(BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into()))))
}

async fn over_apus(links: Links, nodes: &mut Vec<Node>) -> Result<AnyChannel> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?).link(links);
    let node = Node::start(&config)?;
    apus_rpc::tokio::drive(&node)?;
    let address = on_a_thread(async move |sender| {
        let node = Node::start(&config)?;
        apus_rpc::tokio::drive(&node)?;
        let _ = sender.send(Address::new(node.local_addr(), PORT));
        apus_tonic::Server::builder().node(&node).add_service(greeter()).serve(PORT).await?;
        Ok(())
    });
    let address = address.await?;
    let channel = apus_rpc::Channel::builder(&address.to_string()).node(&node).connect().await?;
    eprintln!("{address}: {:?}", node.route(address));
    nodes.push(node);
    Ok(BoxCloneSyncService::new(apus_tonic::Channel::from(channel)))
}

fn request() -> HelloRequest {
    HelloRequest { name: "x".repeat(90) }
}

/// The median time of calls one after the other, in µs.
async fn one_by_one(channel: &AnyChannel, time: Duration) -> Result<f64> {
    let mut client = GreeterClient::new(channel.clone());
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < time {
        let before = Instant::now();
        client.say_hello(request()).await?;
        times.push(before.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6)
}

/// Thousands of calls a second with many outstanding.
async fn outstanding(channel: &AnyChannel, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let calls = (0..OUTSTANDING).map(|_| {
        let mut client = GreeterClient::new(channel.clone());
        tokio::spawn(async move {
            let mut calls = 0_u32;
            while begin.elapsed() < time {
                client.say_hello(request()).await?;
                calls += 1;
            }
            Ok::<u32, Status>(calls)
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut sum = 0;
    for call in calls {
        sum += call.await??;
    }
    Ok(f64::from(sum) / begin.elapsed().as_secs_f64() / 1e3)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

async fn measure(seconds: f64) -> Result<()> {
    let mut nodes = Vec::new();
    let channels = [
        ("tonic, TCP", over_tcp().await?),
        ("tonic, unix socket", over_unix().await?),
        ("Apus, memory", over_apus(Links::Auto, &mut nodes).await?),
        ("Apus, UDP", over_apus(Links::Udp, &mut nodes).await?),
    ];
    let time = Duration::from_secs_f64(seconds / (ROUNDS * channels.len() * 2) as f64);
    let mut figures = channels.each_ref().map(|_| (Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        for ((_, channel), (times, rates)) in channels.iter().zip(&mut figures) {
            times.push(one_by_one(channel, time).await?);
            rates.push(outstanding(channel, time).await?);
        }
    }
    let figures = figures.map(|(times, rates)| (median(times), median(rates)));
    let (tcp_time, tcp_rate) = figures[0];
    println!("{:<20}{:>10}{:>9}{:>16}{:>9}", "90 B", "p50 µs", "× TCP", "64: 1,000/s", "× TCP");
    for ((name, _), (time, rate)) in channels.iter().zip(figures) {
        let (times, rates) = (time / tcp_time, rate / tcp_rate);
        println!("{name:<20}{time:>10.1}{times:>9.2}{rate:>16.1}{rates:>9.2}");
    }
    Ok(())
}

fn main() -> Result<()> {
    let seconds = match std::env::args().nth(1) {
        Some(seconds) => seconds.parse()?,
        None => 14.0,
    };
    runtime()?.block_on(measure(seconds))
}
