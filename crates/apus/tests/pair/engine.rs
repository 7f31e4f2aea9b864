//! An engine for other nodes of this process, for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use apus::{Config, EngineAccess, EngineAt, SharedEngine, StartError};

use super::wait_until;

/// A directory of a test, removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("apus-engine-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The names of its entries.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map_while(Result::ok);
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("engine.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // The test may have removed it.
    }
}

/// An engine with a thread of its own.
pub(crate) struct Engine {
    pub(crate) shared: Arc<SharedEngine>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn start(socket: &Path, config: &Config) -> Self {
        Self::with(&EngineAccess::new(socket), config)
    }

    pub(crate) fn with(access: &EngineAccess, config: &Config) -> Self {
        // A child that another test forks may have a copy of an earlier engine's socket for a moment.
        let mut started = SharedEngine::start(config, access);
        wait_until("the address is free", || {
            let is_taken = matches!(started, Err(StartError::AddressInUse(_)));
            if is_taken {
                started = SharedEngine::start(config, access);
            }
            !is_taken
        });
        let shared = Arc::new(started.unwrap());
        let runner = Arc::clone(&shared);
        Self { shared, thread: Some(thread::spawn(move || runner.run())) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// The configuration of a node that uses the engine at a socket.
pub(crate) fn attached(socket: &Path) -> Config {
    let mut config = Config::new();
    config.engine(EngineAt::Socket(socket.to_owned()));
    config
}
