//! Schemas, and each rule of versions as one change that breaks it and one that does not.

#![cfg(all(feature = "macros", feature = "postcard"))]

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use apus_rpc::schema::Schema;
use apus_rpc::{Bytes, Context, Status, Stream, Streaming};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    side: Side,
    lots: Vec<Lot>,
    limit: Option<Page<u64>>,
    parent: Option<Box<Self>>,
    id: Id,
    marker: Marker,
}

#[derive(Serialize, Deserialize)]
enum Side {
    Buy,
    Sell(u32),
    Both(u32, String),
    Swap { from: Lot, to: Box<Self> },
}

#[derive(Serialize, Deserialize)]
struct Lot {
    size: NonZeroU32,
    tags: BTreeMap<String, [u8; 4]>,
}

#[derive(Serialize, Deserialize)]
struct Id(u64);

#[derive(Serialize, Deserialize)]
struct Marker;

#[derive(Serialize, Deserialize)]
struct Page<T> {
    items: Vec<T>,
}

#[apus_rpc::service(name = "shop.Orders")]
trait Orders {
    #[idempotent]
    async fn place(&self, cx: &Context, order: Order, urgent: Option<bool>) -> Result<Id, Status>;
    async fn list(&self, cx: &Context) -> Result<Page<String>, Status>;
    async fn upload(&self, cx: &Context, id: Id, #[bytes] data: Bytes) -> Result<(), Status>;
    async fn follow(
        &self,
        cx: &Context,
        ids: Streaming<Id>,
    ) -> Result<impl Stream<Item = Result<Side, Status>>, Status>;
    async fn odd(
        &self,
        cx: &Context,
        address: IpAddr,
        time: Duration,
        map: HashMap<u8, char>,
        list: (u8, i16, Bytes),
    ) -> Result<(f32, u128), Status>;
}

const ORDERS: &str = "\
service shop.Orders
codec postcard

method Follow
    ids: stream<Id>
    returns stream<Side>

method List
    returns Page.2

method Odd
    address: IpAddr
    time: Duration
    map: map<u8, char>
    list: (u8, i16, bytes)
    returns (f32, u128)

method Place idempotent
    order: Order
    urgent: option<bool>
    returns Id

method Upload
    id: Id
    data: rest of bytes
    returns ()

struct Duration
    secs: u64
    nanos: u32

struct Id(u64)

enum IpAddr
    V4([u8; 4])
    V6([u8; 16])

struct Lot
    size: u32
    tags: map<string, [u8; 4]>

struct Marker

struct Order
    side: Side
    lots: list<Lot>
    limit: option<Page>
    parent: option<Order>
    id: Id
    marker: Marker

struct Page
    items: list<u64>

struct Page.2
    items: list<string>

enum Side
    Buy
    Sell(u32)
    Both(u32, string)
    Swap { from: Lot, to: Side }
";

#[test]
fn a_schema_has_all_types_as_serde_shows_them() {
    let schema = OrdersClient::schema();
    assert_eq!(schema.to_string(), ORDERS);
    assert_eq!(ORDERS.parse(), Ok(schema.clone()));
    assert!(schema.methods().eq(["Follow", "List", "Odd", "Place", "Upload"]));
    assert_eq!((schema.service(), schema.codec()), ("shop.Orders", "postcard"));
}

/// Types of other modules with the names of types around them.
mod inner {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(crate) struct Order {
        pub(crate) lines: Vec<String>,
        pub(crate) parent: Option<Box<Self>>,
    }

