//! Settings of a node.
//!
//! | file | contents |
//! |---|---|
//! | `config` | [`Config`]: setters, a TOML file, the environment |
//! | `check` | checks of a whole configuration |
//! | `table` | names, defaults, ranges and texts |
//! | `variables` | all environment variables |
//! | `quantity` | sizes and times as text |
//! | `capture`, `engine_at`, `links`, `metrics_at`, `shm_dir` | the type of the setting of that name |
//! | `tls` | the settings of sealed paths |

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apus_net::{Networks, PlainPeers, RawConfig, UdpConfig};
use apus_proto::{SettingError, define_settings, protocol_settings};
use apus_wire::DEFAULT_UDP_PORT;
use serde_core::de::{Deserialize, Deserializer, Error as _};

use crate::delivery::{Delivery, DeliveryError};
use crate::identity_source::IdentitySource;

mod capture;
mod check;
mod engine_at;
mod links;
mod metrics_at;
mod quantity;
mod shm_dir;
mod tls;
mod variables;
#[macro_use]
mod table;

pub use apus_seal::{Denied as DeniedPeers, PatternError, Rule as PeerRule, Suite, SuiteError};
pub use engine_at::{EngineAt, EngineAtError};
pub use links::{Links, LinksError};
pub use metrics_at::{MetricsAt, MetricsAtError};
pub(crate) use quantity::parse_number;
pub use quantity::{QuantityError, parse_duration, parse_size};
pub use tls::{Plain, PlainError};
pub use variables::MisspeltVariable;

node_settings! { define_settings! {
    /// Settings of a [`Node`](crate::Node). Every setter returns the configuration, so that they chain:
    ///
    /// ```
    /// use apus::{Config, Delivery};
    /// let mut config = Config::server();
    /// config.delivery(Delivery::fullbusy()).message_max(1_000_000);
    /// ```
    ///
    /// A setter ignores a value outside its range. [`check`](Self::check) then returns an error, and no node starts with the
    /// configuration.
    ///
    /// # From files and the environment
    ///
    /// The name of each setter is also a key in a TOML file (`delivery = "base"`) and, in capitals after `APUS_`, an
    /// environment variable (`APUS_DELIVERY=base`). Sizes are numbers of bytes or texts for [`parse_size`] (`"64 KiB"`), times
    /// are texts for [`parse_duration`] (`"20 ms"`). Settings that are not named keep their defaults.
    /// [`settings`](Self::settings) lists all settings. serde can read a configuration as a part of a program's own.
    ///
    /// ```
    /// use std::env;
    /// use std::error::Error;
    /// use apus::{Config, Node};
    ///
    /// fn start() -> Result<Node, Box<dyn Error>> {
    ///     let mut config = match env::args().nth(1) {
    ///         Some(file) => Config::from_file(file)?,
    ///         None => Config::server(),
    ///     };
    ///     config.apply_environment()?; // Takes precedence over the file.
    ///     Ok(Node::start(&config)?)
    /// }
    /// ```
    pub struct Config {
        listen: SocketAddr = SocketAddr::from(([0, 0, 0, 0], 0)),
        link: Links = Links::default(),
        shm_dir: Option<PathBuf> = None,
        capture: Option<PathBuf> = None,
        keylog: Option<PathBuf> = None,
        engine: EngineAt = EngineAt::default(),
        metrics: MetricsAt = MetricsAt::default(),
        delivery: Delivery = Delivery::default(),
        tls_spiffe: Option<String> = None,
        tls_cert: Option<PathBuf> = None,
        tls_key: Option<PathBuf> = None,
        tls_ca: Vec<PathBuf> = Vec::new(),
        tls_trust: Vec<(String, PathBuf)> = Vec::new(),
        tls_crl: Vec<PathBuf> = Vec::new(),
        tls_servers: PeerRule = PeerRule::default(),
        tls_allow: BTreeMap<u16, PeerRule> = BTreeMap::new(),
        tls_deny: DeniedPeers = DeniedPeers::default(),
        tls_rekey: Duration = tls::REKEY,
        tls_suites: Vec<Suite> = Suite::ALL.to_vec(),
        tls_plain: Plain = Plain::default(),
        tls_plain_peers: Networks = Networks::default(),
        identity_source: Option<Arc<dyn IdentitySource>> = None,
        protocol: apus_proto::Config = apus_proto::Config::default(),
    }
} }

