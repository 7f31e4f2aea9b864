//! The certificate, the roots and the rules of a node, which its engines share.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apus_seal::{Name, Rule, Suite, TlsConfig, TlsConfigError, Trust};
use nix::fcntl::OFlag;

use crate::config::Config;
pub(super) use crate::config::Plain;
use crate::error::IdentityError;
use crate::observe::events;
use crate::observe::stats::IdentityGauges;
use crate::secure::expiry::{self, ExpiryWarnings, is_for_development};
use crate::secure::key_log::KeyLog;
use crate::secure::names::Names;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

/// How often the files are looked at.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The identity of a node.
pub(crate) struct NodeIdentity {
    tls: Mutex<Arc<TlsConfig>>,
    /// The state of its sources when they were read last.
    sources: Mutex<Sources>,
    /// The error of the last look that was reported, until one succeeds.
    reported: Mutex<Option<String>>,
    /// Number of times that they were read.
    generation: AtomicU64,
    config: Config,
    names: Mutex<Names>,
    warnings: Mutex<ExpiryWarnings>,
    servers: Rule,
    /// The rules of services, by port.
    pub(super) allow: BTreeMap<u16, Rule>,
    /// Time after which a path gets new keys.
    pub(super) rekey: Duration,
    pub(super) suites: Vec<Suite>,
    pub(super) plain: Plain,
    pub(super) key_log: Option<KeyLog>,
}

impl NodeIdentity {
    /// Reads the files that the configuration names, and asks its source. `None`: it has no certificate.
    ///
    /// # Errors
    ///
    /// The source has no identity; a file cannot be read, is malformed, or is a key that everybody may write to; or the key log cannot be written.
    pub(crate) fn of(config: &Config) -> Result<Option<Arc<Self>>, IdentityError> {
        if !config.has_identity() {
            return Ok(None);
        }
        let sources = Sources::of(config);
        let tls = Arc::new(read_tls(config)?);
        if let Some(own) = tls.identity().filter(|own| is_for_development(own)) {
            events::certificate_for_tests(&own.name);
        }
        let key_log = config.key_log_file().map(KeyLog::open).transpose()?;
        let node = Arc::new(Self {
            tls: Mutex::new(tls),
            sources: Mutex::new(sources),
            reported: Mutex::default(),
            generation: AtomicU64::new(0),
            config: config.clone(),
            names: Mutex::default(),
            warnings: Mutex::default(),
            servers: config.tls_servers.clone(),
            allow: config.tls_allow.clone(),
            rekey: config.tls_rekey,
            suites: config.tls_suites.clone(),
            plain: config.tls_plain,
            key_log,
        });
        node.warn_of_expiry();
        Ok(Some(node))
    }

