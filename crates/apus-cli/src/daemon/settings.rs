//! The file of `apus daemon`.

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus::{Config, EngineAccess, parse_size};
use apus_load::misuse::Misuse;
use nix::unistd::User;
use serde::Deserialize;

/// The contents of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default = "Config::server")]
    node: Config,
    #[serde(default)]
    access: Access,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Access {
    mode: Option<String>,
    users: Option<Vec<Name>>,
    process_budget: Option<String>,
    total_budget: Option<String>,
    processes_max: Option<usize>,
    #[serde(default)]
    ports: Vec<Rule>,
    #[serde(default)]
    identity: Vec<Identity>,
}

/// The certificate under which the processes of users speak: that of the daemon if there are no files.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    users: Vec<Name>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Users that may serve ports.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    ports: String,
    users: Vec<Name>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Name {
    Uid(u32),
    User(String),
}

impl Settings {
    /// Reads the file, if there is one.
    pub(super) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Self::parse("") };
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read '{}'", path.display()))?;
        Self::parse(&text).with_context(|| format!("'{}'", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        // A table without `listen` is still one of a server.
        let mut settings: toml::Table = toml::from_str(text)?;
        let node = settings.entry("node").or_insert_with(|| toml::Table::new().into());
        if let Some(node) = node.as_table_mut() {
            node.entry("listen").or_insert_with(|| SERVER.into());
        }
        Ok(settings.try_into()?)
    }

    /// The settings of the engine's node.
    pub(super) fn node(&self, listen: Option<SocketAddr>) -> Result<Config> {
        let mut config = self.node.clone();
        // It is for the programs that attach to this engine, and may be set where the daemon starts as well.
        config.apply_variables(|name| match name {
            "APUS_ENGINE" => None,
            name => std::env::var(name).ok(),
        })?;
        if let Some(listen) = listen {
            config.listen(listen);
        }
        Ok(config)
    }

    /// The access rules of the engine at a socket.
    pub(super) fn access(&self, socket: &Path) -> Result<EngineAccess> {
        let mut access = EngineAccess::new(socket);
        let Access { mode, users, process_budget, total_budget, processes_max, ports, identity } =
            &self.access;
        if let Some(text) = mode {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
            access.mode(mode.ok_or_else(|| wrong("mode", text, "permissions like 0660"))?);
        }
        if let Some(users) = users {
            access.users(&users.iter().map(Name::uid).collect::<Result<Vec<_>>>()?);
        }
        if let Some(text) = process_budget {
            let bytes = parse_size(text)
                .map_err(|_| wrong("process_budget", text, "a size like 64 MiB"))?;
            access.process_budget(bytes);
        }
        if let Some(text) = total_budget {
            let bytes =
                parse_size(text).map_err(|_| wrong("total_budget", text, "a size like 1 GiB"))?;
            access.total_budget(bytes);
        }
        if let Some(processes) = *processes_max {
            access.processes_max(processes);
        }
        for rule in ports {
            let uids = rule.users.iter().map(Name::uid).collect::<Result<Vec<_>>>()?;
            access.ports(range(&rule.ports)?, &uids);
        }
        for Identity { users, cert, key } in identity {
            let uids = users.iter().map(Name::uid).collect::<Result<Vec<_>>>()?;
            let file = |key: &str, path: &PathBuf| match path.is_absolute() {
                true => Ok(path.clone()),
                false => {
                    Err(wrong(key, &path.display().to_string(), "the absolute path of a file"))
                }
            };
            let files = match (cert, key) {
                (None, None) => None,
                (Some(cert), Some(key)) => Some((file("cert", cert)?, file("key", key)?)),
                (Some(_), None) => return Err(wrong("key", "none", "the key of cert").into()),
                (None, Some(_)) => {
                    return Err(wrong("cert", "none", "the certificate of key").into());
                }
            };
            access.identity(&uids, files.as_ref().map(|(cert, key)| (&**cert, &**key)));
        }
        Ok(access)
    }
}

impl Name {
    fn uid(&self) -> Result<u32> {
        match self {
            Self::Uid(uid) => Ok(*uid),
            Self::User(name) => {
                let user = User::from_name(name).context("cannot read the users of this host")?;
                let user =
                    user.ok_or_else(|| wrong("users", name, "users of this host, or uids"))?;
                Ok(user.uid.as_raw())
            }
        }
    }
}

