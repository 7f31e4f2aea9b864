//! Settings of a node.

use std::ffi::c_char;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apus::{Config, ConfigError};

use crate::argument;
use crate::entry;
use crate::failure::Failure;
use crate::process::OwnerProcess;

/// The settings of a node that is to be started.
pub struct apus_config {
    owner: OwnerProcess,
    config: Mutex<Config>,
}

impl apus_config {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Config>, Failure> {
        self.owner.check()?;
        // A setting is changed as a whole or not at all.
        Ok(self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the defaults: a node listens at a UDP port that the system chooses, on all IPv4 addresses. A server sets `listen` to
/// "0.0.0.0:20146", whose port is the default of addresses. Free it with apus_config_free().
#[unsafe(no_mangle)]
pub extern "C" fn apus_config_new() -> *mut apus_config {
    entry::value(std::ptr::null_mut(), || {
        let config = Mutex::new(Config::new());
        Ok(Box::into_raw(Box::new(apus_config { owner: OwnerProcess::this(), config })))
    })
}

/// Changes one setting. Its key is that of a settings file, without the prefix of environment variables: `listen`, `link`,
/// `delivery`, `peer_timeout`, `tls_cert` and others. Sizes are texts like "64 KiB", and times like "20 ms".
///
/// Returns 0, or APUS_ECONFIG, and the configuration is then unchanged: apus_last_error() has the known keys, or the allowed
/// values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_config_set(
    config: *mut apus_config,
    key: *const c_char,
    value: *const c_char,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let config = unsafe { argument::shared("config", config)? };
        // SAFETY: the pointer is that of a text, or NULL.
        let key = unsafe { argument::text("key", key)? };
        // SAFETY: the pointer is that of a text, or NULL.
        let value = unsafe { argument::text("value", value)? };
        config.lock()?.set(key, value)?;
        Ok(0)
    })
}

/// Changes the settings that a file in TOML names.
///
/// Returns 0, APUS_EFILE if the file cannot be read, or APUS_ECONFIG. Settings before the error are changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_config_read(config: *mut apus_config, path: *const c_char) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let config = unsafe { argument::shared("config", config)? };
        // SAFETY: the pointer is that of a text, or NULL.
        let path = Path::new(unsafe { argument::text("path", path)? });
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::File { path: path.to_owned(), source })?;
        config.lock()?.apply_toml(&text)?;
        Ok(0)
    })
}

/// Changes the settings that environment variables name: `APUS_` and a key in capitals, such as `APUS_LISTEN`. Call it last, so
/// that the environment takes precedence.
///
/// Returns 0, or APUS_ECONFIG. Settings before the error are changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_config_apply_environment(config: *mut apus_config) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let config = unsafe { argument::shared("config", config)? };
        config.lock()?.apply_environment()?;
        Ok(0)
    })
}

/// Frees a configuration. Nodes that were started with it go on. Does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_config_free(config: *mut apus_config) {
    entry::value((), || {
        if !config.is_null() {
            // SAFETY: the handle is valid, and no other thread uses it.
            drop(unsafe { argument::owned("config", config)? });
        }
        Ok(())
    });
}
