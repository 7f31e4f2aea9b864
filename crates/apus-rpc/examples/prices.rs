//! A stream of prices, which the client ends when it has seen enough.
//!
//! ```text
//! ABC costs 100
//! ABC costs 101
//! ABC costs 102
//! nobody watches ABC any more
//! ```

use std::future;
use std::sync::mpsc;
use std::thread;

use apus_rpc::{Address, Channel, Code, Config, Context, Node, Server, Status, Stream};
use futures_lite::{StreamExt, stream};

#[apus_rpc::service(name = "shop.Market")]
trait Market {
    /// The prices of a share, from now on.
    async fn watch(
        &self,
        cx: &Context,
        symbol: String,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
}

struct MyMarket {
    left: mpsc::Sender<String>,
}

/// Reports that a client has stopped watching.
struct Watched {
    symbol: String,
    left: mpsc::Sender<String>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.left.send(self.symbol.clone()); // The program may be at its end.
    }
}

impl Market for MyMarket {
    async fn watch(
        &self,
        _: &Context,
        symbol: String,
    ) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        if symbol != "ABC" {
            return Err(Status::new(Code::NotFound, format!("there is no share {symbol}")));
        }
        // Dropped with the stream, which the server drops when the client does.
        let watched = Watched { symbol, left: self.left.clone() };
        Ok(stream::iter(100..).map(move |price| {
            let _ = &watched;
            Ok(price)
        }))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let (left, leaves) = mpsc::channel();
    let market = MarketServer::new(MyMarket { left });
    let serving = Server::builder(&node).add(market).serve(4000, future::pending());
    thread::spawn(move || serving.wait());

    let address = Address::new(node.local_addr(), 4000).to_string();
    let market = MarketClient::new(Channel::builder(&address).build()?);
    futures_lite::future::block_on(async {
        let mut prices = market.watch("ABC".to_owned()).await?.take(3);
        while let Some(price) = prices.next().await {
            println!("ABC costs {}", price?);
        }
        Ok::<(), Status>(()) // The stream is dropped here.
    })?;
    println!("nobody watches {} any more", leaves.recv()?);
    Ok(())
}