    //= docs/protocol.md#seal-18
    /// Reads the files of a further identity of the node: its certificate and key, with the roots, rules and settings of the node. Keys are
    /// written to the node's key log.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn of_users(
        config: &Config,
        (cert, key): &(PathBuf, PathBuf),
    ) -> Result<Option<Arc<Self>>, IdentityError> {
        let mut config = config.clone();
        config.tls_cert(Some(cert.clone())).tls_key(Some(key.clone())).keylog(None);
        Self::of(&config)
    }

    /// Returns the gauges of the node, with peers whose certificates expire at these times.
    pub(super) fn gauges(&self, peers: impl Iterator<Item = Duration>) -> IdentityGauges {
        let tls = self.tls();
        let own = tls.identity().map(|own| &**own);
        let mut gauges = expiry::gauges(real_time(), own, peers);
        gauges.keylog = self.is_key_log_written();
        gauges
    }

    /// Returns 1 if keys are written to the key log, 0 if that has failed, and `None` without a key log.
    pub(super) fn is_key_log_written(&self) -> Option<u64> {
        self.key_log.as_ref().map(|log| u64::from(log.is_written()))
    }

    /// Warns if that is due before the certificate expires. Runs without the engine's lock.
    pub(super) fn warn_of_expiry(&self) {
        let tls = self.tls();
        let Some(own) = tls.identity() else { return };
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let due = warnings.take(real_time(), own);
        drop(warnings);
        if let Some(left) = due {
            events::certificate_expires(&own.name, left);
        }
    }

    //= docs/protocol.md#seal-11
    /// Reads the sources again if one has changed since it was read. Returns whether they give another identity or other peers now. If
    /// they cannot be used, the earlier ones stay until one changes again; if one cannot be read, until the next look.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn reload(&self) -> Result<bool, IdentityError> {
        let now = Sources::of(&self.config);
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if *sources == now {
            return Ok(false);
        }
        let read = read_tls(&self.config);
        if !matches!(read, Err(IdentityError::Source { .. } | IdentityError::Unreadable { .. })) {
            *sources = now;
        }
        let tls = Arc::new(read?);
        *self.tls.lock().unwrap_or_else(PoisonError::into_inner) = tls;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(true)
    }

    /// Looks as [`reload`](Self::reload) does, and reports an error that the last look did not have.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(super) fn look(&self) -> Result<bool, IdentityError> {
        let result = self.reload();
        let text = result.as_ref().err().map(ToString::to_string);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if *reported != text {
            result.as_ref().err().into_iter().for_each(events::reload_failed);
            *reported = text;
        }
        result
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn tls(&self) -> Arc<TlsConfig> {
        Arc::clone(&self.tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that an address was found by a DNS name, which its server is then expected to have.
    pub(crate) fn remember(&self, address: SocketAddr, name: &str) {
        if let Ok(name) = Name::dns(name) {
            self.names().remember(address, name);
        }
    }

    pub(super) fn name_at(&self, address: SocketAddr) -> Option<Name> {
        self.names().get(address).cloned()
    }

    //= docs/protocol.md#seal-6
    /// Returns the servers that a client without a rule expects at an address.
    pub(super) fn expected_at(&self, address: SocketAddr) -> Rule {
        Rule::of_client(self.name_at(address).as_ref(), address.ip(), &self.servers)
    }

    /// Returns the rule that the configuration has for the services at a port.
    pub(super) fn allowed_at(&self, port: u16) -> Option<&Rule> {
        self.allow.get(&port)
    }
}

/// The part of a file's metadata that shows a change; `None` if the file is missing.
type FileState = Option<(u64, i64, i64, u64)>;

/// The state of everything that an identity is made of.
#[derive(PartialEq, Eq)]
struct Sources {
    files: Vec<FileState>,
    /// The version of the program's [`IdentitySource`](crate::IdentitySource).
    version: Option<u64>,
}

impl Sources {
    fn of(config: &Config) -> Self {
        let own = [&config.tls_cert, &config.tls_key].into_iter().flatten();
        let domains = config.tls_trust.iter().map(|(_, file)| file);
        let files = own.chain(&config.tls_ca).chain(domains).chain(&config.tls_crl);
        let state = |file: &PathBuf| {
            let found = fs::metadata(file).ok()?;
            Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
        };
        let version = config.identity_source.as_ref().map(|source| source.version());
        Self { files: files.map(state).collect(), version }
    }
}

fn read_tls(config: &Config) -> Result<TlsConfig, IdentityError> {
    let given = config.identity_source.as_ref().map(|source| source.identity()).transpose();
    let given = given.map_err(|error| IdentityError::Source { reason: error.to_string() })?;
    let mut trust = trust_of_files(config)?;
    let unusable = |error: TlsConfigError| IdentityError::Source { reason: error.to_string() };
    if let Some(given) = &given {
        if !given.roots.is_empty() {
            trust.add_roots(&given.roots).map_err(unusable)?;
        }
        for (domain, roots) in &given.domains {
            trust.add_domain(domain, roots).map_err(unusable)?;
        }
    }
    trust.deny(config.tls_deny.clone());
    let trust = Arc::new(trust);
    let expired = "the certificate, or one between it and a root, has expired";
    let (tls, faulty): (_, &dyn Fn(String) -> IdentityError) = match (config.certificate(), given) {
        (Some((cert, key)), _) => {
            let key = read_key(key)?;
            let tls = TlsConfig::of_files(&read(cert)?, &key, trust);
            (tls, &move |reason| IdentityError::Malformed { file: cert.to_owned(), reason })
        }
        (None, given) => {
            let given = given.unwrap_or_default();
            let tls = TlsConfig::of_files(&given.certificate, &given.key, trust);
            (tls, &|reason| IdentityError::Source { reason })
        }
    };
    let tls = tls.map_err(|error| faulty(error.to_string()))?;
    match tls.identity() {
        Some(own) if own.not_after <= real_time() => Err(faulty(expired.to_owned())),
        _ => Ok(tls),
    }
}

/// Returns the roots and revocation lists in files.
fn trust_of_files(config: &Config) -> Result<Trust, IdentityError> {
    let malformed = |file: &Path| {
        let file = file.to_owned();
        move |error: TlsConfigError| IdentityError::Malformed { file, reason: error.to_string() }
    };
    let mut trust = Trust::new();
    for file in &config.tls_ca {
        trust.add_roots(&read(file)?).map_err(malformed(file))?;
    }
    for (domain, file) in &config.tls_trust {
        trust.add_domain(domain, &read(file)?).map_err(malformed(file))?;
    }
    for file in &config.tls_crl {
        trust.add_revocation_lists(&read(file)?).map_err(malformed(file))?;
    }
    Ok(trust)
}

/// Files are shorter than this, in bytes: a bundle of some thousand certificates.
const FILE_MAX: u64 = 16 << 20;

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    read_if(path, |_| Ok(()))
}

/// Reads a key file, unless everybody may write to it.
fn read_key(path: &Path) -> Result<Vec<u8>, IdentityError> {
    read_if(path, |found| match found.mode() & 0o002 {
        0 => Ok(()),
        _ => Err("everybody may write to it (chmod 0600)".to_owned()),
    })
}

/// Reads a file whose metadata is accepted. The file is opened once, so another one that takes its place is not read unexamined.
fn read_if(
    path: &Path,
    accept: impl FnOnce(&Metadata) -> Result<(), String>,
) -> Result<Vec<u8>, IdentityError> {
    let unreadable = |source| IdentityError::Unreadable { file: path.to_owned(), source };
    let malformed = |reason| IdentityError::Malformed { file: path.to_owned(), reason };
    let no_file = || malformed(format!("not a file of less than {} MiB", FILE_MAX >> 20));
    // A pipe would block the start, and a device has no end.
    let flags = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() {
        return Err(no_file());
    }
    accept(&found).map_err(malformed)?;
    let mut contents = Vec::new();
    // The length that the metadata gives may be another one by now.
    file.take(FILE_MAX).read_to_end(&mut contents).map_err(unreadable)?;
    if contents.len() as u64 == FILE_MAX { Err(no_file()) } else { Ok(contents) }
}

/// The time since 1970.
pub(super) fn real_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
