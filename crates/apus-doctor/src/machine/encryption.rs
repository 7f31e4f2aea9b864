//! Encryption: the processor's instructions for it, and the certificate that the settings of a node name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apus_seal::{Role, TlsConfig, Trust};

use crate::files::Files;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Encryption;

#[derive(Debug)]
pub(super) struct Encryption {
    /// The features of the first processor; `None` if the kernel does not report them.
    features: Option<BTreeSet<String>>,
    /// `None`: the settings name no certificate.
    certificate: Option<CertificateFiles>,
    /// The agent of the setting `tls_spiffe`, and whether its socket is there, if it has one.
    spiffe: Option<(String, Option<bool>)>,
    /// The setting `insecure`.
    is_insecure: bool,
}

/// The files of a node's identity, as far as they can be read.
#[derive(Debug)]
struct CertificateFiles {
    key: String,
    /// The mode of the key's file, or the error of the system.
    key_mode: Result<u32, String>,
    /// The certificate with its chain, or the file and the fault.
    certificate: Result<Shown, String>,
}

/// A certificate.
#[derive(Debug)]
struct Shown {
    name: String,
    /// Time until the earliest end of validity in the chain; zero if it has passed.
    left: Duration,
    /// The reason why peers with the same roots refuse it, if they do.
    refusal: Option<String>,
}

impl Encryption {
    /// `variable` returns a variable of the environment.
    pub(super) fn gather(files: &dyn Files, variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_insecure = variable("APUS_INSECURE").is_some_and(|value| value == "true");
        let spiffe = variable("APUS_TLS_SPIFFE").filter(|value| value != "none");
        let spiffe = spiffe.map(|agent| (agent.clone(), has_socket(&agent, &variable)));
        let (features, certificate) = (features(files), certificate_files(variable));
        Self { features, certificate, spiffe, is_insecure }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![instructions(self.features.as_ref())];
        match (&self.certificate, &self.spiffe) {
            (Some(files), _) => findings
                .extend([key_file(files), certificate(files), chain(files)].into_iter().flatten()),
            (None, Some((agent, is_there))) => {
                findings.push(certificate_of_agent(agent, *is_there));
            }
            (None, None) => findings.push(no_certificate(self.is_insecure)),
        }
        findings
    }
}

/// Returns whether the socket of a SPIFFE agent exists; `None` for an agent without one.
fn has_socket(agent: &str, variable: impl Fn(&str) -> Option<String>) -> Option<bool> {
    let agent = match agent {
        "environment" => variable("SPIFFE_ENDPOINT_SOCKET").unwrap_or_default(),
        agent => agent.to_owned(),
    };
    let path = agent.strip_prefix("unix:")?;
    Some(fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()))
}

fn certificate_of_agent(agent: &str, is_there: Option<bool>) -> Finding {
    let name = "certificate";
    let found = format!("from the SPIFFE agent of tls_spiffe = {agent}");
    if is_there == Some(false) {
        return Finding::new(SUBJECT, name, Verdict::Bad, format!("{found}, which has no socket"))
            .apus("does not start without a certificate")
            .change("start the agent, or correct tls_spiffe", "nodes that know each other");
    }
    Finding::good(SUBJECT, name, found)
        .apus("gets its certificate and new ones from the agent, if that knows the process")
}

fn no_certificate(is_insecure: bool) -> Finding {
    let name = "certificate";
    if is_insecure {
        let found = "none, and insecure = true";
        let change = "unset APUS_INSECURE; apus dev-certs DIR # for tests; else certificates of your authority";
        return Finding::new(SUBJECT, name, Verdict::Bad, found)
            .apus("speaks plain with everybody: anybody on the way reads and forges its packets")
            .change(change, "nodes that know each other, and packets that nobody else reads");
    }
    Finding::good(SUBJECT, name, "the settings of this environment name none").apus(
        "speaks plain with its own machine, and not with others (setting tls_cert, or insecure)",
    )
}

/// The line of `/proc/cpuinfo` is `flags` on x86 and `Features` on ARM.
fn features(files: &dyn Files) -> Option<BTreeSet<String>> {
    let text = files.text("/proc/cpuinfo")?;
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        ["flags", "Features"].contains(&name.trim()).then_some(value)
    })?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

fn certificate_files(variable: impl Fn(&str) -> Option<String>) -> Option<CertificateFiles> {
    let set = |name: &str| variable(name).filter(|value| value != "none");
    let cert = set("APUS_TLS_CERT")?;
    let key = set("APUS_TLS_KEY").unwrap_or_default();
    let roots = set("APUS_TLS_CA").unwrap_or_default();
    let key_mode = fs::metadata(&key).map(|found| found.mode() & 0o7777);
    Some(CertificateFiles {
        key_mode: key_mode.map_err(|error| error.to_string()),
        certificate: shown(&cert, &key, &roots),
        key,
    })
}

