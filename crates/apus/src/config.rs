//! What can be set about a node.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use apus_net::{Link, RawConfig, SHARDS_MAX, UdpConfig};
use apus_wire::DEFAULT_UDP_PORT;

use crate::delivery::Delivery;
use crate::error::StartError;
use crate::links::{self, Links};

mod setting;

use setting::SETTINGS;
pub(crate) use setting::time;

/// Settings of a [`Node`](crate::Node). Every setter returns the configuration, so that they chain:
///
/// ```
/// use apus::{Config, Delivery};
/// let mut config = Config::server();
/// config.delivery(Delivery::fullbusy());
/// config.protocol().message_max(1_000_000);
/// ```
///
/// # From files and the environment
///
/// Every setting has a key, the same in a TOML file (`delivery = "base"`) and, in capitals after
/// `APUS_`, in the environment (`APUS_DELIVERY=base`). Sizes are numbers of bytes or texts like
/// `"64 KiB"` (`B`, `kB`, `KiB`, `MB`, `MiB`, `GB`, `GiB`), times texts like `"20 ms"` (`ns`, `us`,
/// `ms`, `s`). What is not set keeps its default.
///
/// | key | default | |
/// |---|---|---|
/// | `listen` | `0.0.0.0:0` | [`listen`](Self::listen) |
/// | `link` | `udp` | [`Links`] |
/// | `delivery` | `suspend` | [`Delivery`]: a mode and its parameters, like `suspend:20,budget=32` |
/// | `shards` | 1 | [`shards`](Self::shards) |
/// | `receive_buffer`, `send_buffer` | 8 MiB, 4 MiB | asked of the kernel for each link, see [`UdpConfig`] |
/// | `gso`, `gro`, `bundles` | true | [`UdpConfig`] |
/// | `max_packet` | largest datagram | [`UdpConfig`] |
/// | `message_max`, `unscheduled`, `unscheduled_max`, `max_incoming`, `overcommitment`, `priorities`, `fifo_share`, `link_mbps`, `pacing`, `pacing_backlog`, `burst`, `resend_initial`, `resend_min`, `peer_timeout`, `calls_max`, `peers_max`, `peer_budget`, `socket_budget`, `total_budget`, `confirm_peers`, `incast_threshold`, `incast_unscheduled` | | [`apus_proto::Config`] |
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) delivery: Delivery,
    pub(crate) shards: usize,
    pub(crate) links: Links,
    pub(crate) udp: UdpConfig,
    pub(crate) raw: RawConfig,
    pub(crate) protocol: apus_proto::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            delivery: Delivery::default(),
            shards: 1,
            links: Links::default(),
            udp: UdpConfig::default(),
            raw: RawConfig::default(),
            protocol: apus_proto::Config::default(),
        }
    }
}

impl Config {
    /// The defaults: a client's, on an automatic UDP port.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The defaults with the UDP port 20146, at which clients look for a node unless told otherwise.
    #[must_use]
    pub fn server() -> Self {
        let mut config = Self::default();
        config.listen.set_port(DEFAULT_UDP_PORT);
        config
    }

    /// Local IP address and UDP port. Port 0: the system chooses one. Default `0.0.0.0:0`: all
    /// IPv4 addresses; `[::]:0` is all of IPv6 and, where the system allows it, of IPv4.
    pub fn listen(&mut self, address: SocketAddr) -> &mut Self {
        self.listen = address;
        self
    }

    /// How messages get to the application. Default [`Delivery::suspend`].
    pub fn delivery(&mut self, delivery: Delivery) -> &mut Self {
        self.delivery = delivery;
        self
    }

