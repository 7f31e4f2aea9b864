//! Files of captured packets, as tcpdump and Wireshark write them, and sealed datagrams in them, which a key log opens.
//!
//! A file, a frame and a key log may contain anything: nothing here panics, and memory follows the longest frame.
//!
//! | part | contents |
//! | --- | --- |
//! | `reader` | pcap and pcapng files |
//! | `writer` | pcapng files |
//! | `datagram` | the UDP datagram in a frame |
//! | `opening` | sealed datagrams, which become packets |

mod datagram;
mod opening;
mod reader;
#[cfg(all(test, feature = "secure"))]
mod tests;
pub(crate) mod writer;

pub use opening::{KeyFileError, OpenFileError, OpeningReport, open_file, read_keys};
pub use reader::{Frame, PacketFileError, PacketReader};
pub use writer::PacketWriter;