fn range(text: &str) -> Result<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let port =
        |text: &str| text.trim().parse::<u16>().ok().filter(|port| (1..32_768).contains(port));
    match (port(low), port(high)) {
        (Some(low), Some(high)) if low <= high => Ok(low..=high),
        _ => Err(wrong("ports", text, "a port from 1 to 32767, or a range like 1-999").into()),
    }
}

fn wrong(key: &str, value: &str, allowed: &str) -> Misuse {
    Misuse(format!("{key} = '{value}': expected {allowed}"))
}

/// Default address of the engine's node.
const SERVER: &str = "0.0.0.0:20146";

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> Result<String> {
        let access = Settings::parse(&format!("[access]\n{text}"))?.access(Path::new("/x"))?;
        Ok(format!("{access:?}"))
    }

    #[test]
    fn a_file_names_users_and_ports() {
        let settings = Settings::parse("").unwrap().node(None).unwrap();
        assert!(format!("{settings:?}").contains(SERVER));
        let settings = Settings::parse("[node]\nlisten = '10.0.0.1:7'\nmessage_max = '1 MB'");
        let node = settings.unwrap().node(Some("10.0.0.2:8".parse().unwrap())).unwrap();
        assert!(format!("{node:?}").contains("10.0.0.2:8"));
        let text = "mode = '0660'\nports = [{ ports = '1-99', users = ['root', 7] }, { ports = '5', users = [] }]";
        let text = access(text).unwrap();
        assert!(text.contains("(1..=99, [0, 7]), (5..=5, [])"), "{text}");
        assert!(text.contains("users: None"), "{text}");
        let text = access("users = ['root', 7]").unwrap();
        assert!(text.contains("users: Some([0, 7])"), "{text}");
        let text = "identity = [{ users = [7, 8], cert = '/w.pem', key = '/w.key' }, { users = ['root'] }]";
        let text = access(text).unwrap();
        assert!(text.contains("[([7, 8], 1), ([0], 0)]"), "{text}");
        assert!(text.contains("(\"/w.pem\", \"/w.key\")"), "{text}");
    }

    #[test]
    fn the_file_of_the_packages_is_understood_with_its_examples() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/daemon.toml");
        let text = fs::read_to_string(file).unwrap();
        let is_key = |line: &&str| line.split(" = ").next().is_some_and(|key| !key.contains(' '));
        let example = |line| str::strip_prefix(line, "# ").filter(is_key).unwrap_or(line);
        let with_examples: Vec<&str> = text.lines().map(example).collect();
        let is_set = |line: &&&str| !line.starts_with('#') && line.contains(" = ");
        assert_eq!(with_examples.iter().filter(is_set).count(), 8);
        for text in [&text, &with_examples.join("\n")] {
            let settings = Settings::parse(text).unwrap();
            let node = format!("{:?}", settings.node(None).unwrap());
            assert!(node.contains(SERVER), "{node}");
            settings.access(Path::new("/x")).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_allowed() {
        for (text, part) in [
            ("mode = '999'", "'999': expected permissions"),
            ("process_budget = 'much'", "'much': expected a size"),
            ("ports = [{ ports = '0-5', users = [] }]", "'0-5': expected a port"),
            ("ports = [{ ports = '9-5', users = [] }]", "'9-5': expected a port"),
            ("ports = [{ ports = '5', users = ['no such user'] }]", "'no such user': expected"),
            ("users = ['no such user']", "'no such user': expected"),
            ("identity = [{ users = [7], cert = '/w.pem' }]", "key = 'none': expected"),
            ("identity = [{ users = [7], key = '/w.key' }]", "cert = 'none': expected"),
            (
                "identity = [{ users = [7], cert = 'w.pem', key = '/w' }]",
                "'w.pem': expected the abs",
            ),
            ("identity = [{ users = ['no such user'] }]", "'no such user': expected"),
            ("colour = 1", "colour"),
        ] {
            let error = format!("{:#}", access(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
        let error = Settings::parse("[node]\nlisten = 'here'").unwrap_err().to_string();
        assert!(error.contains("listen") && error.contains("here"), "{error}");
    }
}
