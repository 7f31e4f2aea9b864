//! The kernel's list of tracepoints: their numbers, and the offsets of the fields of their records.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The directory in which the kernel describes its tracepoints (tracefs).
#[derive(Debug)]
pub(crate) struct Tracing(OwnedFd);

impl Tracing {
    /// Opens tracefs where it is usually mounted. Where it is not, as in a network namespace of `ip netns exec`, tracefs is mounted
    /// for this process alone, outside every directory, and the mount ends with its descriptor.
    ///
    /// # Errors
    /// When the kernel has no tracefs, or this process may not mount it.
    pub(crate) fn open() -> io::Result<Self> {
        let mounted = PLACES.iter().find_map(|place| {
            let directory = File::open(place).ok()?;
            let tracing = Self(directory.into());
            tracing.read("events/header_page").is_ok().then_some(tracing)
        });
        if let Some(tracing) = mounted {
            return Ok(tracing);
        }
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(context.as_fd())?;
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        Ok(Self(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, read_only)?))
    }

    /// The format of a tracepoint's records.
    ///
    /// # Errors
    /// When there is no such tracepoint, or its description may not be read.
    pub(crate) fn format(&self, tracepoint: &str) -> io::Result<Format> {
        let text = self.read(&format!("events/{tracepoint}/format"))?;
        Format::parse(&text).ok_or_else(|| {
            let why = format!("cannot read the kernel's description of {tracepoint}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.0, path, flags, Mode::empty())?);
        let mut text = String::new();
        file.take(DESCRIPTION_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }
}

/// The format of the records of a tracepoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    /// Number of the tracepoint.
    pub(crate) id: u16,
    fields: Vec<(String, Field)>,
}

/// A field of a tracepoint's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    offset: usize,
    bytes: usize,
}

impl Format {
    /// Parses the text of a file `format` of tracefs.
    fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("field:"));
        let fields = lines.map(Self::field).collect::<Option<_>>()?;
        Some(Self { id, fields })
    }

    /// Parses a line, without the word `field:`: type and name, offset, size, sign, with semicolons between them.
    fn field(line: &str) -> Option<(String, Field)> {
        let mut parts = line.split(';').map(str::trim);
        let name = parts.next()?.split_whitespace().last()?.split('[').next()?;
        let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
        let bytes = parts.next()?.strip_prefix("size:")?.parse().ok()?;
        Some((name.to_owned(), Field { offset, bytes }))
    }

    /// The field of this name.
    ///
    /// # Errors
    /// When this kernel's tracepoint has no such field.
    pub(crate) fn find(&self, name: &str) -> io::Result<Field> {
        let found = self.fields.iter().find(|(other, _)| other == name).map(|(_, field)| *field);
        found.ok_or_else(|| {
            let why = format!("tracepoint {} of this kernel has no field {name}", self.id);
            io::Error::new(io::ErrorKind::Unsupported, why)
        })
    }
}

impl Field {
    /// The value of the field in a record, without its sign; `None` if the record is too short.
    pub(crate) fn unsigned(self, record: &[u8]) -> Option<u64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.bytes)?)?;
        Some(match *bytes {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }

    /// The value of the field as a signed number of 32 bits.
    pub(crate) fn int(self, record: &[u8]) -> Option<i32> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.bytes)?)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// The text that the field points to (`__data_loc`: length in the upper half, offset in the lower one).
    pub(crate) fn text(self, record: &[u8]) -> Option<&str> {
        let place = usize::try_from(self.unsigned(record)?).ok()?;
        let (offset, length) = (place & 0xffff, place >> 16);
        let bytes = record.get(offset..offset.checked_add(length)?)?;
        std::str::from_utf8(bytes).ok().map(|text| text.trim_end_matches('\0'))
    }
}

/// The address of a kernel function in the text of `/proc/kallsyms`; `None` if the function is missing, or addresses are hidden.
pub(crate) fn address(symbols: &str, function: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let (address, _, name) = (words.next()?, words.next()?, words.next()?);
        (name == function).then(|| u64::from_str_radix(address, 16).ok())?
    };
    symbols.lines().find_map(of_line).filter(|address| *address != 0)
}

const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

const DESCRIPTION_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of Linux 6.18.
    const NAPI_POLL: &str = "name: napi_poll\nID: 2291\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
        \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:struct napi_struct * napi;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] dev_name;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:int work;\toffset:20;\tsize:4;\tsigned:1;\n\
        \tfield:int budget;\toffset:24;\tsize:4;\tsigned:1;\n\n\
        print fmt: \"napi poll on napi struct %p for device %s work %d budget %d\", REC->napi\n";

    #[test]
    fn fields_are_found_by_name() {
        let format = Format::parse(NAPI_POLL).unwrap();
        assert_eq!(format.id, 2291);
        assert_eq!(format.find("work").unwrap(), Field { offset: 20, bytes: 4 });
        assert!(format.find("irq").unwrap_err().to_string().contains("no field irq"));
        assert_eq!(Format::parse("name: x\n"), None);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn a_record_is_read() {
        let format = Format::parse(NAPI_POLL).unwrap();
        let mut record = vec![0xf3, 8, 0x10, 0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8];
        record.extend([28, 0, 5, 0, 3, 0, 0, 0, 64, 0, 0, 0]);
        record.extend(b"eth0\0\0\0\0");
        let field = |name: &str| format.find(name).unwrap();
        assert_eq!(field("common_type").unsigned(&record), Some(2291));
        assert_eq!(field("common_flags").unsigned(&record), Some(0x10));
        assert_eq!(field("common_pid").int(&record), Some(-1));
        assert_eq!(field("napi").unsigned(&record), Some(0x0807_0605_0403_0201));
        assert_eq!(field("dev_name").text(&record), Some("eth0"));
        assert_eq!(field("work").int(&record[..22]), None);
    }

    #[test]
    fn hidden_addresses_are_none() {
        let symbols = "ffffffff81e609e0 t napi_watchdog\n0000000000000000 t napi_hidden\n";
        assert_eq!(address(symbols, "napi_watchdog"), Some(0xffff_ffff_81e6_09e0));
        assert_eq!(address(symbols, "napi_hidden"), None);
        assert_eq!(address(symbols, "napi"), None);
    }
}
