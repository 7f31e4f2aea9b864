//! Destinations of results: standard output, JSON and HTML files.
//!
//! Files are opened before a measurement, so that a wrong path costs no measurement. A reader that closes standard output early
//! (`apus … | head`) has read enough: that is no error.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result, anyhow};
use apus_bench::report::{CONVENTIONS, failed_checks};
use apus_load::ResultFile;
use apus_load::misuse::Misuse;
use apus_load::record::record;
use apus_load::report::{self, Style};
use apus_load::stop::{CUT_SHORT, Stopped};
use serde::Serialize;

use crate::failure::Refused;
use crate::interrupt;
use crate::progress::Bar;

/// Destinations of a command's result beside its table.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct OutputArgs {
    /// Write the result as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a self-contained HTML report with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write the rows of the result as CSV to FILE, with a column for each key; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Show all columns of the tables, even beyond 80 characters
    #[arg(long)]
    pub(crate) wide: bool,
}

impl OutputArgs {
    /// Whether standard output belongs to one of the files.
    pub(crate) fn stdout_is_taken(&self) -> bool {
        [&self.json, &self.html, &self.csv]
            .into_iter()
            .any(|path| path.as_deref() == Some(Path::new("-")))
    }

    /// The arguments that name files, for [`different`].
    pub(crate) fn paths(&self) -> [(&'static str, Option<&Path>); 3] {
        let Self { json, html, csv, .. } = self;
        [("--json", json.as_deref()), ("--html", html.as_deref()), ("--csv", csv.as_deref())]
    }

    /// Opens the files, measures with a bar that shows how far it is, shows the result and writes the files.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`Output::deliver`], and as `measure` does.
    pub(crate) fn measure(
        &self,
        measure: impl FnOnce(&Bar, &mut ResultFile) -> Result<()>,
    ) -> Result<()> {
        let output = self.open()?;
        output.deliver(&measured(measure)?)
    }

    /// Opens the files. Called before the measurement.
    ///
    /// # Errors
    /// When both are the same file, or one cannot be written.
    pub(crate) fn open(&self) -> Result<Output> {
        different(&self.paths())?;
        let open = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::open).transpose();
        Ok(Output {
            tables: (!self.stdout_is_taken()).then(|| Style::for_stdout().wide(self.wide)),
            json: open(&self.json)?,
            html: open(&self.html)?,
            csv: open(&self.csv)?,
        })
    }
}

/// `--json` of a command whose result is one value and not a result file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct JsonArgs {
    /// Write the result as JSON to FILE; - is standard output, which then has no text
    #[arg(long, value_name = "FILE", value_parser = json_file)]
    json: Option<PathBuf>,
}

/// A file that JSON may replace. A trace in its place is a slip: `--json *.trace`.
fn json_file(text: &str) -> Result<PathBuf, String> {
    if text.ends_with(".trace") {
        return Err(format!(
            "{text} is a trace, which --json would overwrite; `--json - {text}` writes to standard output"
        ));
    }
    Ok(text.into())
}

impl JsonArgs {
    pub(crate) fn is_given(&self) -> bool {
        self.json.is_some()
    }

    /// Whether the JSON goes to standard output.
    pub(crate) fn takes_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// As [`deliver`](Self::deliver), for a value.
    ///
    /// # Errors
    /// As [`deliver`](Self::deliver).
    pub(crate) fn deliver_value(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        let json = json_text(value)?;
        self.deliver(|| json, text)
    }

    /// Writes the JSON to its destination, and the text to standard output unless that has the JSON.
    ///
    /// # Errors
    /// When one cannot be written.
    pub(crate) fn deliver(
        &self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<()> {
        match &self.json {
            None => print(&text()),
            Some(path) if path == Path::new("-") => print(&json()),
            Some(path) => {
                OutputFile::open(path)?.write(&json())?;
                print(&text())
            }
        }
    }
}

/// The files for a result, opened.
#[derive(Debug)]
pub(crate) struct Output {
    /// The form of the tables, if they are shown.
    tables: Option<Style>,
    json: Option<OutputFile>,
    html: Option<OutputFile>,
    csv: Option<OutputFile>,
}

impl Output {
    /// Shows the result as tables and writes the files.
    ///
    /// # Errors
    /// When a file cannot be written; then when the result was cut short or is refused as a measurement, though it was
    /// shown.
    pub(crate) fn deliver(self, result: &ResultFile) -> Result<()> {
        if let Some(style) = self.tables {
            print(&report::text(result, &CONVENTIONS, style))?;
        }
        self.write(result)?;
        conclude(result)
    }

