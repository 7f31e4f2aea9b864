//! The epoll sets and sockets of another process, reached through duplicates of its descriptors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use procfs::process::{Process, Stat};
use rustix::fs::fstat;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::epoll::{EpollParameters, incoming_napi};
use crate::socket::Socket;

/// Identifies a process by PID and start time, because PIDs are reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ProcessId {
    /// The PID.
    pub pid: i32,
    /// Start time, in ticks of the kernel's clock since the boot.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this PID now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: stat(pid)?.starttime })
    }

    /// This process.
    ///
    /// # Errors
    /// When `/proc` is missing.
    pub fn own() -> io::Result<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Whether the process still runs. A process that waits to be reaped does not.
    pub fn runs(&self) -> bool {
        stat(self.pid)
            .is_ok_and(|it| it.starttime == self.started && !matches!(it.state, 'Z' | 'X'))
    }

    /// The process and its descendants, the process first. Unreadable processes are left out.
    pub fn with_descendants(&self) -> Vec<Self> {
        let mut all = vec![*self];
        let mut next = 0;
        while let Some(process) = all.get(next).copied() {
            next += 1;
            for pid in process.children() {
                all.extend(
                    Self::of(pid).ok().filter(|it| all.len() < PROCESSES_MAX && !all.contains(it)),
                );
            }
        }
        all
    }

    /// The PIDs of its children, including ended ones that were not reaped; empty if they cannot be read.
    pub fn children(&self) -> Vec<i32> {
        let Ok(tasks) = Process::new(self.pid).and_then(|it| it.tasks()) else { return Vec::new() };
        let children = tasks.flatten().filter_map(|task| task.children().ok()).flatten();
        children.filter_map(|pid| i32::try_from(pid).ok()).collect()
    }
}

/// An open process, whose descriptors can be duplicated.
#[derive(Debug)]
pub struct Program {
    id: ProcessId,
    name: String,
    pidfd: OwnedFd,
}

/// An epoll set of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EpollSet {
    /// The descriptor of the set in the process.
    pub fd: i32,
    /// Its parameters.
    pub parameters: EpollParameters,
    /// Number of descriptors that the set watches.
    pub members: usize,
    /// Number of internet sockets among them.
    pub sockets: usize,
    /// Number of sockets among them for each NAPI instance of their last packets. A set with several instances polls only the one
    /// of the last event.
    pub napis: BTreeMap<u32, usize>,
    /// Number of unreadable members: descriptors that only another process has.
    pub unknown: usize,
}

