//! shmipc: streams of bytes in memory that two processes share, with a wake-up through a unix socket. A call is a message with its
//! length before it, on a stream of its own while it is outstanding.

use std::net::SocketAddr;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result};
use apus_node::transport::interface::{Client, Server};
use apus_node::transport::over_apus::reply_to;
use bytes::Bytes;
use shmipc::config::SizePercentPair;
use shmipc::consts::MemMapType;
use shmipc::session::{SessionManager, SessionManagerConfig};
use shmipc::stream::Stream;
use shmipc::transport::{DefaultUnixConnect, DefaultUnixListen};
use shmipc::{Error, Listener};
use tokio::task::yield_now;

use crate::calls::{AsyncClient, AsyncServer, Wait};
use crate::socket::{self, Kind};

/// Bytes of shared memory: the value of shmipc's own benchmark.
const MEMORY: u32 = 256 << 20;

/// Places of the queues of messages: the value of shmipc's own benchmark.
const QUEUE: u32 = 65_536;

/// Bytes of a slice that its management takes.
const SLICE_HEAD: u32 = 256;

/// Connects a client.
///
/// # Errors
/// If the server is not running.
pub(crate) fn connect(wait: Wait, server: SocketAddr) -> Result<Box<dyn Client>> {
    let client = AsyncClient::new(wait, async move {
        let path = path(server);
        let config = SessionManagerConfig::new().with_config(config(server)).with_session_num(1);
        let address = UnixAddr::from_pathname(&path)?;
        let sessions = SessionManager::new(config, DefaultUnixConnect, address).await?;
        fs::remove_file(path)?; // The only client is connected.
        Ok(move |body: Bytes| {
            let sessions = sessions.clone();
            async move {
                let mut stream = sessions.get_stream()?;
                write(&mut stream, &body).await?;
                let reply = read(&mut stream).await?;
                stream.release_read_and_reuse();
                sessions.put_back(stream).await;
                Ok(reply)
            }
        })
    })?;
    Ok(Box::new(client))
}

/// Opens a server.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn bind(wait: Wait) -> Result<Box<dyn Server>> {
    AsyncServer::open(wait, async move {
        let port = socket::Listener::bind(Kind::Tcp)?; // It names the unix socket.
        let server = port.address()?;
        let address = UnixAddr::from_pathname(path(server))?;
        let mut listener = Listener::new(DefaultUnixListen, address, config(server)).await?;
        Ok((server, async move {
            let _port = port;
            loop {
                let stream = listener.accept().await.context("shmipc accepts no stream")?;
                tokio::spawn(serve(stream));
            }
        }))
    })
}

/// Answers the messages of a stream until it ends.
async fn serve(mut stream: Stream) {
    while let Ok(message) = read(&mut stream).await {
        stream.recv_buf().release_previous_read_and_reserve();
        if write(&mut stream, &reply_to(message)).await.is_err() {
            return;
        }
    }
}

async fn write(stream: &mut Stream, message: &[u8]) -> Result<()> {
    let length = u32::try_from(message.len())?;
    stream.write_bytes(&length.to_le_bytes())?;
    stream.write_bytes(message)?;
    loop {
        match stream.flush(false).await {
            Err(Error::QueueFull) => yield_now().await,
            flushed => return Ok(flushed?),
        }
    }
}

/// The body is copied out of shared memory, which the next message may need.
async fn read(stream: &mut Stream) -> Result<Bytes> {
    let length = stream.read_exact_bytes(4).await?;
    let length = u32::from_le_bytes(length[..].try_into()?);
    let message = stream.read_exact_bytes(length as usize).await?;
    Ok(Bytes::copy_from_slice(&message))
}

/// shmipc takes no abstract name.
fn path(server: SocketAddr) -> PathBuf {
    env::temp_dir().join(format!("apus-rivals-{}.sock", server.port()))
}

/// Slices for short messages, and for those of 500 kB.
fn config(server: SocketAddr) -> shmipc::config::Config {
    let mut config = shmipc::config::Config::new();
    config.queue_cap = QUEUE;
    config.share_memory_buffer_cap = MEMORY;
    config.mem_map_type = MemMapType::MemMapTypeMemFd;
    config.share_memory_path_prefix = format!("/dev/shm/apus-rivals-{}", server.port());
    let slices = [(1 << 10, 30), (64 << 10, 30), (512 << 10, 40)];
    let pair = |(size, percent)| SizePercentPair { size: size + SLICE_HEAD, percent };
    config.buffer_slice_sizes = slices.map(pair).to_vec();
    config
}
