//! A stand-in for TLS: the flights of a handshake, with scripted failures and no secrets. The fuzz target `handshake` uses it
//! too.

use std::sync::Arc;

use apus_seal::{Alert, Identity, Name, Tls, TlsError};
use zeroize::Zeroizing;

const CLIENT_HELLO: u8 = 1;
const SERVER_FLIGHT: u8 = 2;
const CLIENT_FINISHED: u8 = 3;
const RETRY: u8 = 4;
const ALERT: u8 = 21;

/// One side. Its flights are a kind and eight bytes: the secret of the client, which the server learns from the first flight.
pub(crate) struct Scripted {
    is_client: bool,
    secret: Option<[u8; 8]>,
    peer: Name,
    /// The alert with which this side refuses the peer's certificate.
    refuses: Option<Alert>,
    /// HelloRetryRequests that this side sends.
    retries: u8,
    output: Vec<u8>,
    is_complete: bool,
}

#[allow(dead_code, reason = "each test uses a part")]
impl Scripted {
    pub(crate) fn client(server: &str) -> Self {
        let mut session = Self::new(true, server);
        session.secret = Some(*b"a secret");
        session.send(CLIENT_HELLO);
        session
    }

    pub(crate) fn server(client: &str) -> Self {
        Self::new(false, client)
    }

    pub(crate) fn refusing(self, alert: Alert) -> Self {
        Self { refuses: Some(alert), ..self }
    }

    pub(crate) fn retrying(self, retries: u8) -> Self {
        Self { retries, ..self }
    }

    fn new(is_client: bool, peer: &str) -> Self {
        Self {
            is_client,
            secret: None,
            peer: Name::parse(peer).expect("a name"),
            refuses: None,
            retries: 0,
            output: Vec::new(),
            is_complete: false,
        }
    }

    fn send(&mut self, kind: u8) {
        self.output.push(kind);
        self.output.extend(self.secret.unwrap_or_default());
    }

    fn complete(&mut self) -> Result<(), TlsError> {
        if let Some(alert) = self.refuses {
            self.output = vec![ALERT, alert.0];
            return Err(error(alert, false, "refused by the script"));
        }
        self.is_complete = true;
        Ok(())
    }
}

impl Tls for Scripted {
    fn read(&mut self, records: &[u8]) -> Result<(), TlsError> {
        match (records, self.is_client, self.secret) {
            (&[ALERT, alert], ..) => Err(error(Alert(alert), true, "received from the script")),
            (&[CLIENT_HELLO, ref secret @ ..], false, _) if secret.len() == 8 => {
                self.secret = secret.try_into().ok();
                let is_retry = self.retries > 0;
                self.retries -= u8::from(is_retry);
                self.send(if is_retry { RETRY } else { SERVER_FLIGHT });
                Ok(())
            }
            (&[RETRY, ..], true, _) => {
                self.send(CLIENT_HELLO);
                Ok(())
            }
            (&[SERVER_FLIGHT, ref secret @ ..], true, Some(expected)) if *secret == expected => {
                self.send(CLIENT_FINISHED);
                self.complete()
            }
            (&[CLIENT_FINISHED, ref secret @ ..], false, Some(expected)) if *secret == expected => {
                self.complete()
            }
            _ => Err(error(Alert::UNEXPECTED_MESSAGE, false, "not in the script")),
        }
    }

    fn write(&mut self, records: &mut Vec<u8>) {
        records.append(&mut self.output);
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn export(&mut self, context: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError> {
        let secret =
            self.secret.ok_or_else(|| error(Alert::INTERNAL_ERROR, false, "not complete"))?;
        Ok(Zeroizing::new(std::array::from_fn(|index| context[index] ^ secret[index % 8])))
    }

    fn peer(&self) -> Result<Arc<Identity>, TlsError> {
        Ok(Arc::new(Identity::named(self.peer.clone())))
    }
}

fn error(alert: Alert, from_peer: bool, view: &str) -> TlsError {
    TlsError { alert, from_peer, view: view.to_owned() }
}
