//! The TLS of simulated handshakes: three flights with the lengths of real ones, whose certificates, keys and signatures are hashes
//! with a key of the world.

use std::hash::Hasher as _;
use std::sync::Arc;

use apus_seal::{Alert, Identity, Name, Tls, TlsError};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use zeroize::Zeroizing;

const CLIENT_HELLO: u8 = 1;
const SERVER_FLIGHT: u8 = 2;
const CLIENT_FINISHED: u8 = 3;
const ALERT: u8 = 21;

/// Lengths of the flights of TLS 1.3 with X25519MLKEM768 and certificates below the root.
const LENGTHS: [usize; 3] = [1418, 1899, 666];
/// Kind, random number, name and signature.
const FIELDS_LEN: usize = 1 + 8 + 1 + 16;

/// One side of a scripted handshake.
pub(super) struct ScriptedTls {
    /// The key of the world, which no attacker uses.
    key: [u8; 16],
    /// The name in the certificate of this node.
    own: CertificateName,
    /// The random numbers of client and server.
    randoms: [u64; 2],
    is_client: bool,
    /// Whether this side refuses the peer's certificate.
    refuses: bool,
    peer: Option<CertificateName>,
    output: Vec<u8>,
}

impl ScriptedTls {
    pub(super) fn client(key: [u8; 16], own: CertificateName, random: u64) -> Self {
        let mut session = Self::new(key, own, [random, 0], true);
        session.send(CLIENT_HELLO);
        session
    }

    pub(super) fn server(key: [u8; 16], own: CertificateName, random: u64, refuses: bool) -> Self {
        Self { refuses, ..Self::new(key, own, [0, random], false) }
    }

    fn new(key: [u8; 16], own: CertificateName, randoms: [u64; 2], is_client: bool) -> Self {
        Self { key, own, randoms, is_client, refuses: false, peer: None, output: Vec::new() }
    }

    fn hash(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        self.randoms.iter().for_each(|random| hasher.write_u64(*random));
        parts.iter().for_each(|part| hasher.write(part));
        hasher.finish128().as_u128().to_le_bytes()
    }

    fn send(&mut self, kind: u8) {
        let random = self.randoms[usize::from(!self.is_client)];
        let signature = self.hash(&[&[kind, self.own.to_byte()]]);
        let start = self.output.len();
        self.output.push(kind);
        self.output.extend(random.to_be_bytes());
        self.output.push(self.own.to_byte());
        self.output.extend(signature);
        self.output.resize(start + LENGTHS[usize::from(kind - 1)], 0);
    }

    /// Takes the certificate of the peer.
    fn verify(&mut self, kind: u8, name: u8, signature: &[u8]) -> Result<(), TlsError> {
        if self.hash(&[&[kind, name]]) != signature {
            return Err(error(Alert::BAD_RECORD_MAC, false));
        }
        if self.refuses {
            self.output = vec![ALERT, Alert::BAD_CERTIFICATE.0];
            return Err(error(Alert::BAD_CERTIFICATE, false));
        }
        self.peer = Some(CertificateName::from_byte(name));
        Ok(())
    }
}

impl Tls for ScriptedTls {
    fn read(&mut self, records: &[u8]) -> Result<(), TlsError> {
        if let &[ALERT, alert] = records {
            return Err(error(Alert(alert), true));
        }
        let Some(fields) = records.first_chunk::<FIELDS_LEN>() else {
            return Err(error(Alert::UNEXPECTED_MESSAGE, false));
        };
        let (kind, name, signature) = (fields[0], fields[9], &fields[10..]);
        let random = u64::from_be_bytes(fields[1..9].try_into().expect("8 bytes"));
        // Every byte of a flight is signed. The rest of this one is zeros.
        if records.len() != LENGTHS[usize::from(kind.clamp(1, 3) - 1)]
            || records[FIELDS_LEN..].iter().any(|&byte| byte != 0)
        {
            return Err(error(Alert::BAD_RECORD_MAC, false));
        }
        match (kind, self.is_client) {
            (CLIENT_HELLO, false) if self.peer.is_none() => {
                self.randoms[0] = random;
                self.send(SERVER_FLIGHT);
                Ok(())
            }
            (SERVER_FLIGHT, true) if self.peer.is_none() => {
                self.randoms[1] = random;
                self.verify(kind, name, signature)?;
                self.send(CLIENT_FINISHED);
                Ok(())
            }
            (CLIENT_FINISHED, false) => self.verify(kind, name, signature),
            _ => Err(error(Alert::UNEXPECTED_MESSAGE, false)),
        }
    }

    fn write(&mut self, records: &mut Vec<u8>) {
        records.append(&mut self.output);
    }

    fn is_complete(&self) -> bool {
        self.peer.is_some()
    }

    fn export(&mut self, context: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError> {
        let halves = [self.hash(&[b"1", context]), self.hash(&[b"2", context])];
        let mut exported = Zeroizing::new([0; 32]);
        exported[..16].copy_from_slice(&halves[0]);
        exported[16..].copy_from_slice(&halves[1]);
        Ok(exported)
    }

    fn peer(&self) -> Result<Arc<Identity>, TlsError> {
        let peer = self.peer.ok_or_else(|| error(Alert::UNEXPECTED_MESSAGE, false))?;
        Ok(Arc::new(Identity::named(peer.name())))
    }
}

fn error(alert: Alert, from_peer: bool) -> TlsError {
    TlsError { alert, from_peer, view: "scripted".to_owned() }
}

/// The name in a certificate: a node has one, and gets another one if it is renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CertificateName {
    pub(super) node: usize,
    pub(super) is_renamed: bool,
}

impl CertificateName {
    const RENAMED: u8 = 0x80;

    pub(super) fn of(node: usize) -> Self {
        Self { node, is_renamed: false }
    }

    fn to_byte(self) -> u8 {
        let mark = if self.is_renamed { Self::RENAMED } else { 0 };
        u8::try_from(self.node).expect("few nodes") | mark
    }

    fn from_byte(byte: u8) -> Self {
        Self { node: (byte % Self::RENAMED).into(), is_renamed: byte >= Self::RENAMED }
    }

    pub(super) fn name(self) -> Name {
        Name::parse(&format!("spiffe://example.org/node/{}", self.to_byte())).expect("a SPIFFE id")
    }

    pub(super) fn parse(name: &Name) -> Self {
        let number = name.as_str().rsplit('/').next().and_then(|number| number.parse().ok());
        Self::from_byte(number.expect("a name of this world ends with a number"))
    }
}
