//! Homa for user space: datacenter RPC with a low tail, on a stock kernel.
