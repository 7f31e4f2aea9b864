//! Errors of servers.

use apus::StartError;

/// Why a server does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The server's own node does not start.
    #[error("the node does not start: {0}")]
    Start(#[from] StartError),
    /// The port cannot be opened.
    #[error(transparent)]
    Port(#[from] apus_rpc::ServeError),
    /// Misuse: two services have this name.
    #[error("two services have the name {0}")]
    Twice(&'static str),
    /// Misuse: the server is awaited outside of a runtime of tokio, which handlers of tonic need.
    #[error("a server is awaited in a runtime of tokio")]
    NoRuntime,
    /// The TCP port cannot be opened.
    #[cfg(feature = "transport")]
    #[cfg_attr(docsrs, doc(cfg(feature = "transport")))]
    #[error("TCP {address}: {source}")]
    Listen {
        /// The given address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server over TCP has failed.
    #[cfg(feature = "transport")]
    #[cfg_attr(docsrs, doc(cfg(feature = "transport")))]
    #[error("TCP: {0}")]
    Tcp(#[from] tonic::transport::Error),
}