    /// Engines that share the node's address, each with its link, its background thread and the
    /// traffic of some of the peers ([`net::shard_of`](crate::net::shard_of)); 1 to
    /// [`net::SHARDS_MAX`](crate::net::SHARDS_MAX), values outside are moved to the nearer end.
    /// Default 1.
    ///
    /// One shard serves some million short messages a second. More are for nodes that are called by
    /// many peers on many cores, with at least as many threads as shards at a socket: a thread turns
    /// the engine of one shard, and takes messages of the others when nobody else does. While all
    /// threads of a shard compute, its packets wait for the delivery mode's suspend timeout.
    pub fn shards(&mut self, shards: usize) -> &mut Self {
        self.shards = shards.clamp(1, SHARDS_MAX);
        self
    }

    /// What carries the messages. Default [`Links::Udp`].
    pub fn links(&mut self, links: Links) -> &mut Self {
        self.links = links;
        self
    }

    /// Opens the link that a node with this configuration has: to wrap it, and give it to
    /// [`Node::with_link`](crate::Node::with_link).
    ///
    /// # Errors
    ///
    /// [`StartError`] as [`Node::start`](crate::Node::start).
    pub fn open_link(&self) -> Result<Box<dyn Link>, StartError> {
        links::open(self)
    }

    /// Settings of the raw link.
    pub fn raw(&mut self) -> &mut RawConfig {
        &mut self.raw
    }

    /// Settings of the UDP link.
    pub fn udp(&mut self) -> &mut UdpConfig {
        &mut self.udp
    }

    /// Settings of the protocol.
    pub fn protocol(&mut self) -> &mut apus_proto::Config {
        &mut self.protocol
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

    /// The defaults, changed by a TOML text.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with the first thing that is wrong.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        config.apply_toml(text)?;
        Ok(config)
    }

    /// The defaults, changed by a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::File`] when it cannot be read, else as
    /// [`from_toml_str`](Self::from_toml_str).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
        Self::from_toml_str(&text)
    }

    /// Changes what a TOML text says.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; what came before the error in the order of keys is changed.
    pub fn apply_toml(&mut self, text: &str) -> Result<&mut Self, ConfigError> {
        let table: toml::Table =
            text.parse().map_err(|error| ConfigError::Toml { source: Box::new(error) })?;
        for (key, value) in &table {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            self.set(key, &value)?;
        }
        Ok(self)
    }

    /// Changes what the process's environment says: `APUS_` and a key in capitals. Other variables
    /// are not looked at. Call it after reading a file, so that the environment has the last word.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`], with the variable's name as key.
    pub fn apply_environment(&mut self) -> Result<&mut Self, ConfigError> {
        self.apply_variables(|name| std::env::var(name).ok())
    }

    /// [`apply_environment`](Self::apply_environment) with variables from elsewhere.
    ///
    /// # Errors
    ///
    /// As [`apply_environment`](Self::apply_environment).
    pub fn apply_variables(
        &mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<&mut Self, ConfigError> {
        for setting in SETTINGS {
            let name = format!("APUS_{}", setting.key.to_uppercase());
            if let Some(value) = lookup(&name) {
                setting.apply(self, &name, &value)?;
            }
        }
        Ok(self)
    }

    /// Changes one setting by its key.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Key`] or [`ConfigError::Value`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<&mut Self, ConfigError> {
        let setting = SETTINGS
            .iter()
            .find(|setting| setting.key == key)
            .ok_or_else(|| ConfigError::Key { key: key.to_owned(), known: Keys })?;
        setting.apply(self, key, value)?;
        Ok(self)
    }

    /// Every key.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        SETTINGS.iter().map(|setting| setting.key)
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("not TOML: {source}")]
    Toml {
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// There is no such key.
    #[error("unknown setting '{key}': expected one of {known}")]
    Key {
        /// The key.
        key: String,
        /// The keys there are, for the message.
        known: Keys,
    },
    /// A value is not allowed.
    #[error("{key} = '{value}': expected {allowed}")]
    Value {
        /// The key, or the variable's name.
        key: String,
        /// The value as it was written.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

/// All keys of the configuration, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Keys;

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, key) in Config::keys().enumerate() {
            write!(f, "{}{key}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
