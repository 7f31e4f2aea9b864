//! Streams of typed services, in all forms and with all codecs.

#![cfg(all(feature = "macros", feature = "postcard"))]

use std::future::{self, IntoFuture};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use apus_rpc::codec::{Codec, CodecError, Decode, Encode};
use apus_rpc::{Bytes, Channel, Code, Context, Server, Status, Stream, Streaming};
use futures_lite::future::{block_on, zip};
use futures_lite::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};

use crate::pair::{Served, served};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Price {
    symbol: String,
    cents: u64,
}

/// All forms of methods.
#[apus_rpc::service(name = "shop.Market")]
trait Market {
    async fn now(&self, cx: &Context, symbol: String) -> Result<Price, Status>;

    /// Prices until there are as many as the request says.
    async fn watch(
        &self,
        cx: &Context,
        symbol: String,
        #[bytes] counts: Bytes,
    ) -> Result<impl Stream<Item = Result<Price, Status>>, Status>;

    async fn upload(&self, cx: &Context, prices: Streaming<Price>) -> Result<u64, Status>;

    async fn chat(
        &self,
        cx: &Context,
        lines: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<(String, usize), Status>>, Status>;

    async fn none(&self, _cx: &Context) -> Result<impl Stream<Item = Result<u8, Status>>, Status> {
        Ok(stream::empty())
    }

    async fn hang(&self, cx: &Context) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;
}

struct MyMarket {
    lines: AtomicUsize,
    /// Says that a stream was dropped.
    dropped: mpsc::Sender<()>,
}

struct Sign(mpsc::Sender<()>);

impl Drop for Sign {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Market for MyMarket {
    async fn now(&self, _: &Context, symbol: String) -> Result<Price, Status> {
        Ok(Price { symbol, cents: 1 })
    }

    async fn watch(
        &self,
        cx: &Context,
        symbol: String,
        counts: Bytes,
    ) -> Result<impl Stream<Item = Result<Price, Status>>, Status> {
        if symbol.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "a symbol has letters"));
        }
        cx.set_metadata("first", "1").expect("a pair");
        let prices = (0..counts.len() as u64).map(move |cents| {
            if cents == 300 {
                return Err(Status::new(Code::OutOfRange, "too expensive"));
            }
            if cents < 3 {
                cx.set_trailer("sent", cents.to_string()).expect("a pair");
            }
            Ok(Price { symbol: symbol.clone(), cents })
        });
        Ok(stream::iter(prices))
    }

    async fn upload(&self, cx: &Context, mut prices: Streaming<Price>) -> Result<u64, Status> {
        let mut sum = 0;
        while let Some(price) = prices.next().await {
            sum += price?.cents;
        }
        cx.set_trailer("cost", "2").expect("a pair");
        Ok(sum)
    }

    async fn chat(
        &self,
        _: &Context,
        lines: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<(String, usize), Status>>, Status> {
        // The stream borrows the service.
        Ok(lines.map(|line| Ok((line?, self.lines.fetch_add(1, Ordering::SeqCst)))))
    }

    async fn hang(&self, _: &Context) -> Result<impl Stream<Item = Result<u8, Status>>, Status> {
        let sign = Sign(self.dropped.clone());
        Ok(stream::once_future(async move {
            future::pending::<()>().await;
            drop(sign);
            Ok(7)
        }))
    }
}

fn mine() -> (MyMarket, mpsc::Receiver<()>) {
    let (dropped, drops) = mpsc::channel();
    (MyMarket { lines: AtomicUsize::new(0), dropped }, drops)
}

fn market() -> (Served, MarketClient, mpsc::Receiver<()>) {
    let (mine, drops) = mine();
    let served = served(|server| server.add(MarketServer::new(mine)));
    let client = MarketClient::new(served.channel.clone());
    (served, client, drops)
}

/// A client whose server is in memory.
fn in_memory() -> MarketClient {
    MarketClient::new(Channel::in_memory(Server::in_memory().add(MarketServer::new(mine().0))))
}

