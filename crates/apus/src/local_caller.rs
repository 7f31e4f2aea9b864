//! A caller on the same host.

use apus_shm::PeerProcess;

/// A process of this host that has made a request, as the kernel reports it. From [`Request::caller`].
///
/// [`Request::caller`]: crate::Request::caller
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct LocalCaller {
    /// Its number in the pid namespace of this process; 0 if it has none there. The number is another process's once the caller has
    /// ended.
    pub pid: i32,
    /// The user of the process when the two nodes met; 65534 if that user has no number in the user namespace of this process.
    pub uid: u32,
    /// The inode number of its user namespace, as `stat` gives it for `/proc/PID/ns/user`. `None` if this process may not read that,
    /// as of processes of other users, or the kernel is older than 6.5. Root of another user namespace may appear with any uid that was
    /// mapped for it.
    pub user_namespace: Option<u64>,
}

impl LocalCaller {
    pub(crate) fn of(process: &PeerProcess) -> Self {
        let user_namespace = process.user_namespace();
        Self { pid: process.pid(), uid: process.uid(), user_namespace }
    }
}
