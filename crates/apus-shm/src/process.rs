//! The process at the other end of a unix socket: the trust in it, and the detection of its end.
//!
//! The kernel keeps the peer's identity of the moment when the peer connected or listened. A child of the peer may hold the socket
//! open after the peer has ended, so the end of the socket is not enough: a pidfd becomes readable when the process itself ends.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::get_dumpable;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;

/// Rights of a pair's peer, by the trust in its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Bodies are read in the peer's memory, which the peer could change meanwhile. For processes of one user in one pid namespace,
    /// which could read and write each other's memory anyway.
    InPlace,
    /// Bodies are copied before any code reads them.
    Copy,
}

/// A peer's process.
#[derive(Debug)]
pub struct PeerProcess {
    pid: i32,
    uid: u32,
    /// `None` on kernels before 6.5.
    pidfd: Option<OwnedFd>,
    /// Inode of its user namespace, if this process may read it.
    user_namespace: Option<u64>,
}

impl PeerProcess {
    /// Returns the process at the other end of a connected unix socket.
    ///
    /// # Errors
    ///
    /// The errors of the system call.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let credentials = getsockopt(&socket, sockopt::PeerCredentials)?;
        let pidfd = getsockopt(&socket, sockopt::PeerPidfd).ok();
        let (pid, uid) = (credentials.pid(), credentials.uid());
        let peer = Self { pid, uid, pidfd, user_namespace: None };
        let namespace = (pid > 0).then(|| fs::metadata(format!("/proc/{pid}/ns/user")).ok());
        // The PID refers to this process until it has ended, so the end is checked after the namespace was read.
        let is_its = peer.pidfd.is_some() && !peer.has_ended();
        let user_namespace = namespace.flatten().filter(|_| is_its).map(|found| found.ino());
        Ok(Self { user_namespace, ..peer })
    }

    /// Returns the descriptor, which is readable when the process has ended. `None` on kernels before 6.5: there, only the end of
    /// the socket shows it, which a child of the process may delay.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Returns its PID in the pid namespace of this process; 0 if it has none there.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the user that it ran as when it connected or began to listen; 65534 if that user has no number in this user
    /// namespace.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the inode of its user namespace, as in `/proc/PID/ns/user`, when it connected. `None` if this process may not read
    /// that link, as for processes of other users, or on kernels before 6.5.
    #[must_use]
    pub fn user_namespace(&self) -> Option<u64> {
        self.user_namespace
    }

    /// Returns whether the process has ended, as far as this process can detect it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let Some(pidfd) = self.descriptor() else { return false };
        poll(&mut [PollFd::new(pidfd, PollFlags::POLLIN)], PollTimeout::ZERO) != Ok(0)
    }

    /// Returns whether the process is there and not stopped by a signal or a debugger. `false` if that cannot be known: on kernels
    /// before 6.5. A process without a PID in the pid namespace of this one counts as not stopped.
    #[must_use]
    pub fn runs(&self) -> bool {
        let stat = || fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let is_stopped = self.pid > 0 && matches!(state(&stat()), Some(b'T' | b't'));
        // The PID refers to this process until it has ended, so the end is checked after the state was read.
        self.pidfd.is_some() && !is_stopped && !self.has_ended()
    }

    /// Returns [`Trust::InPlace`] for a process with the same user, user namespace and pid namespace as this one, if such processes
    /// may write each other's memory anyway: both can be dumped, and Yama does not forbid it (`kernel.yama.ptrace_scope` is 0, or
    /// there is no Yama). Returns [`Trust::Copy`] for all other processes, and if any of this is unknown.
    ///
    /// All users unknown to a user namespace have uid 65534, and all containers without a user namespace have uid 0, so equal uids
    /// alone prove little.
    #[must_use]
    pub fn trust(&self) -> Trust {
        let namespaces = ["user", "pid"];
        let same_place = || {
            namespaces.iter().all(|kind| {
                let of = |process: String| fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
                let ours = of("self".to_owned());
                ours.is_some() && ours == of(self.pid.to_string())
            })
        };
        // The PID refers to this process until it has ended, so the end is checked after the links were read.
        let known = self.pid > 0 && self.uid == geteuid().as_raw() && self.uid != NOBODY;
        let may_write = || may_write_each_other(&|path| fs::read_to_string(path).ok());
        if known && self.pidfd.is_some() && same_place() && may_write() && !self.has_ended() {
            Trust::InPlace
        } else {
            Trust::Copy
        }
    }
}

/// Returns the state letter in `/proc/PID/stat`. It follows the name, which may contain any byte.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

/// Returns whether processes of one user may write each other's memory here. The peer's links in `/proc` are readable only if it
/// can be dumped, and the peer checks the same for this process.
fn may_write_each_other(read: &dyn Fn(&str) -> Option<String>) -> bool {
    let yama = read("/proc/sys/kernel/yama/ptrace_scope");
    yama.is_none_or(|scope| scope.trim() == "0") && get_dumpable().unwrap_or(false)
}

/// Returns the user that this process runs as.
#[must_use]
pub fn own_user() -> u32 {
    geteuid().as_raw()
}

/// Returns the upper bound on open descriptors of this process.
#[must_use]
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(limit, _)| limit)
}

/// The uid of users without a number in this user namespace.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_process_trusts_itself() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(a.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id().cast_signed());
        assert!(!peer.has_ended());
        let own = fs::metadata("/proc/self/ns/user").unwrap().ino();
        assert_eq!(peer.user_namespace(), peer.pidfd.is_some().then_some(own));
        let may_write = may_write_each_other(&|path| fs::read_to_string(path).ok());
        let in_place = peer.pidfd.is_some() && may_write;
        let expected = if in_place { Trust::InPlace } else { Trust::Copy };
        assert_eq!(peer.trust(), expected);
        assert_eq!(PeerProcess { uid: peer.uid + 1, ..peer }.trust(), Trust::Copy);
    }

    #[test]
    fn a_stopped_process_does_not_run() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(a.as_fd()).unwrap();
        assert_eq!(peer.runs(), peer.pidfd.is_some());
        assert_eq!(state(b"7 (a) R b)) T 1 7"), Some(b'T'));
        assert_eq!((state(b""), state(b"7 (a)")), (None, None));
    }

    #[test]
    fn bodies_stay_in_place_only_where_processes_may_write_each_other() {
        let scope = |scope: Option<&str>| may_write_each_other(&|_| scope.map(str::to_owned));
        assert!(scope(None) && scope(Some("0\n")));
        assert!(!scope(Some("1\n")) && !scope(Some("2\n")) && !scope(Some("")));
    }
}
