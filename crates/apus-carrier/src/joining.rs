//! How the carriers of both ends of a connection find each other, and begin.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Context;
use std::time::Duration;

use apus::{Address, Stream, StreamOptions};
use apus_shm::Memory;
use apus_sockets::introduction::Tuple;

use crate::frame::{FRAME_MAX, Frame};
use crate::pairing::WAIT;
use crate::program::{Introduced, ProgramChannel};
use crate::reactor::within;
use crate::shared::Shared;
use crate::status::Event;

/// How long the other carrier may take for an answer that waits for no program.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// How often a host that does not answer is asked again: each time takes `peer_timeout`.
const TRIES: usize = 2;

/// The answer to a carrier that names a connection of a program here.
const FOUND: u8 = b'Y';
/// What the other carrier says then, once its program has what it needs.
const JOINED: u8 = b'J';

/// Bytes of a stream that wait in each direction: two frames, so that the ring of a connection bounds it and not the stream.
const WINDOW: usize = (2 * FRAME_MAX).next_power_of_two();

/// Options of all streams between carriers.
pub(crate) fn stream_options() -> StreamOptions {
    let mut options = StreamOptions::new();
    options.window(WINDOW);
    options
}

/// The connection that another carrier names.
pub(crate) async fn named(stream: &Stream) -> Option<Tuple> {
    let mut bytes = [0; Tuple::BYTES];
    read_exactly(stream, &mut bytes).await.ok()?;
    Tuple::parse(&bytes)
}

async fn read_exactly(stream: &Stream, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let read = |context: &mut Context<'_>| stream.poll_read(context, &mut bytes[done..]);
        match poll_fn(read).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

async fn write_all(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|context| stream.poll_write(context, bytes)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Finds the carrier of the other end, and its stream.
pub(crate) async fn search(shared: &Shared, introduced: &Introduced) -> Option<Stream> {
    let introduction = &introduced.introduction;
    let tuple = introduction.tuple();
    if introduction.accepted {
        return within(WAIT, shared.pairing.stream_for(tuple)).await;
    }
    let ip = tuple.server.ip();
    if !shared.hosts.have(ip) || shared.is_absent(ip) {
        return None;
    }
    let to = Address::new(SocketAddr::new(ip, shared.port), shared.port);
    let options = stream_options();
    let mut connected = Stream::connect_async(&shared.node, to, &options).await;
    // A carrier that was restarted is met anew by the next attempt.
    let again = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset];
    for _ in 0..TRIES {
        if connected.as_ref().is_err_and(|error| again.contains(&error.kind())) {
            connected = Stream::connect_async(&shared.node, to, &options).await;
        }
    }
    if let Err(error) = &connected {
        shared.counters.note(Event::Absent, || format!("no carrier at {ip}: {error}"));
        shared.note_absent(ip);
    }
    let stream = connected.ok()?;
    write_all(&stream, &tuple.to_bytes()).await.ok()?;
    expect(&stream, FOUND, WAIT).await.then_some(stream)
}

/// Gives the program what it needs. The carrier of the end that accepted the connection says that it has the program (FOUND); then the
/// other one gives its program what it needs, and says so (JOINED). From then on each carrier tells the other one how it ends.
pub(crate) async fn join(
    stream: &Stream,
    channel: &ProgramChannel,
    accepted: bool,
) -> Option<Memory> {
    if !accepted {
        let shown = channel.show().ok()?;
        write_all(stream, &[JOINED]).await.ok()?;
        return Some(shown);
    }
    write_all(stream, &[FOUND]).await.ok()?;
    let shown = if expect(stream, JOINED, ANSWER_WAIT).await { channel.show().ok() } else { None };
    if shown.is_none() {
        // The other program may have joined: it is told that this one is gone.
        let mut frame = Vec::new();
        Frame { died: true, ..Frame::default() }.encode(&mut frame);
        write_all(stream, &frame).await.ok()?;
        poll_fn(|context| stream.poll_close(context)).await.ok()?;
    }
    shown
}

/// Whether the other carrier says this within a while.
async fn expect(stream: &Stream, word: u8, wait: Duration) -> bool {
    let mut said = [0];
    let read = within(wait, read_exactly(stream, &mut said)).await;
    matches!(read, Some(Ok(()))) && said == [word]
}
