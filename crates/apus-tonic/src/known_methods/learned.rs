//! The methods that have answered without an error.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use apus_rpc::Context;

/// Upper bound on methods. Clients choose paths, and a service may answer any path.
const METHODS_MAX: usize = 1_000;

/// The paths that a service has answered without an error. tonic does not list the methods of a service.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownMethods {
    paths: Arc<RwLock<HashSet<Box<str>>>>,
}

/// What is known of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathState {
    Known,
    /// It is added if its request is answered without an error.
    New,
    /// It is never added: the set is full.
    Surplus,
}

impl KnownMethods {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Names the method of a request if it is known. Returns whether an answer without an error [adds](Self::add) it.
    pub(crate) fn name(&self, context: &Context) -> bool {
        let state = self.state(context.path().as_str());
        if state == PathState::Known {
            context.note_known_method();
        }
        state == PathState::New
    }

    /// The service has answered a request without an error.
    #[cold]
    pub(crate) fn add(&self, context: &Context) {
        if self.insert(context.path().as_str()) {
            context.note_known_method();
        }
    }

    /// Full sets are read as well, so that requests with other paths do not wait for each other.
    fn state(&self, path: &str) -> PathState {
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        if paths.contains(path) {
            PathState::Known
        } else if paths.len() < METHODS_MAX {
            PathState::New
        } else {
            PathState::Surplus
        }
    }

    /// Returns whether the path is known now.
    fn insert(&self, path: &str) -> bool {
        let mut paths = self.paths.write().unwrap_or_else(PoisonError::into_inner);
        if paths.len() < METHODS_MAX {
            paths.insert(path.into());
        }
        paths.contains(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_set_adds_no_path_and_is_only_read() {
        let known = KnownMethods::new();
        for number in 0..METHODS_MAX {
            let path = format!("/a.B/{number}");
            assert_eq!(known.state(&path), PathState::New);
            assert!(known.insert(&path));
        }
        // Another request reads the set: a writer would wait for it.
        let reader = known.paths.read().expect("no panic");
        assert_eq!(known.state("/a.B/0"), PathState::Known);
        assert_eq!(known.state("/a.B/new"), PathState::Surplus);
        drop(reader);
        // Its request began before the set was full.
        assert!(!known.insert("/a.B/new"));
        assert!(known.insert("/a.B/0"));
    }
}
