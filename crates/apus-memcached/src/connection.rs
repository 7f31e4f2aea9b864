//! One connection: queued and written requests, and answers in order.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use anyhow::{Context, Result, ensure};
use socket2::Socket;

use super::answer::{Answer, Operation, in_words};
use super::protocol::Protocol;
use super::records::Records;
use super::stamps::Stamps;

/// A request in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) operation: Operation,
    /// The number of its record.
    pub(super) record: u32,
    /// Start of its latency, in nanoseconds since the start of the run.
    pub(super) due_ns: u64,
}

/// One connection to a server.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    protocol: Protocol,
    /// Queued requests.
    output: Vec<u8>,
    /// Number of queued bytes that were written.
    written: usize,
    /// An incomplete answer.
    input: Vec<u8>,
    /// Requests without an answer, oldest first, each with its number.
    outstanding: VecDeque<(Query, u32)>,
    next_number: u32,
    /// Bytes written and read since the start.
    pub(super) bytes: Bytes,
}

/// Bytes written and read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Connection {
    pub(super) fn new(socket: Socket, protocol: Protocol) -> Self {
        Self {
            socket,
            protocol,
            output: Vec::new(),
            written: 0,
            input: Vec::new(),
            outstanding: VecDeque::new(),
            next_number: 0,
            bytes: Bytes::default(),
        }
    }

    /// Requests without an answer.
    pub(super) fn outstanding(&self) -> impl ExactSizeIterator<Item = Query> {
        self.outstanding.iter().map(|(query, _)| *query)
    }

    /// Queues a request.
    pub(super) fn push(&mut self, query: Query, records: &Records) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let (key, value) = (records.key(query.record), records.value(query.record));
        self.protocol.request(query.operation, key, value, number, &mut self.output);
        self.outstanding.push_back((query, number));
    }

    /// Writes queued requests, as far as the socket accepts them. Returns whether all were written.
    ///
    /// # Errors
    /// If the connection is broken.
    pub(super) fn write(&mut self) -> Result<bool> {
        while self.written < self.output.len() {
            match self.socket.write(&self.output[self.written..]) {
                Ok(bytes) => {
                    self.written += bytes;
                    self.bytes.sent += bytes as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot write"),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(true)
    }

    /// Reads once, and calls `each` for every complete answer.
    ///
    /// # Errors
    /// If the connection is broken or closed, or the bytes are not an answer to the requests.
    pub(super) fn read(
        &mut self,
        records: &Records,
        scratch: &mut [u8],
        stamps: Option<&mut Stamps>,
        mut each: impl FnMut(Query, Answer),
    ) -> Result<()> {
        let read = match stamps {
            Some(stamps) => stamps.read(&self.socket, scratch),
            None => self.socket.read(scratch),
        };
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(error).context("cannot read"),
        };
        ensure!(bytes > 0, "it closed the connection");
        self.bytes.received += bytes as u64;
        if self.input.is_empty() {
            // In most cases the answer is complete and need not be copied.
            let taken = self.take(&scratch[..bytes], records, &mut each)?;
            self.input.extend_from_slice(&scratch[taken..bytes]);
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(&scratch[..bytes]);
        let taken = self.take(&input, records, &mut each)?;
        input.drain(..taken);
        self.input = input;
        Ok(())
    }

    /// Takes the complete answers at the start of some bytes. Returns their length. The rest is at most one answer of the longest
    /// allowed length.
    fn take(
        &mut self,
        bytes: &[u8],
        records: &Records,
        each: &mut impl FnMut(Query, Answer),
    ) -> Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let Some((query, number)) = self.outstanding.front().copied() else {
                anyhow::bail!("an answer without a request: '{}'", in_words(rest));
            };
            let key = records.key(query.record);
            let Some((answer, length)) = self.protocol.parse(query.operation, key, number, rest)?
            else {
                break;
            };
            taken += length;
            self.outstanding.pop_front();
            each(query, answer);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::super::records::Length;
    use super::*;

    fn pair() -> (Connection, UnixStream, Records) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let records = Records::new(10, Length::Fixed(3), Length::Fixed(5));
        (Connection::new(ours.into(), Protocol::Text), theirs, records)
    }

    fn query(record: u32) -> Query {
        Query { operation: Operation::Get, record, due_ns: 0 }
    }

    #[test]
    fn answers_belong_to_requests_in_their_order_however_they_are_cut() {
        let (mut connection, mut server, records) = pair();
        for record in [1, 2, 3] {
            connection.push(query(record), &records);
        }
        assert!(connection.write().unwrap());
        let bytes = b"VALUE 001 0 5\r\nabcde\r\nEND\r\nEND\r\nSERVER_ERROR busy\r\n";
        let (mut answers, mut scratch) = (Vec::new(), [0; 64]);
        for byte in bytes {
            server.write_all(&[*byte]).unwrap();
            let note = |query: Query, answer| answers.push((query.record, answer));
            connection.read(&records, &mut scratch, None, note).unwrap();
        }
        let busy = Answer::Refused("SERVER_ERROR busy".to_owned());
        assert_eq!(answers, [(1, Answer::Value(5)), (2, Answer::Miss), (3, busy)]);
        assert_eq!((connection.outstanding().len(), connection.input.len()), (0, 0));
        assert_eq!(connection.bytes.received, bytes.len() as u64);
    }

    #[test]
    fn what_nobody_asked_for_and_an_end_are_errors() {
        let (mut connection, mut server, records) = pair();
        let mut scratch = [0; 64];
        let mut read = |connection: &mut Connection| {
            let read = connection.read(&records, &mut scratch, None, |_, _| {});
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read(&mut connection), Ok(()), "no answer has arrived");
        server.write_all(b"END\r\n").unwrap();
        assert!(read(&mut connection).unwrap_err().contains("without a request"));
        drop(server);
        assert_eq!(read(&mut connection), Err("it closed the connection".to_owned()));
    }

    #[test]
    fn a_full_socket_keeps_what_it_did_not_take() {
        let (mut connection, mut server, _) = pair();
        let records = Records::new(1, Length::Fixed(3), Length::Fixed(1_000_000));
        connection.push(Query { operation: Operation::Set, ..query(0) }, &records);
        let whole = connection.output.len();
        let mut got = Vec::new();
        let mut piece = vec![0; 1 << 16];
        while !connection.write().unwrap() {
            let bytes = server.read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..bytes]);
        }
        drop(connection);
        server.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), whole);
    }
}
