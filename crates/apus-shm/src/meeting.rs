//! Meeting places of the processes of a host: a unix socket by the address of a node.
//!
//! The name is in the abstract namespace, which belongs to a network namespace, as ports do. Containers with different network
//! namespaces share files in a directory instead. Any process in the namespace can bind a name, and any process with write access
//! to the directory can create a file, so a connection proves nothing about the address. Each process therefore sends a [`Nonce`]
//! over the socket. A process that returns the other one's nonce by a path that only the node at the address has is that node.
//!
//! A process between the two could relay both nonces. So the connecting process also sends, by that path, the number of its *place*
//! ([`Meeting::place`]), and the other process compares it with the place of its own listener.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, listen, shutdown, socket, sockopt,
};
use nix::sys::stat::{Mode, fchmod};
use siphasher::sip::SipHasher24;

use crate::channel::{self, Channel};
use crate::closer::close_elsewhere;
use crate::socket_file::SocketFile;

/// A number that other processes cannot guess.
pub type Nonce = [u64; 2];

/// Upper bound on the connections that wait to be accepted; further ones are refused.
const BACKLOG: i32 = 128;

/// The first byte of the message with a nonce.
const NONCE: u8 = b'N';
/// Length of that message in bytes.
const NONCE_LENGTH: usize = 17;

/// The place of a node's listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the network namespace, by the node's UDP address.
    Namespace(SocketAddr),
    /// In a directory that containers of different network namespaces share: a file by the node's UDP address. The path of the
    /// directory is at most [`DIRECTORY_MAX`](Self::DIRECTORY_MAX) bytes long.
    Directory(PathBuf, SocketAddr),
    /// At a file, which stands for an engine and not for a node.
    File(PathBuf),
}

impl Place {
    /// Upper bound on the length of the directory's path, in bytes: the address of a unix socket has 107, and the file's name up to
    /// 52.
    pub const DIRECTORY_MAX: usize = 54;

    fn address(&self) -> io::Result<UnixAddr> {
        Ok(match self {
            Self::Namespace(node) => UnixAddr::new_abstract(format!("apus/1/{node}").as_bytes())?,
            Self::Directory(..) | Self::File(_) => UnixAddr::new(&self.path().unwrap_or_default())?,
        })
    }

    /// Returns the path of the socket's file, if it has one.
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Namespace(_) => None,
            Self::Directory(directory, node) => Some(directory.join(format!("apus-{node}"))),
            Self::File(path) => Some(path.clone()),
        }
    }

    /// Returns a number for the socket at this place, the same in every process that sees the same socket.
    fn number(&self) -> io::Result<u64> {
        let file = match self.path() {
            None => fs::metadata("/proc/thread-self/ns/net")?,
            Some(path) => fs::metadata(path)?,
        };
        let mut hasher = SipHasher24::new();
        if let Self::Namespace(node) | Self::Directory(_, node) = self {
            hasher.write(node.to_string().as_bytes());
        }
        hasher.write(&file.dev().to_le_bytes());
        hasher.write(&file.ino().to_le_bytes());
        Ok(hasher.finish())
    }
}