fn shown(cert: &str, key: &str, roots: &str) -> Result<Shown, String> {
    let read = |file: &str| fs::read(file).map_err(|error| format!("{file}: {error}"));
    let mut trust = Trust::new();
    for file in roots.split(',').map(str::trim).filter(|file| !file.is_empty()) {
        trust.add_roots(&read(file)?).map_err(|error| format!("{file}: {error}"))?;
    }
    let tls = TlsConfig::of_files(&read(cert)?, &read(key)?, Arc::new(trust));
    let tls = tls.map_err(|error| format!("{cert}: {error}"))?;
    let identity = tls.identity().ok_or_else(|| format!("{cert}: it has no name"))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let judged = [Role::Server, Role::Client].map(|role| tls.judge(identity, role));
    let refusal = judged.into_iter().find_map(Result::err).map(|error| error.view);
    let left = identity.not_after.saturating_sub(now);
    Ok(Shown { name: identity.name.to_string(), left, refusal })
}

fn instructions(features: Option<&BTreeSet<String>>) -> Finding {
    let name = "AES instructions";
    let Some(features) = features else {
        return Finding::not_known(
            SUBJECT,
            name,
            "the kernel does not report the processor's features",
        );
    };
    let has = |feature: &str| features.contains(feature);
    let found = match (has("aes"), has("vaes")) {
        (true, true) => "AES, and VAES, which encrypts several blocks at once",
        (true, false) => "AES without VAES, which would encrypt several blocks at once",
        (false, _) => "none",
    };
    Finding::new(SUBJECT, name, Verdict::good_if(has("aes")), found)
        .apus("encrypts sealed datagrams by AES-128-GCM; without these instructions a sealed message costs many times as much")
        .value("aes", has("aes"))
        .value("vaes", has("vaes"))
}

fn key_file(files: &CertificateFiles) -> Option<Finding> {
    let name = "private key";
    let key = &files.key;
    let mode = match &files.key_mode {
        Ok(mode) => *mode,
        Err(error) => {
            let found = format!("'{key}': {error}");
            let change =
                "export APUS_TLS_KEY=FILE # the key of the certificate, readable by this user";
            let finding = Finding::new(SUBJECT, name, Verdict::Bad, found);
            return Some(finding.change(change, STARTS));
        }
    };
    let verdict = match mode {
        mode if mode & 0o002 != 0 => Verdict::Bad,
        mode => Verdict::good_if(mode & 0o077 == 0),
    };
    let finding = Finding::new(SUBJECT, name, verdict, format!("{key} has mode {mode:04o}"))
        .apus("does not start with a key that everybody may write")
        .change(
            format!("chmod 0600 '{key}'"),
            "no other user can read the key and speak under the node's name",
        )
        .value("mode", format!("{mode:04o}"));
    Some(finding)
}

fn certificate(files: &CertificateFiles) -> Option<Finding> {
    let name = "certificate";
    let shown = match &files.certificate {
        Ok(shown) => shown,
        Err(fault) => {
            let change = "apus settings tls # the files that the settings name";
            let finding = Finding::new(SUBJECT, name, Verdict::Bad, fault.as_str());
            return Some(finding.change(change, STARTS));
        }
    };
    let days = shown.left.as_secs() / DAY_S;
    let (verdict, found) = match days {
        _ if shown.left.is_zero() => (Verdict::Bad, format!("{} has expired", shown.name)),
        days => (
            Verdict::good_if(days >= DAYS_GOOD),
            format!("{}, valid for {days} more days", shown.name),
        ),
    };
    let finding = Finding::new(SUBJECT, name, verdict, found)
        .apus("ends its paths with the certificate; it reads a renewed file within 10 s")
        .change(
            "apus dev-certs DIR # for tests; else a new certificate of your authority",
            "nodes that go on speaking",
        )
        .value("name", shown.name.as_str())
        .value("left_days", days);
    Some(finding)
}

fn chain(files: &CertificateFiles) -> Option<Finding> {
    let shown = files.certificate.as_ref().ok()?;
    let finding = match &shown.refusal {
        None => Finding::good(SUBJECT, "chain", "complete: it leads to a root of tls_ca"),
        Some(why) => {
            let change = "openssl verify -CAfile CA -untrusted CERT CERT # the file of tls_cert has the certificates in between";
            let found = format!("nodes with the same roots refuse it: {why}");
            let finding = Finding::new(SUBJECT, "chain", Verdict::Bad, found);
            finding.change(change, "handshakes that succeed")
        }
    };
    Some(finding.apus(
        "shows the certificates of tls_cert to its peers, which verify them by their own roots",
    ))
}

/// The benefit of files that can be used.
const STARTS: &str = "a node that starts";

const DAY_S: u64 = 86_400;

