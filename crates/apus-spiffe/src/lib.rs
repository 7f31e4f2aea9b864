//! Certificates of nodes from the SPIFFE Workload API.
//!
//! [`WorkloadApi`] is an [`IdentitySource`] for [`Config::identity_source`]. It keeps a stream from the agent of the host open, by
//! which certificates, keys and roots come before the earlier ones expire, on a thread of its own. While the agent is away, a node goes
//! on with what it has.
//!
//! The roots of a trust domain vouch for SPIFFE ids, not for addresses. A client therefore needs [`Client::expect`](apus::Client::expect),
//! or the setting `tls_servers`, to name the servers that it calls.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use apus::{Config, IdentityPem, IdentitySource};
use pem::{EncodeConfig, LineEnding, Pem};
use spiffe::x509_source::{SvidPicker, X509SourceError, X509SourceUpdates};
use spiffe::{WorkloadApiClient, X509Source, X509SourceBuilder, X509Svid};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Time within which the first certificate must come: an agent that has started with the host may not be ready.
const FIRST_WITHIN: Duration = Duration::from_secs(30);

/// Time within which an agent says why it has given none.
const AGAIN_WITHIN: Duration = Duration::from_secs(5);

/// The environment variable with the address of the agent.
const VARIABLE: &str = "SPIFFE_ENDPOINT_SOCKET";

/// The value of the setting `tls_spiffe` for the agent that `SPIFFE_ENDPOINT_SOCKET` names.
const ENVIRONMENT: &str = "environment";

/// Why there is no certificate of a SPIFFE agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpiffeError {
    /// No certificate has come from the agent: it cannot be reached, or knows no name for this process.
    #[error("no certificate from the SPIFFE agent at {agent}: {source}")]
    NoCertificate {
        /// The address of the agent, or the variable that names it.
        agent: String,
        /// The error of the Workload API.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The system gives no thread.
    #[error("the thread that receives certificates cannot start: {0}")]
    Thread(#[from] io::Error),
}

/// Chooses the first certificate with a hint.
#[derive(Clone)]
struct WithHint(String);

impl SvidPicker for WithHint {
    fn pick_svid(&self, svids: &[Arc<X509Svid>]) -> Option<usize> {
        svids.iter().position(|svid| svid.hint() == Some(self.0.as_str()))
    }
}

/// The certificates of a process, from the agent of its host. Dropped with the last node that uses it.
pub struct WorkloadApi {
    agent: String,
    /// Chooses among several certificates. `None`: the first one.
    picker: Option<WithHint>,
    source: X509Source,
    updates: X509SourceUpdates,
    /// Runs the stream from the agent. `None` while it ends.
    runtime: Option<Runtime>,
}

impl WorkloadApi {
    /// Connects to the agent at an address such as `unix:/run/spire/sockets/agent.sock` or `tcp:127.0.0.1:8081`, and waits up to 30 s
    /// for the first certificate (up to 35 s if none comes). If the agent has several for this process, its first one is used.
    ///
    /// # Errors
    ///
    /// [`SpiffeError`].
    pub fn connect(agent: &str) -> Result<Arc<Self>, SpiffeError> {
        Self::receive(agent, None, X509Source::builder().endpoint(agent))
    }

    /// As [`connect`](Self::connect), with the agent that the environment variable `SPIFFE_ENDPOINT_SOCKET` names.
    ///
    /// # Errors
    ///
    /// [`SpiffeError`].
    pub fn connect_env() -> Result<Arc<Self>, SpiffeError> {
        Self::receive(VARIABLE, None, X509Source::builder())
    }

    /// As [`connect`](Self::connect), with the first certificate for which the agent has this hint.
    ///
    /// # Errors
    ///
    /// [`SpiffeError`], also if no certificate has the hint.
    pub fn connect_with_hint(agent: &str, hint: &str) -> Result<Arc<Self>, SpiffeError> {
        let picker = WithHint(hint.to_owned());
        let builder = X509Source::builder().endpoint(agent).picker(picker.clone());
        Self::receive(agent, Some(picker), builder)
    }

    fn receive(
        agent: &str,
        picker: Option<WithHint>,
        builder: X509SourceBuilder,
    ) -> Result<Arc<Self>, SpiffeError> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).thread_name("apus-spiffe").enable_all().build()?;
        let built = async {
            match builder.initial_sync_timeout(FIRST_WITHIN).build().await {
                // The source tries again and again, and keeps the reason to itself.
                Err(X509SourceError::InitialSyncTimeout) => Err(reason(agent).await),
                other => other.map_err(Into::into),
            }
        };
        // A thread of its own, since the caller's may run tasks, which must not be blocked by a runtime within.
        let source = thread::scope(|scope| {
            let built = thread::Builder::new().spawn_scoped(scope, || runtime.block_on(built))?;
            io::Result::Ok(built.join().unwrap_or_else(|_| Err(X509SourceError::Closed.into())))
        })?;
        let agent = agent.to_owned();
        match source {
            Ok(source) => {
                let updates = source.updated();
                Ok(Arc::new(Self { agent, picker, source, updates, runtime: Some(runtime) }))
            }
            Err(source) => {
                runtime.shutdown_background();
                Err(SpiffeError::NoCertificate { agent, source })
            }
        }
    }
}

