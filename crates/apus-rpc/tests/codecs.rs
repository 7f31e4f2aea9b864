//! The codecs of typed services, each with its bytes and with bytes that are wrong.

#![cfg(all(feature = "macros", feature = "postcard"))]

use std::collections::BTreeMap;

use apus_rpc::codec::{Decode, Encode, Json, Postcard, Prost};
use apus_rpc::{Bytes, Code, Context, Status};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::pair::served;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Expression {
    Number(i64),
    Negated(Box<Self>),
    Sum { left: Box<Self>, right: Box<Self> },
    Zero,
}

type Everything = (
    (u8, i64, u128, bool, char),
    (String, Vec<u8>, Option<Vec<String>>),
    BTreeMap<String, [u16; 3]>,
    Vec<(f64, f32)>,
);

fn everything() -> impl Strategy<Value = Everything> {
    let finite = (-1e9..1e9_f64, -1e9..1e9_f32);
    (
        any::<(u8, i64, u128, bool, char)>(),
        (".*", any::<Vec<u8>>(), proptest::option::of(proptest::collection::vec(".*", 0..3))),
        proptest::collection::btree_map(".*", any::<[u16; 3]>(), 0..4),
        proptest::collection::vec(finite, 0..4),
    )
}

proptest! {
    #[test]
    fn values_survive_one_after_another(first in everything(), second in everything()) {
        let mut bytes = Vec::new();
        Postcard::encode(&first, &mut bytes).expect("a value");
        prop_assert_eq!(&bytes, &postcard_of(&first));
        Postcard::encode(&second, &mut bytes).expect("a value");
        let mut input = Bytes::from(bytes);
        prop_assert_eq!(&Postcard::decode(&mut input), &Ok(first.clone()));
        prop_assert_eq!(&Postcard::decode(&mut input), &Ok(second.clone()));
        prop_assert!(input.is_empty());

        let mut text = Vec::new();
        Json::encode(&first, &mut text).expect("a value");
        Json::encode(&second, &mut text).expect("a value");
        let mut input = Bytes::from(text);
        prop_assert_eq!(&Json::decode(&mut input), &Ok(first));
        prop_assert_eq!(&Json::decode(&mut input), &Ok(second));
    }

    #[test]
    fn no_bytes_make_a_codec_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = <Postcard as Decode<Everything>>::decode(&mut Bytes::from(bytes.clone()));
        let _ = <Postcard as Decode<Expression>>::decode(&mut Bytes::from(bytes.clone()));
        let _ = <Json as Decode<Everything>>::decode(&mut Bytes::from(bytes.clone()));
        let _ = <Prost as Decode<Sum>>::decode(&mut Bytes::from(bytes));
    }
}

/// The bytes of the crate postcard itself.
fn postcard_of(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("a value")
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| {
        let mut bytes = vec![1; levels];
        bytes.push(3);
        <Postcard as Decode<Expression>>::decode(&mut bytes.into())
    };
    assert!(nested(50).is_ok());
    let error = nested(4 << 20).expect_err("four million levels");
    assert!(error.to_string().starts_with("nested too deeply"), "{error}");
    let text = "{\"Negated\":".repeat(100_000);
    assert!(<Json as Decode<Expression>>::decode(&mut text.into()).is_err());
}

#[test]
fn an_absent_value_is_none_or_an_error() {
    let mut nothing = Bytes::new();
    assert_eq!(<Postcard as Decode<Option<u8>>>::decode(&mut nothing), Ok(None));
    assert_eq!(<Postcard as Decode<()>>::decode(&mut nothing), Ok(()));
    assert!(<Postcard as Decode<u8>>::decode(&mut nothing).is_err());
    assert_eq!(<Json as Decode<Option<u8>>>::decode(&mut nothing), Ok(None));
    assert!(<Json as Decode<u8>>::decode(&mut nothing).is_err());
    // A value that is cut is not absent.
    assert!(<Postcard as Decode<Option<u8>>>::decode(&mut Bytes::from_static(b"\x01")).is_err());
}

#[derive(Clone, PartialEq, prost::Message)]
struct Numbers {
    #[prost(int64, repeated, tag = "1")]
    numbers: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sum {
    #[prost(int64, tag = "1")]
    sum: i64,
}

#[apus_rpc::service(name = "shop.Sums", codec = "prost")]
trait Sums {
    async fn sum(&self, cx: &Context, numbers: Numbers) -> Result<Sum, Status>;
    async fn nothing(&self, cx: &Context) -> Result<(), Status>;
}

#[apus_rpc::service(name = "shop.Words", codec = "json")]
trait Words {
    async fn join(
        &self,
        cx: &Context,
        words: Vec<String>,
        by: Option<String>,
    ) -> Result<String, Status>;
}

struct Mine;

impl Sums for Mine {
    async fn sum(&self, _: &Context, numbers: Numbers) -> Result<Sum, Status> {
        Ok(Sum { sum: numbers.numbers.iter().sum() })
    }

    async fn nothing(&self, _: &Context) -> Result<(), Status> {
        Ok(())
    }
}

impl Words for Mine {
    async fn join(
        &self,
        _: &Context,
        words: Vec<String>,
        by: Option<String>,
    ) -> Result<String, Status> {
        Ok(words.join(&by.unwrap_or_default()))
    }
}

#[test]
fn a_service_of_protocol_buffers() {
    let served = served(|server| server.add(SumsServer::new(Mine)));
    let sums = SumsClient::new(served.channel.clone());
    assert_eq!(sums.sum(Numbers { numbers: vec![1, 2] }).wait(), Ok(Sum { sum: 3 }));
    assert_eq!(sums.nothing().wait(), Ok(()));
    let bytes = served.channel.unary("/shop.Sums/Sum", &b"\x0A\x02\x01\x02"[..]).wait();
    assert_eq!(bytes.expect("a response").body(), &b"\x08\x03"[..]);
    let status = served.channel.unary("/shop.Sums/Sum", &b"\x0A"[..]).wait().expect_err("cut");
    assert_eq!(status.code(), Code::FailedPrecondition);
    let text = "service shop.Sums\ncodec prost\n\nmethod Nothing\n    returns ()\n\nmethod Sum\n    numbers: Numbers\n    returns Sum\n";
    assert_eq!(SumsClient::schema().to_string(), text);
}

#[test]
fn a_service_of_json_is_text() {
    let served = served(|server| server.add(WordsServer::new(Mine)));
    let words = WordsClient::new(served.channel.clone());
    let list = || vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(words.join(list(), Some("-".to_owned())).wait(), Ok("a-b".to_owned()));
    let raw = |body: &'static str| served.channel.unary("/shop.Words/Join", body).wait();
    assert_eq!(raw("[\"a\", \"b\"]\n\"+\"\n").expect("a response").body(), "\"a+b\"");
    assert_eq!(raw("[\"a\", \"b\"]").expect("a response").body(), "\"ab\"");
    let status = raw("[\"a\"").expect_err("cut");
    assert_eq!(status.code(), Code::FailedPrecondition);
}