impl Program {
    /// Opens a process.
    ///
    /// # Errors
    /// When there is none of this number.
    pub fn open(pid: i32) -> io::Result<Self> {
        let raw = Some(pid)
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw)
            .ok_or(io::ErrorKind::NotFound)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        let stat = stat(pid)?;
        Ok(Self { id: ProcessId { pid, started: stat.starttime }, name: stat.comm, pidfd })
    }

    /// The identity of the process.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// The name of its first thread.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A descriptor that becomes readable when the process has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// The epoll sets of the process.
    ///
    /// # Errors
    /// When its descriptors may not be read, or the kernel knows no parameters of epoll sets (before Linux 6.9).
    pub fn epoll_sets(&self) -> io::Result<Vec<EpollSet>> {
        let mut sets = Vec::new();
        for fd in self.epoll_fds()? {
            match self.epoll_set(fd) {
                Ok(set) => sets.push(set),
                Err(error) if is_gone(&error) => {} // The process closed it meanwhile.
                Err(error) => return Err(error),
            }
        }
        Ok(sets)
    }

    /// The descriptors of its epoll sets, in order.
    ///
    /// # Errors
    /// When its descriptors may not be read.
    pub fn epoll_fds(&self) -> io::Result<Vec<i32>> {
        self.fds(|target| target == "anon_inode:[eventpoll]")
    }

    /// The parameters of one of its epoll sets.
    ///
    /// # Errors
    /// When it has no such epoll set, or it may not be read.
    pub fn epoll_parameters(&self, fd: i32) -> io::Result<EpollParameters> {
        EpollParameters::of(self.duplicate(fd)?)
    }

    /// Sets the parameters of one of its epoll sets.
    ///
    /// # Errors
    /// As [`epoll_parameters`](Self::epoll_parameters) and [`EpollParameters::set`].
    pub fn set_epoll_parameters(&self, fd: i32, parameters: &EpollParameters) -> io::Result<()> {
        parameters.set(self.duplicate(fd)?)
    }

    /// Its internet sockets.
    ///
    /// # Errors
    /// When its descriptors may not be read.
    pub fn sockets(&self) -> io::Result<Vec<Socket>> {
        let mut sockets = Vec::new();
        for fd in self.fds(|target| target.starts_with("socket:"))? {
            match self.duplicate(fd).and_then(|duplicate| Socket::read(fd, duplicate)) {
                Ok(socket) => sockets.extend(socket),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sockets)
    }

    /// Whether the process has an internet socket. The search ends at the first one.
    ///
    /// # Errors
    /// When its descriptors may not be read.
    pub fn has_internet_socket(&self) -> io::Result<bool> {
        for fd in self.socket_fds()? {
            match self.duplicate(fd).and_then(|duplicate| Socket::read(fd, duplicate)) {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The number of its io_uring rings.
    ///
    /// # Errors
    /// When its descriptors may not be read.
    pub fn io_urings(&self) -> io::Result<usize> {
        Ok(self.fds(|target| target == "anon_inode:[io_uring]")?.len())
    }

    /// Its sockets by the NAPI instance of their last packet. A socket is given by its inode number, which is the same in all
    /// processes that have the socket.
    ///
    /// # Errors
    /// When its descriptors may not be read.
    pub fn sockets_by_napi(&self) -> io::Result<BTreeMap<u32, BTreeSet<u64>>> {
        let mut napis: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for fd in self.socket_fds()? {
            let read = |duplicate: OwnedFd| -> io::Result<_> {
                Ok((incoming_napi(&duplicate)?, fstat(&duplicate)?.st_ino))
            };
            match self.duplicate(fd).and_then(read) {
                Ok((Some(id), inode)) => {
                    napis.entry(id).or_default().insert(inode);
                }
                Ok((None, _)) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(napis)
    }

    /// The descriptors of its sockets, in order.
    pub(crate) fn socket_fds(&self) -> io::Result<Vec<i32>> {
        self.fds(|target| target.starts_with("socket:"))
    }

    fn epoll_set(&self, fd: i32) -> io::Result<EpollSet> {
        let parameters = self.epoll_parameters(fd)?;
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.id.pid))?;
        let members = members(&info);
        let mut set = EpollSet {
            fd,
            parameters,
            members: members.len(),
            sockets: 0,
            napis: BTreeMap::new(),
            unknown: 0,
        };
        for member in members {
            match self.duplicate(member).and_then(|duplicate| Socket::read(member, duplicate)) {
                Ok(None) => {}
                Ok(Some(socket)) => {
                    set.sockets += 1;
                    if let Some(id) = socket.napi {
                        *set.napis.entry(id).or_default() += 1;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {}
                Err(_) => set.unknown += 1,
            }
        }
        Ok(set)
    }

    /// The descriptors whose link has a wanted text.
    fn fds(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<i32>> {
        let directory = format!("/proc/{}/fd", self.id.pid);
        let mut fds = Vec::new();
        for entry in fs::read_dir(directory)?.take(DESCRIPTORS_MAX) {
            let entry = entry?;
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            if wanted(&target.to_string_lossy()) {
                fds.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
            }
        }
        fds.sort_unstable();
        Ok(fds)
    }

    /// A duplicate of one of its descriptors.
    pub(crate) fn duplicate(&self, fd: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty())?)
    }
}

/// The numbers of all processes that `/proc` shows.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn processes() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    let mut pids: Vec<i32> =
        entries.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// The members that the text of `/proc/PID/fdinfo/FD` lists.
fn members(info: &str) -> Vec<i32> {
    let lines = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

fn stat(pid: i32) -> io::Result<Stat> {
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.map_err(|error| match error {
        procfs::ProcError::NotFound(_) => io::ErrorKind::NotFound.into(),
        procfs::ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied.into(),
        procfs::ProcError::Io(error, _) => error,
        other => io::Error::other(other.to_string()),
    })
}

/// Whether the error means that a descriptor or its process is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    let codes = [libc::EBADF, libc::ESRCH, libc::ENOENT];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Upper bound on descriptors of a process that are read.
const DESCRIPTORS_MAX: usize = 1 << 20;

/// Upper bound on processes of a family that are read.
const PROCESSES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    use super::*;

    #[test]
    fn members_are_read() {
        let info = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1057\n\
                    tfd:        5 events:       19 data: 5  pos:0 ino:1b03 sdev:8\n\
                    tfd:       12 events: 80000001 data: ffff  pos:0 ino:1b04 sdev:8\n";
        assert_eq!(members(info), [5, 12]);
    }

    #[test]
    fn a_process_shows_its_own_epoll_sets() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        let id = ProcessId::own().unwrap();
        assert!(id.runs() && !ProcessId { started: id.started + 1, ..id }.runs());
        assert_eq!(id.with_descendants()[0], id);
        let program = Program::open(id.pid).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&epoll.0);
        let sets = match program.epoll_sets() {
            // Before Linux 6.9.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return,
            sets => sets.unwrap(),
        };
        let set = sets.iter().find(|set| set.fd == fd).expect("it was made");
        assert_eq!((set.members, set.sockets, set.unknown, set.napis.len()), (1, 1, 0, 0));
        assert!(program.sockets().unwrap().iter().any(|it| it.local == socket.local_addr().ok()));
        assert!(program.has_internet_socket().unwrap());
        assert_eq!(program.io_urings().unwrap(), 0);
        let wanted = EpollParameters { prefer_busy_poll: true, ..EpollParameters::default() };
        program.set_epoll_parameters(fd, &wanted).unwrap();
        assert_eq!(EpollParameters::of(&epoll.0).unwrap(), wanted);
        assert!(program.sockets_by_napi().unwrap().is_empty());
        assert!(processes().unwrap().contains(&id.pid));
    }

    #[test]
    fn there_is_no_process_of_number_0() {
        assert!(Program::open(0).is_err() && Program::open(-1).is_err());
    }
}