    /// Writes the files.
    ///
    /// # Errors
    /// When one cannot be written.
    pub(crate) fn write(self, result: &ResultFile) -> Result<()> {
        if let Some(file) = self.json {
            file.write(&result.to_json())?;
        }
        if let Some(file) = self.html {
            file.write(&report::html(std::slice::from_ref(result), &CONVENTIONS)?)?;
        }
        if let Some(file) = self.csv {
            file.write(&report::csv(std::slice::from_ref(result))?)?;
        }
        Ok(())
    }
}

/// The record of the measurements of `measure`, with a progress bar.
///
/// # Errors
/// As `measure`.
pub(crate) fn measured(
    measure: impl FnOnce(&Bar, &mut ResultFile) -> Result<()>,
) -> Result<ResultFile> {
    interrupt::handle()?;
    let bar = Bar::new();
    record(|result| measure(&bar, result))
}

/// The exit code for a result that was shown.
///
/// # Errors
/// When the result was cut short, part of it is refused as a measurement, or a check of it fails.
pub(crate) fn conclude(result: &ResultFile) -> Result<()> {
    conclude_whole(result)?;
    let refused = result.rows.iter().filter(|row| row.is_refused()).count();
    if refused > 0 {
        let why = "other programs or the load kept the machine too busy, see the warnings";
        return Err(Refused(format!("{refused} measurements are refused: {why}")).into());
    }
    match failed_checks(&result.rows) {
        0 => Ok(()),
        failed => Err(anyhow!("{failed} checks FAIL, see the table")),
    }
}

/// As [`conclude`] for a table that marks refused measurements and whose other measurements count.
///
/// # Errors
/// When it was cut short.
pub(crate) fn conclude_whole(result: &ResultFile) -> Result<()> {
    if result.warnings.iter().any(|warning| warning == CUT_SHORT) {
        return Err(Stopped.into());
    }
    Ok(())
}

/// Refuses arguments that name the same file twice; devices may be named twice.
///
/// # Errors
/// With both arguments and the file.
pub(crate) fn different(paths: &[(&'static str, Option<&Path>)]) -> Result<()> {
    let given = || paths.iter().filter_map(|(argument, path)| Some((*argument, (*path)?)));
    for (number, (argument, path)) in given().enumerate() {
        let same = |(_, other): &(&str, &Path)| is_same_file(path, other);
        if let Some((other, _)) = given().skip(number + 1).find(same) {
            let path = path.display();
            return Err(Misuse(format!(
                "'{argument} {path}' and '{other} {path}': the files must differ"
            ))
            .into());
        }
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let is_device = fs::metadata(one).is_ok_and(|found| !found.is_file());
    one == Path::new("-") && other == one || !is_device && place_of(one) == place_of(other)
}

/// The canonical path of a file that exists or will be created.
fn place_of(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let parent = fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned());
    fs::canonicalize(path)
        .unwrap_or_else(|_| parent.join(path.file_name().unwrap_or(path.as_os_str())))
}

/// A file for a text. A regular file appears whole or not at all: it is written beside its place under another name, which exists
/// only while it is written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Stdout,
    /// A pipe or device.
    Device(File),
    /// Written here …
    Part {
        path: PathBuf,
        /// … and then put there.
        place: PathBuf,
    },
}

impl OutputFile {
    /// Opens it; `-` is standard output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write `{}`", path.display());
        let target = match fs::metadata(path) {
            _ if path == Path::new("-") => Target::Stdout,
            Ok(found) if !found.is_file() => {
                Target::Device(File::options().write(true).open(path).with_context(cannot)?)
            }
            _ => {
                let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                let name = place.file_name().ok_or(ErrorKind::InvalidInput);
                let mut name = name.map_err(io::Error::from).with_context(cannot)?.to_owned();
                name.push(format!(".{}.part", process::id()));
                let part = place.with_file_name(name);
                // A trial. A process that is killed before it writes leaves no file.
                File::create(&part).and_then(|_| fs::remove_file(&part)).with_context(cannot)?;
                Target::Part { path: part, place }
            }
        };
        Ok(Self { path: path.to_owned(), target })
    }

    /// Whether it is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Stdout)
    }