#[test]
fn one_request_and_many_responses() {
    let (_served, market, _) = market();
    for market in [market, in_memory()] {
        assert_eq!(market.now("ABC").wait().expect("a price").cents, 1);
        block_on(async {
            for count in [0, 1, 200] {
                let mut prices =
                    market.watch("ABC", vec![0; count]).await.expect("the method begins");
                let metadata = prices.metadata().await.expect("metadata");
                assert_eq!(metadata.get("first"), Some("1"));
                for cents in 0..count as u64 {
                    let price = prices.next().await.expect("a price").expect("a price");
                    assert_eq!(price, Price { symbol: "ABC".to_owned(), cents });
                }
                assert!(prices.next().await.is_none());
            }
            let mut prices = market.watch("ABC", vec![0; 3]).start().expect("sent");
            assert_eq!(prices.next().await.expect("a price").expect("a price").cents, 0);
            let trailers = prices.trailers().await.expect("the end");
            assert_eq!(trailers.get("sent"), Some("0"));
            assert_eq!(trailers.iter().count(), 3);
            let mut none = market.none().await.expect("the default of the trait");
            assert_eq!(none.next().await, None);
        });
    }
}

#[test]
fn a_call_is_sent_when_it_is_first_polled() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = Server::in_memory().interceptor(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let market = MarketClient::new(Channel::in_memory(server.add(MarketServer::new(mine().0))));
    let call = market.none().into_future();
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    block_on(call).expect("responses");
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

#[test]
fn a_method_refuses_before_its_stream_or_ends_it_with_an_error() {
    let (_served, market, _) = market();
    for market in [market, in_memory()] {
        block_on(async {
            let status = market.watch("", "").await.expect_err("no symbol");
            assert_eq!(
                (status.code(), status.message()),
                (Code::InvalidArgument, "a symbol has letters")
            );
            let mut prices = market.watch("", "").start().expect("sent");
            let status = prices.next().await.expect("the end").expect_err("no symbol");
            assert_eq!(status.code(), Code::InvalidArgument);
            let prices = market.watch("ABC", vec![0; 500]).await.expect("the method begins");
            let prices: Vec<_> = prices.collect().await;
            assert_eq!(prices.len(), 301);
            let status = prices[300].clone().expect_err("the last item");
            assert_eq!(status.code(), Code::OutOfRange);
        });
    }
}

#[test]
fn many_requests_and_one_response() {
    let (_served, market, _) = market();
    for market in [market, in_memory()] {
        for count in [0, 1, 10_000_u64] {
            block_on(async {
                let (mut prices, sum) = market.upload().start().expect("a call");
                for cents in 0..count {
                    let price = Price { symbol: "ABC".to_owned(), cents };
                    prices.send(price).await.expect("room");
                }
                prices.close();
                let response = sum.response().await.expect("a response");
                assert_eq!(*response.body(), (0..count).sum::<u64>());
                assert_eq!(response.trailers().get("cost"), Some("2"));
            });
        }
    }
}

#[test]
fn a_conversation() {
    let (_served, market, _) = market();
    for market in [market, in_memory()] {
        block_on(async {
            let (mut lines, mut answers) = market.chat().start().expect("a call");
            for number in 0..3 {
                lines.send(format!("line {number}")).await.expect("room");
                let answer = answers.next().await.expect("an answer");
                assert_eq!(answer, Ok((format!("line {number}"), number)));
            }
            // Both directions at once.
            let send = async {
                for _ in 0..20_000 {
                    lines.send("more".to_owned()).await.expect("room");
                }
                lines.close();
            };
            let (_, received) = zip(send, answers.collect::<Vec<_>>()).await;
            assert_eq!(received.len(), 20_000);
            assert_eq!(received[19_999], Ok(("more".to_owned(), 20_002)));
        });
    }
}

#[test]
fn a_client_that_goes_or_has_no_time_drops_the_stream() {
    let (_served, market, drops) = market();
    block_on(async {
        let hung = market.hang().await.expect("the method begins");
        drop(hung);
        drops.recv().expect("the stream was dropped");
        let mut deadline = Duration::from_millis(30);
        // A short deadline may pass before the method begins.
        let mut hung = loop {
            match market.hang().deadline(deadline).await {
                Ok(hung) => break hung,
                Err(status) => assert_eq!(status.code(), Code::DeadlineExceeded),
            }
            deadline *= 2;
        };
        let status = hung.next().await.expect("the end").expect_err("no time");
        assert_eq!(status.code(), Code::DeadlineExceeded);
        drops.recv().expect("the stream was dropped");
        // A sender that is dropped before its end gives the call up.
        let (prices, sum) = market.upload().start().expect("a call");
        drop(prices);
        assert_eq!(sum.await.expect_err("given up").code(), Code::Cancelled);
    });
}

/// Version 2 of the service, whose types differ.
mod other {
    use apus_rpc::{Context, Status, Stream, Streaming};

    #[apus_rpc::service(name = "shop.Market")]
    pub(crate) trait Market {
        async fn watch(
            &self,
            cx: &Context,
            symbol: u64,
        ) -> Result<impl Stream<Item = Result<(u8, String), Status>>, Status>;
        async fn upload(
            &self,
            cx: &Context,
            prices: Streaming<u8>,
        ) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
        #[name = "None"]
        async fn none_of_bytes(
            &self,
            cx: &Context,
            bytes: Streaming<String>,
        ) -> Result<u64, Status>;
        async fn chat(&self, cx: &Context, lines: Streaming<String>)
        -> Result<(u64, bool), Status>;
    }
}

#[test]
fn different_types_end_a_stream_with_the_hashes() {
    let (served, _, _) = market();
    let other = other::MarketClient::new(served.channel.clone());
    let (server, client) = (MarketClient::schema().hash(), other::MarketClient::schema().hash());
    let both = format!("the server's schema is {server:016x}; the client's is {client:016x}");
    block_on(async {
        // The arguments: nothing was executed.
        let status = other.watch(7).await.expect_err("other arguments");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(!status.may_have_executed() && status.message().ends_with(&both), "{status}");
        // A request of a stream: the handler has begun.
        let (mut requests, mut responses) = other.upload().start().expect("a call");
        requests.send(200).await.expect("room");
        requests.close();
        let status = responses.next().await.expect("the end").expect_err("other requests");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.may_have_executed() && status.message().ends_with(&both), "{status}");
        assert!(status.message().contains("the argument prices: "), "{status}");
        // A response of a stream.
        let (mut lines, response) = other.chat().start().expect("a call");
        lines.send("x".repeat(300)).await.expect("room");
        lines.close();
        let status = response.await.expect_err("a text is no bool");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("the server's schema is not known"), "{status}");
        // No response where there should be one.
        let (lines, response) = other.none_of_bytes().start().expect("a call");
        lines.close();
        let status = response.await.expect_err("no response");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    });
}

