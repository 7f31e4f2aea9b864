//! Services over Apus.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod code;
pub mod envelope;
mod header_name;
mod metadata;
mod status;

pub use apus::{Address, Bytes, CallError, Node};
pub use code::Code;
pub use metadata::{Metadata, MetadataError, MetadataValue};
pub use status::Status;
