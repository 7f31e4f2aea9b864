//! The programs that receive packets by given NAPI instances.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::Serialize;

use crate::device::Slot;
use crate::error::Error;
use crate::program::{ProcessId, Program, processes};

/// A process with sockets whose packets come by given NAPI instances.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NapiUser {
    /// The process.
    pub process: ProcessId,
    /// The name of its first thread.
    pub name: String,
    /// Its sockets by instance. A socket is given by its inode number, which is the same in all processes that have the socket.
    pub sockets: BTreeMap<u32, BTreeSet<u64>>,
}

/// The processes that use some of these NAPI instances, and the number of unreadable processes.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn users(napis: &BTreeSet<u32>) -> io::Result<(Vec<NapiUser>, usize)> {
    let (mut users, mut unreadable) = (Vec::new(), 0);
    for pid in processes()? {
        // A process that ends meanwhile uses nothing.
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

/// The users of a NAPI instance besides the processes `without`: they have a socket that none of those has. A process whose sockets
/// are all those of another one is left out, because it may only inspect them.
pub fn users_besides<'a>(
    users: &'a [NapiUser],
    napi: u32,
    without: &BTreeSet<ProcessId>,
) -> Vec<&'a NapiUser> {
    let with_sockets = || users.iter().filter_map(|user| Some((user, user.sockets.get(&napi)?)));
    let own: BTreeSet<u64> = with_sockets()
        .filter(|(user, _)| without.contains(&user.process))
        .flat_map(|(_, sockets)| sockets.iter().copied())
        .collect();
    let is_part = |user: &NapiUser, sockets: &BTreeSet<u64>| {
        with_sockets().any(|(other, more)| {
            let is_later = sockets.len() < more.len() || other.process < user.process;
            other.process != user.process && sockets.is_subset(more) && is_later
        })
    };
    with_sockets()
        .filter(|(user, sockets)| {
            !without.contains(&user.process) && !sockets.is_subset(&own) && !is_part(user, sockets)
        })
        .map(|(user, _)| user)
        .collect()
}

/// Refuses NAPI instances that this many programs use, apart from these processes. Processes of one name are one program. Returns
/// the number of unreadable processes, which may share the instances.
///
/// # Errors
/// [`Error::Shared`], or when `/proc` cannot be read.
pub fn refuse_shared(
    slots: &[Slot],
    without: &BTreeSet<ProcessId>,
    programs: usize,
) -> Result<usize, Error> {
    let names: BTreeMap<u32, &str> =
        slots.iter().map(|slot| (slot.napi.id, slot.name.as_str())).collect();
    let (users, unreadable) =
        users(&names.keys().copied().collect()).map_err(|error| Error::io("/proc", error))?;
    for (id, slot) in names {
        let others: BTreeMap<&str, i32> = users_besides(&users, id, without)
            .iter()
            .map(|it| (it.name.as_str(), it.process.pid))
            .collect();
        if others.len() >= programs {
            let others = others.iter().map(|(name, pid)| format!("{name} (pid {pid})"));
            let others = others.collect::<Vec<_>>().join(", ");
            return Err(Error::Shared { slot: slot.to_owned(), others });
        }
    }
    Ok(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(pid: i32, sockets: &[u64]) -> NapiUser {
        let process = ProcessId { pid, started: 1 };
        let sockets = [(513, sockets.iter().copied().collect())].into();
        NapiUser { process, name: format!("p{pid}"), sockets }
    }

    fn besides(users: &[NapiUser], napi: u32, without: &[i32]) -> Vec<i32> {
        let without = without.iter().map(|pid| ProcessId { pid: *pid, started: 1 }).collect();
        users_besides(users, napi, &without).iter().map(|it| it.process.pid).collect()
    }

    #[test]
    fn a_process_that_holds_the_sockets_of_another_is_no_user() {
        // Process 3 inspects a socket of process 7.
        let users = [user(3, &[11]), user(7, &[10, 11, 12]), user(9, &[20])];
        assert_eq!(besides(&users, 513, &[]), [7, 9]);
        assert_eq!(besides(&users, 513, &[7]), [9]);
        assert!(besides(&users, 514, &[]).is_empty());
        // While the server has one socket, both processes have the same sockets.
        let users = [user(3, &[11]), user(7, &[11])];
        assert_eq!(besides(&users, 513, &[]), [3]);
        assert!(besides(&users, 513, &[7]).is_empty());
    }
}
