//! Perl's tests of its sockets, by the perl of this machine.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use regex::Regex;

use super::launch::{Call, Launch};
use super::sources::{debian, needs, required};
use super::suite::{Results, Selected, Skip, Sources, Suite, by_status};
use crate::program::read;

const DIRECTORIES: [&str; 5] =
    ["cpan/Socket/t", "cpan/IO-Socket-IP/t", "cpan/libnet/t", "dist/IO/t", "t/io"];

/// The tests of `dist/IO` and `t/io` that are about sockets. The others are about files.
const OF_SOCKETS: &str = r"/(io_(dup|multihomed|pipe|poll|sel|sock|sock_errstr|udp|unix|xs)|IO|gh17447|cachepropagate-\w+|socket|socketpair|eintr|eintr_print|pipe|dup|errnosig)\.t$";

/// Time limit of a file of tests.
const FILE_MAX: Duration = Duration::from_secs(90);

pub(super) struct Perl {
    sources: Sources,
}

impl Perl {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["perl"])?;
        let sources = debian("perl")?;
        let installed = required(Command::new("perl").args(["-e", "printf '%vd', $^V"]))?;
        if installed != sources.version {
            let version = &sources.version;
            let reason =
                format!("the sources are those of perl {version}, and {installed} is installed");
            return Err(Skip(reason).into());
        }
        // The tests of the core expect the library of a built tree; these ones use the installed library.
        let path = sources.directory.join("t/test.pl");
        let text = read(&path)?;
        if !text.contains("{ return; ") {
            let changed = text.replace("\nsub set_up_inc {", "\nsub set_up_inc { return; ");
            fs::write(&path, changed).context("t/test.pl")?;
        }
        Ok(Self { sources })
    }

    /// Runs a file from the directory above its `t`, to which its file names are relative.
    fn call(&self, name: &str) -> Call {
        let (place, test) = place(name);
        Call::new("perl", self.sources.directory.join(place)).args([test])
    }
}

impl Suite for Perl {
    fn about(&self) -> &'static str {
        "Perl's tests of its sockets, by the perl of this machine."
    }

    fn version(&self) -> &str {
        &self.sources.version
    }

    fn names(&self) -> Result<Option<Vec<String>>> {
        let of_sockets = Regex::new(OF_SOCKETS)?;
        let mut names = Vec::new();
        for directory in DIRECTORIES {
            let path = self.sources.directory.join(directory);
            let entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
            let mut files = entries
                .map(|entry| Ok(format!("{directory}/{}", entry?.file_name().to_string_lossy())))
                .collect::<Result<Vec<_>>>()?;
            files.sort_unstable();
            names.extend(files.into_iter().filter(|name| is_wanted(name, &of_sockets)));
        }
        Ok(Some(names))
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let has_selected = |file: &str| {
            only.is_none_or(|only| only.iter().any(|test| test.split(' ').next() == Some(file)))
        };
        let mut results = Results::new();
        for name in self.names()?.unwrap_or_default().into_iter().filter(|it| has_selected(it)) {
            let outcome = launch.run(&self.call(&name), FILE_MAX)?;
            writeln!(log, "== {name}: {:?}\n{}", outcome.status, outcome.output)
                .context("the log")?;
            results.insert(format!("{name} (status)"), by_status(outcome.status));
            results.extend(
                of_output(&outcome.output)
                    .map(|(number, result)| (format!("{name} {number}"), result.to_owned())),
            );
        }
        Ok(results)
    }
}

fn is_wanted(name: &str, of_sockets: &Regex) -> bool {
    let has_files = name.starts_with("dist/IO") || name.starts_with("t/io");
    name.ends_with(".t") && (!has_files || of_sockets.is_match(name))
}

/// The directory in which a file runs, and its name there.
fn place(name: &str) -> (&str, &str) {
    if let Some(test) = name.strip_prefix("t/") {
        return ("t", test);
    }
    name.find("/t/").map_or((".", name), |at| (&name[..at], &name[at + 1..]))
}

/// The numbers and results of `ok 1 - …` and `not ok 2 …`.
fn of_output(output: &str) -> impl Iterator<Item = (&str, &'static str)> {
    output.lines().filter_map(|line| {
        let (rest, result) = match line.strip_prefix("not ok ") {
            Some(rest) => (rest, "not ok"),
            None => (line.strip_prefix("ok ")?, "ok"),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, said) = rest.split_at(digits);
        let is_skipped = said.to_lowercase().contains("# skip");
        Some((number, if is_skipped { "skipped" } else { result })).filter(|_| digits > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_run_above_their_directory_of_tests() {
        assert_eq!(place("t/io/socket.t"), ("t", "io/socket.t"));
        assert_eq!(place("cpan/Socket/t/getnameinfo.t"), ("cpan/Socket", "t/getnameinfo.t"));
        let of_sockets = Regex::new(OF_SOCKETS).unwrap();
        let wanted = |name| is_wanted(name, &of_sockets);
        assert!(
            wanted("cpan/libnet/t/smtp.t") && wanted("dist/IO/t/io_sock.t") && wanted("t/io/dup.t")
        );
        assert!(
            !wanted("t/io/utf8.t")
                && !wanted("cpan/libnet/t/external")
                && !wanted("dist/IO/t/io_dir.t")
        );
    }

    #[test]
    fn results_are_read_by_number() {
        let output = "1..4\nok 1 - a\nnot ok 2 - b\nok 3 # skip no IPv6\nok\nokay 4\n";
        let results: Vec<_> = of_output(output).collect();
        assert_eq!(results, [("1", "ok"), ("2", "not ok"), ("3", "skipped")]);
    }
}
