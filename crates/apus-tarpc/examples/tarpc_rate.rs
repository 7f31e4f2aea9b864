//! Compares tarpc over TCP with tarpc over Apus: one client and one echo server, each in a runtime of one thread, bodies of 100
//! bytes, postcard on all transports, TCP without Nagle's algorithm.
//!
//! `tarpc_rate CALLS [ROUNDS]` prints the median time of a call, one at a time, and the rate with 64 outstanding calls: the medians over
//! the rounds (default 5), in each of which every transport has its turn. Only ratios within one run mean anything.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Bytes, Config, Node};
use futures_util::future::try_join_all;
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tarpc::context::Context;
use tarpc::serde_transport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::{Deserializer, Serializer};
use tarpc::tokio_util::bytes::BytesMut;
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

const OUTSTANDING: usize = 64;

#[tarpc::service]
trait Echo {
    async fn echo(body: String) -> String;
}

#[derive(Clone)]
struct Echoing;

impl Echo for Echoing {
    async fn echo(self, _: Context, body: String) -> String {
        body
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Tcp,
    Memory,
    Udp,
}

/// Where the server is.
#[derive(Clone, Copy)]
enum ServerAt {
    Tcp(SocketAddr),
    Apus(Address),
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let calls: usize = arguments.next().ok_or("tarpc_rate CALLS [ROUNDS]")?.parse()?;
    let rounds: usize = arguments.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let ways = [Way::Tcp, Way::Memory, Way::Udp];
    let mut results = ways.map(|_| Vec::new());
    for _ in 0..rounds {
        for (way, results) in ways.into_iter().zip(&mut results) {
            results.push(measure(way, calls)?);
        }
    }
    println!("transport   one at a time: us   {OUTSTANDING} outstanding: thousand/s");
    for (way, results) in ways.into_iter().zip(&results) {
        let alone = median(results.iter().map(|result| result.0));
        let rate = median(results.iter().map(|result| result.1));
        println!("{:<11} {alone:>17.1} {rate:>29.1}", format!("{way:?}"));
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The median time of a call in microseconds, and the rate in thousands per second.
fn measure(way: Way, calls: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let (ready, is_ready) = mpsc::channel();
    thread::spawn(move || {
        if let Err(error) = serve(way, &ready) {
            eprintln!("{way:?}: {error}");
        }
    });
    let place = is_ready.recv()?;
    let runtime = runtime()?;
    let measured = runtime.block_on(async {
        let client = connect(way, place).await?;
        tokio::spawn(
            async move { measure_calls(&client, calls).await.map_err(|it| it.to_string()) },
        )
        .await?
        .map_err(Into::into)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    measured
}

async fn measure_calls(client: &EchoClient, calls: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let body = "x".repeat(100);
    let mut times = Vec::with_capacity(calls);
    for number in 0..calls + calls / 10 {
        let began = Instant::now();
        client.echo(tarpc::context::current(), body.clone()).await?;
        if number >= calls / 10 {
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    let began = Instant::now();
    let each = calls.div_ceil(OUTSTANDING);
    let tasks = (0..OUTSTANDING).map(|_| {
        let (client, body) = (client.clone(), body.clone());
        tokio::spawn(async move {
            for _ in 0..each {
                let echo = client.echo(tarpc::context::current(), body.clone()).await;
                echo.expect("a response");
            }
        })
    });
    try_join_all(tasks).await?;
    let seconds = began.elapsed().as_secs_f64();
    Ok((median(times.into_iter()), (each * OUTSTANDING) as f64 / seconds / 1e3))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn node(way: Way) -> Result<Node, Box<dyn Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    config.link(if way == Way::Memory { "auto" } else { "udp" }.parse()?);
    let node = Node::start(&config)?;
    tokio::spawn(node.event_loop()?.drive());
    Ok(node)
}

/// Serves until the process ends, or until the client of TCP does.
fn serve(way: Way, ready: &mpsc::Sender<ServerAt>) -> Result<(), Box<dyn Error>> {
    runtime()?.block_on(async {
        if way == Way::Tcp {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            ready.send(ServerAt::Tcp(listener.local_addr()?))?;
            let channel = BaseChannel::with_defaults(framed(listener.accept().await?.0)?);
            run(channel.execute(Echoing.serve())).await;
        } else {
            let node = node(way)?;
            let transport = apus_tarpc::accept(node.bind(4000)?);
            ready.send(ServerAt::Apus(Address::new(node.local_addr(), 4000)))?;
            run(BaseChannel::with_defaults(transport).execute(Echoing.serve())).await;
        }
        Ok(())
    })
}

async fn run<H: Future<Output = ()> + Send + 'static>(handlers: impl Stream<Item = H>) {
    handlers.for_each(async |handler| drop(tokio::spawn(handler))).await;
}

async fn connect(way: Way, place: ServerAt) -> Result<EchoClient, Box<dyn Error>> {
    let config = tarpc::client::Config::default();
    Ok(match place {
        ServerAt::Tcp(address) => {
            EchoClient::new(config, framed(TcpStream::connect(address).await?)?).spawn()
        }
        ServerAt::Apus(address) => {
            let transport = apus_tarpc::dial(&node(way)?, address)?;
            transport.client().connect(address).await?;
            EchoClient::new(config, transport).spawn()
        }
    })
}

type OverTcp<Item, SinkItem> = serde_transport::Transport<TcpStream, Item, SinkItem, Postcard>;

fn framed<Item: DeserializeOwned, SinkItem: Serialize>(
    stream: TcpStream,
) -> io::Result<OverTcp<Item, SinkItem>> {
    stream.set_nodelay(true)?;
    Ok(serde_transport::new(Framed::new(stream, LengthDelimitedCodec::new()), Postcard))
}

/// The format of the transport over TCP.
struct Postcard;

impl<Item: DeserializeOwned> Deserializer<Item> for Postcard {
    type Error = io::Error;

    fn deserialize(self: Pin<&mut Self>, bytes: &BytesMut) -> io::Result<Item> {
        postcard::from_bytes(bytes).map_err(io::Error::other)
    }
}

impl<Item: Serialize> Serializer<Item> for Postcard {
    type Error = io::Error;

    fn serialize(self: Pin<&mut Self>, item: &Item) -> io::Result<Bytes> {
        postcard::to_allocvec(item).map(Bytes::from).map_err(io::Error::other)
    }
}
