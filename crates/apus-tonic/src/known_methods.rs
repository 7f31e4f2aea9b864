//! The methods that services are known to have: their paths are labels of histograms.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use apus_rpc::Context;

/// Most methods. Paths are the words of clients, and a service may answer any of them.
const METHODS_MAX: usize = 1_000;

/// The paths that a service has answered without an error. tonic does not list the methods of a service.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownMethods {
    paths: Arc<RwLock<HashSet<Box<str>>>>,
}

impl KnownMethods {
    /// Names the method of a request if it is known. Returns whether it is.
    pub(crate) fn name(&self, context: &Context) -> bool {
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        let is_known = paths.contains(context.path().as_str());
        if is_known {
            context.note_known_method();
        }
        is_known
    }

    /// The service has answered a request without an error.
    #[cold]
    pub(crate) fn add(&self, context: &Context) {
        let mut paths = self.paths.write().unwrap_or_else(PoisonError::into_inner);
        if paths.len() < METHODS_MAX {
            paths.insert(context.path().as_str().into());
            context.note_known_method();
        }
    }
}
