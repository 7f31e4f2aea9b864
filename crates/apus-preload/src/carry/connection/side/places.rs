//! Positions of a direction's bytes in its ring, and copies in pieces, so that both ends copy at the same time.

use apus_sockets::layout;
use libc::iovec;

/// Pieces of a ring. The peer is notified after each piece while the rest is copied.
const PIECES: usize = 4;

/// The layout of a ring.
#[derive(Clone, Copy)]
pub(super) struct Places {
    /// Whether the peer is at another host.
    pub(super) are_far: bool,
}

impl Places {
    /// Size of the ring in bytes.
    #[inline]
    pub(super) fn capacity(self) -> usize {
        if self.are_far { layout::FAR_CAPACITY } else { layout::CAPACITY }
    }

    /// Bytes of a piece, after which the peer is notified.
    #[inline]
    pub(super) fn piece(self) -> usize {
        self.capacity() / PIECES
    }

    /// Offset of a position in the segment.
    #[inline]
    pub(super) fn at(self, position: u64) -> usize {
        // A division by a compile-time constant is a multiplication.
        let at = if self.are_far {
            position % layout::FAR_CAPACITY as u64
        } else {
            position % layout::CAPACITY as u64
        };
        layout::RING + at as usize
    }

    /// Contiguous bytes from a position on.
    #[inline]
    pub(super) fn in_one_go(self, position: u64) -> usize {
        self.capacity() - (self.at(position) - layout::RING)
    }

    /// Copies `bytes` between the ring, from a position on, and the parts, which have as many bytes. `copy` gets an offset in the
    /// segment, an address in a part, and the number of contiguous bytes in both. `did` is called after each piece.
    #[inline]
    pub(super) fn copy(
        self,
        mut position: u64,
        bytes: usize,
        parts: &[iovec],
        copy: impl Fn(usize, *mut u8, usize),
        mut did: impl FnMut(usize),
    ) {
        let (mut left, mut piece, full) = (bytes, 0, self.piece());
        for part in parts {
            let (first, length) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            left -= length;
            let mut done = 0;
            while done < length {
                let step = (length - done).min(self.in_one_go(position)).min(full - piece);
                copy(self.at(position), first.wrapping_add(done), step);
                position += step as u64;
                done += step;
                piece += step;
                if piece == full {
                    did(std::mem::take(&mut piece));
                }
            }
        }
        if piece > 0 {
            did(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn bytes_are_copied_in_pieces_around_the_end_of_the_ring() {
        let places = Places { are_far: false };
        let (capacity, piece) = (places.capacity(), places.piece());
        let mut bytes = vec![0_u8; piece + 100];
        let first = bytes.as_mut_ptr();
        let parts = [(first, 60), (first.wrapping_add(60), piece + 40)]
            .map(|(base, iov_len)| iovec { iov_base: base.cast(), iov_len });
        let copies = RefCell::new(Vec::new());
        let mut progress = Vec::new();
        places.copy(
            3 * capacity as u64 - 70,
            piece + 90,
            &parts,
            |at, part, length| {
                copies.borrow_mut().push((at - layout::RING, part.addr() - first.addr(), length));
            },
            |bytes| progress.push(bytes),
        );
        let wanted = [
            (capacity - 70, 0, 60),
            (capacity - 10, 60, 10),
            (0, 70, piece - 70),
            (piece - 70, piece, 90),
        ];
        assert_eq!(copies.into_inner(), wanted);
        assert_eq!(progress, [piece, 90]);
    }
}
