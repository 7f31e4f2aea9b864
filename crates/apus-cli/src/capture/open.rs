//! `apus capture open`: a file of captured packets with the content of sealed datagrams.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_net::packet_file::{OpenFileError, OpeningReport, open_file, read_keys};
use apus_net::private_file;
use apus_seal::{AwsAead, LoggedKeys};
use serde::Serialize;

use crate::output::JsonArgs;

/// Open the sealed datagrams of a capture with the keys that a node has logged
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  APUS_KEYLOG=/root/keys apus node server
  tcpdump -i eth0 -w sealed.pcap udp port 20146
  apus capture open sealed.pcap /root/keys opened.pcapng
  wireshark -X lua_script:wireshark/homa.lua opened.pcapng

IN is a pcap or pcapng file. OUT is a pcapng file (mode 0600), because it has the content of messages; a file of that name is replaced. \
Datagrams whose keys are missing stay sealed, and all other packets stay as they are. A packet that the kernel had joined of several \
datagrams becomes one for each.

KEYS is the file of the setting keylog (APUS_KEYLOG) of one end of each path. It has the keys that were used since its node has \
started. docs/capture.md describes more.")]
pub(crate) struct Args {
    /// Captured packets: a pcap or pcapng file
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Key log of a node
    #[arg(value_name = "KEYS")]
    keys: PathBuf,
    /// File to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    json: JsonArgs,
}

/// The result of a run.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct OpenedFile {
    /// Different keys in the key log.
    keys: usize,
    /// Packets in the captured file.
    packets: u64,
    /// Sealed datagrams that were opened.
    opened: u64,
    /// Those that stay sealed: without a key in the log, with a tag that no key fits, and not captured completely.
    without_key: u64,
    forged: u64,
    cut: u64,
}

/// Writes the file and shows the number of opened datagrams.
///
/// # Errors
/// When a file cannot be read or written, or has another format.
pub(crate) fn run(args: &Args) -> Result<()> {
    let opened = open(args)?;
    args.json.deliver_value(&opened, || text(&opened, &args.output))
}

fn open(args: &Args) -> Result<OpenedFile> {
    let Args { input, keys, output, .. } = args;
    refuse_same(output, "IN", input)?;
    refuse_same(output, "KEYS", keys)?;
    let cannot_read = |path: &Path| format!("cannot read `{}`", path.display());
    let log = File::open(keys).with_context(|| cannot_read(keys))?;
    let mut log: LoggedKeys<AwsAead> =
        read_keys(BufReader::new(log)).with_context(|| cannot_read(keys))?;
    let packets = BufReader::new(File::open(input).with_context(|| cannot_read(input))?);
    let cannot_write = || format!("cannot write `{}`", output.display());
    let file = private_file::create(output).with_context(cannot_write)?;
    match open_file(packets, &mut log, BufWriter::new(file)) {
        Ok(report) => Ok(OpenedFile::of(log.len(), report)),
        Err(OpenFileError::Read(error)) => Err(error).with_context(|| cannot_read(input)),
        Err(error) => Err(error).with_context(cannot_write),
    }
}

/// The output is emptied before the rest is read.
fn refuse_same(output: &Path, name: &str, other: &Path) -> Result<()> {
    let identity = |path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    if identity(output).is_some_and(|output| Some(output) == identity(other)) {
        let text = format!("'{}': OUT is the same file as {name}", output.display());
        return Err(Misuse(text).into());
    }
    Ok(())
}

impl OpenedFile {
    fn of(keys: usize, report: OpeningReport) -> Self {
        let OpeningReport { frames, opened, without_key, forged, cut, .. } = report;
        Self { keys, packets: frames, opened, without_key, forged, cut }
    }
}

fn text(opened: &OpenedFile, output: &Path) -> String {
    let OpenedFile { keys, packets, opened, without_key, forged, cut } = opened;
    let output = output.display();
    let mut text = format!(
        "{packets} packets, {opened} sealed datagrams opened with {keys} keys: {output} (plaintext)\n"
    );
    for (count, reason) in [
        (without_key, "the key log has no key of their paths"),
        (forged, "no key of their paths fits: they were changed, or a key is missing"),
        (cut, "they were not captured completely (tcpdump -s 0)"),
    ] {
        if *count > 0 {
            text.push_str(&format!("{count} stay sealed: {reason}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &str =
        "APUS2 040000123456789a 0 1 1fca58a4f5965f6ae5edfb64290ba5bb b9f763ecbce6855a7ea37ca2\n";

    /// A directory with files, removed when dropped.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let name = format!("apus-capture-open-{}-{name}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(&directory).unwrap();
            Self(directory)
        }

        fn args(&self, input: &[u8], keys: &str) -> Args {
            let path = |name| self.0.join(name);
            fs::write(path("in.pcap"), input).unwrap();
            fs::write(path("keys"), keys).unwrap();
            let (input, keys, output) = (path("in.pcap"), path("keys"), path("out.pcapng"));
            Args { input, keys, output, json: JsonArgs::default() }
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The header of a pcap file of raw IP packets.
    fn pcap() -> Vec<u8> {
        let words = [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 262_144, 101];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn the_output_is_private_and_the_result_is_shown() {
        let files = Files::new("private");
        let args = files.args(&pcap(), KEY);
        fs::write(&args.output, "old").unwrap();
        let opened = open(&args).unwrap();
        assert_eq!((opened.keys, opened.packets, opened.opened), (1, 0, 0));
        let mode = fs::metadata(&args.output).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let shown = OpenedFile { without_key: 2, cut: 1, ..opened };
        let expected = "0 packets, 0 sealed datagrams opened with 1 keys: out (plaintext)
2 stay sealed: the key log has no key of their paths
1 stay sealed: they were not captured completely (tcpdump -s 0)
";
        assert_eq!(text(&shown, Path::new("out")), expected);
    }

    #[test]
    fn errors_name_the_file() {
        let files = Files::new("errors");
        let error = |args: &Args| crate::failure::message(&open(args).unwrap_err());
        let args = files.args(b"no packets", KEY);
        let said = error(&args);
        assert!(said.contains("in.pcap`: neither a pcap nor a pcapng file"), "{said}");
        let mut cut = pcap();
        cut.extend([0; 9]);
        let said = error(&files.args(&cut, KEY));
        assert!(said.contains("in.pcap`: the file ends in the middle of a packet"), "{said}");
        let said = error(&files.args(&pcap(), "no key\n"));
        assert!(said.contains("keys`: line 1: expected 'APUS2 "), "{said}");
        let mut args = files.args(&pcap(), KEY);
        args.output = files.0.join("missing/out");
        assert!(error(&args).contains("cannot write `"), "{}", error(&args));
        args.output.clone_from(&args.input);
        assert!(error(&args).contains("OUT is the same file as IN"), "{}", error(&args));
        assert_eq!(fs::read(&args.input).unwrap(), pcap());
    }
}