#[test]
fn the_schema_has_streams() {
    let text = MarketClient::schema().to_string();
    for lines in [
        "method Upload\n    prices: stream<Price>\n    returns u64\n",
        "method Chat\n    lines: stream<string>\n    returns stream<(string, u64)>\n",
        "method Watch\n    symbol: string\n    counts: rest of bytes\n    returns stream<Price>\n",
    ] {
        assert!(text.contains(lines), "{text}");
    }
    assert_eq!(text.parse(), Ok(MarketClient::schema()));
}

#[derive(Clone, PartialEq, prost::Message)]
struct Number {
    #[prost(int64, tag = "1")]
    number: i64,
}

#[apus_rpc::service(name = "shop.Sums", codec = "prost")]
trait Sums {
    async fn sums(
        &self,
        cx: &Context,
        numbers: Streaming<Number>,
    ) -> Result<impl Stream<Item = Result<Number, Status>>, Status>;
    async fn up_to(
        &self,
        cx: &Context,
        end: Number,
    ) -> Result<impl Stream<Item = Result<Number, Status>>, Status>;
}

#[apus_rpc::service(name = "shop.Words", codec = "json")]
trait Words {
    async fn join(&self, cx: &Context, words: Streaming<String>) -> Result<String, Status>;
    async fn split(
        &self,
        cx: &Context,
        text: String,
        at: Option<String>,
    ) -> Result<impl Stream<Item = Result<String, Status>>, Status>;
}

struct Mine;

impl Sums for Mine {
    async fn sums(
        &self,
        _: &Context,
        numbers: Streaming<Number>,
    ) -> Result<impl Stream<Item = Result<Number, Status>>, Status> {
        let sum = Arc::new(std::sync::Mutex::new(0));
        Ok(numbers.map(move |number| {
            let mut sum = sum.lock().expect("no panic");
            *sum += number?.number;
            Ok(Number { number: *sum })
        }))
    }

    async fn up_to(
        &self,
        _: &Context,
        end: Number,
    ) -> Result<impl Stream<Item = Result<Number, Status>>, Status> {
        Ok(stream::iter((0..end.number).map(|number| Ok(Number { number }))))
    }
}

