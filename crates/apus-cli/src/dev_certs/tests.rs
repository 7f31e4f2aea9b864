use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use apus::{Address, CallError, Config, Links, Node};
use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// A directory of a test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("apus-dev-certs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn try_make(&self, directory: &str, options: &str) -> Result<Made> {
        self.make_at(directory, options, SystemTime::now())
    }

    fn make_at(&self, directory: &str, options: &str, now: SystemTime) -> Result<Made> {
        let directory = self.0.join(directory);
        let words = ["dev-certs", directory.to_str().unwrap()];
        let line = Line::try_parse_from(words.into_iter().chain(options.split_whitespace()))?;
        make(&line.args, now)
    }

    fn make(&self, directory: &str, options: &str) -> Made {
        self.try_make(directory, options).unwrap()
    }

    /// The cause of a refusal, as the program prints it.
    fn refusal(&self, directory: &str, options: &str) -> String {
        format!("{:#}", self.try_make(directory, options).unwrap_err())
    }

    /// The files of a directory with their modes, by name.
    fn files(&self, directory: &str) -> Vec<(String, u32)> {
        let entries = fs::read_dir(self.0.join(directory)).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), mode(&entry.path())))
            .collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn private(names: &[&str]) -> Vec<(String, u32)> {
    names.iter().map(|name| ((*name).to_owned(), 0o600)).collect()
}

/// A node with the settings that are printed for a file.
fn node(made: &Made, name: &str) -> Node {
    let made = made.nodes.iter().find(|node| node.name == name).unwrap();
    let mut config = Config::from_toml_str(&made.settings.toml()).unwrap();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
    Node::start(&config).unwrap()
}

/// Answers every request with the name of its client.
fn serve(node: &Node) -> Address {
    let service = node.bind(4000).unwrap();
    thread::spawn(move || {
        service.serve(|request| {
            let name = request.peer().map_or_else(String::new, |peer| peer.name().to_owned());
            let _ = request.reply(name);
        });
    });
    Address::new(node.local_addr(), 4000)
}

#[test]
fn the_files_are_private_and_named_after_the_nodes() {
    let place = Scratch::new("files");
    let made = place.make("one", "");
    assert_eq!(mode(&place.0.join("one")), 0o700);
    assert_eq!(place.files("one"), private(&["ca.pem", "node.key", "node.pem"]));
    assert!(made.ca_key.is_none() && made.ca_is_new);
    place.make("two", "--name kv --name front-1 --keep-ca");
    let names = ["ca.key", "ca.pem", "front-1.key", "front-1.pem", "kv.key", "kv.pem"];
    assert_eq!(place.files("two"), private(&names));
}

#[test]
fn nodes_call_each_other_by_the_certificates() {
    let place = Scratch::new("nodes");
    let made = place.make("certs", "--name kv --name front");
    let (kv, front) = (node(&made, "kv"), node(&made, "front"));
    let address = serve(&kv);
    let client = front.client().unwrap();
    assert_eq!(client.call(address, "").wait().unwrap(), "spiffe://dev.apus.invalid/front");
    assert_eq!(front.stats().handshakes.client_begun, 1);
    let other = front.client().unwrap();
    other.expect(["spiffe://dev.apus.invalid/db"]).unwrap();
    let error = other.call(address, "").wait().unwrap_err();
    assert!(matches!(&error, CallError::WrongPeer(peer) if peer.name.ends_with("/kv")), "{error}");
}

#[test]
fn a_kept_authority_adds_names_and_another_one_is_refused() {
    let place = Scratch::new("kept");
    let first = place.make("certs", "--name kv --keep-ca");
    let second = place.make("certs", "--name front");
    assert!(!second.ca_is_new && second.ca_key.is_some());
    let address = serve(&node(&first, "kv"));
    let ours = node(&second, "front");
    let name = ours.client().unwrap().call(address, "").wait().unwrap();
    assert_eq!(name, "spiffe://dev.apus.invalid/front");
    let stranger = node(&place.make("others", ""), "node");
    let error = stranger.client().unwrap().call(address, "").wait().unwrap_err();
    assert!(matches!(error, CallError::HandshakeFailed { .. }), "{error}");
}

#[test]
fn the_certificates_have_the_names_addresses_and_times() {
    let place = Scratch::new("times");
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let options = "--name kv --address 10.0.0.2 --address ::1 --address fd00::2 --days 3";
    let made = place.make_at("certs", options, now).unwrap();
    assert_eq!(made.valid_from, "2027-01-15T07:55:00Z");
    assert_eq!(made.valid_until, "2027-01-18T08:00:00Z");
    let pem = fs::read(&made.nodes[0].cert).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(&pem.contents).unwrap();
    assert_eq!(certificate.validity().not_before.timestamp(), 1_800_000_000 - 300);
    assert_eq!(certificate.validity().not_after.timestamp(), 1_800_000_000 + 3 * 86_400);
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth && !certificate.is_ca());
    let algorithm = certificate.public_key().parsed().unwrap();
    assert_eq!(algorithm.key_size(), 256);
    let names = &certificate.subject_alternative_name().unwrap().unwrap().value.general_names;
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let names = names.join(" ");
    assert!(names.contains("spiffe://dev.apus.invalid/kv"), "{names}");
    assert!(names.contains("kv.dev.apus.invalid"), "{names}");
    let addresses: Vec<String> = made.nodes[0].addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["127.0.0.1", "::1", "10.0.0.2", "fd00::2"]);
}

