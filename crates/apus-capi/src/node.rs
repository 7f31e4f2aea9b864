//! Nodes.

use std::ffi::c_char;
use std::os::fd::AsRawFd;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use apus::{Address, EventLoop, Node};

use crate::address::{self, apus_address};
use crate::argument;
use crate::config::apus_config;
use crate::entry;
use crate::failure::Failure;
use crate::process::OwnerProcess;

/// A node: an endpoint on the network. Clients and ports are opened on it.
pub struct apus_node {
    owner: OwnerProcess,
    /// Empty once the node is closed.
    node: RwLock<Option<Node>>,
    event_loop: OnceLock<EventLoop>,
}

impl apus_node {
    /// Runs `run` on an open node, in the process that started it. The place is not locked meanwhile: a close
    /// waits for nobody.
    pub(crate) fn with<T>(
        &self,
        run: impl FnOnce(&Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.owner.check()?;
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        run(&node.ok_or_else(Failure::closed)?)
    }

    /// The event loop, which begins with the first use.
    fn event_loop(&self) -> Result<&EventLoop, Failure> {
        if let Some(event_loop) = self.event_loop.get() {
            return Ok(event_loop);
        }
        self.owner.check()?;
        // One thread at a time begins it.
        let node = self.node.write().unwrap_or_else(PoisonError::into_inner);
        if self.event_loop.get().is_none() {
            let node = node.as_ref().ok_or_else(Failure::closed)?;
            let _ = self.event_loop.set(node.event_loop()?);
        }
        self.event_loop.get().ok_or_else(Failure::closed)
    }
}

/// Starts a node with these settings, and writes its handle to `node`. The configuration may be changed or freed afterwards.
///
/// Returns 0, or an error: a setting is not allowed (APUS_ECONFIG), the address or port is in use (APUS_EIN_USE) or not one of
/// this machine, a file of the settings cannot be used (APUS_EFILE), or a permission or resource is missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_start(
    config: *const apus_config,
    node: *mut *mut apus_node,
) -> i32 {
    entry::number(|| {
        // SAFETY: the pointer is valid, or NULL.
        let place = unsafe { argument::place("node", node)? };
        // SAFETY: the handle is valid, or NULL.
        let config = unsafe { argument::shared("config", config)? }.lock()?.clone();
        let node = Node::start(&config)?;
        let (owner, node) = (OwnerProcess::this(), RwLock::new(Some(node)));
        *place = Box::into_raw(Box::new(apus_node { owner, node, event_loop: OnceLock::new() }));
        Ok(0)
    })
}

/// Takes no further calls. Waits for at most `timeout_ns` until all outstanding calls have ended, all requests are answered and
/// all responses are acknowledged; then stops the node. Zero stops it at once, and a negative time waits without end. Clients and
/// ports that are still open return APUS_ECLOSED. The handle is still to be freed.
///
/// Returns 0; APUS_EUNFINISHED if something had not ended, and the node is stopped nevertheless; APUS_ECLOSED if it was closed
/// before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_close(node: *mut apus_node, timeout_ns: i64) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let handle = unsafe { argument::shared("node", node)? };
        handle.owner.check()?;
        let taken = handle.node.write().unwrap_or_else(PoisonError::into_inner).take();
        let timeout = argument::time(timeout_ns).unwrap_or(Duration::MAX);
        taken.ok_or_else(Failure::closed)?.close(timeout)?;
        Ok(0)
    })
}

/// Frees a node. If it was not closed it runs until its last client, port and request is freed, and then stops at once. Does
/// nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_free(node: *mut apus_node) {
    entry::value((), || {
        if !node.is_null() {
            // SAFETY: the handle is valid, and no other thread uses it.
            drop(unsafe { argument::owned("node", node)? });
        }
        Ok(())
    });
}

/// Writes the address of a node, with a Homa port of 0, to `address`. The UDP port is the one that the system chose if the
/// setting `listen` has port 0. An IP address of zeros stays one: peers use an address of the machine instead.
///
/// Returns 0, or APUS_ECLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_address(
    node: *const apus_node,
    address: *mut apus_address,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        let found = node.with(|node| Ok(Address::new(node.local_addr(), 0)))?;
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        unsafe { address::write("address", address, found)? };
        Ok(0)
    })
}

/// Finds the first address of a service as apus_resolve() does, and remembers its name: clients of a node with a certificate then
/// expect a server with that name at the address. May block for seconds, also after apus_node_close().
///
/// Returns 0, APUS_EADDRESS or APUS_ELOOKUP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_resolve(
    node: *mut apus_node,
    text: *const c_char,
    address: *mut apus_address,
) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        // SAFETY: the pointer is that of a text, or NULL.
        let text = unsafe { argument::text("text", text)? };
        let found = node.with(|node| Ok(node.resolve(text)?))?;
        // SAFETY: the pointer is that of a structure with its size, or NULL.
        unsafe { address::write("address", address, found)? };
        Ok(0)
    })
}

/// Returns a descriptor for an event loop (epoll, libuv, poll): it is readable, level-triggered, when apus_node_turn() is to be
/// called. From the first call on, the loop takes the place of the library's thread. A message then wakes the loop's thread only.
/// If the loop is late, the library's thread helps out after some milliseconds. The node has the descriptor: it is watched and
/// not read, and is closed when the node is freed.
///
/// Returns the descriptor, or APUS_EEVENT_LOOP if the setting `delivery` has another mode than suspend, which is the default, or
/// the node has more than one shard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_fd(node: *mut apus_node) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        node.owner.check()?;
        Ok(node.event_loop()?.as_raw_fd())
    })
}

/// Receives what has arrived, runs timers and transmits: for an event loop, when the descriptor of apus_node_fd() is readable.
/// Then the loop takes responses and requests with apus_recv_many() and apus_port_recv_many() and a timeout of 0, until they
/// return 0. Never waits.
///
/// Returns the number of datagrams and of messages from processes of this host. It is bounded: the descriptor stays readable if
/// more have arrived. Returns APUS_ECLOSED if the node was closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_node_turn(node: *mut apus_node) -> i32 {
    entry::number(|| {
        // SAFETY: the handle is valid, or NULL.
        let node = unsafe { argument::shared("node", node)? };
        let event_loop = node.event_loop()?;
        match event_loop.turn() {
            0 if event_loop.is_closed() => {
                node.owner.check()?;
                Err(Failure::closed())
            }
            received => Ok(i32::try_from(received).unwrap_or(i32::MAX)),
        }
    })
}