    /// Writes something as indented JSON.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_json(self, value: &impl Serialize) -> Result<()> {
        self.write(&json_text(value)?)
    }

    /// Writes the text, all that the file will have.
    ///
    /// # Errors
    /// When it cannot be written, for another reason than a reader that left.
    pub(crate) fn write(self, text: &str) -> Result<()> {
        self.write_by(|to| to.write_all(text.as_bytes()))
    }

    /// Has `write` write all that the file will have.
    ///
    /// # Errors
    /// When `write` fails, for another reason than a reader that left.
    pub(crate) fn write_by(
        self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let whole = |to: &mut dyn Write| {
            let mut to = BufWriter::new(to);
            write(&mut to).and_then(|()| to.flush())
        };
        let or_left = |written: io::Result<()>| match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other,
        };
        let written = match self.target {
            Target::Stdout => {
                return or_left(whole(&mut io::stdout().lock()))
                    .context("cannot write to standard output");
            }
            Target::Device(mut file) => or_left(whole(&mut file)),
            Target::Part { path, place } => {
                let written = File::create(&path).and_then(|mut file| whole(&mut file));
                let put = written.and_then(|()| fs::rename(&path, place));
                if put.is_err() {
                    // There is no file if it could not be created.
                    let _ = fs::remove_file(&path);
                }
                put
            }
        };
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

/// Writes the HTML report of some results; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_html(path: &Path, results: &[ResultFile]) -> Result<()> {
    write_text(path, &report::html(results, &CONVENTIONS)?)
}

/// Writes something as indented JSON; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write_text(path, &json_text(value)?)
}

fn json_text(value: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(value).context("cannot write as JSON")?;
    text.push('\n');
    Ok(text)
}

/// Writes text to a file; `-` is standard output.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    fs::write(path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Writes a line for people: to standard output, or to standard error when standard output belongs to a file.
///
/// # Errors
/// When it cannot be written, for another reason than a reader that left.
pub(crate) fn say(output: &OutputArgs, line: &str) -> Result<()> {
    if !output.stdout_is_taken() {
        return print(&format!("{line}\n"));
    }
    // An error of standard error itself cannot be reported.
    let _ = writeln!(io::stderr(), "{line}");
    Ok(())
}

/// Writes text to standard output.
///
/// # Errors
/// When it cannot be written, for another reason than a reader that left.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of a test's own, removed at its end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("apus-output-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_file_cannot_take_two_outputs() {
        let directory = Directory::new("same");
        let (file, detour) = (directory.0.join("x"), directory.0.join(".").join("x"));
        for (one, other) in [(file.as_path(), detour.as_path()), (Path::new("-"), Path::new("-"))] {
            let error = different(&[("--json", Some(one)), ("--html", Some(other))]).unwrap_err();
            assert!(error.is::<Misuse>() && error.to_string().contains("'--html"), "{error}");
        }
        let others = [("--json", Some(file.as_path())), ("--html", None), ("--dump", None)];
        assert!(different(&others).is_ok());
        let null = Some(Path::new("/dev/null"));
        assert!(different(&[("--json", null), ("--html", null)]).is_ok());
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = Directory::new("whole");
        let path = directory.0.join("x");
        let file = OutputFile::open(&path).unwrap();
        assert!(directory.names().is_empty(), "a process that is killed now leaves no file");
        let failed = file.write_by(|_| Err(ErrorKind::StorageFull.into()));
        assert!(failed.is_err() && directory.names().is_empty());
        let file = OutputFile::open(&path).unwrap();
        file.write("text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(directory.names(), ["x"]);
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let error = OutputFile::open(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write `/nowhere/at/all`: No such"));
        assert!(OutputFile::open(Path::new("/")).is_err());
        OutputFile::open(Path::new("/dev/null")).unwrap().write("text").unwrap();
    }

    #[test]
    fn a_refused_or_shortened_result_is_no_success() {
        let machine = apus_load::Machine::default();
        let mut result = ResultFile::new("apus lab run", machine);
        let row = apus_load::Row::new("apus-udp");
        result.rows.push(row.clone().set("verdict", "good"));
        assert!(conclude(&result).is_ok());
        result.rows.push(row.set("verdict", apus_load::REFUSED));
        assert!(conclude(&result).unwrap_err().is::<Refused>());
        let slow = |transport: &str, p50_us: f64| {
            let row = apus_load::Row::new(transport).set("bench", "sockets rr").set("pin", "split");
            row.set("size_bytes", 1000).set("p50_us", p50_us)
        };
        let mut failed = ResultFile::new("apus bench sockets", apus_load::Machine::default());
        failed.rows = vec![slow("apus-run", 1.0), slow("raw-shm", 0.3)];
        assert!(conclude(&failed).is_ok());
        failed.rows[0] = slow("apus-run", 900.0);
        let error = conclude(&failed).unwrap_err();
        assert!(error.to_string().contains("1 checks FAIL") && !error.is::<Refused>(), "{error}");
        result.warn(CUT_SHORT);
        assert!(conclude(&result).unwrap_err().is::<Stopped>());
    }
}
