//! The methods of a server by path.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use apus::Bytes;

use crate::envelope::MethodPath;
use crate::server::method::Method;

/// The methods that have a path of their own.
#[derive(Default)]
pub(crate) struct Methods {
    by_path: HashMap<Bytes, (MethodPath, Arc<dyn Method>), BuildHasherDefault<PathHasher>>,
}

impl Methods {
    /// Adds a method. Returns false if another one has the path; the last one holds.
    pub(crate) fn insert(&mut self, path: MethodPath, method: Arc<dyn Method>) -> bool {
        self.by_path.insert(path.bytes().clone(), (path, method)).is_none()
    }

    /// All methods, in any order.
    #[cfg(feature = "tower")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Arc<dyn Method>> {
        self.by_path.values_mut().map(|(_, method)| method)
    }

    /// The method with these bytes as its path.
    #[inline]
    pub(crate) fn get(&self, path: &[u8]) -> Option<(&MethodPath, &dyn Method)> {
        self.by_path.get(path).map(|(path, method)| (path, &**method))
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut paths: Vec<_> = self.by_path.values().map(|(path, _)| path).collect();
        paths.sort_unstable();
        f.debug_list().entries(paths).finish()
    }
}

/// Hashes paths. The table does not grow with what clients send, so nobody can fill it with paths of one hash.
#[derive(Default)]
struct PathHasher {
    hash: u64,
}

impl PathHasher {
    #[inline]
    fn add(&mut self, word: u64) {
        // The constant is the golden ratio's.
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for PathHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
    }

    #[inline]
    fn write_usize(&mut self, length: usize) {
        self.add(length as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash ^ (self.hash >> 32)
    }
}