/// Asks an agent once, and returns why it gives no certificate.
async fn reason(agent: &str) -> Box<dyn Error + Send + Sync> {
    let asked = async {
        let client = match agent {
            VARIABLE => WorkloadApiClient::connect_env().await?,
            agent => WorkloadApiClient::connect_to(agent).await?,
        };
        client.fetch_x509_context().await
    };
    match timeout(AGAIN_WITHIN, asked).await {
        Ok(Err(error)) => error.into(),
        _ => format!("none has come within {} s", FIRST_WITHIN.as_secs()).into(),
    }
}

impl Drop for WorkloadApi {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // The last owner may be a task, which must not wait.
        }
    }
}

impl fmt::Debug for WorkloadApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadApi").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl IdentitySource for WorkloadApi {
    fn version(&self) -> u64 {
        self.updates.last()
    }

    fn identity(&self) -> Result<IdentityPem, Box<dyn Error + Send + Sync>> {
        // The certificate and the roots are of one answer of the agent.
        let context = self.source.x509_context()?;
        let place =
            self.picker.as_ref().map_or(Some(0), |picker| picker.pick_svid(context.svids()));
        let svid = place.and_then(|place| context.svids().get(place));
        let svid = svid.ok_or(X509SourceError::NoSuitableSvid)?;
        let certificate = certificates(svid.cert_chain().iter().map(AsRef::as_ref));
        let key = pem_of("PRIVATE KEY", svid.private_key().as_ref());
        let mut identity = IdentityPem::new(certificate, key);
        for (domain, bundle) in context.bundle_set().iter() {
            let roots = certificates(bundle.authorities().iter().map(AsRef::as_ref));
            if !roots.is_empty() {
                identity = identity.domain(domain.to_string(), roots);
            }
        }
        Ok(identity)
    }
}

fn certificates<'a>(certificates: impl Iterator<Item = &'a [u8]>) -> String {
    certificates.map(|der| pem_of("CERTIFICATE", der)).collect()
}

fn pem_of(tag: &str, der: &[u8]) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(tag, der), config)
}

/// Connects to the agent that the setting `tls_spiffe` names, and makes it the source of the configuration's certificate. Does nothing
/// without the setting.
///
/// # Errors
///
/// [`SpiffeError`].
pub fn apply(config: &mut Config) -> Result<(), SpiffeError> {
    let source = match config.spiffe_agent() {
        None => return Ok(()),
        Some(ENVIRONMENT) => WorkloadApi::connect_env()?,
        Some(agent) => WorkloadApi::connect(agent)?,
    };
    config.identity_source(source);
    Ok(())
}
