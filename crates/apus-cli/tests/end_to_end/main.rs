//! The program as people use it: processes, arguments, files, sockets on the loopback interface.

mod browser;
mod cp_node;
mod deploy;
mod emulated;
mod measured;
mod nodes;
mod program;
mod raw;
mod shown;
mod wrong_use;