    #[derive(Serialize, Deserialize)]
    pub(crate) enum Side {
        Left,
        Right(Box<super::Outer>),
    }
}

mod outer {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(crate) struct Order {
        pub(crate) inner: super::inner::Order,
        pub(crate) next: Option<Box<Self>>,
        pub(crate) page: super::Page<super::Page<u8>>,
    }
}

#[derive(Serialize, Deserialize)]
struct Outer {
    side: inner::Side,
    order: outer::Order,
}

#[apus_rpc::service(name = "shop.Twins")]
trait Twins {
    async fn first(&self, cx: &Context, order: outer::Order) -> Result<inner::Order, Status>;
    async fn second(&self, cx: &Context, outer: Outer) -> Result<Side, Status>;
}

#[test]
fn types_of_one_name_are_distinguished_also_within_each_other() {
    let schema = TwinsClient::schema();
    let text = "\
service shop.Twins
codec postcard

method First
    order: Order.2
    returns Order

method Second
    outer: Outer
    returns Side.2

struct Lot
    size: u32
    tags: map<string, [u8; 4]>

struct Order
    lines: list<string>
    parent: option<Order>

struct Order.2
    inner: Order
    next: option<Order.2>
    page: Page.2

struct Outer
    side: Side
    order: Order.2

struct Page
    items: list<u8>

struct Page.2
    items: list<Page>

enum Side
    Left
    Right(Outer)

enum Side.2
    Buy
    Sell(u32)
    Both(u32, string)
    Swap { from: Lot, to: Side.2 }
";
    assert_eq!(schema.to_string(), text);
    assert_eq!(text.parse(), Ok(schema));
}

#[test]
fn the_schema_of_this_test_is_committed() {
    OrdersClient::schema().assert_committed("tests/orders.schema");
}

#[test]
fn a_text_that_is_no_schema_has_an_error_with_its_line() {
    let table = [
        ("", "line 1: no line 'service'"),
        ("service a.B\n", "line 1: no line 'codec'"),
        (
            "service a.B\ncodec postcard\nwhat x\n",
            "line 3: 'what': expected one of service, codec, method, struct and enum",
        ),
        ("service a.B\n    a: u8\n", "line 2: 'a: u8' is outside of a method and a type"),
        ("method A\n    a u8\n", "line 2: 'a u8': expected 'NAME: TYPE' or 'returns TYPE'"),
    ];
    for (text, expected) in table {
        let error = text.parse::<Schema>().expect_err("no schema");
        assert_eq!(error.to_string(), expected);
    }
}

/// The breaks of a change from one text to another in the schema above.
#[track_caller]
fn breaks(change: [&str; 2]) -> Vec<String> {
    breaks_in(ORDERS, change)
}

#[track_caller]
fn breaks_in(text: &str, [from, to]: [&str; 2]) -> Vec<String> {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let earlier: Schema = text.parse().expect("a schema");
    let now: Schema = text.replace(from, to).parse().expect("a schema");
    now.check(&earlier).iter().map(ToString::to_string).collect()
}

#[test]
fn a_method_is_its_name() {
    let is_missing = ["method List: is missing: its clients get UNIMPLEMENTED"];
    assert_eq!(breaks(["method List", "method ListAll"]), is_missing);
    assert_eq!(breaks(["method List\n    returns Page.2\n", ""]), is_missing);
    let added = ["method List\n", "method Find\n    returns u8\n\nmethod List\n"];
    assert!(breaks(added).is_empty());
}

#[test]
fn a_service_keeps_its_name_and_its_codec() {
    let renamed = breaks(["service shop.Orders", "service shop.Other"]);
    assert_eq!(renamed, ["service: was shop.Orders and is shop.Other"]);
    assert_eq!(breaks(["codec postcard", "codec json"]), ["codec: was postcard and is json"]);
}

#[test]
fn arguments_are_appended_as_options_only() {
    assert_eq!(
        breaks(["    id: Id\n    data", "    id: u64\n    data"]),
        ["method Upload: argument 1 (id) was Id and is u64: a changed type needs a new method"],
    );
    assert_eq!(
        breaks(["    urgent: option<bool>\n", "    urgent: option<bool>\n    count: u8\n"]),
        [
            "method Place: the new argument count is u8: expected option<u8>, as earlier clients do not send it"
        ],
    );
    assert_eq!(
        breaks(["    order: Order\n    urgent: option<bool>\n", ""]),
        ["method Place: the argument order (Order) is missing: earlier servers need it"],
    );
    assert_eq!(
        breaks(["    data: rest of bytes\n", ""]),
        ["method Upload: has got or lost the argument #[bytes], which needs a new method"],
    );
    let tolerated = [
        ["    urgent: option<bool>\n", "    urgent: option<bool>\n    count: option<u8>\n"],
        ["    urgent: option<bool>\n", ""],
        ["    urgent: ", "    is_urgent: "],
        ["    data: rest of bytes\n", "    name: option<string>\n    data: rest of bytes\n"],
    ];
    for change in tolerated {
        assert!(breaks(change).is_empty(), "{change:?}: {:?}", breaks(change));
    }
}

#[test]
fn responses_do_not_change() {
    assert_eq!(
        breaks(["returns (f32, u128)", "returns (f32, u64)"]),
        [
            "method Odd: returned (f32, u128) and returns (f32, u64): a changed response needs a new method"
        ],
    );
}

#[test]
fn a_stream_stays_a_stream() {
    let responses = "method Follow: returned stream<Side> and returns ";
    let changed = "a changed response needs a new method";
    assert_eq!(
        breaks(["returns stream<Side>", "returns Side"]),
        [format!("{responses}Side: {changed}")]
    );
    assert_eq!(
        breaks(["returns stream<Side>", "returns stream<Lot>"])[0],
        "enum Side: is another kind of type",
    );
    assert_eq!(
        breaks(["ids: stream<Id>", "ids: Id"]),
        [
            "method Follow: argument 1 (ids) was stream<Id> and is Id: a changed type needs a new method"
        ],
    );
    assert_eq!(
        breaks(["    ids: stream<Id>\n", ""]),
        ["method Follow: the argument ids (stream<Id>) is missing: earlier servers need it"],
    );
    assert!(breaks(["ids: stream<Id>", "names: stream<Id>"]).is_empty());
}

#[test]
fn an_idempotent_method_stays_so() {
    assert_eq!(
        breaks(["Place idempotent", "Place"]),
        ["method Place: is no longer idempotent: earlier clients repeat it"],
    );
    assert!(breaks(["method List", "method List idempotent"]).is_empty());
}

#[test]
fn structs_of_postcard_are_frozen() {
    let frozen = ["struct Lot: is changed: a changed struct needs a new method"];
    let changes = [
        ["    size: u32\n", "    size: u64\n"],
        ["    size: u32\n", ""],
        ["    size: u32\n", "    size: u32\n    more: option<u8>\n"],
        ["    size: u32\n", "    length: u32\n"],
    ];
    for change in changes {
        assert_eq!(breaks(change), frozen, "{change:?}");
    }
    let other = breaks(["struct Id(u64)", "struct Id(u32)"]);
    assert_eq!(other, ["struct Id: is changed: a changed struct needs a new method"]);
    assert_eq!(
        breaks(["struct Marker", "enum Marker"]),
        ["struct Marker: is another kind of type"]
    );
}

#[test]
fn names_of_types_do_not_count() {
    let earlier: Schema = ORDERS.parse().expect("a schema");
    let swapped = ORDERS.replace("Page.2", "X").replace("Page", "Page.2").replace("X", "Page");
    let renamed = swapped.replace("Order", "Purchase").replace("shop.Purchases", "shop.Orders");
    for text in [swapped, renamed] {
        let now: Schema = text.parse().expect("a schema");
        assert_ne!(now, earlier);
        assert_eq!(now.check(&earlier), []);
    }
}

#[test]
fn structs_of_json_gain_options() {
    let json = ORDERS.replace("codec postcard", "codec json");
    let tolerated = ["    size: u32\n", "    more: option<u8>\n    size: u32\n"];
    assert!(breaks_in(&json, tolerated).is_empty());
    assert_eq!(
        breaks_in(&json, ["    size: u32\n", "    size: u32\n    more: u8\n"]),
        ["struct Lot: the new field 'more: u8' is not an option"],
    );
    assert_eq!(
        breaks_in(&json, ["    size: u32\n", ""]),
        ["struct Lot: the field 'size: u32' is missing or changed"],
    );
}

#[test]
fn enums_only_grow_at_the_end() {
    let end = "    Swap { from: Lot, to: Side }\n";
    assert!(breaks([end, &format!("{end}    Later\n")]).is_empty());
    assert_eq!(
        breaks([end, ""]),
        ["enum Side: variant 3 ('Swap { from: Lot, to: Side }') is missing"]
    );
    assert_eq!(
        breaks(["    Buy\n", "    Buy\n    Hold\n"])[0],
        "enum Side: variant 1 was 'Sell(u32)' and is 'Hold': enums only grow at the end",
    );
}
