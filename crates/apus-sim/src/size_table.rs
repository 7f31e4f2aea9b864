//! Message lengths from a CSV file.

use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apus_load::Random;
use rand::RngExt;
use siphasher::sip::SipHasher13;

/// Upper bound on the length of a file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Upper bound on the length of a message.
const BYTES_MAX: u32 = 1 << 30;

/// Upper bound on the difference between the end of a cumulative distribution and 1.
const CDF_ERROR_MAX: f64 = 1e-3;

const ALLOWED: &str = "allowed is bytes,weight or bytes,cdf with 1 to 1073741824 bytes, weights from 0, and a cdf that rises to 1 with the bytes";

/// Message lengths with their shares, read from a CSV file.
///
/// A file has two columns: `bytes` and `weight` (or `count`), or `bytes` and `cdf`, the share of messages up to this length. The
/// heading may be left out with weights. Lines that begin with `#` are comments. Messages have exactly the lengths of the file,
/// without interpolation.
#[derive(Clone, Debug)]
pub struct SizeTable {
    path: PathBuf,
    /// Digest of the file's bytes, so that a plan detects a changed table.
    digest: u64,
    /// Bins in rising order.
    bins: Arc<[Bin]>,
}

#[derive(Clone, Copy, Debug)]
struct Bin {
    bytes: u32,
    share: f64,
    /// Share of the messages up to this length.
    up_to: f64,
}

impl PartialEq for SizeTable {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, self.digest) == (&other.path, other.digest)
    }
}

impl Eq for SizeTable {}

impl SizeTable {
    /// Reads `PATH`, or `PATH#DIGEST` whose bytes must have that digest.
    pub(crate) fn read(name: &str) -> Result<Self, String> {
        let (path, wanted) = match name.rsplit_once('#') {
            Some((path, digest)) if digest.len() == 16 => {
                (path, u64::from_str_radix(digest, 16).ok())
            }
            _ => (name, None),
        };
        let path = Path::new(path);
        let shown = path.display();
        let cannot = |error| format!("cannot read the sizes `{shown}`: {error}");
        let length = fs::metadata(path).map_err(cannot)?.len();
        if length > FILE_BYTES_MAX {
            return Err(format!("the sizes `{shown}` are {length} bytes; allowed are 16 MiB"));
        }
        let text = fs::read(path).map_err(cannot)?;
        let mut hasher = SipHasher13::new();
        hasher.write(&text);
        let digest = hasher.finish();
        if wanted.is_some_and(|wanted| wanted != digest) {
            return Err(format!("the sizes in `{shown}` differ from those of the plan"));
        }
        let bins = parse(&text).map_err(|error| format!("sizes `{shown}`, {error}; {ALLOWED}"))?;
        Ok(Self { path: path.to_owned(), digest, bins: bins.into() })
    }

    /// The name with the digest, which [`read`](Self::read) takes.
    pub(crate) fn name(&self) -> String {
        format!("{}#{:016x}", self.path.display(), self.digest)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn sample(&self, rng: &mut Random) -> u32 {
        let at: f64 = rng.random();
        let place = self.bins.partition_point(|bin| bin.up_to <= at);
        self.bins[place.min(self.bins.len() - 1)].bytes
    }

    pub(crate) fn each_size(&self, mut visit: impl FnMut(u32, f64)) {
        self.bins.iter().for_each(|bin| visit(bin.bytes, bin.share));
    }

    /// All lengths in rising order.
    pub(crate) fn lengths(&self) -> impl ExactSizeIterator<Item = u32> {
        self.bins.iter().map(|bin| bin.bytes)
    }
}

/// Meaning of the second column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueColumn {
    Weight,
    Cdf,
}

