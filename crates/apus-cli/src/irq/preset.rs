//! Presets: parameters under a name that the user chooses. Commands accept a preset in place of a mode.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_irq::{EpollParameters, Mode, NapiParameters};
use apus_load::misuse::Misuse;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// The content of a preset's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Preset {
    /// The origin of the parameters.
    pub(super) made: String,
    pub(super) napi: NapiParameters,
    pub(super) epoll: EpollParameters,
}

impl Preset {
    /// Saves the preset under a name. Replaces a preset of the same name.
    ///
    /// # Errors
    /// When the name is not valid or is the name of a mode, or the file cannot be written.
    pub(super) fn save(&self, name: &str) -> Result<PathBuf> {
        check(name).map_err(Misuse)?;
        let path = path(name)?;
        let directory = path.parent().expect("it is in a directory");
        let cannot = || format!("cannot write `{}`", path.display());
        fs::create_dir_all(directory).with_context(cannot)?;
        let part = path.with_extension("part");
        fs::write(&part, toml::to_string(self)?).with_context(cannot)?;
        fs::rename(&part, &path).with_context(cannot)?;
        Ok(path)
    }
}

/// The mode of this name: one of the series, or else a saved preset.
///
/// # Errors
/// When there is neither, or the file of the preset cannot be read.
pub(super) fn mode(text: &str) -> Result<Mode, String> {
    let unknown = match text.parse() {
        Ok(mode) => return Ok(mode),
        Err(error) => error,
    };
    if check(text).is_err() {
        return Err(unknown.to_string());
    }
    let path = path(text).map_err(|error| error.to_string())?;
    let cannot = |why: String| format!("`{}`: {why}", path.display());
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("{unknown}; no preset `{text}` in `{}`", path.display()))
        }
        Err(error) => Err(cannot(error.to_string())),
        Ok(text) => {
            let preset: Preset =
                toml::from_str(&text).map_err(|error| cannot(error.to_string()))?;
            Ok(Mode::own(preset.napi, preset.epoll))
        }
    }
}

/// The saved presets by name; for an unreadable one, the reason.
///
/// # Errors
/// When the directory cannot be read.
pub(super) fn all() -> Result<Vec<(String, Result<Preset, String>)>> {
    let directory = directory()?;
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("`{}`", directory.display()))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect();
    names.sort();
    let read = |name: String| {
        let text = fs::read_to_string(directory.join(format!("{name}.toml")));
        let preset = text
            .map_err(|error| error.to_string())
            .and_then(|text| toml::from_str(&text).map_err(|error| error.to_string()));
        (name, preset)
    };
    Ok(names.into_iter().map(read).collect())
}

/// Refuses names that are not valid for a file, and names of modes.
fn check(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(format!(
            "preset `{name}`: expected 1 to 64 letters, digits, '-', '_' and '.', not beginning with '.'"
        ));
    }
    match name.parse::<Mode>() {
        Ok(_) => Err(format!("preset `{name}`: this is the name of a mode")),
        Err(_) => Ok(()),
    }
}

fn path(name: &str) -> Result<PathBuf> {
    Ok(directory()?.join(format!("{name}.toml")))
}

/// `/etc/apus/irq` for root, else the directory of this user.
fn directory() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    if let Some(config) = set("XDG_CONFIG_HOME") {
        return Ok(config.join("apus/irq"));
    }
    if geteuid().is_root() {
        return Ok(PathBuf::from("/etc/apus/irq"));
    }
    let home = set("HOME").ok_or_else(|| {
        Misuse("presets have no directory: neither XDG_CONFIG_HOME nor HOME is set".to_owned())
    })?;
    Ok(home.join(".config/apus/irq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_and_no_modes() {
        for name in ["memcached", "web-1.5", "suspended"] {
            assert_eq!(check(name), Ok(()));
        }
        for name in ["", "..", ".x", "a/b", "suspend:20", "suspend20", "base", "a b"] {
            assert!(check(name).is_err(), "{name}");
        }
        assert!(mode("no-such-preset").unwrap_err().contains("no-such-preset.toml"));
        assert!(mode("suspend:x").unwrap_err().contains("mode `suspend:x`"));
        assert_eq!(mode("base"), Ok("base".parse().unwrap()));
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let napi = NapiParameters {
            threaded: None,
            defer_hard_irqs: 3,
            gro_flush_timeout_ns: 40_000,
            irq_suspend_timeout_ns: 2_000_000,
        };
        let preset = Preset { made: "by hand".to_owned(), napi, epoll: EpollParameters::default() };
        let back: Preset = toml::from_str(&toml::to_string(&preset).unwrap()).unwrap();
        assert_eq!((back.napi, back.epoll), (napi, preset.epoll));
    }
}
