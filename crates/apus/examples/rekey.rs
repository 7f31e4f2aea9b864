//! Two sealed nodes that call each other while their keys and certificates change: new keys every minute (`tls_rekey`), and another
//! certificate every 20 s, in the files that the nodes read again.
//!
//! `cargo run --release -p apus --example rekey -- [SECONDS]` makes a hundred calls a second, prints a line a minute, and fails if a
//! call failed or had a wrong response. 60 s unless given.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use apus::{Address, Client, Config, Links, Node};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

type AnyError = Box<dyn Error + Send + Sync>;

const PORT: u16 = 4000;

const NAMES: [&str; 2] = ["one", "other"];

/// Threads of each node that call, and the time between two calls of one of them.
const CALLERS: u64 = 5;
const CALL_EVERY: Duration = Duration::from_millis(100);

const CERTIFICATE_EVERY: Duration = Duration::from_secs(20);

const LINE_EVERY: Duration = Duration::from_secs(60);

/// Shown of all failed calls.
const SHOWN_MAX: u64 = 20;

/// The ends of calls.
#[derive(Default)]
struct Ends {
    answered: AtomicU64,
    failed: AtomicU64,
}

fn main() -> Result<ExitCode, AnyError> {
    let seconds = env::args().nth(1).map_or(Ok(60), |text| text.parse())?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let directory = env::temp_dir().join(format!("apus-rekey-{}", process::id()));
    fs::create_dir(&directory)?;
    let result = run(&directory, end);
    fs::remove_dir_all(&directory)?;
    result
}

fn run(directory: &Path, end: Instant) -> Result<ExitCode, AnyError> {
    let authority = Authority::new(directory)?;
    let mut nodes = Vec::new();
    for name in NAMES {
        authority.issue(name)?;
        nodes.push(Node::start(&authority.config(name)?)?);
    }
    let ends = Ends::default();
    let start = Instant::now();
    thread::scope(|scope| {
        let mut ports = Vec::new();
        for (node, other) in nodes.iter().zip(nodes.iter().rev()) {
            let port = node.bind(PORT)?;
            let to = Address::new(other.local_addr(), PORT);
            ports.push(port.clone());
            scope.spawn(move || {
                port.serve(|mut request| {
                    let body = request.take_body();
                    let _ = request.reply(body); // The caller may have given up.
                });
            });
            for number in 0..CALLERS {
                let (client, ends) = (node.client()?, &ends);
                scope.spawn(move || call_until(end, &client, to, number, ends));
            }
        }
        let first = resident()?;
        let mut renewed = 0;
        for tick in 1.. {
            // The tasks of a tick are due at the multiples of their times.
            let due = start + Duration::from_secs(tick);
            thread::sleep(due.min(end).saturating_duration_since(Instant::now()));
            if due >= end {
                break;
            }
            if tick.is_multiple_of(CERTIFICATE_EVERY.as_secs()) {
                authority.issue(NAMES[renewed % NAMES.len()])?;
                renewed += 1;
            }
            if tick.is_multiple_of(LINE_EVERY.as_secs()) {
                report(start, &ends, &nodes, renewed)?;
            }
        }
        report(start, &ends, &nodes, renewed)?;
        println!("memory: {first} at the begin, {} at the end", resident()?);
        ports.iter().for_each(apus::Port::shutdown);
        Ok::<_, AnyError>(())
    })?;
    let failed = ends.failed.load(Ordering::Relaxed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes a call every [`CALL_EVERY`]. One in ten has 30 kB, one in a hundred 500 kB, the others 100 B.
fn call_until(end: Instant, client: &Client, to: Address, caller: u64, ends: &Ends) {
    let mut due = Instant::now() + CALL_EVERY * caller as u32 / CALLERS as u32;
    for number in caller * 20.. {
        if due >= end {
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due = (due + CALL_EVERY).max(Instant::now());
        let length = match number {
            _ if number.is_multiple_of(100) => 500_000,
            _ if number.is_multiple_of(10) => 30_000,
            _ => 100,
        };
        let body = vec![number as u8; length];
        let fault = match client.call(to, body.clone()).wait() {
            Ok(response) if response == body => {
                ends.answered.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Ok(_) => "the response is that of another call".to_owned(),
            Err(error) => error.to_string(),
        };
        if ends.failed.fetch_add(1, Ordering::Relaxed) < SHOWN_MAX {
            eprintln!("a call of {length} B to {to}: {fault}");
        }
    }
}

fn report(start: Instant, ends: &Ends, nodes: &[Node], renewed: usize) -> Result<(), AnyError> {
    let handshakes = nodes.iter().map(|node| node.stats().handshakes);
    // Both sides count a refresh.
    let (mut refreshes, mut failures, mut reloads, mut unread) = (0, 0, 0, 0);
    for counted in handshakes {
        refreshes += counted.refreshes;
        failures += counted.refresh_failures;
        reloads += counted.reloads;
        unread += counted.reload_failures;
    }
    let [answered, failed] = [&ends.answered, &ends.failed].map(|it| it.load(Ordering::Relaxed));
    println!(
        "{:>5} s: {} calls, {failed} failed; {} rekeys, {failures} failed at a side; {renewed} new certificates, {reloads} \
         reloads, {unread} failed; memory {}",
        start.elapsed().as_secs(),
        answered + failed,
        refreshes / 2,
        resident()?
    );
    Ok(())
}

/// An authority, with its certificate and those of the nodes in files.
struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(directory: &Path) -> Result<Self, AnyError> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(directory.join("ca.pem"), issuer.pem())?;
        Ok(Self { directory: directory.to_owned(), issuer })
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.directory.join(format!("{name}.{kind}"))
    }

    fn config(&self, name: &str) -> Result<Config, AnyError> {
        let mut config = Config::new();
        config.apply_environment()?.listen("127.0.0.1:0".parse()?).link(Links::Udp);
        config.tls_cert(Some(self.path(name, "pem"))).tls_key(Some(self.path(name, "key")));
        config.tls_ca(vec![self.path("ca", "pem")]).set("tls_rekey", "1min")?;
        Ok(config)
    }

    /// Replaces the certificate and the key of a node by new ones: two files, so a node may see one of each pair.
    fn issue(&self, name: &str) -> Result<(), AnyError> {
        let mut params = CertificateParams::default();
        let uri = format!("spiffe://example.org/{name}");
        params.subject_alt_names = vec![
            SanType::URI(uri.as_str().try_into()?),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
        ];
        let key = KeyPair::generate()?;
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer)?;
        for (kind, text) in [("pem", certificate.pem()), ("key", key.serialize_pem())] {
            let next = self.path(name, "next");
            fs::write(&next, text)?;
            fs::rename(next, self.path(name, kind))?;
        }
        Ok(())
    }
}

/// Resident memory of this process, as the kernel reports it.
fn resident() -> Result<String, AnyError> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.ok_or("the kernel does not say")?.trim().to_owned())
}