fn parse(text: &[u8]) -> Result<Vec<Bin>, String> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .flexible(true)
        .from_reader(text);
    let mut kind = ValueColumn::Weight;
    let mut pairs: Vec<(u32, f64)> = Vec::new();
    for (number, record) in reader.records().enumerate() {
        let record = record.map_err(|error| error.to_string())?;
        let fields: Vec<&str> = record.iter().collect();
        if number == 0 {
            match fields[..] {
                ["bytes", "weight" | "count"] => continue,
                ["bytes", "cdf"] => {
                    kind = ValueColumn::Cdf;
                    continue;
                }
                _ => {}
            }
        }
        let line = record.position().map_or(0, csv::Position::line);
        let wrong = || format!("line {line}: `{}` is not a size", fields.join(","));
        let [bytes, share] = fields[..] else { return Err(wrong()) };
        let (bytes, share): (u32, f64) =
            (bytes.parse().map_err(|_| wrong())?, share.parse().map_err(|_| wrong())?);
        let rises = |last: &(u32, f64)| bytes > last.0 && share >= last.1;
        let is_right = (1..=BYTES_MAX).contains(&bytes)
            && share.is_finite()
            && share >= 0.0
            && (kind == ValueColumn::Weight || pairs.last().is_none_or(rises));
        if !is_right {
            return Err(wrong());
        }
        pairs.push((bytes, share));
    }
    let total: f64 = match kind {
        ValueColumn::Weight => pairs.iter().fold(0.0, |sum, (_, share)| sum + share),
        ValueColumn::Cdf => pairs.last().map_or(0.0, |(_, share)| *share),
    };
    if !(total > 0.0 && total.is_finite())
        || kind == ValueColumn::Cdf && (total - 1.0).abs() > CDF_ERROR_MAX
    {
        return Err(format!("the total of its shares is {total}"));
    }
    Ok(bins(pairs, kind, total))
}

fn bins(mut pairs: Vec<(u32, f64)>, kind: ValueColumn, total: f64) -> Vec<Bin> {
    pairs.sort_by_key(|(bytes, _)| *bytes);
    let mut bins: Vec<Bin> = Vec::with_capacity(pairs.len());
    let mut sum = 0.0;
    for (bytes, value) in pairs {
        let share = match kind {
            ValueColumn::Weight => value / total,
            ValueColumn::Cdf => value / total - sum,
        };
        sum += share;
        match bins.last_mut() {
            Some(last) if last.bytes == bytes => {
                (last.share, last.up_to) = (last.share + share, sum)
            }
            _ => bins.push(Bin { bytes, share, up_to: sum }),
        }
    }
    bins.retain(|bin| bin.share > 0.0);
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(text: &str) -> Vec<(u32, f64)> {
        let round = |share: f64| (share * 1e6).round() / 1e6;
        let bins = parse(text.as_bytes()).unwrap();
        bins.iter().map(|bin| (bin.bytes, round(bin.share))).collect()
    }

    #[test]
    fn weights_and_cumulative_shares_read() {
        assert_eq!(shares("1000,1\n100,2\n100,1\n"), [(100, 0.75), (1000, 0.25)]);
        assert_eq!(shares("bytes, count\n# short\n100, 9\n1000, 1\n"), [(100, 0.9), (1000, 0.1)]);
        let cdf = "bytes,cdf\n64,0\n100,0.5\n1000,0.5\n10000,1\n";
        assert_eq!(shares(cdf), [(100, 0.5), (10_000, 0.5)]);
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        let error = |text: &str| parse(text.as_bytes()).unwrap_err();
        assert_eq!(error("100,1\n0,1\n"), "line 2: `0,1` is not a size");
        assert_eq!(error("size,share\n100,1\n"), "line 1: `size,share` is not a size");
        for text in ["100", "100,1,2", "100,-1", "100,NaN", "100,inf", "4294967296,1"] {
            assert!(error(text).ends_with("is not a size"), "{text}");
        }
        assert!(error("bytes,cdf\n100,0.5\n50,1\n").starts_with("line 3"));
        assert_eq!(error("bytes,cdf\n100,0.5\n"), "the total of its shares is 0.5");
        assert_eq!(error(""), "the total of its shares is 0");
        assert_eq!(error("1,1e308\n2,1e308\n"), "the total of its shares is inf");
    }

    #[test]
    fn a_changed_file_is_not_the_table_of_the_plan() {
        let path = std::env::temp_dir().join(format!("apus-sizes-{}.csv", std::process::id()));
        fs::write(&path, "100,1\n").unwrap();
        let table = SizeTable::read(path.to_str().unwrap()).unwrap();
        assert_eq!(SizeTable::read(&table.name()).unwrap(), table);
        fs::write(&path, "200,1\n").unwrap();
        let changed = SizeTable::read(&table.name());
        fs::remove_file(&path).unwrap();
        assert!(changed.unwrap_err().contains("differ from those of the plan"));
    }
}
