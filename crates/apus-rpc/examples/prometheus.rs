//! Histograms of calls in Prometheus' text format. The feature `metrics` of apus-rpc gives them to any recorder of the crate `metrics`,
//! here that of metrics-exporter-prometheus. The counters of the nodes themselves are with `apus stat --prometheus`.
//!
//! ```text
//! calls that the client has timed: 3
//! calls that the server has timed: 3
//! ```

use std::{future, thread};

use apus_rpc::{Address, Channel, Code, Config, Context, Node, Server, Status};
use metrics_exporter_prometheus::PrometheusBuilder;

#[apus_rpc::service(name = "shop.Calc")]
trait Calc {
    async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
}

struct MyCalc;

impl Calc for MyCalc {
    async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
        a.checked_add(b).ok_or_else(|| Status::new(Code::OutOfRange, "the sum is too large"))
    }
}

/// The number of calls of a histogram, whatever their status.
fn timed(page: &str, histogram: &str) -> u64 {
    let counts = page.lines().filter(|line| line.starts_with(&format!("{histogram}_count")));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A program serves `page.render()` by HTTP, or has the exporter do it (its feature `http-listener`).
    let page = PrometheusBuilder::new().install_recorder()?;

    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?);
    let node = Node::start(&config)?;
    let serving = Server::builder(&node).add(CalcServer::new(MyCalc));
    let serving = serving.serve(4000, future::pending());
    thread::spawn(move || serving.wait());

    let address = Address::new(node.local_addr(), 4000).to_string();
    let calc = CalcClient::new(Channel::builder(&address).build()?);
    calc.add(1, 2).wait()?;
    calc.add(3, 4).wait()?;
    calc.add(i64::MAX, 1).wait().expect_err("too large");

    // rpc_client_call_duration_count{rpc_method="shop.Calc/Add",rpc_response_status_code="OK",…} 2
    println!(
        "calls that the client has timed: {}",
        timed(&page.render(), "rpc_client_call_duration")
    );
    while timed(&page.render(), "rpc_server_call_duration") < 3 {
        thread::yield_now(); // The server notes a request after its answer has been sent.
    }
    println!(
        "calls that the server has timed: {}",
        timed(&page.render(), "rpc_server_call_duration")
    );
    Ok(())
}
