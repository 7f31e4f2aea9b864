//! The handle of a neighbour.

apus_proto::handle! {
    /// A process of this host, while it is known.
    pub(crate) NeighbourKey
}
