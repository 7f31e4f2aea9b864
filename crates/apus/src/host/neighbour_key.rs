//! The handle of a neighbour.

apus_proto::handle! {
    /// Identifies a process of this host while the node knows it.
    pub(crate) NeighbourKey
}
