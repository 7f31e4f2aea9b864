//! The service `grpc.health.v1.Health` of a server.

use std::future::poll_fn;

use bytes::Bytes;

use crate::code::Code;
use crate::health::board::{Health, ServedHealth};
use crate::health::messages::{CHECK, Frames, WATCH, encode_response, request_service};
use crate::server::ServerBuilder;
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};
use crate::typed::Service;

impl Service for Health {
    fn add_to(self, server: ServerBuilder<'_>) -> ServerBuilder<'_> {
        let checked = ServedHealth::new(self);
        let (watched, at_end) = (checked.clone(), checked.clone());
        server
            .built_in_route(CHECK, move |_, body| {
                let answer = check(&checked, &body);
                async move { answer }
            })
            .built_in_stream(WATCH, move |_, requests, responses| {
                watch(watched.clone(), requests, responses)
            })
            .at_end(move || at_end.end())
    }
}

/// Answers with the present status.
fn check(health: &ServedHealth, body: &Bytes) -> Result<Bytes, Status> {
    let mut frames = Frames::default();
    frames.push(body);
    let service = request_service(&frames.next()?.ok_or_else(no_message)?)?;
    let status = health.status(&service);
    let unknown = || Status::new(Code::NotFound, format!("no service {service} is known"));
    Ok(encode_response(status.ok_or_else(unknown)?))
}

fn no_message() -> Status {
    Status::new(Code::InvalidArgument, "a request of grpc.health.v1 without a message")
}

/// Answers with the present status and each change.
async fn watch(
    health: ServedHealth,
    mut requests: Streaming,
    mut responses: StreamSender,
) -> Result<(), Status> {
    let mut frames = Frames::default();
    let request = loop {
        if let Some(request) = frames.next()? {
            break request;
        }
        let chunk = poll_fn(|task| requests.poll_chunk(task)).await;
        frames.push(&chunk.ok_or_else(no_message)??);
    };
    drop(requests);
    let (service, watcher, mut last) = (request_service(&request)?, health.watcher(), None);
    loop {
        let (status, is_ending) = watcher.changed(&service, last).await;
        if last != Some(status) {
            responses.send_raw(encode_response(status)).await?;
        }
        if is_ending {
            return Ok(());
        }
        last = Some(status);
    }
}