/// Accepts connections of other processes.
#[derive(Debug)]
pub struct Listener {
    /// Unaccepted connections may hold unread descriptors.
    socket: ManuallyDrop<OwnedFd>,
    number: u64,
    /// The place whose file is removed at the end.
    place: Option<Place>,
    /// The listening process. A child has only a copy of the descriptor.
    process: u32,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

impl Listener {
    /// Listens at a place. Replaces a file that an ended process has left. At a [`Place::File`], only the user of this process may
    /// connect until the permissions of the file are changed. In a [`Place::Directory`], every user with access to the directory
    /// may connect.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if another process listens there; otherwise the errors of the system.
    pub fn bind(place: &Place) -> io::Result<Self> {
        let (address, socket) = (place.address()?, new_socket()?);
        if !matches!(place, Place::File(_)) {
            // Connecting processes prove their identity first.
            channel::allow_descriptors(socket.as_fd(), false);
        }
        let path = place.path();
        if let Place::File(_) = place {
            // The file has these permissions from the start, until its owner changes them.
            fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
        match (bind(socket.as_raw_fd(), &address), &path) {
            (Err(Errno::EADDRINUSE), Some(path)) if is_left(&address) => {
                fs::remove_file(path)?;
                bind(socket.as_raw_fd(), &address)?;
            }
            (bound, _) => bound?,
        }
        let socket = ManuallyDrop::new(socket);
        let (number, place_of) = (place.number()?, Some(place.clone()));
        let listener = Self { socket, number, place: place_of, process: process::id() };
        if let (Place::Directory(..), Some(path)) = (place, &path) {
            SocketFile::open(path)?.open_to_everyone()?;
        }
        listen(&*listener.socket, Backlog::new(BACKLOG)?)?;
        Ok(listener)
    }

    /// Creates a listener from a listening socket of type `SOCK_SEQPACKET` that a service manager has opened. Its file stays at the
    /// end.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] for any other socket.
    pub fn of(socket: OwnedFd) -> io::Result<Self> {
        let listens = getsockopt(&socket, sockopt::AcceptConn)?;
        if !listens || getsockopt(&socket, sockopt::SockType)? != SockType::SeqPacket {
            let message = "not a listening unix socket of type SOCK_SEQPACKET";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        let socket = ManuallyDrop::new(socket);
        Ok(Self { socket, number: 0, place: None, process: process::id() })
    }

    /// Accepts the next connection, if there is one, and sends it `nonce`.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] without a connection.
    pub fn accept(&self, nonce: Nonce) -> io::Result<Meeting> {
        Meeting::begin(self.accept_socket()?, nonce, self.number)
    }

    /// Accepts the next connection, if there is one, for a [`PendingPair`](crate::PendingPair) without a nonce, where the right to connect is
    /// enough. An unused socket must be closed by [`close_elsewhere`].
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] without a connection.
    pub fn accept_socket(&self) -> io::Result<OwnedFd> {
        let accepted = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: the kernel has just made this descriptor for this call, and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
    }

    /// Returns the descriptor, which is readable when a connection waits.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: no code uses the value after its drop.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if self.process != process::id() {
            return; // The parent keeps listening.
        }
        // The file may have been removed already, and another one may have its name.
        if let Some(place) = &self.place
            && let Some(path) = place.path()
            && place.number().is_ok_and(|number| number == self.number)
        {
            let _ = fs::remove_file(path);
        }
        if self.place.is_none() {
            return close_elsewhere(socket); // The service manager has it as well, and keeps listening.
        }
        // Unaccepted connections may hold descriptors. The socket itself is closed here, so that its name is free at once.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        loop {
            match accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: the kernel has just made this descriptor for this call, and no other code knows it.
                Ok(waiting) => close_elsewhere(unsafe { OwnedFd::from_raw_fd(waiting) }),
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => {
                    return close_elsewhere(socket);
                }
                Err(_) => return,
            }
        }
    }
}

/// Connects to the listener at a place, for a [`PendingPair`](crate::PendingPair) without a nonce. Never blocks.
///
/// # Errors
///
/// The errors of [`Meeting::connect`].
pub fn connect_to(place: &Place) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(socket.as_raw_fd(), &place.address()?)?;
    Ok(socket)
}

/// Returns whether an ended process has left its socket's file behind.
fn is_left(address: &UnixAddr) -> bool {
    let probe = new_socket().map(|socket| connect(socket.as_raw_fd(), address));
    matches!(probe, Ok(Err(Errno::ECONNREFUSED)))
}

/// A connection to a process that has not proved yet which node it is.
#[derive(Debug)]
pub struct Meeting {
    channel: Channel,
    nonce: Nonce,
    theirs: Option<Nonce>,
    place: u64,
}

impl Meeting {
    /// Connects to the listener at a place and sends `nonce`. Never blocks.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::ConnectionRefused`] or [`io::ErrorKind::NotFound`] without a listener, [`io::ErrorKind::WouldBlock`] if too
    /// many connections wait there.
    pub fn connect(place: &Place, nonce: Nonce) -> io::Result<Self> {
        let socket = new_socket()?;
        channel::allow_descriptors(socket.as_fd(), false);
        connect(socket.as_raw_fd(), &place.address()?)?;
        Self::begin(socket, nonce, place.number()?)
    }

    fn begin(socket: OwnedFd, nonce: Nonce, place: u64) -> io::Result<Self> {
        let channel = Channel::new(socket);
        let mut message = [NONCE; NONCE_LENGTH];
        message[1..9].copy_from_slice(&nonce[0].to_le_bytes());
        message[9..].copy_from_slice(&nonce[1].to_le_bytes());
        channel.send(&message, &[])?;
        Ok(Self { channel, nonce, theirs: None, place })
    }

