//! The client of a request.

use apus_rpc::{Address, Context, Peer};

/// The client of a request, an extension of each request that came over Apus. It stands where tonic's servers have `TcpConnectInfo`.
///
/// ```
/// use apus_tonic::ApusConnectInfo;
///
/// fn log<T>(request: &tonic::Request<T>) {
///     match request.extensions().get::<ApusConnectInfo>() {
///         Some(client) => println!("from {} over Apus", client.peer()),
///         None => println!("over TCP"),
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApusConnectInfo {
    peer: Address,
    identity: Option<Peer>,
}

impl ApusConnectInfo {
    pub(crate) fn of(context: &Context) -> Self {
        Self { peer: context.peer(), identity: context.identity() }
    }

    /// The client's node and port. The address is not authenticated; [`identity`](Self::identity) is.
    #[must_use]
    pub fn peer(&self) -> Address {
        self.peer
    }

    /// The client as its certificate names it. `None` if the request came in plain packets.
    #[must_use]
    pub fn identity(&self) -> Option<&Peer> {
        self.identity.as_ref()
    }
}
