//! Metadata and statuses of the crate `grpc`.

use apus_rpc::{Code, Metadata, Status};
use grpc::core::{ResponseHeaders, Trailers};
use grpc::metadata::{BinaryMetadataValue, MetadataMap};
use grpc::{StatusCodeError, StatusError};

use crate::headers;

/// Name of the details of a status.
const DETAILS: &str = "grpc-status-details-bin";

/// Metadata of a request, for an envelope.
pub(super) fn to_metadata(map: &MetadataMap) -> Result<Metadata, Status> {
    // Only maps of tonic show their binary values.
    let metadata = headers::to_metadata(&map.clone().into());
    metadata.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
}

/// Metadata of a response.
fn to_map(metadata: &Metadata) -> Result<MetadataMap, Status> {
    let headers = headers::to_headers(metadata)?;
    let map = MetadataMap::try_from(tonic::metadata::MetadataMap::from_headers(headers));
    map.map_err(|error| Status::new(Code::Internal, error))
}

/// The headers of a response.
pub(super) fn headers(metadata: &Metadata) -> Result<ResponseHeaders, Status> {
    Ok(ResponseHeaders::new().with_metadata(to_map(metadata)?))
}

/// The end of a call in order.
pub(super) fn success(metadata: &Metadata) -> Result<Trailers, Status> {
    Ok(Trailers::new(Ok(())).with_metadata(to_map(metadata)?))
}

/// The end of a call with an error.
pub(super) fn trailers(status: &Status) -> Trailers {
    let code = StatusCodeError::from(i32::from(status.code().number()));
    // Only the number of pairs can be wrong, and then the code is of more use than they are.
    let mut map = to_map(status.metadata()).unwrap_or_default();
    if !status.details().is_empty() {
        map.insert_bin(DETAILS, BinaryMetadataValue::from_bytes(status.details()));
    }
    Trailers::new(Err(StatusError::new(code, status.message()))).with_metadata(map)
}
