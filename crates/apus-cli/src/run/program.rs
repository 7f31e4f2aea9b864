//! Which file a program is, and whether the dynamic linker would preload a library into it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::unistd::{getgid, getuid};
use object::elf::{FileHeader32, FileHeader64, Machine, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

use crate::failure::NotStarted;

/// Scripts that run scripts, as deep as the kernel follows them.
const SCRIPTS_MAX: usize = 4;

/// Bytes of the first line of a script that the kernel reads.
const SCRIPT_LINE_MAX: u64 = 256;

/// Finds the file of a program: a path, or a name that is looked up in `PATH`.
///
/// # Errors
/// When no file is found, or it may not be executed.
pub(super) fn find(name: &OsStr) -> Result<PathBuf> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(file) if is_executable(&file) => Ok(path),
            Ok(_) => Err(cannot(format!("`{shown}` is not executable"))),
            Err(error) => Err(not_found(format!("cannot find the program `{shown}`: {error}"))),
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let files =
        || env::split_paths(&path).map(|directory| directory.join(name)).filter(|p| p.is_file());
    let executable = files().find(|path| fs::metadata(path).is_ok_and(|file| is_executable(&file)));
    executable.ok_or_else(|| match files().next() {
        Some(path) => cannot(format!("`{}` is not executable", path.display())),
        None => not_found(format!("cannot find the program `{shown}` in PATH")),
    })
}

/// Why the dynamic linker would not preload a library into this program; `None` if it would.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn why_not_preloaded(path: &Path) -> Result<Option<String>> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        // A program that may be executed but not read is the kernel's business.
        let Ok(mut file) = File::open(&path) else { return Ok(None) };
        if let Some(interpreter) = script_interpreter(&mut file)? {
            path = interpreter;
            continue;
        }
        let metadata =
            file.metadata().with_context(|| format!("cannot read `{}`", path.display()))?;
        if let Some(why) = privileged(&path, &metadata) {
            return Ok(Some(why));
        }
        file.rewind()?;
        return Ok(linkage(file));
    }
    Ok(None)
}

fn is_executable(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o111 != 0
}

/// The interpreter that the first line of a script names.
fn script_interpreter(file: &mut File) -> Result<Option<PathBuf>> {
    let mut line = Vec::new();
    BufReader::new(file.take(SCRIPT_LINE_MAX)).read_until(b'\n', &mut line)?;
    let words = line.strip_prefix(b"#!").map(<[u8]>::trim_ascii).unwrap_or_default();
    let name = words.split(|byte| b" \t".contains(byte)).next().unwrap_or_default();
    Ok((!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name))))
}

/// Whether the program gains privileges when it starts: then the dynamic linker ignores `LD_PRELOAD`.
fn privileged(path: &Path, file: &Metadata) -> Option<String> {
    let mode = file.permissions().mode();
    let gains_user = mode & 0o4000 != 0 && file.uid() != getuid().as_raw();
    let gains_group = mode & 0o2010 == 0o2010 && file.gid() != getgid().as_raw();
    if gains_user || gains_group {
        return Some("it is setuid or setgid, so the dynamic linker ignores LD_PRELOAD".to_owned());
    }
    let mut capabilities = [0; 64];
    let found = rustix::fs::getxattr(path, c"security.capability", &mut capabilities);
    let gains = found.is_ok_and(|bytes| bytes > 0) && !getuid().is_root();
    gains.then(|| "it has capabilities, so the dynamic linker ignores LD_PRELOAD".to_owned())
}

/// The linkage of the program, as far as it decides about preloading.
fn linkage(file: File) -> Option<String> {
    let cache = ReadCache::new(file);
    // A file that is no ELF file of 64 bits is a script without a first line, or a program of another machine.
    let Ok(header) = FileHeader64::<Endianness>::parse(&cache) else {
        return other_machine(&cache);
    };
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != MACHINE {
        return Some(OTHER_MACHINE.to_owned());
    }
    let headers: &[ProgramHeader64<Endianness>] = header.program_headers(endian, &cache).ok()?;
    let linker =
        headers.iter().find_map(|header| header.interpreter(endian, &cache).ok().flatten());
    let Some(linker) = linker else {
        return Some("it is statically linked".to_owned());
    };
    let name =
        Path::new(OsStr::from_bytes(linker)).file_name().unwrap_or_default().to_string_lossy();
    match &*name {
        name if name.starts_with("ld-musl") => {
            Some("it uses musl, and the library needs glibc".to_owned())
        }
        name if name.starts_with("ld-linux") => None,
        name => Some(format!("its dynamic linker is {name}, and the library needs glibc")),
    }
}

fn other_machine(cache: &ReadCache<File>) -> Option<String> {
    FileHeader32::<Endianness>::parse(cache).is_ok().then(|| OTHER_MACHINE.to_owned())
}

const OTHER_MACHINE: &str = "it is for another architecture than the library";

#[cfg(target_arch = "x86_64")]
const MACHINE: Machine = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: Machine = object::elf::EM_AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: Machine = object::elf::EM_NONE; // the library knows the variadic calls of two machines

fn not_found(why: String) -> anyhow::Error {
    NotStarted { code: NotStarted::NOT_FOUND, why }.into()
}

fn cannot(why: String) -> anyhow::Error {
    NotStarted { code: NotStarted::CANNOT, why }.into()
}
