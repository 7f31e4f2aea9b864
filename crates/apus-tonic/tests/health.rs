//! The health service of apus-rpc with that of tonic: each as the server, and as the watcher.

mod transports;

use apus_rpc::health::{Health, ServingStatus};
use apus_tonic::AddTower;
use tonic::Code;
use tonic::service::Routes;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use transports::{PORT, Transport, channel_to, nodes};

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

fn check(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn a_client_of_tonic_watches_a_server_of_apus_rpc() {
    for transport in Transport::APUS {
        block_on(async {
            let (nodes, health) = (nodes(transport), Health::new());
            let server = apus_rpc::Server::builder(&nodes.server).add(health.clone());
            let server = server.spawner(apus_rpc::tokio::current());
            tokio::spawn(server.serve(PORT, std::future::pending()));
            let mut client = HealthClient::new(channel_to(&nodes.server, &nodes.client).await);
            let whole = client.check(check("")).await.expect("a response").into_inner();
            assert_eq!(whole.status, 1);
            let error = client.check(check("shop.Calc")).await.expect_err("not known");
            assert_eq!(error.code(), Code::NotFound);
            let watched = client.watch(check("shop.Calc")).await.expect("a stream");
            let mut watched = watched.into_inner();
            for (status, number) in [
                (None, 3),
                (Some(ServingStatus::Serving), 1),
                (Some(ServingStatus::NotServing), 2),
                (Some(ServingStatus::Unknown), 0),
            ] {
                if let Some(status) = status {
                    health.set("shop.Calc", status);
                }
                let response = watched.message().await.expect("a response").expect("a response");
                assert_eq!(response.status, number);
            }
        });
    }
}

#[test]
fn a_channel_of_apus_rpc_watches_a_server_of_tonic() {
    for transport in Transport::APUS {
        block_on(async {
            let (reporter, service) = tonic_health::server::health_reporter();
            let set = async |status| reporter.set_service_status("shop.Calc", status).await;
            let (serving, not_serving) =
                (tonic_health::ServingStatus::Serving, tonic_health::ServingStatus::NotServing);
            set(serving).await;
            let nodes = nodes(transport);
            let server = apus_rpc::Server::builder(&nodes.server).add_tower(Routes::new(service));
            let server = server.spawner(apus_rpc::tokio::current());
            tokio::spawn(server.serve(PORT, std::future::pending()));
            let address = apus::Address::new(nodes.server.local_addr(), PORT).to_string();
            let channel = apus_rpc::Channel::builder(&address).node(&nodes.client);
            let channel = channel.health("shop.Calc").connect().await.expect("a server");
            for (status, is_healthy) in [(not_serving, false), (serving, true)] {
                set(status).await;
                while channel.endpoints()[0].is_healthy != is_healthy {
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(channel.counters().health_changes(), 2);
        });
    }
}
