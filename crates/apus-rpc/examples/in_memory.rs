//! Tests of a service and of a program that uses it, without a network: a channel in memory calls a real server.
//!
//! In a crate of yours these functions are tests (`#[test]`).
//!
//! ```text
//! a client sees a service as over the network
//! a program is tested with a double of the service that it calls
//! ```

use std::time::Duration;

use apus_rpc::{Channel, Code, Context, Server, Status};

#[apus_rpc::service(name = "shop.Bank")]
trait Bank {
    async fn balance(&self, cx: &Context, account: u32) -> Result<u64, Status>;
}

/// The service.
struct MyBank;

impl Bank for MyBank {
    async fn balance(&self, _: &Context, account: u32) -> Result<u64, Status> {
        match account {
            1 => Ok(100),
            _ => Err(Status::new(Code::NotFound, "no such account")),
        }
    }
}

/// A part of a program that uses the service.
fn is_solvent(bank: &BankClient, account: u32, price: u64) -> Result<bool, Status> {
    match bank.balance(account).deadline(Duration::from_secs(1)).wait() {
        Ok(balance) => Ok(balance >= price),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status),
    }
}

/// The client of a bank in memory.
fn client(bank: impl Bank) -> BankClient {
    BankClient::new(Channel::in_memory(Server::in_memory().add(BankServer::new(bank))))
}

fn a_client_sees_a_service_as_over_the_network() {
    let bank = client(MyBank);
    assert_eq!(bank.balance(1).wait(), Ok(100));
    assert_eq!(bank.balance(2).wait().expect_err("unknown").code(), Code::NotFound);
}

fn a_program_is_tested_with_a_double_of_the_service_that_it_calls() {
    /// A bank that is too busy.
    struct Busy;

    impl Bank for Busy {
        async fn balance(&self, _: &Context, _: u32) -> Result<u64, Status> {
            Err(Status::new(Code::ResourceExhausted, "later"))
        }
    }

    assert_eq!(is_solvent(&client(MyBank), 1, 50), Ok(true));
    assert_eq!(is_solvent(&client(MyBank), 2, 50), Ok(false));
    assert!(is_solvent(&client(Busy), 1, 50).is_err());
}

fn main() {
    a_client_sees_a_service_as_over_the_network();
    println!("a client sees a service as over the network");
    a_program_is_tested_with_a_double_of_the_service_that_it_calls();
    println!("a program is tested with a double of the service that it calls");
}
