//! A method of a typed service.

use crate::code::Code;
use crate::codec::CodecError;
use crate::metadata::Metadata;
use crate::schema::Schema;
use crate::status::{Execution, Status};

/// Trailer of a server that could not decode a request: the hash of its schema.
pub(crate) const SCHEMA_TRAILER: &str = "apus-schema";

/// The facts of a method that client and server have.
#[derive(Clone, Copy, Debug)]
pub struct TypedMethod {
    /// `/SERVICE/METHOD`.
    pub path: &'static str,
    /// Whether the method may be repeated.
    pub is_idempotent: bool,
    /// Makes the schema of the service.
    pub schema: fn() -> Schema,
}

impl TypedMethod {
    /// The status of a request with an argument that cannot be decoded.
    #[cold]
    pub(crate) fn undecodable(&self, argument: &str, error: &CodecError) -> Status {
        let hash = (self.schema)().hash_text();
        let text = format!(
            "{}: the argument {argument}: {error}; the server's schema is {hash}",
            self.path
        );
        let mut metadata = Metadata::new();
        metadata.append(SCHEMA_TRAILER, hash).expect("the name and the hash are plain ASCII");
        let status = Status::new(Code::FailedPrecondition, text).with_metadata(metadata);
        status.with_execution(Execution::NoneHere)
    }

    /// The status of a response that the server cannot encode.
    #[cold]
    pub(crate) fn unencodable(&self, error: &CodecError) -> Status {
        Status::new(Code::Internal, format!("{}: the response: {error}", self.path))
    }

    /// The status of a call that should have one response and has `number`.
    #[cold]
    pub(crate) fn not_one_response(&self, number: &str) -> Status {
        let text =
            format!("{}: expected one response, and the server has sent {number}", self.path);
        Status::new(Code::Internal, text)
    }

    /// Adds the client's schema to a status of [`undecodable`](Self::undecodable).
    pub(crate) fn explained(&self, status: Status) -> Status {
        if status.code() != Code::FailedPrecondition {
            return status;
        }
        let Some(theirs) = status.metadata().get(SCHEMA_TRAILER) else { return status };
        let ours = (self.schema)().hash_text();
        let which = if ours == theirs { "the same" } else { &ours };
        let text = format!("{}; the client's is {which}", status.message());
        let explained = Status::new(status.code(), text).with_details(status.details().clone());
        explained.with_metadata(status.metadata().clone()).with_execution(status.execution())
    }

    /// The status of a response that the client cannot decode. `theirs` is the schema of the server, if it could be asked.
    #[cold]
    pub(crate) fn strange(&self, error: &CodecError, theirs: Option<&Schema>) -> Status {
        let ours = (self.schema)().hash_text();
        let theirs = theirs.map_or_else(|| "not known".to_owned(), Schema::hash_text);
        let schemas = format!("the server's schema is {theirs}; the client's is {ours}");
        Status::new(
            Code::FailedPrecondition,
            format!("{}: the response: {error}; {schemas}", self.path),
        )
    }
}