#[test]
fn nothing_is_replaced() {
    let place = Scratch::new("replaced");
    place.make("thrown", "");
    let before = place.files("thrown");
    for options in ["", "--name other", "--keep-ca"] {
        let refusal = place.refusal("thrown", options);
        assert!(
            refusal.contains("thrown/ca.pem' exists") && refusal.contains("--keep-ca"),
            "{refusal}"
        );
    }
    assert_eq!(place.files("thrown"), before);
    place.make("kept", "--keep-ca");
    fs::write(place.0.join("kept/kv.key"), "mine").unwrap();
    let refusal = place.refusal("kept", "--name front --name kv");
    assert!(refusal.contains("kept/kv.key' exists and is not replaced"), "{refusal}");
    assert_eq!(fs::read_to_string(place.0.join("kept/kv.key")).unwrap(), "mine");
    assert!(!place.0.join("kept/front.pem").exists(), "all files or none");
    std::os::unix::fs::symlink("/nowhere", place.0.join("kept/db.pem")).unwrap();
    let refusal = place.refusal("kept", "--name db");
    assert!(refusal.contains("kept/db.pem' exists"), "{refusal}");
}

#[test]
fn authorities_that_cannot_sign_are_named() {
    let place = Scratch::new("authorities");
    let (one, other) = (place.make("one", "--keep-ca"), place.make("other", "--keep-ca"));
    fs::copy(other.ca_key.unwrap(), place.0.join("one/ca.key")).unwrap();
    let refusal = place.refusal("one", "--name kv");
    assert!(refusal.contains("one/ca.pem': ca.key is the key of another"), "{refusal}");
    fs::write(place.0.join("one/ca.key"), "text").unwrap();
    let refusal = place.refusal("one", "--name kv");
    assert!(refusal.contains("one/ca.key' is no private key"), "{refusal}");
    fs::remove_file(one.ca).unwrap();
    let refusal = place.refusal("one", "--name kv");
    assert!(refusal.contains("one/ca.key' exists without ca.pem"), "{refusal}");
    let later = SystemTime::now() + DAY * 360;
    let error = place.make_at("other", "--name kv", later).unwrap_err();
    assert!(format!("{error:#}").contains("other/ca.pem': the authority expires at "), "{error:#}");
    place.make_at("other", "--name kv --days 4", later).unwrap();
}

#[test]
fn wrong_arguments_are_named_with_what_is_allowed() {
    let place = Scratch::new("wrong");
    for name in ["", "Kv", "a/b", "..", "-a", "a-", "a_b", "ü", &"a".repeat(64), "ca"] {
        assert!(node_name(name).unwrap_err().contains("expected"), "{name}");
    }
    for (options, words) in [
        ("--name Kv", &["Kv", "--name", "lower-case"][..]),
        ("--name kv --name kv", &["--name kv is there twice", "different"]),
        ("--address host", &["host", "--address", "10.0.0.2"]),
        ("--address 0.0.0.0", &["0.0.0.0", "--address", "address of a host"]),
        ("--days 0", &["0", "--days", "1..=365"]),
        ("--days 366", &["366", "--days", "1..=365"]),
    ] {
        let refusal = place.refusal("certs", options);
        assert!(words.iter().all(|word| refusal.contains(word)), "{options}: {refusal}");
    }
    assert!(!place.0.join("certs").exists());
    let refusal = place.refusal("a,b", "");
    assert!(refusal.contains("a,b'") && refusal.contains("without commas"), "{refusal}");
    let refusal = place.refusal("no/where", "");
    assert!(
        refusal.contains("cannot create the directory") && refusal.contains("no/where"),
        "{refusal}"
    );
    fs::write(place.0.join("file"), "").unwrap();
    assert!(place.refusal("file", "").contains("file' exists and is no directory"));
    fs::create_dir(place.0.join("open")).unwrap();
    fs::set_permissions(place.0.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let refusal = place.refusal("open", "");
    assert!(refusal.contains("(mode 0777): chmod 0700") && refusal.contains("open"), "{refusal}");
}

#[test]
fn the_text_has_what_to_paste() {
    let place = Scratch::new("it's here");
    let made = place.make("certs", "--name kv");
    let text = text(&made, 7);
    for part in [
        "its key was thrown away",
        "Valid for 7 days, until ",
        "\n[tls]\ncert = \"",
        "spiffe://dev.apus.invalid/kv",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let exports = text.lines().filter(|line| line.starts_with("export APUS_TLS_"));
    let variables: Vec<Vec<String>> = exports.map(|line| shlex::split(line).unwrap()).collect();
    assert_eq!(variables.len(), 3);
    let key = format!("APUS_TLS_KEY={}", made.nodes[0].key.display());
    assert_eq!(variables[1], ["export".to_owned(), key]);
}
