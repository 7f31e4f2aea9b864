//! Byte streams with tokio, and without any runtime.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::pair::{Pair, pair, pattern};
use apus::{Address, Delivery, Stream, StreamListener, StreamOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LISTENER: u16 = 4_001;

fn listen(pair: &Pair) -> (StreamListener, Address) {
    let listener = StreamListener::bind(&pair.server_node, LISTENER).unwrap();
    (listener, Address::new(pair.server_node.local_addr(), LISTENER))
}

async fn connect(pair: &Pair, to: Address) -> Stream {
    Stream::connect_async(&pair.client_node, to, &StreamOptions::new()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_write_and_read_both_halves_at_once() {
    for delivery in Delivery::ALL {
        let pair = pair(delivery);
        let (listener, address) = listen(&pair);
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept_async().await.unwrap();
            tokio::io::copy(&mut stream.clone(), &mut stream.clone()).await.unwrap();
            poll_fn(|context| stream.poll_close(context)).await.unwrap();
        });
        let (mut reader, mut writer) = tokio::io::split(connect(&pair, address).await);
        let sent = pattern(1, 4 << 20);
        let all = sent.clone();
        let writing = tokio::spawn(async move {
            for part in all.chunks(30_011) {
                writer.write_all(part).await.unwrap();
            }
            writer.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        reader.read_to_end(&mut back).await.unwrap();
        assert!(back == sent, "{delivery}");
        writing.await.unwrap();
        server.await.unwrap();
    }
}

#[tokio::test]
async fn shutdown_is_that_of_tokio() {
    let pair = pair(Delivery::default());
    let (listener, address) = listen(&pair);
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept_async().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all
    });
    let mut stream = connect(&pair, address).await;
    stream.write_all(b"all").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(server.await.unwrap(), b"all");
}

#[tokio::test]
async fn one_task_may_wait_for_each_answer() {
    let pair = pair(Delivery::default());
    let (listener, address) = listen(&pair);
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept_async().await.unwrap();
        let mut buffer = [0; 100];
        while stream.read_exact(&mut buffer).await.is_ok() {
            stream.write_all(&buffer).await.unwrap();
        }
    });
    let mut client = connect(&pair, address).await;
    for seed in 0..200 {
        let sent = pattern(seed, 100);
        client.write_all(&sent).await.unwrap();
        let mut back = [0; 100];
        client.read_exact(&mut back).await.unwrap();
        assert_eq!(sent, back);
    }
    drop(client);
    server.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_and_a_task_are_the_two_ends() {
    let pair = pair(Delivery::default());
    let (listener, address) = listen(&pair);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut stream, &mut bytes).unwrap();
        io::Write::write_all(&mut stream, &bytes).unwrap();
        stream.close().unwrap();
    });
    let mut client = connect(&pair, address).await;
    let sent = pattern(1, 300_000);
    client.write_all(&sent).await.unwrap();
    poll_fn(|context| client.poll_close(context)).await.unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).await.unwrap();
    assert!(back == sent);
    server.join().unwrap();
}

#[tokio::test]
async fn nobody_listens() {
    let pair = pair(Delivery::default());
    let nobody = Address::new(pair.server_node.local_addr(), LISTENER);
    let options = StreamOptions::new();
    let error = Stream::connect_async(&pair.client_node, nobody, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn futures_that_are_dropped_lose_nothing() {
    let pair = pair(Delivery::base());
    let (listener, address) = listen(&pair);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(listener.accept_async()).poll(&mut context).is_pending());
    {
        // Given up while the stream is being opened.
        let options = StreamOptions::new();
        let mut connecting = pin!(Stream::connect_async(&pair.client_node, address, &options));
        let _ = connecting.as_mut().poll(&mut context);
    }
    let mut client = Stream::connect(&pair.client_node, address).unwrap();
    io::Write::write_all(&mut client, b"x").unwrap();
    let mut server = loop {
        let (mut stream, _) = listener.accept().unwrap();
        if io::Read::read_exact(&mut stream, &mut [0; 1]).is_ok() {
            break stream;
        }
    };
    assert!(server.poll_read(&mut context, &mut [0; 1]).is_pending());
    io::Write::write_all(&mut client, b"y").unwrap();
    assert_eq!(io::Read::read(&mut server, &mut [0; 8]).unwrap(), 1);
    assert!(matches!(client.poll_write(&mut context, b"z"), Poll::Ready(Ok(1))));
}