/// Lower bound on the days that leave time for a renewal.
const DAYS_GOOD: u64 = 2;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};

    use super::*;
    use crate::files::FakeFiles;

    /// A directory with an authority (`ca.pem`) and a certificate of it, removed at its end.
    struct IssuedFiles(PathBuf);

    impl IssuedFiles {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("apus-doctor-tls-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            let mut authority = CertificateParams::default();
            authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            fs::write(path.join("ca.pem"), authority.self_signed(&key).unwrap().pem()).unwrap();
            let issuer = Issuer::new(authority, key);
            let mut node = CertificateParams::default();
            node.subject_alt_names = vec![SanType::DnsName("kv.example.org".try_into().unwrap())];
            node.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            fs::write(path.join("node.pem"), node.signed_by(&key, &issuer).unwrap().pem()).unwrap();
            fs::write(path.join("node.key"), key.serialize_pem()).unwrap();
            Self(path)
        }

        fn findings(&self, roots: &str, mode: u32) -> Vec<Finding> {
            let key = self.0.join("node.key");
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            let variable = |name: &str| {
                let file = match name {
                    "APUS_TLS_CERT" => "node.pem",
                    "APUS_TLS_KEY" => "node.key",
                    _ => roots,
                };
                Some(self.0.join(file).display().to_string())
            };
            Encryption::gather(&FakeFiles(&[]), variable).findings()
        }
    }

    impl Drop for IssuedFiles {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_socket_of_an_agent_must_be_there() {
        let verdict = |agent: &str| {
            let variable = |name: &str| (name == "APUS_TLS_SPIFFE").then(|| agent.to_owned());
            Encryption::gather(&FakeFiles(&[]), variable).findings().remove(1).verdict
        };
        assert_eq!(verdict("unix:/no/such/agent.sock"), Verdict::Bad);
        assert_eq!(verdict("unix:/proc/version"), Verdict::Bad, "a file is no socket");
        assert_eq!(verdict("tcp:127.0.0.1:8081"), Verdict::Good);
        let none = |name: &str| (name == "APUS_TLS_SPIFFE").then(|| "environment".to_owned());
        let found = Encryption::gather(&FakeFiles(&[]), none).findings().remove(1).verdict;
        assert_eq!(found, Verdict::Good, "the variable may name an agent by TCP");
    }

    #[test]
    fn speaking_plain_with_everybody_is_bad() {
        let verdict = |insecure: Option<&str>| {
            let variable = |name: &str| insecure.filter(|_| name == "APUS_INSECURE");
            let variable = |name: &str| variable(name).map(str::to_owned);
            Encryption::gather(&FakeFiles(&[]), variable).findings().remove(1).verdict
        };
        assert_eq!(verdict(None), Verdict::Good);
        assert_eq!(verdict(Some("true")), Verdict::Bad);
    }

    #[test]
    fn the_processor_is_judged_by_its_features() {
        let finding = |text: &'static str| {
            let files: &'static [_] = Box::leak(Box::new([("/proc/cpuinfo", text)]));
            Encryption::gather(&FakeFiles(files), |_| None).findings().remove(0)
        };
        let zen = finding("processor\t: 0\nflags\t\t: fpu aes vaes avx2\n");
        assert_eq!((zen.verdict, &zen.found[..8]), (Verdict::Good, "AES, and"));
        let older = finding("flags : aes\n");
        assert_eq!((older.verdict, &older.found[..11]), (Verdict::Good, "AES without"));
        assert_eq!(finding("Features : fp asimd\n").verdict, Verdict::CouldBeBetter);
        assert_eq!(finding("").verdict, Verdict::NotKnown);
    }

    #[test]
    fn the_files_of_the_settings_are_judged() {
        let directory = IssuedFiles::new();
        let verdicts =
            |findings: &[Finding]| findings.iter().map(|it| it.verdict).collect::<Vec<_>>();
        let good = directory.findings("ca.pem", 0o600);
        assert_eq!(verdicts(&good[1..]), [Verdict::Good; 3], "{good:?}");
        assert!(good[2].found.starts_with("kv.example.org, valid for "), "{good:?}");
        let readable = directory.findings("ca.pem", 0o644);
        assert_eq!(readable[1].verdict, Verdict::CouldBeBetter);
        assert!(readable[1].found.ends_with("node.key has mode 0644"), "{readable:?}");
        assert_eq!(directory.findings("ca.pem", 0o666)[1].verdict, Verdict::Bad);
        // Its own certificate is no root of it.
        let other = directory.findings("node.pem", 0o600);
        assert_eq!(other[3].verdict, Verdict::Bad, "{other:?}");
        assert!(other[3].change.is_some() && other[3].brings.is_some(), "{other:?}");
        let missing = directory.findings("nothing.pem", 0o600);
        assert_eq!((missing.len(), missing[2].verdict), (3, Verdict::Bad));
        assert!(missing[2].found.contains("nothing.pem: No such file"), "{missing:?}");
    }

    #[test]
    fn an_expired_certificate_is_bad() {
        let of = |left_days: u64| {
            let left = Duration::from_secs(left_days * DAY_S);
            let shown = Shown { name: "kv.example.org".to_owned(), left, refusal: None };
            let files = CertificateFiles {
                key: String::new(),
                key_mode: Ok(0o600),
                certificate: Ok(shown),
            };
            certificate(&files).unwrap().verdict
        };
        let verdicts = [Verdict::Bad, Verdict::CouldBeBetter, Verdict::Good];
        assert_eq!([of(0), of(1), of(2)], verdicts);
    }
}
