//! A key-value store of four shards with two replicas each.
//!
//! A client has a channel for each shard. Writes go to the first replica, which writes to the second one before it answers; reads go to
//! either. While the first replica is away, reads go on and writes fail.
//!
//! ```text
//! 100 keys are written, and read from either replica
//! a shard loses its first replica: 25 keys of it can be read, and none written
//! ```

use std::collections::HashMap;
use std::future;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use apus_rpc::{
    Address, Balance, Bytes, Channel, Code, Config, Context, Node, Retry, RetryPolicy, Server,
    Status,
};

const SHARDS: u32 = 4;

#[apus_rpc::service(name = "shop.Store")]
trait Store {
    #[idempotent]
    async fn get(&self, cx: &Context, key: u32) -> Result<Option<Bytes>, Status>;

    /// Setting a key twice to one value is setting it once.
    #[idempotent]
    async fn set(&self, cx: &Context, key: u32, #[bytes] value: Bytes) -> Result<(), Status>;
}

struct Replica {
    values: Mutex<HashMap<u32, Bytes>>,
    /// The second replica. `None`: this is the second one.
    next: Option<StoreClient>,
}

impl Store for Replica {
    async fn get(&self, _: &Context, key: u32) -> Result<Option<Bytes>, Status> {
        Ok(self.values.lock().expect("no panic").get(&key).cloned())
    }

    async fn set(&self, _: &Context, key: u32, value: Bytes) -> Result<(), Status> {
        if let Some(next) = &self.next {
            next.set(key, value.clone()).await?; // It has no more time than this request, and ends with it.
        }
        self.values.lock().expect("no panic").insert(key, value);
        Ok(())
    }
}

/// Starts a replica. Returns its node, which serves until it is closed, and its address.
fn replica(next: Option<&str>) -> Result<(Node, String), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let next = next.map(|address| Channel::builder(address).node(&node).build()).transpose()?;
    let replica = Replica { values: Mutex::default(), next: next.map(StoreClient::new) };
    let serving = Server::builder(&node).add(StoreServer::new(replica));
    let serving = serving.serve(4000, future::pending());
    thread::spawn(move || serving.wait());
    let address = Address::new(node.local_addr(), 4000).to_string();
    Ok((node, address))
}

/// A shard as its clients see it.
struct Shard {
    first: StoreClient,
    either: StoreClient,
}

/// The shards of the store.
struct Shards(Vec<Shard>);

impl Shards {
    fn of(&self, key: u32) -> &Shard {
        &self.0[(key % SHARDS) as usize]
    }

    fn get(&self, key: u32) -> Result<Option<Bytes>, Status> {
        self.of(key).either.get(key).deadline(Duration::from_secs(5)).wait()
    }

    fn set(&self, key: u32, value: impl Into<Bytes>) -> Result<(), Status> {
        self.of(key).first.set(key, value.into()).deadline(Duration::from_secs(5)).wait()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut nodes = Vec::new();
    let mut shards = Vec::new();
    for _ in 0..SHARDS {
        let (second, second_address) = replica(None)?;
        let (first, first_address) = replica(Some(&second_address))?;
        let either = Channel::builder(&format!("static:{first_address},{second_address}"));
        // A read that may have been executed is repeated at the other replica.
        let either = either.retry(Retry::new().idempotent(RetryPolicy::new()));
        shards.push(Shard {
            first: StoreClient::new(Channel::builder(&first_address).build()?),
            either: StoreClient::new(either.balance(Balance::RoundRobin).build()?),
        });
        nodes.push((first, second));
    }
    let store = Shards(shards);
    for key in 0..100 {
        store.set(key, format!("value {key}"))?;
        let read = [store.get(key)?, store.get(key)?];
        assert!(read.iter().flatten().all(|value| *value == format!("value {key}")), "{read:?}");
        assert!(read.iter().all(Option::is_some), "both replicas have it");
    }
    println!("100 keys are written, and read from either replica");

    let (first, _second) = nodes.swap_remove(0);
    first.close(Duration::from_secs(1))?;
    let keys = (0..100).filter(|key| key % SHARDS == 0);
    let found = keys.clone().filter(|&key| matches!(store.get(key), Ok(Some(_)))).count();
    assert!(
        keys.take(2)
            .all(|key| store.set(key, "new").is_err_and(|error| error.code() == Code::Unavailable))
    );
    println!("a shard loses its first replica: {found} keys of it can be read, and none written");
    Ok(())
}