impl Words for Mine {
    async fn join(&self, _: &Context, words: Streaming<String>) -> Result<String, Status> {
        let words: Vec<String> = words.try_collect().await?;
        Ok(words.join(" "))
    }

    async fn split(
        &self,
        _: &Context,
        text: String,
        at: Option<String>,
    ) -> Result<impl Stream<Item = Result<String, Status>>, Status> {
        let at = at.unwrap_or_else(|| " ".to_owned());
        let words: Vec<_> = text.split(&at).map(|word| Ok(word.to_owned())).collect();
        Ok(stream::iter(words))
    }
}

#[test]
fn streams_of_protocol_buffers() {
    let served = served(|server| server.add(SumsServer::new(Mine)));
    let sums = SumsClient::new(served.channel.clone());
    block_on(async {
        let (mut numbers, sums_so_far) = sums.sums().start().expect("a call");
        for number in [1, 2, 3] {
            numbers.send(Number { number }).await.expect("room");
        }
        numbers.close();
        let sums_so_far: Vec<Number> = sums_so_far.try_collect().await.expect("numbers");
        assert_eq!(sums_so_far.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 3, 6]);
        let numbers = sums.up_to(Number { number: 4 }).await.expect("the method begins");
        assert_eq!(numbers.count().await, 4);
        // The messages are those of protocol buffers, without anything around them.
        let (mut raw, mut answers) =
            served.channel.stream("/shop.Sums/Sums").start().expect("a call");
        raw.send(&b"\x08\x07"[..]).await.expect("room");
        raw.close();
        assert_eq!(answers.next().await, Some(Ok(Bytes::from_static(b"\x08\x07"))));
    });
}

#[test]
fn streams_of_json_are_text() {
    let served = served(|server| server.add(WordsServer::new(Mine)));
    let words = WordsClient::new(served.channel.clone());
    block_on(async {
        let (mut sender, joined) = words.join().start().expect("a call");
        for word in ["a", "b"] {
            sender.send(word.to_owned()).await.expect("room");
        }
        sender.close();
        assert_eq!(joined.await, Ok("a b".to_owned()));
        let split = words.split("a-b-c", Some("-".to_owned())).await.expect("the method begins");
        let split: Vec<String> = split.try_collect().await.expect("words");
        assert_eq!(split, ["a", "b", "c"]);
        let mut raw = served.channel.stream("/shop.Words/Split").request("\"x y\"").expect("sent");
        assert_eq!(raw.next().await, Some(Ok("\"x\"".into())));
    });
}

/// Notes the least room in the buffers for messages.
enum Measuring {}

static ROOM_MIN: AtomicUsize = AtomicUsize::new(usize::MAX);

impl Codec for Measuring {
    const NAME: &'static str = "measuring";
}

impl Encode<u8> for Measuring {
    fn encode(value: &u8, into: &mut Vec<u8>) -> Result<(), CodecError> {
        ROOM_MIN.fetch_min(into.capacity(), Ordering::SeqCst);
        into.push(*value);
        Ok(())
    }
}

impl Decode<u8> for Measuring {
    fn decode(input: &mut Bytes) -> Result<u8, CodecError> {
        let value = input.first().copied().ok_or_else(|| CodecError::new("no byte"))?;
        *input = input.slice(1..);
        Ok(value)
    }
}

#[apus_rpc::service(name = "shop.Numbers", codec = Measuring)]
trait Numbers {
    async fn twice(
        &self,
        cx: &Context,
        numbers: Streaming<u8>,
    ) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;
}

impl Numbers for Mine {
    async fn twice(
        &self,
        _: &Context,
        numbers: Streaming<u8>,
    ) -> Result<impl Stream<Item = Result<u8, Status>>, Status> {
        Ok(numbers.map(|number| number.map(|number| 2 * number)))
    }
}

#[test]
fn messages_of_streams_are_encoded_in_buffers_that_are_kept() {
    let server = Server::in_memory().add(NumbersServer::new(Mine));
    let numbers = NumbersClient::new(Channel::in_memory(server));
    block_on(async {
        let (mut sender, mut doubled) = numbers.twice().start().expect("a call");
        for number in 1..=3 {
            sender.send(number).await.expect("room");
            assert_eq!(doubled.next().await, Some(Ok(2 * number)));
        }
    });
    assert!(ROOM_MIN.load(Ordering::SeqCst) > 0, "a new `Vec` is empty");
}
