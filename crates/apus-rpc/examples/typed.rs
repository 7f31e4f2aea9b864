//! A typed service: server and client in one process, or as two.
//!
//! ```sh
//! cargo run -p apus-rpc --example typed                           # both in one process
//! cargo run -p apus-rpc --example typed serve                     # a server, until it is ended
//! cargo run -p apus-rpc --example typed add localhost:4000 1 2    # a client of it, in another terminal
//! cargo run -p apus-rpc --example typed schema localhost:4000     # the schema of the running server
//! ```

use std::error::Error;
use std::time::Duration;
use std::{env, future, thread};

use apus_rpc::schema::Schema;
use apus_rpc::{Address, Bytes, Channel, Code, Config, Context, Node, Server, Status};
use serde::{Deserialize, Serialize};

/// Figures about a text.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Measures {
    bytes: usize,
    lines: usize,
}

#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    /// Adds two numbers.
    #[idempotent]
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;

    /// Measures a text, on a thread of its own. The text is not copied.
    #[blocking]
    fn measure(&self, cx: &Context, #[bytes] text: Bytes) -> Result<Measures, Status>;
}

struct MyCalc;

impl Calc for MyCalc {
    async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
        let overflow = || Status::new(Code::OutOfRange, format!("{a} + {b} is too large"));
        a.checked_add(b).ok_or_else(overflow)
    }

    fn measure(&self, _: &Context, text: Bytes) -> Result<Measures, Status> {
        let lines = text.iter().filter(|&&byte| byte == b'\n').count();
        Ok(Measures { bytes: text.len(), lines })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => both(),
        ["serve"] => {
            let node = Node::start(&Config::server())?;
            println!("shop.Calc is at port 4000; end it with Ctrl-C");
            serve(&node)
        }
        ["add", target, a, b] => {
            let calc = CalcClient::new(Channel::builder(target).build()?);
            let call = calc.add(a.parse()?, b.parse()?).deadline(Duration::from_secs(5));
            println!("{}", call.wait()?);
            Ok(())
        }
        ["schema", target] => {
            let channel = Channel::builder(target).build()?;
            print!("{}", Schema::of_server(&channel, "shop.Calc").wait()?);
            Ok(())
        }
        _ => Err("expected nothing, `serve`, `add HOST:PORT A B` or `schema HOST:PORT`".into()),
    }
}

fn serve(node: &Node) -> Result<(), Box<dyn Error>> {
    let server = Server::builder(node).add(CalcServer::new(MyCalc));
    let ended = server.serve(4000, future::pending()).wait()?;
    println!("{ended:?}");
    Ok(())
}

fn both() -> Result<(), Box<dyn Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?); // the system chooses a UDP port
    let node = Node::start(&config)?;
    let address = Address::new(node.local_addr(), 4000).to_string();
    thread::spawn(move || serve(&node).expect("the port is free"));

    let channel = Channel::builder(&address).build()?;
    let calc = CalcClient::new(channel);
    println!("1 + 2 = {}", calc.add(1, 2).wait()?);
    println!("{:?}", calc.measure("two\nlines\n").wait()?);
    println!("{}", calc.add(i64::MAX, 1).wait().expect_err("too large"));
    Ok(())
}
