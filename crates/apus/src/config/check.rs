//! Checks of a whole configuration, before a node starts.

use apus_net::RawConfig;

use super::{Config, ConfigError, EngineAt, Links, capture, shm_dir, tls};

impl Config {
    /// Whether a node can start with these settings.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Value`] for the first setter that was given a value outside its range, for a `delivery` with such a
    /// parameter, for an `unscheduled_max` below `unscheduled`, for a `max_packet` that is too short for a raw link, for a
    /// `shm_dir` that is no directory, and for a `capture` with a relative path or without a link.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(error) = &self.error {
            return Err(ConfigError::of_setting(error));
        }
        self.protocol.check().map_err(|error| ConfigError::of_setting(&error))?;
        self.delivery.check().map_err(|error| ConfigError::Value {
            key: "delivery".to_owned(),
            value: self.delivery.to_string(),
            allowed: error.expected().to_owned(),
        })?;
        if let Some(directory) = &self.shm_dir {
            shm_dir::check(directory)
                .map_err(|allowed| self.wrong_directory(allowed.to_owned()))?;
        }
        if let Some(path) = &self.capture {
            capture::check(path, self.has_own_engine()).map_err(|allowed| ConfigError::Value {
                key: "capture".to_owned(),
                value: path.display().to_string(),
                allowed: allowed.to_owned(),
            })?;
        }
        self.check_tls()?;
        if self.link.has_raw()
            && self.is_set("max_packet")
            && self.max_packet < RawConfig::MAX_PACKET_MIN
        {
            return Err(ConfigError::Value {
                key: "max_packet".to_owned(),
                value: self.max_packet.to_string(),
                allowed: format!(
                    "at least {} B with 'link = {}'",
                    RawConfig::MAX_PACKET_MIN,
                    self.link
                ),
            });
        }
        Ok(())
    }

    /// Checks the settings of sealed paths together.
    fn check_tls(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: &str, allowed: &str| {
            let (key, value, allowed) = (key.to_owned(), value.to_owned(), allowed.to_owned());
            Err(ConfigError::Value { key, value, allowed })
        };
        let suites = &self.tls_suites;
        let repeats = (1..suites.len()).any(|place| suites[..place].contains(&suites[place]));
        if suites.is_empty() || repeats {
            let names: Vec<String> = suites.iter().map(ToString::to_string).collect();
            let given = if names.is_empty() { tls::NONE } else { &names.join(",") };
            return wrong("tls_suites", given, tls::SUITES);
        }
        if let Some(agent) = self.tls_spiffe.as_deref().filter(|_| self.identity_source.is_none()) {
            return wrong("tls_spiffe", agent, "none in a program that does not use apus-spiffe");
        }
        let cert = match (&self.tls_cert, &self.tls_key) {
            (None, None) if self.identity_source.is_none() => return Ok(()),
            (None, None) => "a source of certificates".to_owned(),
            (None, Some(_)) => return wrong("tls_cert", tls::NONE, "the certificate of tls_key"),
            (Some(_), None) => return wrong("tls_key", tls::NONE, "the key of tls_cert"),
            (Some(cert), Some(_)) => cert.display().to_string(),
        };
        if !cfg!(feature = "secure") {
            return wrong("tls_cert", &cert, "none in a build without the feature `secure`");
        }
        let has_roots = !self.tls_ca.is_empty() || !self.tls_trust.is_empty();
        if !has_roots && self.identity_source.is_none() {
            return wrong("tls_ca", tls::NONE, "a file with the roots of peers, or tls_trust");
        }
        let mut rules: Vec<_> = self.tls_allow.values().collect();
        rules.dedup();
        if rules.len() > TLS_RULES_MAX {
            let value = format!("{} different rules", rules.len());
            return wrong("tls_allow", &value, &format!("at most {TLS_RULES_MAX}"));
        }
        if self.message_limit() < TLS_MESSAGE_MAX_LEAST {
            let value = self.message_limit().to_string();
            return wrong(
                "message_max",
                &value,
                "at least 64 KiB with a certificate: handshakes need it",
            );
        }
        if !self.has_own_engine() {
            return wrong(
                "tls_cert",
                &cert,
                "none with the engine of another process, which has the keys",
            );
        }
        if self.link == Links::Raw {
            return wrong(
                "tls_cert",
                &cert,
                "none with 'link = raw', whose packets are never sealed",
            );
        }
        Ok(())
    }

    /// Whether an engine for other processes can start with these settings.
    pub(crate) fn check_shared_engine(&self) -> Result<(), ConfigError> {
        self.check()?;
        let value = |key: &str, value: String, allowed: &str| {
            let (key, allowed) = (key.to_owned(), allowed.to_owned());
            Err(ConfigError::Value { key, value, allowed })
        };
        if self.shards != 1 {
            return value("shards", self.shards.to_string(), "1 for a shared engine");
        }
        match &self.engine {
            EngineAt::Own => Ok(()),
            other => value("engine", other.to_string(), "own for a shared engine"),
        }
    }
}

/// Upper bound on the different rules of services. Sockets have 62 in all.
const TLS_RULES_MAX: usize = 32;

/// The least `message_max` of a node with a certificate: messages of handshakes have up to this length.
const TLS_MESSAGE_MAX_LEAST: u32 = 64 << 10;
