//! Handshakes, from the first flight of TLS to the secret of a path.
//!
//! | file | holds |
//! | --- | --- |
//! | `frame` | the bodies of a handshake's calls, as bytes |
//! | `sides` | the client's and the server's side, which do the public-key work |
//! | `handshakes` | all handshakes of a server, within their limits |
//! | `attempts` | when a client may begin one |
//! | `tls` | TLS 1.3 by rustls |
//! | `failure` | the reasons why one fails |

pub(crate) mod attempts;
pub(crate) mod failure;
pub mod frame;
pub(crate) mod handshakes;
pub(crate) mod sides;
#[cfg(feature = "rustls")]
pub(crate) mod tls;
