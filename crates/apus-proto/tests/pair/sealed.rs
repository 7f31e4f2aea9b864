//! Nodes at sealed paths.

use apus_wire::PacketType;

use super::{CLIENT, Fate, Pair, SERVER, sealed_path};

impl Pair {
    /// Creates nodes at sealed paths that have not met.
    pub(crate) fn unacquainted_sealed() -> Self {
        let mut pair = Self::unacquainted();
        [CLIENT, SERVER].into_iter().for_each(|node| pair.move_node(node, sealed_path(node)));
        pair
    }

    /// Has the link drop packets about tokens, as one without keys does: nodes meet by handshakes only.
    pub(crate) fn drop_contacts(&mut self) {
        use PacketType::{Confirm, Open, Token};
        self.hook = Some(Box::new(|passing| {
            let kind = passing.packet.packet_type();
            if [Open, Token, Confirm].contains(&kind) { Fate::Drop } else { Fate::Pass }
        }));
    }
}
