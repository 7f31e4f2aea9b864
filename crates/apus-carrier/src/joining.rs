//! The search and the start between the carriers of a connection's two ends.

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
use crate::shared::CarrierState;
use crate::status::Incident;

/// Upper bound on the time of another carrier's answer that needs no program.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Number of attempts to reach a host that does not answer. Each attempt takes `peer_timeout`.
const TRIES: usize = 2;

/// The answer to a carrier that names a connection of a local program.
const FOUND: u8 = b'Y';
/// The other carrier's next message, after its program has received its segment.
const JOINED: u8 = b'J';

/// Upper bound on bytes of a stream that wait in each direction: two frames, so that a connection is bounded by its ring and not by
/// the stream.
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

/// Finds the other end's carrier and the stream to it.
pub(crate) async fn search(shared: &CarrierState, introduced: &Introduced) -> Option<Stream> {
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
    // Another attempt makes first contact with a restarted carrier.
    let again = [io::ErrorKind::TimedOut, io::ErrorKind::ConnectionReset];
    for _ in 0..TRIES {
        if connected.as_ref().is_err_and(|error| again.contains(&error.kind())) {
            connected = Stream::connect_async(&shared.node, to, &options).await;
        }
    }
    if let Err(error) = &connected {
        shared.counters.note(Incident::Absent, || format!("no carrier at {ip}: {error}"));
        shared.note_absent(ip);
    }
    let stream = connected.ok()?;
    write_all(&stream, &tuple.to_bytes()).await.ok()?;
    expect(&stream, FOUND, WAIT).await.then_some(stream)
}

/// Gives the program its segment. The carrier of the accepting end reports that it has the program (FOUND). Then the other carrier
/// gives its program the segment, and reports that (JOINED). From then on each carrier informs the other one of the end of the
/// connection.
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
        // The other program may have joined. It is informed that this one is gone.
        let mut frame = Vec::new();
        Frame { died: true, ..Frame::default() }.encode(&mut frame);
        write_all(stream, &frame).await.ok()?;
        poll_fn(|context| stream.poll_close(context)).await.ok()?;
    }
    shown
}

/// Whether the other carrier sends this byte within `wait`.
async fn expect(stream: &Stream, word: u8, wait: Duration) -> bool {
    let mut said = [0];
    let read = within(wait, read_exactly(stream, &mut said)).await;
    matches!(read, Some(Ok(()))) && said == [word]
}
