//! An agent of the host: the part of the SPIFFE Workload API that gives certificates, over gRPC by tonic and a Unix socket.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The messages of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct X509SvidRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct X509SvidResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) svids: Vec<X509Svid>,
    /// Roots by trust domain.
    #[prost(map = "string, bytes", tag = "3")]
    pub(crate) federated_bundles: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct X509Svid {
    #[prost(string, tag = "1")]
    pub(crate) spiffe_id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) bundle: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) hint: String,
}

/// The authority of a trust domain.
pub(crate) struct TrustDomain {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TrustDomain {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    pub(crate) fn roots(&self) -> Vec<u8> {
        self.issuer.der().to_vec()
    }

    /// Signs a new certificate with a name.
    pub(crate) fn svid(&self, name: &str, hint: &str) -> X509Svid {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        X509Svid {
            spiffe_id: name.to_owned(),
            x509_svid: params.signed_by(&key, issuer).unwrap().der().to_vec(),
            x509_svid_key: key.serialize_der(),
            bundle: self.roots(),
            hint: hint.to_owned(),
        }
    }
}

/// An agent. Its socket is removed when it is dropped.
pub(crate) struct Agent {
    socket: PathBuf,
    latest: watch::Sender<X509SvidResponse>,
    runtime: Option<Runtime>,
}

impl Agent {
    pub(crate) fn start(first: X509SvidResponse) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // The path of a socket has at most 107 bytes.
        let name = format!("apus-spiffe-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = fs::remove_file(&socket);
        let listener = StdUnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (latest, watched) = watch::channel(first);
        let runtime = Runtime::new().unwrap();
        runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            let server = Server::builder().add_service(WorkloadService(watched));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self { socket, latest, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Ends all connections and takes no new ones.
    pub(crate) fn end(&mut self) {
        let _ = fs::remove_file(&self.socket);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Sends other certificates to the processes of the host.
    pub(crate) fn send(&self, response: X509SvidResponse) {
        self.latest.send_replace(response);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Clone)]
struct WorkloadService(watch::Receiver<X509SvidResponse>);

impl NamedService for WorkloadService {
    const NAME: &'static str = "SpiffeWorkloadAPI";
}

impl Service<http::Request<Body>> for WorkloadService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != "/SpiffeWorkloadAPI/FetchX509SVID" {
                return Ok(Status::unimplemented("only certificates are given").into_http());
            }
            let mut grpc = Grpc::new(ProstCodec::<X509SvidResponse, X509SvidRequest>::default());
            Ok(grpc.server_streaming(service, request).await)
        })
    }
}

impl ServerStreamingService<X509SvidRequest> for WorkloadService {
    type Response = X509SvidResponse;
    type ResponseStream = Box<dyn Stream<Item = Result<X509SvidResponse, Status>> + Send + Unpin>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<X509SvidRequest>) -> Self::Future {
        // The specification wants it of every caller, against requests that a browser was made to send.
        if request.metadata().get("workload.spiffe.io").is_none_or(|value| value != "true") {
            return ready(Err(Status::invalid_argument("security header is missing")));
        }
        let responses: Self::ResponseStream = Box::new(WatchStream::new(self.0.clone()).map(Ok));
        ready(Ok(Response::new(responses)))
    }
}
