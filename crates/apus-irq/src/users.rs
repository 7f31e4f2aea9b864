//! Which programs receive packets by which NAPI instances.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::Serialize;

use crate::program::{ProcessId, Program, processes};

/// A process with sockets whose packets come by certain NAPI instances.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NapiUser {
    /// The process.
    pub process: ProcessId,
    /// The name of its first thread.
    pub name: String,
    /// Its sockets by instance.
    pub sockets: BTreeMap<u32, usize>,
}

/// The processes that use some of these NAPI instances, and how many processes may not be read.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn users(napis: &BTreeSet<u32>) -> io::Result<(Vec<NapiUser>, usize)> {
    let (mut users, mut unreadable) = (Vec::new(), 0);
    for pid in processes()? {
        // Those that end meanwhile use nothing.
        let Ok(program) = Program::open(pid) else { continue };
        match program.sockets_by_napi() {
            Ok(mut sockets) => {
                sockets.retain(|id, _| napis.contains(id));
                if !sockets.is_empty() {
                    let (process, name) = (program.id(), program.name().to_owned());
                    users.push(NapiUser { process, name, sockets });
                }
            }
            Err(_) if !program.id().runs() => {}
            Err(_) => unreadable += 1,
        }
    }
    Ok((users, unreadable))
}
