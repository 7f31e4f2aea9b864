//! Schemas of typed services: text that is committed and compared, so that a change which breaks older programs is found in a test.
//!
//! The attribute [`service`](macro@crate::service) gives each client a function `schema()`. One test keeps a file with it:
//!
//! ```no_run
//! # #[cfg(all(feature = "macros", feature = "postcard"))]
//! # mod example {
//! # use apus_rpc::{Context, Status};
//! # #[apus_rpc::service(name = "shop.Calc")]
//! # pub trait Calc { async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>; }
//! #[test]
//! fn the_schema_of_calc_is_committed() {
//!     CalcClient::schema().assert_committed("calc.schema");
//! }
//! # }
//! ```
//!
//! `APUS_RPC_SCHEMA=write cargo test` writes the file, the first time and after each change that older programs tolerate:
//!
//! ```text
//! service shop.Calc
//! codec postcard
//!
//! method Add
//!     a: i64
//!     b: i64
//!     returns i64
//! ```
//!
//! A running server gives its schema as well: [`Schema::of_server`] calls the method `__describe`, which every typed service has.
//!
//! # Rules
//!
//! Programs with an older and a newer schema understand each other if the newer one keeps these rules. [`Schema::check`] and
//! [`Schema::assert_committed`] report each one that is broken.
//!
//! | part | allowed | not allowed |
//! |---|---|---|
//! | service | – | another name or codec |
//! | method | new methods | removing or renaming one: its clients get [`Code::Unimplemented`](crate::Code::Unimplemented) |
//! | `#[idempotent]` | adding it | removing it: older clients repeat the method |
//! | arguments | other names; an `Option` appended to the end, or removed from it | other types; others appended or removed |
//! | response | – | another type |
//! | stream | – | a stream instead of a value, a value instead of a stream; another type of its messages |
//! | struct | another name of the type; JSON: new fields that are `Option`s | all else: a changed struct is a new method |
//! | enum | another name of the type; variants appended to the end | all else; older programs refuse values with the new variants |
//!
//! A method that no program uses any more may go: its lines are removed from the file together with its code. So may the last variant
//! of an enum; removing another one changes the numbers of those behind it.
//!
//! Types are traced by their `Deserialize` and have the names that serde has for them. A part that serde does not show is `?`, as the
//! fields of a struct after one that only takes particular texts.
//!
//! # Failures
//!
//! A request that the server cannot decode ends with [`Code::FailedPrecondition`](crate::Code::FailedPrecondition), and so does a response
//! that the client cannot decode. The message has the [hashes](Schema::hash) of both schemas, and for a message of a stream of responses
//! that of the client. No handler has seen such a request, unless it is a later message of a stream.

mod building;
mod committed;
mod rules;
#[cfg_attr(
    not(any(feature = "json", feature = "postcard")),
    allow(dead_code, reason = "only types of serde have shapes")
)]
mod text;
#[cfg(any(feature = "json", feature = "postcard"))]
mod trace;
#[cfg_attr(
    not(any(feature = "json", feature = "postcard")),
    allow(dead_code, reason = "only types of serde have shapes")
)]
mod types;

pub use building::{MethodBuilder, SchemaBuilder};
pub use rules::SchemaBreak;
pub use text::{Schema, SchemaTextError};
#[cfg(any(feature = "json", feature = "postcard"))]
pub(crate) use trace::trace;
pub use types::SchemaTypes;
