//! A server that a service manager starts and ends: it says when it is ready, and at SIGTERM finishes what it has begun. Its clients are
//! advised to go elsewhere.
//!
//! A unit of systemd for it:
//!
//! ```ini
//! [Service]
//! Type=notify
//! ExecStart=/usr/bin/calc
//! TimeoutStopSec=40     # longer than the server drains
//! ```
//!
//! Without arguments the example ends itself while a request is executed:
//!
//! ```text
//! a request is executed; SIGTERM arrives
//! the response: done
//! the server has ended: 1 finished, 0 cancelled
//! ```

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use apus_rpc::{Address, Channel, Config, Context, Node, Server, Status, shutdown_signal};
use signal_hook::{consts::SIGTERM, low_level};

#[apus_rpc::service(name = "shop.Work")]
trait Work {
    #[blocking]
    fn work(&self, cx: &Context) -> Result<String, Status>;
}

struct MyWork {
    begun: mpsc::Sender<()>,
}

impl Work for MyWork {
    fn work(&self, _: &Context) -> Result<String, Status> {
        let _ = self.begun.send(());
        thread::sleep(Duration::from_millis(100));
        Ok("done".to_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse()?); // A real one: `Config::server()`.
    let node = Node::start(&config)?;
    let (begun, begins) = mpsc::channel();
    let work = WorkServer::new(MyWork { begun });
    let serving = Server::builder(&node).add(work).serve(4000, shutdown_signal()?);
    let serving = serving.drain(Duration::from_secs(30));
    // The port is open: notify the service manager, here with the crate sd-notify:
    // sd_notify::notify(&[NotifyState::Ready])?;
    let server = thread::spawn(move || serving.wait());

    let address = Address::new(node.local_addr(), 4000).to_string();
    let work = WorkClient::new(Channel::builder(&address).build()?);
    let call = thread::spawn(move || work.work().wait());
    begins.recv()?;
    println!("a request is executed; SIGTERM arrives");
    low_level::raise(SIGTERM)?;
    println!("the response: {}", call.join().expect("no panic")?);
    let ended = server.join().expect("no panic")?;
    println!("the server has ended: {} finished, {} cancelled", ended.finished, ended.cancelled);
    Ok(())
}
