//! The DNS names by which addresses were found.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use apus_seal::Name;

/// The names by which addresses were found.
#[derive(Default)]
pub(super) struct Names {
    by_address: BTreeMap<SocketAddr, Name>,
    /// The addresses, oldest first.
    order: VecDeque<SocketAddr>,
}

/// Upper bound on the names that are remembered.
const NAMES_MAX: usize = 4_096;

impl Names {
    pub(super) fn remember(&mut self, address: SocketAddr, name: Name) {
        if self.by_address.insert(address, name).is_some() {
            return;
        }
        self.order.push_back(address);
        if self.order.len() > NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_address.remove(&oldest);
        }
    }

    pub(super) fn get(&self, address: SocketAddr) -> Option<&Name> {
        self.by_address.get(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_name_is_forgotten_first() {
        let mut names = Names::default();
        let name = Name::parse("kv.example.org").unwrap();
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        (1..=4_097).for_each(|port| names.remember(address(port), name.clone()));
        names.remember(address(4_097), name.clone());
        assert_eq!((names.get(address(1)), names.get(address(2))), (None, Some(&name)));
    }
}
