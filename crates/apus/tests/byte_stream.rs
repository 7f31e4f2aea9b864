//! Byte streams: every byte arrives once and in order, each half ends by itself, and the end of a peer is detected.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::pair::{Pair, pair, pair_with, pattern, skips, wait_until};
use apus::{Address, Config, Delivery, Node, Stream, StreamListener, StreamOptions};

const LISTENER: u16 = 4_001;

/// Two nodes and the two ends of a stream between them.
struct Streams {
    pair: Pair,
    listener: StreamListener,
    address: Address,
    client: Stream,
    server: Stream,
}

fn listen(pair: &Pair, options: &StreamOptions) -> (StreamListener, Address) {
    let listener = StreamListener::bind_with(&pair.server_node, LISTENER, options).unwrap();
    let address = Address::new(pair.server_node.local_addr(), LISTENER);
    assert_eq!(listener.local_addr(), address);
    (listener, address)
}

fn streams_in(pair: Pair, options: &StreamOptions) -> Streams {
    let (listener, address) = listen(&pair, options);
    let (client, server) = thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let client = Stream::connect_with(&pair.client_node, address, options).unwrap();
        let (server, from) = accepting.join().unwrap();
        assert_eq!(from, server.peer_addr());
        (client, server)
    });
    Streams { pair, listener, address, client, server }
}

fn streams(delivery: Delivery) -> Streams {
    streams_in(pair(delivery), &StreamOptions::new())
}

/// Reads up to the end of the stream.
fn read_all(mut stream: &Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn both_ends_know_each_other() {
    let Streams { client, server, listener, .. } = streams(Delivery::default());
    assert_eq!(client.peer_addr(), listener.local_addr());
    assert_eq!(server.local_addr(), listener.local_addr());
    assert_eq!(server.peer_addr(), client.local_addr());
}

#[test]
fn what_is_written_is_read_in_every_delivery_mode() {
    for delivery in Delivery::ALL {
        let Streams { mut client, server, .. } = streams(delivery);
        let echo = thread::spawn(move || {
            std::io::copy(&mut server.clone(), &mut server.clone()).unwrap();
            server.close().unwrap();
        });
        for (seed, length) in [1, 2, 99, 1_400, 65_536, 65_537, 1 << 20].into_iter().enumerate() {
            let sent = pattern(seed as u64, length);
            let mut reading = client.clone();
            let back = thread::spawn(move || {
                let mut bytes = vec![0; length];
                reading.read_exact(&mut bytes).unwrap();
                bytes
            });
            client.write_all(&sent).unwrap();
            assert!(back.join().unwrap() == sent, "{delivery}: {length} bytes");
        }
        client.end(Shutdown::Write).unwrap();
        assert_eq!(read_all(&client), []);
        echo.join().unwrap();
    }
}

#[test]
fn one_thread_may_wait_for_each_answer() {
    for delivery in Delivery::ALL {
        let Streams { mut client, mut server, .. } = streams(delivery);
        let echo = thread::spawn(move || {
            let mut buffer = [0; 100];
            while server.read_exact(&mut buffer).is_ok() {
                server.write_all(&buffer[..50]).unwrap();
                server.write_all(&buffer[50..]).unwrap();
            }
        });
        for seed in 0..200 {
            let sent = pattern(seed, 100);
            client.write_all(&sent).unwrap();
            let mut back = [0; 100];
            client.read_exact(&mut back).unwrap();
            assert_eq!(sent, back, "{delivery}");
        }
        drop(client);
        echo.join().unwrap();
    }
}

#[test]
fn threads_write_and_read_both_halves_at_once() {
    const LENGTH: usize = 10 << 20;
    let Streams { client, server, .. } = streams(Delivery::default());
    thread::scope(|scope| {
        for (seed, mut writer, reader) in [(1, &client, &server), (2, &server, &client)] {
            scope.spawn(move || {
                let sent = pattern(seed, LENGTH);
                // Pieces of lengths that match no boundary, some of them short.
                for part in sent.chunks(10_007 * seed as usize) {
                    writer.write_all(part).unwrap();
                }
                writer.end(Shutdown::Write).unwrap();
            });
            scope.spawn(move || assert!(read_all(reader) == pattern(seed, LENGTH)));
        }
    });
    client.close().unwrap();
    server.close().unwrap();
}

#[test]
fn each_half_ends_by_itself() {
    let Streams { mut client, mut server, .. } = streams(Delivery::default());
    client.write_all(b"question").unwrap();
    client.end(Shutdown::Write).unwrap();
    assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(read_all(&server), b"question");
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "the end stays");
    server.write_all(b"answer").unwrap();
    let closing = thread::spawn(move || server.close());
    assert_eq!(read_all(&client), b"answer");
    closing.join().unwrap().unwrap();
    client.close().unwrap();
}

