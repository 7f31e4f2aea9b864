//! The health of a service at an endpoint, watched by its channel.

use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use apus::{Address, Client};

use crate::client::balance::Balance;
use crate::client::calls::{CallDefaults, ChannelParts, Interceptor};
use crate::client::channel::Channel;
use crate::client::endpoint_set::EndpointSet;
use crate::client::resolve::Endpoint;
use crate::client::system_resolver::SystemResolver;
use crate::code::Code;
use crate::envelope::EnvelopeLimits;
use crate::health::{Frames, ServingStatus, WATCH, encode_request, response_status};
use crate::status::Status;
use crate::timer::sleep;
use crate::transport::Caller;

/// Pause before a watch that has ended begins again. It doubles with each watch that ends without a status.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Watches the health of a service for a channel.
pub(crate) struct HealthWatch {
    service: String,
    /// Those of the channel.
    limits: EnvelopeLimits,
    interceptors: Arc<[Interceptor]>,
}

impl HealthWatch {
    pub(crate) fn new(service: String, defaults: &CallDefaults) -> Self {
        let interceptors = Arc::clone(&defaults.interceptors);
        Self { service, limits: defaults.limits, interceptors }
    }

    /// Watches the service at an endpoint until it is dropped, and notes each change in the list of the channel.
    pub(crate) async fn watch(
        &self,
        set: &EndpointSet,
        client: Client,
        address: Address,
        first_id: u64,
    ) {
        let channel = self.channel(client, address, first_id);
        let mut pause = PAUSE_MIN;
        loop {
            let mut is_answered = false;
            let ended = follow(&channel, &self.service, |status| {
                is_answered = true;
                set.set_health(address, status == ServingStatus::Serving);
            })
            .await;
            let has_no_method = is_without_method(&ended);
            set.set_health(address, has_no_method);
            if is_answered {
                pause = PAUSE_MIN;
            }
            // The method may come with another version of the server.
            sleep(if has_no_method { PAUSE_MAX } else { pause }).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// A channel to one endpoint through the port of another channel.
    fn channel(&self, client: Client, address: Address, first_id: u64) -> Channel {
        let pick = Box::new(Balance::PickFirst);
        let set = EndpointSet::new(pick, 0, Arc::new(SystemResolver::new()));
        set.update(vec![Endpoint::new(address)]);
        let interceptors = Arc::clone(&self.interceptors);
        let defaults = CallDefaults { limits: self.limits, interceptors, ..CallDefaults::new() };
        let caller = Caller::Network(client);
        Channel::new(ChannelParts::new(caller, Arc::new(set), first_id, defaults, None))
    }
}

/// Whether the server does not have the method. Such a server serves.
fn is_without_method(ended: &Result<(), Status>) -> bool {
    ended.as_ref().is_err_and(|status| status.code() == Code::Unimplemented)
}

/// Watches a service until the watch ends.
async fn follow(
    channel: &Channel,
    service: &str,
    mut note: impl FnMut(ServingStatus),
) -> Result<(), Status> {
    let start = || {
        // It ends after hours, as a call that was given up.
        channel.stream(WATCH).unobserved().start_raw(encode_request(service), true)
    };
    // The task of the channel outlives a panic of an interceptor.
    let started = panic::catch_unwind(AssertUnwindSafe(start));
    let panicked = |_| Err(Status::new(Code::Internal, "an interceptor panicked"));
    let (_, mut responses) = started.unwrap_or_else(panicked)?;
    let mut frames = Frames::default();
    while let Some(chunk) = poll_fn(|task| responses.poll_chunk(task)).await {
        frames.push(&chunk?);
        while let Some(message) = frames.next()? {
            note(response_status(&message)?);
        }
    }
    Ok(())
}
