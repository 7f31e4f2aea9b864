//! The schema of a running server.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::client::Channel;
use crate::codec::SchemaText;
use crate::schema::Schema;
use crate::server::ServerBuilder;
use crate::typed::call::{DESCRIBE, TypedCall};
use crate::typed::method::TypedMethod;

impl Schema {
    /// The schema of a typed service at a running server. The result is awaited, or a thread waits for it.
    ///
    /// ```no_run
    /// # use apus_rpc::{Channel, Status, schema::Schema};
    /// # async fn example(channel: &Channel) -> Result<(), Status> {
    /// println!("{}", Schema::of_server(channel, "shop.Calc").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn of_server<'c>(channel: &'c Channel, service: &str) -> TypedCall<'c, SchemaText, Self> {
        let method =
            TypedMethod { path: DESCRIBE, is_idempotent: true, schema: || Self::default() };
        TypedCall::new(channel, format!("/{service}/{DESCRIBE}"), method, Bytes::new().into(), None)
    }
}

/// Serves the schema of a service at the method `__describe`.
pub fn describe<'n>(
    server: ServerBuilder<'n>,
    service: &str,
    schema: fn() -> Schema,
) -> ServerBuilder<'n> {
    let text: Arc<OnceLock<Bytes>> = Arc::default();
    server.built_in_route(&format!("/{service}/{DESCRIBE}"), move |_, _| {
        let text = Arc::clone(&text);
        async move { Ok(text.get_or_init(|| schema().to_string().into()).clone()) }
    })
}