#[test]
fn a_writer_waits_for_the_reader() {
    let Streams { client, mut server, .. } = streams(Delivery::default());
    let sent = pattern(1, 8 << 20);
    let all = sent.clone();
    let mut writer = client.clone();
    let writing = thread::spawn(move || writer.write_all(&all).unwrap());
    let mut first = [0; 1];
    server.read_exact(&mut first).unwrap();
    assert!(!writing.is_finished(), "two windows are less than was written");
    let mut rest = vec![0; sent.len() - 1];
    server.read_exact(&mut rest).unwrap();
    assert!(first[..] == sent[..1] && rest == sent[1..]);
    writing.join().unwrap();
}

#[test]
fn a_read_and_a_write_wait_no_longer_than_their_timeouts() {
    let Streams { mut client, mut server, .. } = streams(Delivery::default());
    assert_eq!(
        client.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(client.clone().read_timeout(), Some(Duration::from_millis(1)));
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
    client.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut written = 0;
    let error = loop {
        match client.write(&[7; 10_000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(client.clone().close().unwrap_err().kind(), ErrorKind::TimedOut);
    let mut bytes = vec![0; written];
    server.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_task_that_waits_for_the_delivery_does_not_wake_itself() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let Streams { mut client, server: _server, .. } = streams(Delivery::default());
    // More than the server's window, and less than the window and the send buffer together.
    client.write_all(&vec![7; 3 << 19]).unwrap();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    for _ in 0..1_000 {
        assert!(client.poll_close(&mut Context::from_waker(&waker)).is_pending());
    }
    let wakes = count.0.load(Ordering::Relaxed);
    assert!(wakes < 500, "{wakes} of 1,000 polls");
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    let Streams { mut client, server, .. } = streams(Delivery::default());
    let sent = pattern(3, 1 << 20);
    client.write_all(&sent).unwrap();
    drop(client);
    assert!(read_all(&server) == sent);
}

#[test]
fn a_peer_that_drops_unread_bytes_resets_the_stream() {
    for server_drops in [false, true] {
        let Streams { pair, client, server, .. } = streams(Delivery::default());
        let (mut stays, goes) = if server_drops { (client, server) } else { (server, client) };
        stays.write_all(b"unread").unwrap();
        let mut one = [0; 1];
        (&goes).read_exact(&mut one).unwrap();
        drop(goes);
        assert_eq!(stays.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(stays.write(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
        let resets =
            pair.client_node.stats().streams.reset + pair.server_node.stats().streams.reset;
        assert_eq!(resets, 1);
    }
}

#[test]
fn bytes_that_come_after_a_drop_reset_the_stream() {
    let Streams { mut client, server, .. } = streams(Delivery::default());
    drop(server);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the peer has nothing more to say");
    wait_until("the peer resets the stream", || match client.write(b"late") {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    });
}

#[test]
fn a_half_that_is_not_read_does_not_hold_up_the_peer() {
    let Streams { mut client, mut server, .. } = streams(Delivery::default());
    server.end(Shutdown::Read).unwrap();
    client.write_all(&pattern(1, 4 << 20)).unwrap();
    client.close().unwrap();
    assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn nobody_listens_and_nobody_is_there() {
    let pair = pair(Delivery::default());
    let nobody = Address::new(pair.server_node.local_addr(), LISTENER);
    let error = Stream::connect(&pair.client_node, nobody).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    let (listener, _) = listen(&pair, &StreamOptions::new());
    let error = StreamListener::bind(&pair.server_node, LISTENER).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert_eq!(
        StreamListener::bind(&pair.server_node, 0).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    drop(listener);
    StreamListener::bind(&pair.server_node, LISTENER).unwrap();
}

#[test]
fn a_listener_has_a_bounded_backlog() {
    let pair = pair(Delivery::default());
    let (listener, address) = listen(&pair, StreamOptions::new().backlog(2));
    let connect = || Stream::connect(&pair.client_node, address);
    let waiting = [connect().unwrap(), connect().unwrap()];
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(pair.server_node.stats().streams.refused_backlog, 1);
    let (accepted, _) = listener.accept().unwrap();
    let mut third = connect().unwrap();
    drop(listener);
    // The streams that were not accepted end; the accepted one goes on.
    assert_eq!(third.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut first = &waiting[0];
    first.write_all(b"still here").unwrap();
    first.end(Shutdown::Write).unwrap();
    assert_eq!(read_all(&accepted), b"still here");
}

#[test]
fn many_streams_share_a_listener() {
    let pair = pair(Delivery::default());
    let (listener, address) = listen(&pair, &StreamOptions::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for mut stream in listener.incoming().take(20) {
                scope.spawn(move || std::io::copy(&mut stream.clone(), &mut stream).unwrap());
            }
        });
        for seed in 0..20 {
            let mut stream = Stream::connect(&pair.client_node, address).unwrap();
            scope.spawn(move || {
                let sent = pattern(seed, 50_000);
                stream.write_all(&sent).unwrap();
                stream.end(Shutdown::Write).unwrap();
                assert!(read_all(&stream) == sent);
            });
        }
    });
}

/// Two nodes with a short time limit for silent peers.
fn impatient() -> (Pair, StreamOptions) {
    let pair = pair_with(|config| {
        config.peer_timeout(Duration::from_millis(50));
    });
    (pair, *StreamOptions::new().lost_after(Duration::from_millis(100)))
}

#[test]
fn a_server_that_is_gone_ends_its_streams() {
    let (pair, options) = impatient();
    let Streams { pair, mut client, mut server, .. } = streams_in(pair, &options);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0; 1]).unwrap();
    pair.server_node.close(Duration::ZERO).unwrap_err();
    assert_eq!(server.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::NotConnected);
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::TimedOut),
        "{error}: {:?}",
        error.kind()
    );
}

#[test]
fn a_client_that_is_gone_ends_its_streams() {
    let (pair, options) = impatient();
    let Streams { pair, mut client, mut server, .. } = streams_in(pair, &options);
    server.write_all(b"x").unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    pair.client_node.close(Duration::ZERO).unwrap_err();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::NotConnected);
    let error = server.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(pair.server_node.stats().streams.lost, 1);
}

#[test]
fn streams_that_have_ended_leave_nothing() {
    let Streams { pair, listener, address, client, server } = streams(Delivery::default());
    drop(server);
    client.close().unwrap();
    let (again, accepted) =
        (Stream::connect(&pair.client_node, address).unwrap(), listener.accept().unwrap().0);
    drop((again, accepted, listener));
    // The port is free once the last stream has ended.
    wait_until("the listener ends", || StreamListener::bind(&pair.server_node, LISTENER).is_ok());
    let Pair { client_node, server_node, service, .. } = pair;
    drop(service);
    client_node.close(Duration::from_secs(10)).unwrap();
    server_node.close(Duration::from_secs(10)).unwrap();
}

/// Two nodes before their first contact. The first one listens at all addresses of this machine.
fn strangers(shards: usize) -> (Node, Node) {
    let mut config = Config::new();
    config.apply_environment().unwrap().shards(shards);
    let client = Node::start(config.listen("0.0.0.0:0".parse().unwrap())).unwrap();
    let server = Node::start(config.listen("127.0.0.1:0".parse().unwrap())).unwrap();
    (client, server)
}

fn echoes(client_node: &Node, server_node: &Node, trips: u64) {
    let listener = StreamListener::bind(server_node, LISTENER).unwrap();
    let mut client = Stream::connect(client_node, listener.local_addr()).unwrap();
    let echo = thread::spawn(move || {
        let (mut server, _) = listener.accept().unwrap();
        std::io::copy(&mut server.clone(), &mut server).unwrap();
        server.close().unwrap();
    });
    for seed in 0..trips {
        let sent = pattern(seed, 1_000);
        client.write_all(&sent).unwrap();
        let mut back = [0; 1_000];
        client.read_exact(&mut back).unwrap();
        assert_eq!(sent, back);
    }
    client.end(Shutdown::Write).unwrap();
    assert_eq!(read_all(&client), []);
    echo.join().unwrap();
}

#[test]
fn a_stream_goes_on_when_its_nodes_begin_to_share_memory() {
    if skips("it is about nodes with links of their own") {
        return;
    }
    let (client, server) = strangers(1);
    let listener = StreamListener::bind(&server, LISTENER).unwrap();
    let stream = Stream::connect(&client, listener.local_addr()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let mut trips = 0..;
    wait_until("the stream goes through memory, if it may", || {
        let sent = pattern(trips.next().unwrap(), 1_000);
        for (mut writer, mut reader) in [(&stream, &accepted), (&accepted, &stream)] {
            writer.write_all(&sent).unwrap();
            let mut read = [0; 1_000];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(sent, read);
        }
        let memory = client.stats().memory;
        let may = !std::env::var("APUS_LINK").is_ok_and(|link| link == "udp");
        memory.messages_received > 100 || (!may && trips.start > 1_000)
    });
}

#[test]
fn nodes_with_several_shards_have_streams() {
    if skips("it is about nodes with links of their own") {
        return;
    }
    let (client, server) = strangers(2);
    for _ in 0..4 {
        echoes(&client, &server, 200);
        wait_until("the listener ends", || StreamListener::bind(&server, LISTENER).is_ok());
    }
}
