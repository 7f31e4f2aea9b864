//! Parts of a message that arrived before the preceding bytes.

use std::collections::{BTreeMap, VecDeque};

/// Pieces by their start offsets. No piece touches another: there is one for each gap before it.
#[derive(Debug)]
pub(crate) struct Pieces(BTreeMap<u32, VecDeque<u8>>);

impl Pieces {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Keeps new bytes, joined with the adjacent pieces. O(log pieces) and the copy. If two pieces are joined, the shorter one is
    /// copied, so that no order of arrival copies a byte more than log(message length) times.
    pub(crate) fn insert(&mut self, offset: u32, bytes: &[u8]) {
        let after = self.0.remove(&offset.saturating_add(bytes.len() as u32));
        match (self.before(offset), after) {
            (None, None) => {
                self.0.insert(offset, VecDeque::from(bytes.to_vec()));
            }
            (None, Some(mut piece)) => {
                piece.extend(bytes);
                piece.rotate_right(bytes.len());
                self.0.insert(offset, piece);
            }
            (Some(piece), after) => {
                piece.extend(bytes);
                join(piece, after.unwrap_or_default());
            }
        }
    }

    /// Keeps bytes that no piece follows.
    pub(crate) fn insert_last(&mut self, offset: u32, run: Vec<u8>) {
        match self.before(offset) {
            Some(piece) => join(piece, run.into()),
            None => {
                self.0.insert(offset, run.into());
            }
        }
    }

    /// Returns the piece that ends at this offset.
    fn before(&mut self, offset: u32) -> Option<&mut VecDeque<u8>> {
        let (start, piece) = self.0.range_mut(..offset).next_back()?;
        (start.saturating_add(piece.len() as u32) == offset).then_some(piece)
    }

    /// Removes and returns the piece that begins at this offset.
    pub(crate) fn take(&mut self, offset: u32) -> Option<VecDeque<u8>> {
        self.0.remove(&offset)
    }
}

fn join(before: &mut VecDeque<u8>, mut after: VecDeque<u8>) {
    if before.len() < after.len() {
        let length = before.len();
        after.append(before);
        after.rotate_right(length);
        *before = after;
    } else {
        before.append(&mut after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pieces: &Pieces) -> Vec<(u32, Vec<u8>)> {
        pieces.0.iter().map(|(&start, piece)| (start, piece.iter().copied().collect())).collect()
    }

    #[test]
    fn what_touches_is_joined() {
        let mut pieces = Pieces::new();
        pieces.insert(10, b"kl");
        pieces.insert(12, b"m");
        pieces.insert(20, b"uvwxyz");
        assert_eq!(held(&pieces), [(10, b"klm".to_vec()), (20, b"uvwxyz".to_vec())]);
        pieces.insert(18, b"st");
        pieces.insert(13, b"nopqr");
        assert_eq!(held(&pieces), [(10, b"klmnopqrstuvwxyz".to_vec())]);
        pieces.insert_last(26, b"!!".to_vec());
        pieces.insert_last(40, b"more than all that was here before".to_vec());
        pieces.insert(28, b"------------");
        assert_eq!(held(&pieces).len(), 1);
        assert_eq!(pieces.take(10).map(|piece| piece.len()), Some(64));
        assert!(pieces.take(10).is_none());
    }
}
