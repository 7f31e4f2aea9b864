//! The key schedule: from the secret of a handshake to the key of a record.
//!
//! All derivations are HKDF-Expand with SHA-256 and the `HkdfLabel` of TLS 1.3 (RFC 8446, section 7.1) with the prefix `"apus2 "`.
//!
//! ```text
//! path secret ─┬─ "client", "server" ─▶ d0 ─┬─ "key", "iv" ─▶ key of epoch 0
//!              │                            └─ "update" ─▶ d1 ─▶ …
//!              ├─ "client done", "server done" ─▶ confirmations
//!              └─ "refresh" ─▶ salt of the next path secret, kept
//! ```

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::Suite;

const SECRET_LEN: usize = 32;
pub(crate) const IV_LEN: usize = 12;
pub(crate) const KEY_LEN_MAX: usize = 32;

/// The sides of a handshake: the client began it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// The side that sent HELLO.
    Client,
    /// The side that sent REPLY.
    Server,
}

impl Role {
    /// Returns the other side.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// The secret that both sides of a handshake share. Erased when dropped.
#[derive(Clone)]
pub struct PathSecret(Zeroizing<[u8; SECRET_LEN]>);

impl PathSecret {
    /// Wraps the output of the handshake's exporter.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the secret of the packets that `sender` sends, in epoch 0.
    #[must_use]
    pub fn direction(&self, sender: Role) -> DirectionSecret {
        let label = match sender {
            Role::Client => "client",
            Role::Server => "server",
        };
        DirectionSecret(Zeroizing::new(expand(&self.0, label, &[])))
    }

    /// Returns the bytes by which `sender` shows that it has the secret. `context` is the hash of the clear fields of HELLO and REPLY.
    #[must_use]
    pub fn confirmation(&self, sender: Role, context: &[u8; SECRET_LEN]) -> [u8; 16] {
        let label = match sender {
            Role::Client => "client done",
            Role::Server => "server done",
        };
        expand(&self.0, label, context)
    }

    /// Returns the part of the secret that a later handshake over the sealed path needs.
    #[must_use]
    pub fn refresh_salt(&self) -> RefreshSalt {
        RefreshSalt(Zeroizing::new(expand(&self.0, "refresh", &[])))
    }

    /// Returns the secret that follows this one, as [`RefreshSalt::refreshed`] does.
    #[must_use]
    pub fn refreshed(&self, exported: &[u8; SECRET_LEN]) -> Self {
        self.refresh_salt().refreshed(exported)
    }
}

/// The part of a path secret that outlives the handshake: no key of a record follows from it. Erased when dropped.
#[derive(Clone)]
pub struct RefreshSalt(Zeroizing<[u8; SECRET_LEN]>);

impl RefreshSalt {
    //= docs/protocol.md#seal-7
    /// Returns the secret that follows after a handshake over the sealed path, whose exporter gave `exported`.
    #[must_use]
    pub fn refreshed(&self, exported: &[u8; SECRET_LEN]) -> PathSecret {
        let (secret, _) = Hkdf::<Sha256>::extract(Some(&*self.0), exported);
        PathSecret::new(secret.into())
    }
}

/// The secret of one direction in one epoch. Erased when dropped.
#[derive(Clone)]
pub struct DirectionSecret(Zeroizing<[u8; SECRET_LEN]>);

impl DirectionSecret {
    /// Returns the key of this epoch's records.
    #[must_use]
    pub fn record_key(&self, suite: Suite) -> RecordKey {
        let mut key = Zeroizing::new([0; KEY_LEN_MAX]);
        expand_into(&self.0, "key", &[], &mut key[..suite.key_len()]);
        RecordKey { suite, key, iv: expand(&self.0, "iv", &[]) }
    }

    //= docs/protocol.md#seal-15
    /// Returns the secret of the next epoch.
    #[must_use]
    pub fn next(&self) -> Self {
        Self(Zeroizing::new(expand(&self.0, "update", &[])))
    }
}

/// A key of an AEAD, with the vector that makes nonces of numbers. Erased when dropped.
#[derive(Clone)]
pub struct RecordKey {
    suite: Suite,
    key: Zeroizing<[u8; KEY_LEN_MAX]>,
    iv: [u8; IV_LEN],
}

impl RecordKey {
    /// Returns the key of these bytes, of which as many count as the suite's keys have.
    pub(crate) fn of_parts(
        suite: Suite,
        key: Zeroizing<[u8; KEY_LEN_MAX]>,
        iv: [u8; IV_LEN],
    ) -> Self {
        Self { suite, key, iv }
    }

    /// Returns the suite that the key belongs to.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns the key, with the length of the suite's keys.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key[..self.suite.key_len()]
    }

    /// Returns the vector that a nonce begins with.
    #[must_use]
    pub fn iv(&self) -> &[u8; IV_LEN] {
        &self.iv
    }
}

fn expand<const N: usize>(secret: &[u8; SECRET_LEN], label: &str, context: &[u8]) -> [u8; N] {
    let mut output = [0; N];
    expand_into(secret, label, context, &mut output);
    output
}

/// HKDF-Expand-Label of TLS 1.3, with another prefix.
fn expand_into(secret: &[u8; SECRET_LEN], label: &str, context: &[u8], output: &mut [u8]) {
    const PREFIX: &[u8] = b"apus2 ";
    let length = u16::try_from(output.len()).expect("keys are short");
    let label_len = u8::try_from(PREFIX.len() + label.len()).expect("labels are short");
    let context_len = u8::try_from(context.len()).expect("contexts are hashes");
    let info = [
        &length.to_be_bytes(),
        &[label_len][..],
        PREFIX,
        label.as_bytes(),
        &[context_len],
        context,
    ];
    Hkdf::<Sha256>::from_prk(secret)
        .expect("a secret is as long as a hash")
        .expand_multi_info(&info, output)
        .expect("keys are shorter than 255 hashes");
}