/// Makes a setter for each of the protocol's settings.
macro_rules! forward_setters {
    ({} $(
        $(#[doc = $text:literal])*
        $name:ident: $type:ty = $default:literal $($unit:ident)?
        $(, $low:literal $($low_unit:ident)? ..= $high:literal $($high_unit:ident)?)?
        $(| $link:ident)?;
    )*) => {
        /// Settings of the protocol.
        impl Config {$(
            $(#[doc = $text])*
            #[doc = define_settings!(@range $default $($unit)?, $($low $($low_unit)? ..= $high $($high_unit)?)? | $($link)?)]
            pub fn $name(&mut self, $name: $type) -> &mut Self {
                self.protocol.$name($name);
                self
            }
        )*}
    };
}

protocol_settings! { forward_setters! {} }

/// A setting that is neither a number nor a switch.
struct TextSetting {
    key: &'static str,
    default: &'static str,
    text: &'static str,
    /// Reads and sets a value. The error names the allowed values.
    set: fn(&mut Config, &str) -> Result<(), String>,
}

/// Makes the setters and the table of the settings that are texts.
macro_rules! define_texts {
    ($($(#[doc = $text:literal])* $name:ident: $type:ty = $default:literal, $parse:path;)*) => {
        const TEXTS: &[TextSetting] = &[$(TextSetting {
            key: stringify!($name),
            default: $default,
            text: concat!($($text),*),
            set: |config, text| {
                config.$name($parse(text)?);
                Ok(())
            },
        }),*];

        impl Config {$(
            $(#[doc = $text])*
            #[doc = concat!("\n\nDefault `", $default, "`.")]
            pub fn $name(&mut self, $name: $type) -> &mut Self {
                self.$name = $name;
                self
            }
        )*}
    };
}

text_settings! { define_texts! }

impl Config {
    /// The defaults, with a UDP port that the system chooses: for a client.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The defaults, with UDP port 20146, which is the default of addresses: for a server.
    #[must_use]
    pub fn server() -> Self {
        let mut config = Self::default();
        config.listen.set_port(DEFAULT_UDP_PORT);
        config
    }

    /// Priority cutoffs for messages to this node, used until the node has seen enough traffic to compute them. `cutoffs[i]` is
    /// the longest message whose unscheduled packets use level `i` or a higher one. Default: the Linux module's cutoffs, as far
    /// as they fit the levels used. For a node whose traffic is known in advance. This setting has no key.
    pub fn cutoffs(&mut self, cutoffs: [u32; 8]) -> &mut Self {
        self.protocol.cutoffs(cutoffs);
        self
    }

    /// Where the node gets its certificate, if not from files. Roots that it gives are trusted beside those of `tls_ca` and `tls_trust`;
    /// with `tls_cert` and `tls_key`, only its roots are used. Default: none. This setting has no key.
    pub fn identity_source(&mut self, source: Arc<dyn IdentitySource>) -> &mut Self {
        self.identity_source = Some(source);
        self
    }

    /// Whether a node with this configuration shares memory with other nodes of this host.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.link == Links::Auto
            && self.shards == 1
            && self.has_own_engine()
            && self.capture.is_none()
    }

    /// Whether a node with this configuration runs the protocol itself ([`engine`](Self::engine)).
    #[must_use]
    pub fn has_own_engine(&self) -> bool {
        self.engine == EngineAt::Own
    }

    /// Whether the node has a certificate ([`tls_cert`](Self::tls_cert), [`identity_source`](Self::identity_source)), so that its
    /// paths are sealed.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        self.tls_cert.is_some() || self.identity_source.is_some()
    }

    /// The SPIFFE agent that the setting [`tls_spiffe`](Self::tls_spiffe) names: its address, or `environment`.
    #[must_use]
    pub fn spiffe_agent(&self) -> Option<&str> {
        self.tls_spiffe.as_deref()
    }

    /// The files of the certificate and of its key.
    #[cfg_attr(not(feature = "secure"), expect(dead_code, reason = "no certificate is read"))]
    pub(crate) fn certificate(&self) -> Option<(&Path, &Path)> {
        Some((self.tls_cert.as_deref()?, self.tls_key.as_deref()?))
    }

    /// The file to which packets are written.
    pub(crate) fn capture_file(&self) -> Option<&Path> {
        self.capture.as_deref()
    }

    /// The file to which keys are written.
    #[cfg_attr(not(feature = "secure"), expect(dead_code, reason = "there are no keys"))]
    pub(crate) fn key_log_file(&self) -> Option<&Path> {
        self.keylog.as_deref()
    }

    /// The directory in which nodes of other network namespaces are met.
    pub(crate) fn shared_directory(&self) -> Option<&Path> {
        self.shm_dir.as_deref()
    }

    /// The node cannot make its files there.
    pub(crate) fn unusable_directory(&self, error: &io::Error) -> ConfigError {
        let allowed = "a directory in which this process may create sockets";
        self.wrong_directory(format!("{allowed} (the system reports: {error})"))
    }

    fn wrong_directory(&self, allowed: String) -> ConfigError {
        let value = shm_dir::show(self.shm_dir.as_deref());
        ConfigError::Value { key: "shm_dir".to_owned(), value, allowed }
    }

    /// Whose engine is to be used.
    pub(crate) fn engine_at(&self) -> &EngineAt {
        &self.engine
    }

    /// The place of the counters.
    pub(crate) fn metrics_at(&self) -> &MetricsAt {
        &self.metrics
    }

    /// Settings of a UDP link.
    pub(crate) fn udp(&self) -> UdpConfig {
        let mut udp = UdpConfig::default();
        udp.receive_buffer(self.receive_buffer).send_buffer(self.send_buffer);
        udp.gso(self.gso).gro(self.gro).bundles(self.bundles).max_packet(self.max_packet);
        udp.seals(self.has_identity());
        if !self.has_identity() {
            udp.plain_peers(self.plain_peers());
        }
        udp
    }

    /// Settings of a raw link, which has no UDP header and so takes packets that are 8 bytes longer, unless
    /// `max_packet` is set.
    pub(crate) fn raw(&self) -> RawConfig {
        let mut raw = RawConfig::default();
        raw.receive_buffer(self.receive_buffer).send_buffer(self.send_buffer);
        raw.plain_peers(self.plain_peers());
        if self.is_set("max_packet") {
            raw.max_packet(self.max_packet);
        }
        raw
    }

    //= docs/protocol.md#seal-17
    fn plain_peers(&self) -> PlainPeers {
        match self.insecure {
            true => PlainPeers::All,
            false => PlainPeers::Only(self.tls_plain_peers.clone()),
        }
    }

    /// Whether the node speaks plain with everybody ([`insecure`](Self::insecure)).
    #[must_use]
    pub fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// The address set by [`listen`](Self::listen).
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.listen
    }

    /// The mode set by [`delivery`](Self::delivery).
    #[must_use]
    pub fn delivery_mode(&self) -> Delivery {
        self.delivery
    }

    /// The longest message set by [`message_max`](Self::message_max).
    #[must_use]
    pub fn message_limit(&self) -> u32 {
        self.protocol.message_limit()
    }

    /// The defaults, changed by a TOML text.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for the first error in the text.
    ///
    /// ```
    /// use apus::Config;
    ///
    /// let config = Config::from_toml_str(
    ///     r#"
    ///     listen = "127.0.0.1:0"
    ///     message_max = "1 MB"
    ///     peer_timeout = "300 ms"
    ///     "#,
    /// )?;
    /// assert_eq!(config.message_limit(), 1_000_000);
    ///
    /// let error = Config::from_toml_str("priorities = 9").unwrap_err();
    /// assert_eq!(error.to_string(), "priorities = '9': expected a number from 1 to 8");
    /// # Ok::<(), apus::ConfigError>(())
    /// ```
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.apply_toml(text)?;
        Ok(config)
    }

    /// The defaults, changed by a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`] if the file cannot be read; otherwise as [`from_toml_str`](Self::from_toml_str).
    ///
    /// ```
    /// use apus::{Config, ConfigError};
    ///
    /// let error = Config::from_file("/etc/no-such-directory/apus.toml").unwrap_err();
    /// assert!(matches!(error, ConfigError::File { .. }));
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
        Self::from_toml_str(&text)
    }

    /// Changes the settings that a TOML text names.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]. Keys that precede the error in the order of keys are changed.
    pub fn apply_toml(&mut self, text: &str) -> Result<&mut Self, ConfigError> {
        let table = text.parse::<toml::Table>();
        self.apply_table(&table.map_err(|error| ConfigError::Toml { message: error.to_string() })?)
    }

    fn apply_table(&mut self, table: &toml::Table) -> Result<&mut Self, ConfigError> {
        for (key, value) in table {
            match (key.as_str(), value) {
                ("tls", toml::Value::Table(table)) => {
                    for (key, value) in table {
                        self.set(&format!("tls_{key}"), &tls::text_of(value))?;
                    }
                }
                (_, toml::Value::String(text)) => _ = self.set(key, text)?,
                (_, other) => _ = self.set(key, &other.to_string())?,
            }
        }
        Ok(self)
    }

    /// Changes the settings that environment variables name: `APUS_` and a key in capitals. Ignores other variables;
    /// [`misspelt_variables`](Self::misspelt_variables) lists misspelt ones. Call it after reading a file, so that the environment
    /// takes precedence.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`], with the name of the variable as key.
    pub fn apply_environment(&mut self) -> Result<&mut Self, ConfigError> {
        #[cfg(feature = "tracing")]
        Self::misspelt_variables().iter().for_each(MisspeltVariable::warn);
        self.apply_variables(|name| std::env::var(name).ok())
    }

    /// Variables of the environment whose names resemble those of Apus. Other names that begin with `APUS_` may belong to another
    /// program. [`apply_environment`](Self::apply_environment) reports misspelt variables by a warning of `tracing`, with the
    /// feature `tracing`.
    ///
    /// ```
    /// for variable in apus::Config::misspelt_variables() {
    ///     eprintln!("warning: {variable}");
    /// }
    /// ```
    #[must_use]
    pub fn misspelt_variables() -> Vec<MisspeltVariable> {
        let settings: Vec<_> = Self::settings().map(|setting| setting.variable).collect();
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        names.filter_map(|name| variables::misspelt(&name, &settings)).collect()
    }

    /// [`apply_environment`](Self::apply_environment) with the given variables.
    ///
    /// # Errors
    ///
    /// As [`apply_environment`](Self::apply_environment).
    ///
    /// ```
    /// use apus::{Config, Delivery};
    ///
    /// // As `APUS_DELIVERY=base PROGRAM` would.
    /// let mut config = Config::new();
    /// config.apply_variables(|name| (name == "APUS_DELIVERY").then(|| "base".to_owned()))?;
    /// assert_eq!(config.delivery_mode(), Delivery::base());
    /// # Ok::<(), apus::ConfigError>(())
    /// ```
    pub fn apply_variables(
        &mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<&mut Self, ConfigError> {
        for Setting { key, variable, .. } in Self::settings() {
            if let Some(value) = lookup(&variable) {
                self.set_as(&variable, key, &value)?;
            }
        }
        Ok(self)
    }

    /// Changes one setting by its key.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Key`] or [`ConfigError::Value`]. The configuration is then unchanged.
    ///
    /// ```
    /// use apus::Config;
    ///
    /// let mut config = Config::new();
    /// config.set("peer_budget", "64 MiB")?.set("link", "udp")?;
    /// # Ok::<(), apus::ConfigError>(())
    /// ```
    pub fn set(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfigError> {
        self.set_as(key, key, value)?;
        Ok(self)
    }

    /// Changes one setting, which the user knows by `name`.
    fn set_as(&mut self, name: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        let wrong = |allowed| {
            let (key, value) = (name.to_owned(), value.to_owned());
            ConfigError::Value { key, value, allowed }
        };
        if let Some(setting) = TEXTS.iter().find(|setting| setting.key == key) {
            return (setting.set)(self, value.trim()).map_err(wrong);
        }
        let mut numbers = Self::TABLE.iter().chain(apus_proto::Config::SETTINGS);
        let Some(setting) = numbers.find(|setting| setting.name == key) else {
            let known: Vec<&str> = Self::settings().map(|setting| setting.key).collect();
            return Err(ConfigError::Key { key: key.to_owned(), known: known.join(", ") });
        };
        let number = parse_number(setting, value.trim()).ok_or_else(|| wrong(setting.allowed()))?;
        let set = if Self::TABLE.contains(setting) {
            self.set_number(key, number).map(drop)
        } else {
            self.protocol.set(key, number).map(drop)
        };
        set.map_err(|error| wrong(error.allowed))
    }

    /// All settings: first those of the node, then those of the protocol.
    ///
    /// ```
    /// use apus::Config;
    ///
    /// let setting = Config::settings().find(|setting| setting.key == "calls_max").unwrap();
    /// assert_eq!(setting.variable, "APUS_CALLS_MAX");
    /// assert_eq!(setting.default, "65,536 calls");
    /// assert_eq!(setting.range, "1 to 1,048,576");
    /// ```
    pub fn settings() -> impl Iterator<Item = Setting> {
        let texts = TEXTS.iter().map(|setting| {
            let default = setting.default.to_owned();
            Setting::new(setting.key, default, String::new(), setting.text)
        });
        let numbers = Self::TABLE.iter().chain(apus_proto::Config::SETTINGS).map(|setting| {
            let follows = if setting.follows_link { " †" } else { "" };
            let default = format!("{}{follows}", setting.show(setting.default));
            Setting::new(setting.name, default, setting.range(), setting.text)
        });
        texts.chain(numbers)
    }
}

/// Reads a map of keys, so that the configuration of a program may contain a node's, in any format of serde.
impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut config = Self::default();
        config.apply_table(&toml::Table::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Ok(config)
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "IP:PORT, like 0.0.0.0:20146 or [::]:0".to_owned())
}

fn parse_links(text: &str) -> Result<Links, String> {
    text.parse().map_err(|_| Links::EXPECTED.to_owned())
}

fn parse_directory(text: &str) -> Result<Option<PathBuf>, String> {
    shm_dir::parse(text).map_err(str::to_owned)
}

fn parse_capture(text: &str) -> Result<Option<PathBuf>, String> {
    capture::parse(text).map_err(str::to_owned)
}

fn parse_engine(text: &str) -> Result<EngineAt, String> {
    text.parse().map_err(|_| EngineAt::EXPECTED.to_owned())
}

fn parse_metrics(text: &str) -> Result<MetricsAt, String> {
    text.parse().map_err(|_| MetricsAt::EXPECTED.to_owned())
}

fn parse_delivery(text: &str) -> Result<Delivery, String> {
    text.parse().map_err(|error: DeliveryError| error.expected().to_owned())
}

/// The description of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The name of the setter, which is also the key in a file.
    pub key: &'static str,
    /// The name of the environment variable.
    pub variable: String,
    /// The default. A dagger marks a setting that follows the rate of a slow link unless it is set; its default is that for a
    /// fast link.
    pub default: String,
    /// The smallest and the largest value allowed; empty for settings that are not numbers.
    pub range: String,
    /// The documentation of the setter.
    pub text: &'static str,
}

