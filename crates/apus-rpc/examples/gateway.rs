//! A gateway from HTTP to Apus: browsers and curl reach a typed service by axum.
//!
//! ```sh
//! cargo run -p apus-rpc --example gateway serve    # http://localhost:8080/add/1/2, until it is ended
//! ```
//!
//! Without arguments the example asks itself:
//!
//! ```text
//! GET /add/1/2: HTTP/1.1 200 OK 3
//! GET /add/9223372036854775807/1: HTTP/1.1 400 Bad Request the sum is too large
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use std::{env, future, thread};

use apus_rpc::{Address, Channel, Code, Config, Context, Node, Server, Status};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
}

struct MyCalc;

impl Calc for MyCalc {
    async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
        a.checked_add(b).ok_or_else(|| Status::new(Code::OutOfRange, "the sum is too large"))
    }
}

/// The code of HTTP for a status, as the gateways of gRPC choose it.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Aborted | Code::AlreadyExists => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Cancelled => StatusCode::from_u16(499).expect("three digits"),
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Calls the service. The call is given up when the browser goes away, because axum drops this future then.
async fn add(
    State(calc): State<CalcClient>,
    Path((a, b)): Path<(i64, i64)>,
) -> Result<String, (StatusCode, String)> {
    let call = calc.add(a, b).deadline(Duration::from_secs(1));
    match call.await {
        Ok(sum) => Ok(sum.to_string()),
        Err(status) => Err((http_status(status.code()), status.message().to_owned())),
    }
}

/// Sends a request, and returns the first line of the answer and its body.
fn ask(at: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(at)?;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok(format!("{} {body}", head.lines().next().unwrap_or_default()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let serving = Server::builder(&node).add(CalcServer::new(MyCalc));
    let serving = serving.serve(4000, future::pending());
    thread::spawn(move || serving.wait());

    // The runtime turns the client's node, so that an answer wakes no thread but the runtime's.
    let client = Node::start(&Config::new())?;
    apus_rpc::tokio::drive(&client)?;
    let address = Address::new(node.local_addr(), 4000).to_string();
    let channel = Channel::builder(&address).node(&client).connect().await?;
    let router = Router::new().route("/add/{a}/{b}", get(add)).with_state(CalcClient::new(channel));
    if env::args().nth(1).as_deref() == Some("serve") {
        axum::serve(TcpListener::bind("127.0.0.1:8080").await?, router).await?;
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    let paths = ["/add/1/2", "/add/9223372036854775807/1"];
    let asked =
        tokio::task::spawn_blocking(move || paths.map(|path| (path, ask(at, path)))).await?;
    for (path, answer) in asked {
        println!("GET {path}: {}", answer?);
    }
    Ok(())
}
