//! `apus dev-certs`: certificates for trying sealed paths.
//!
//! | file | contents |
//! |---|---|
//! | `authority` | the authority that signs the certificates of a directory, new or kept |
//! | `files` | the files of the directory, none of which is ever replaced |
//! | `settings` | the settings that name the files, as TOML and as variables |

mod authority;
mod files;
mod settings;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use apus_load::misuse::Misuse;
use serde::Serialize;

use crate::output::JsonArgs;
use authority::{Authority, Leaf};
use files::{CertificateDirectory, NewFiles};
use settings::TlsSettings;

/// Make certificates with which nodes speak sealed, for tests and first steps
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus dev-certs certs
  apus dev-certs certs --name kv --name front --address 10.0.0.2
  apus dev-certs certs --name kv --keep-ca
  apus dev-certs certs --name kv --json - | jq -r .valid_until

Makes DIR (mode 0700) with ca.pem and, for each name, NAME.pem and NAME.key (mode 0600), and prints the settings that name them. \
The certificate of NAME has the SPIFFE id spiffe://dev.apus.invalid/NAME, the DNS name NAME.dev.apus.invalid, the addresses \
given, 127.0.0.1 and ::1. It is for clients and servers. Files that exist are never replaced.

The key of the authority is thrown away, so nobody can make another certificate that these nodes accept. With --keep-ca it stays \
as ca.key, and a later run with the same DIR adds names. Production needs an authority of its own: docs/security.md.")]
pub(crate) struct Args {
    /// Directory of the files; it is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of a node: 1 to 63 lower-case letters, digits and hyphens; for several nodes the option is repeated
    #[arg(long = "name", value_name = "NAME", default_value = "node", value_parser = node_name)]
    names: Vec<String>,
    /// IP address at which the nodes are called beside 127.0.0.1 and ::1; for several addresses the option is repeated
    #[arg(long = "address", value_name = "IP", value_parser = node_address)]
    addresses: Vec<IpAddr>,
    /// Days for which the certificates are valid, 1 to 365
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=365))]
    days: u32,
    /// Keep the key of the authority in DIR/ca.key (mode 0600), so that a later run can add names
    #[arg(long)]
    keep_ca: bool,
    #[command(flatten)]
    json: JsonArgs,
}

/// Time by which the clock of another host may be behind.
const BACKDATED: Duration = Duration::from_secs(300);

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Days for which a kept authority is valid.
const DAYS_OF_KEPT: u32 = 365;

/// A directory after a run.
#[derive(Debug, Serialize)]
struct Made {
    directory: PathBuf,
    ca: PathBuf,
    /// The key of the authority, if it was kept.
    ca_key: Option<PathBuf>,
    /// Whether this run made the authority.
    ca_is_new: bool,
    /// RFC 3339.
    valid_from: String,
    valid_until: String,
    nodes: Vec<MadeNode>,
}

/// The certificate of a node.
#[derive(Debug, Serialize)]
struct MadeNode {
    name: String,
    spiffe_id: String,
    dns_name: String,
    addresses: Vec<IpAddr>,
    cert: PathBuf,
    key: PathBuf,
    settings: TlsSettings,
}

/// Makes the files and shows them.
///
/// # Errors
/// When a name is given twice, a file exists or cannot be written, or there is an authority whose key was thrown away.
pub(crate) fn run(args: &Args) -> Result<()> {
    let made = make(args, SystemTime::now())?;
    args.json.deliver_value(&made, || text(&made, args.days))
}

fn make(args: &Args, now: SystemTime) -> Result<Made> {
    check_names(&args.names)?;
    let directory = CertificateDirectory::open(&args.directory)?;
    let (from, until) = (now - BACKDATED, now + DAY * args.days);
    let mut files = NewFiles::default();
    let (ca, ca_key) = (directory.path("ca.pem"), directory.path("ca.key"));
    let kept = Authority::kept(&ca, &ca_key, until)?;
    let ca_is_new = kept.is_none();
    let authority = match kept {
        Some(authority) => authority,
        None => {
            let days = if args.keep_ca { DAYS_OF_KEPT } else { args.days };
            let authority = Authority::new(from, now + DAY * days)?;
            files.add(&ca, authority.pem().to_owned());
            if args.keep_ca {
                files.add(&ca_key, authority.key_pem());
            }
            authority
        }
    };
    let mut nodes = Vec::new();
    for name in &args.names {
        let leaf = Leaf::new(name, &args.addresses);
        let [cert, key] = ["pem", "key"].map(|end| directory.path(&format!("{name}.{end}")));
        let (certificate, key_pem) = authority.sign(&leaf, from, until)?;
        files.add(&cert, certificate);
        files.add(&key, key_pem);
        let settings = TlsSettings::new(&cert, &key, &ca)?;
        let Leaf { spiffe_id, dns_name, addresses } = leaf;
        let name = name.clone();
        nodes.push(MadeNode { name, spiffe_id, dns_name, addresses, cert, key, settings });
    }
    files.write()?;
    let ca_key = ca_key.exists().then_some(ca_key);
    let [valid_from, valid_until] =
        [from, until].map(|time| humantime::format_rfc3339_seconds(time).to_string());
    let directory = directory.into_path();
    Ok(Made { directory, ca, ca_key, ca_is_new, valid_from, valid_until, nodes })
}

fn text(made: &Made, days: u32) -> String {
    let key = match (&made.ca_key, made.ca_is_new) {
        (Some(key), true) => format!("its key is {}", key.display()),
        (Some(key), false) => format!("there before; its key is {}", key.display()),
        (None, _) => "its key was thrown away".to_owned(),
    };
    let mut lines =
        vec![format!("{}: the authority of these certificates; {key}", made.ca.display())];
    for node in &made.nodes {
        let addresses: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        let names = [&node.spiffe_id, &node.dns_name].map(|name| &**name).join(", ");
        lines.push(format!("{}: {names}, {}", node.cert.display(), addresses.join(", ")));
        lines.push(format!("{}: its private key", node.key.display()));
    }
    let s = if days == 1 { "" } else { "s" };
    let until = &made.valid_until;
    lines.push(format!("\nFor tests only. Valid for {days} day{s}, until {until}."));
    for node in &made.nodes {
        lines.push(format!("\nSettings of {}, in a file:\n", node.name));
        lines.push(node.settings.toml());
        lines.push("or in the environment:\n".to_owned());
        lines.push(node.settings.exports().trim_end().to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Reads a name, which is a part of a file's name, of a path and of a DNS name.
fn node_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = (1..=63).contains(&text.len()) && text.chars().all(allowed);
    if !is_label || text.starts_with('-') || text.ends_with('-') {
        return Err(
            "expected 1 to 63 lower-case letters, digits and hyphens, as in kv-1".to_owned()
        );
    }
    if text == "ca" {
        return Err(
            "ca.pem and ca.key are the files of the authority: expected another name".to_owned()
        );
    }
    Ok(text.to_owned())
}

fn node_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr =
        text.parse().map_err(|_| "expected an IP address, as in 10.0.0.2 or fd00::2".to_owned())?;
    if address.is_unspecified() || address.is_multicast() {
        return Err("expected the address of a host, as in 10.0.0.2 or fd00::2".to_owned());
    }
    Ok(address.to_canonical())
}

fn check_names(names: &[String]) -> Result<(), Misuse> {
    let twice = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
    twice.map_or(Ok(()), |(_, name)| {
        Err(Misuse(format!(
            "--name {name} is there twice: expected a different name for each node"
        )))
    })
}

#[cfg(test)]
mod tests;