    /// Returns the sent nonce, which the peer must return.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Returns the number of the place: the same at both ends, unless there is a process between them.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.place
    }

    /// Returns the peer's nonce once it has arrived.
    ///
    /// # Errors
    ///
    /// The errors of the system; [`io::ErrorKind::UnexpectedEof`] if the peer is gone, [`io::ErrorKind::InvalidData`] for any other
    /// message.
    pub fn theirs(&mut self) -> io::Result<Option<Nonce>> {
        if self.theirs.is_some() {
            return Ok(self.theirs);
        }
        let mut message = [0; NONCE_LENGTH];
        let taken = match self.channel.take(&mut message, 0) {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        if (taken.length, message[0]) != (NONCE_LENGTH, NONCE) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| message[at + byte]));
        self.theirs = Some([word(1), word(9)]);
        Ok(self.theirs)
    }

    /// Returns the user of the process at the other end, at the time when it connected or began to listen.
    ///
    /// # Errors
    ///
    /// The errors of the system call.
    pub fn uid(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.channel.descriptor(), sockopt::PeerCredentials)?.uid())
    }

    /// Allows the peer to pass descriptors from now on, for its [`PendingPair`](crate::PendingPair). The kernel refuses earlier ones (Linux
    /// 6.16).
    pub fn allow_descriptors(&self) {
        self.channel.allow_descriptors(true);
    }

    /// Returns the descriptor, which is readable when the peer has sent something or is gone.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    /// Converts the meeting to its socket, for a [`PendingPair`](crate::PendingPair).
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.channel.into_socket()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Nonce = [1, 2];
    const THEIRS: Nonce = [3, 4];

    fn exchange(place: &Place) {
        assert!(Meeting::connect(place, OURS).is_err(), "no process listens");
        let listener = Listener::bind(place).unwrap();
        assert_eq!(listener.accept(THEIRS).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut ours = Meeting::connect(place, OURS).unwrap();
        assert_eq!(ours.theirs().unwrap(), None);
        let mut theirs = listener.accept(THEIRS).unwrap();
        assert_eq!(ours.theirs().unwrap(), Some(THEIRS));
        assert_eq!(theirs.theirs().unwrap(), Some(OURS));
        assert_eq!(ours.place(), theirs.place());
        assert_eq!(Listener::bind(place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((listener, theirs));
        assert!(Meeting::connect(place, OURS).is_err(), "it is gone");
    }

    /// Returns an address of no node: the port belongs to a socket of this test.
    fn address() -> (std::net::UdpSocket, SocketAddr) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let node = socket.local_addr().unwrap();
        (socket, node)
    }

    #[test]
    fn a_file_is_for_its_user_first() {
        let path = std::env::temp_dir().join(format!("apus-shm-mode-{}", process::id()));
        let _listener = Listener::bind(&Place::File(path.clone())).unwrap();
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
    }

    /// Creates a directory of this test.
    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("apus-{name}-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn a_file_in_a_directory_is_for_everyone_who_reaches_it() {
        let (_socket, node) = address();
        let directory = directory("modes");
        let listener = Listener::bind(&Place::Directory(directory.clone(), node)).unwrap();
        let mode = |path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(directory.join(format!("apus-{node}"))), 0o666);
        drop(listener);
        // A file that is no socket stays unchanged.
        let target = directory.join("target");
        fs::write(&target, "of another program").unwrap();
        let before = mode(target.clone());
        let name = directory.join(format!("apus-{node}"));
        std::os::unix::fs::symlink(&target, &name).unwrap();
        let _ = Listener::bind(&Place::Directory(directory.clone(), node));
        assert_eq!(mode(target.clone()), before);
        assert_eq!(fs::read_to_string(&target).unwrap(), "of another program");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_listener_removes_no_file_but_its_own() {
        let (_socket, node) = address();
        let directory = directory("successor");
        let place = Place::Directory(directory.clone(), node);
        let first = Listener::bind(&place).unwrap();
        fs::remove_file(place.path().unwrap()).unwrap();
        let second = Listener::bind(&place).unwrap();
        drop(first);
        assert!(Meeting::connect(&place, OURS).is_ok());
        drop(second);
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn the_longest_names_fit_into_the_address_of_a_socket() {
        let node = SocketAddr::new([0xffff; 8].into(), u16::MAX);
        let directory = PathBuf::from(format!("/{}", "x".repeat(Place::DIRECTORY_MAX - 1)));
        assert!(Place::Directory(directory, node).address().is_ok());
    }

    #[test]
    fn processes_meet_by_an_address() {
        let (_socket, node) = address();
        exchange(&Place::Namespace(node));
        let directory = directory("meeting");
        let place = Place::Directory(directory.clone(), node);
        exchange(&place);
        let mut killed = Listener::bind(&place).unwrap();
        killed.place = None;
        drop(killed);
        let is_open =
            || Listener::bind(&place).is_err_and(|it| it.kind() == io::ErrorKind::AddrInUse);
        while is_open() {
            std::thread::yield_now(); // A thread is about to close the socket.
        }
        drop(Listener::bind(&place).unwrap());
        exchange(&Place::File(directory.join("engine.sock")));
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn places_differ_by_address() {
        let (_first, a) = address();
        let (_second, b) = address();
        let number = |node| Place::Namespace(node).number().unwrap();
        assert_eq!(number(a), number(a));
        assert_ne!(number(a), number(b));
    }
}