impl Setting {
    fn new(key: &'static str, default: String, range: String, text: &'static str) -> Self {
        Self { key, variable: format!("APUS_{}", key.to_uppercase()), default, range, text }
    }
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("not TOML: {message}")]
    Toml {
        /// Place and cause of the error.
        message: String,
    },
    /// There is no such key.
    #[error("unknown setting '{key}': expected one of {known}")]
    Key {
        /// The key.
        key: String,
        /// The valid keys.
        known: String,
    },
    /// A value is not allowed.
    #[error("{key} = '{value}': expected {allowed}")]
    Value {
        /// The key, or the name of the variable.
        key: String,
        /// The value as written.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

impl ConfigError {
    fn of_setting(error: &SettingError) -> Self {
        let SettingError { name, value, allowed, .. } = error;
        Self::Value { key: (*name).to_owned(), value: value.clone(), allowed: allowed.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that a setting refuses. Where patterns are allowed, `x` is a DNS name.
    fn wrong_value(key: &str) -> &str {
        match key {
            "tls_servers" => "*",
            "tls_deny" => "any",
            _ => "x",
        }
    }

    #[test]
    fn links_alone_have_the_same_defaults() {
        let mut config = Config::new();
        assert_ne!((config.udp(), config.raw()), (UdpConfig::default(), RawConfig::default()));
        config.insecure(true);
        assert_eq!((config.udp(), config.raw()), (UdpConfig::default(), RawConfig::default()));
        let shards = Config::TABLE.iter().find(|setting| setting.name == "shards").unwrap();
        assert_eq!(shards.high, apus_net::SHARDS_MAX as u64);
        for setting in TEXTS {
            let mut config = Config::new();
            (setting.set)(&mut config, setting.default).unwrap();
            assert_eq!(format!("{config:?}"), format!("{:?}", Config::new()), "{}", setting.key);
            let wrong = wrong_value(setting.key);
            assert!((setting.set)(&mut config, wrong).is_err(), "{}", setting.key);
        }
    }

    #[test]
    fn the_table_of_a_file_has_lists_and_tables() {
        let config = Config::from_toml_str(
            r#"
            [tls]
            cert = "/etc/apus/node.pem"
            key = "/etc/apus/node.key"
            ca = ["/etc/apus/ca.pem", "/etc/apus/old.pem"]
            trust = [{ domain = "other.org", ca = "/etc/apus/other.pem" }]
            servers = ["spiffe://example.org/*", "kv.example.org"]
            allow = { 4000 = ["spiffe://example.org/front/*"], 4001 = ["any", "plain"] }
            deny = ["serial:4FA1@Example CA"]
            rekey = "2 min"
            suites = ["chacha20-poly1305", "aes-256-gcm"]
            plain = "accept"
            spiffe = "unix:/run/agent.sock"
            plain_peers = ["10.1.0.0/16", "192.0.2.7"]
            "#,
        )
        .unwrap();
        let mut flat = Config::new();
        for (key, value) in [
            ("tls_cert", "/etc/apus/node.pem"),
            ("tls_key", "/etc/apus/node.key"),
            ("tls_ca", "/etc/apus/ca.pem, /etc/apus/old.pem"),
            ("tls_trust", "other.org=/etc/apus/other.pem"),
            ("tls_servers", "spiffe://example.org/*,kv.example.org"),
            ("tls_allow", "4000=spiffe://example.org/front/*; 4001=any,plain"),
            ("tls_deny", "serial:4FA1@Example CA"),
            ("tls_rekey", "2min"),
            ("tls_suites", "chacha20-poly1305,aes-256-gcm"),
            ("tls_plain", "accept"),
            ("tls_spiffe", "unix:/run/agent.sock"),
            ("tls_plain_peers", "10.1.0.0/16, 192.0.2.7"),
        ] {
            flat.set(key, value).unwrap();
        }
        assert_eq!(format!("{config:?}"), format!("{flat:?}"));
        assert_eq!(config.tls_allow[&4001].to_string(), "any, plain");
        assert!(config.has_identity());
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (key, value) in [
            ("tls_cert", "node.pem"),
            ("tls_ca", "/a,b"),
            ("tls_trust", "/etc/ca.pem"),
            ("tls_servers", "spiffe://example.org/*/x"),
            ("tls_allow", "spiffe://example.org/*"),
            ("tls_allow", "0=any"),
            ("tls_deny", "any"),
            ("tls_rekey", "999ms"),
            ("tls_rekey", "25h"),
            ("tls_suites", "aes-128-gcm,aes-128-gcm"),
            ("tls_suites", "none"),
            ("tls_plain", "maybe"),
            ("tls_spiffe", "/run/agent.sock"),
            ("tls_spiffe", "unix:agent.sock"),
            ("tls_spiffe", "tcp:localhost:8081"),
            ("tls_plain_peers", "10.1.0.0/40"),
        ] {
            let error = Config::new().set(key, value).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(value), "{error}");
        }
        let error = Config::new().set("tls_servers", "kv, */x").unwrap_err().to_string();
        let allowed = "expected none, or patterns with commas between them (spiffe://DOMAIN/PATH, ";
        assert!(error.starts_with(&format!("tls_servers = 'kv, */x': {allowed}")), "{error}");
        assert!(error.contains("any, plain), but \"*/x\" is none: "), "{error}");
    }

    #[test]
    fn a_certificate_needs_a_key_roots_and_links_that_seal() {
        let file = |name: &str| Some(PathBuf::from(name));
        let check = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::new();
            config.tls_cert(file("/c")).tls_key(file("/k")).tls_ca(vec!["/r".into()]);
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        check(&|_| ()).unwrap();
        let mut config = Config::new();
        config.tls_cert(file("/c")).tls_key(file("/k")).tls_ca(vec!["/r".into()]);
        config.check_shared_engine().unwrap();
        for (key, change) in [
            ("tls_key", &(|config: &mut Config| _ = config.tls_key(None)) as &dyn Fn(&mut Config)),
            ("tls_cert", &|config: &mut Config| _ = config.tls_cert(None)),
            ("tls_ca", &|config: &mut Config| _ = config.tls_ca(Vec::new())),
            ("message_max", &|config: &mut Config| _ = config.message_max(65_535)),
            ("tls_suites", &|config: &mut Config| _ = config.tls_suites(vec![Suite::Aes128Gcm; 2])),
            ("tls_suites", &|config: &mut Config| _ = config.tls_suites(Vec::new())),
            ("tls_cert", &|config: &mut Config| _ = config.link(Links::Raw)),
            ("tls_cert", &|config: &mut Config| _ = config.engine("unix:/e".parse().unwrap())),
        ] {
            let error = check(change).unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
