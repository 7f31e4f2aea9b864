//! Every record of a run: its sender and the node that it was sealed for, so that each opened one can be compared.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _};

use apus_seal::CLEAR_LEN;
use foldhash::fast::FixedState;

use crate::check::ledger::Violation;
use crate::check::work::Name;

/// The clear bytes of a record. Ids are random and numbers are never used again, so they name it.
pub(super) type Clear = [u8; CLEAR_LEN];

#[derive(Debug)]
struct Record {
    by: usize,
    /// The node whose name the path has.
    to: usize,
    content: u64,
    /// The RPC of its packet; absent for a flight of a handshake.
    name: Option<Name>,
    /// Whether it was opened from the address of its path, and from another one.
    is_opened: [bool; 2],
}

/// The records that nodes have sealed.
#[derive(Debug, Default)]
pub(super) struct Records {
    sealed: HashMap<Clear, Record, FixedState>,
    /// Ids and numbers, without the marks and the epoch.
    numbers: HashSet<[u8; CLEAR_LEN - 4], FixedState>,
}

impl Records {
    /// Notes a record. Fails if its path has used its number before, by whatever key.
    pub(super) fn seal(
        &mut self,
        clear: Clear,
        (by, to): (usize, usize),
        content: &[u8],
        name: Option<Name>,
    ) -> Result<(), Violation> {
        let record = Record { by, to, content: hash(content), name, is_opened: [false; 2] };
        self.sealed.insert(clear, record);
        let number = clear.last_chunk().expect("the clear bytes are longer");
        if self.numbers.insert(*number) {
            Ok(())
        } else {
            Err(Violation::NumberReused { node: by })
        }
    }

    /// Notes that a node has opened a record on a path with the name of `peer`.
    pub(super) fn open(
        &mut self,
        clear: Clear,
        (node, peer): (usize, usize),
        content: &[u8],
        is_home: bool,
    ) -> Result<(), Violation> {
        let Some(record) = self.sealed.get_mut(&clear) else {
            return Err(Violation::NotSealed { node, peer });
        };
        if (record.by, record.to, record.content) != (peer, node, hash(content)) {
            return Err(Violation::NotSealed { node, peer });
        }
        if std::mem::replace(&mut record.is_opened[usize::from(is_home)], true) {
            return Err(Violation::OpenedAgain { node, peer });
        }
        Ok(())
    }

    /// Returns the sender of a record that was sealed for a node, and that it has not opened from the address of the path.
    pub(super) fn unopened(&self, node: usize, datagram: &[u8]) -> Option<usize> {
        let record = self.sealed.get(datagram.first_chunk()?)?;
        (record.to == node && !record.is_opened[1]).then_some(record.by)
    }

    /// Returns the RPC of a datagram with the clear bytes of a record.
    pub(super) fn name(&self, datagram: &[u8]) -> Option<Name> {
        self.sealed.get(datagram.first_chunk()?)?.name
    }
}

fn hash(content: &[u8]) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(content);
    hasher.write_usize(content.len());
    hasher.finish()
}
