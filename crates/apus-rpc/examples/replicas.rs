//! Two servers of one service: calls go to another one if the first fails or is slow.
//!
//! * A request that was not executed goes to the other server at once, whatever the method does.
//! * A method that is `#[idempotent]` is repeated by a policy, and a second copy of a slow call is sent to the other server.
//!
//! ```text
//! a slow server: 20 calls, each answered by the fast one or after its time; copies were sent: true
//! a server that is gone: 20 calls, all answered
//! ```

use std::time::Duration;
use std::{future, thread};

use apus_rpc::{
    Address, Balance, Channel, Code, Config, Context, Hedge, Node, Retry, RetryPolicy, Server,
    Status,
};

#[apus_rpc::service(name = "shop.Stock")]
trait Stock {
    /// How many of an article there are.
    #[idempotent]
    #[blocking]
    fn count(&self, cx: &Context, article: u32) -> Result<u32, Status>;
}

struct MyStock {
    answers_after: Duration,
}

impl Stock for MyStock {
    fn count(&self, _: &Context, article: u32) -> Result<u32, Status> {
        thread::sleep(self.answers_after);
        Ok(article * 10)
    }
}

/// Starts a server. Returns its node, which serves until it is closed, and its address.
fn serve(answers_after: Duration) -> Result<(Node, String), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let stock = StockServer::new(MyStock { answers_after });
    let serving = Server::builder(&node).add(stock).serve(4000, future::pending());
    thread::spawn(move || serving.wait());
    let address = Address::new(node.local_addr(), 4000).to_string();
    Ok((node, address))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (slow, slow_address) = serve(Duration::from_millis(50))?;
    let (_fast, fast_address) = serve(Duration::ZERO)?;
    let policy = RetryPolicy::new().attempts(3).codes([Code::Unavailable]);
    // A second copy after 5 ms, for half of the calls at most; the default is a tenth.
    let hedge = Hedge::after(Duration::from_millis(5)).at_most(0.5);
    let channel = Channel::builder(&format!("static:{slow_address},{fast_address}"))
        .balance(Balance::RoundRobin)
        .retry(Retry::new().idempotent(policy))
        .hedge(hedge)
        .build()?;
    let stock = StockClient::new(channel.clone());

    let count = |article| stock.count(article).deadline(Duration::from_secs(5)).wait();
    for article in 0..20 {
        assert_eq!(count(article)?, article * 10);
    }
    let copies = channel.counters().copies();
    println!(
        "a slow server: 20 calls, each answered by the fast one or after its time; copies were sent: {}",
        copies > 0
    );

    slow.close(Duration::from_secs(1))?;
    for article in 0..20 {
        assert_eq!(count(article)?, article * 10);
    }
    println!("a server that is gone: 20 calls, all answered");
    Ok(())
}
