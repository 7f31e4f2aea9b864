//! Arguments as bytes, one after another.
//!
//! An argument `#[bytes]` lies behind the others, which have their length (a varint) before them then. So it is a slice of the
//! message, and further arguments may be appended before it.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};

use crate::body::MessageBody;
use crate::client::Channel;
use crate::code::Code;
use crate::codec::{CodecError, Decode, Encode};
use crate::envelope::put_varint;
use crate::scratch::EncodeBuffer;
use crate::status::Status;
use crate::typed::call::TypedCall;
use crate::typed::method::TypedMethod;
use crate::typed::stream_calls::ResponseStreamCall;

/// Arguments of a call, in the client.
#[derive(Debug)]
pub struct ArgumentWriter<C> {
    body: MessageBody,
    fault: Option<Status>,
    codec: PhantomData<C>,
}

impl<C> ArgumentWriter<C> {
    /// No arguments.
    #[must_use]
    pub fn new() -> Self {
        Self { body: EncodeBuffer::new().into(), fault: None, codec: PhantomData }
    }

    /// Appends an argument. One that has no form in the codec ends the call with [`Code::InvalidArgument`].
    pub fn push<T>(&mut self, name: &str, value: &T)
    where
        C: Encode<T>,
    {
        let Some(encoded) = &mut self.body.encoded else { return };
        if let Err(error) = C::encode(value, encoded.buffer()) {
            let refused = |error: CodecError| {
                let text = format!("the argument {name}: {error}");
                Status::new(Code::InvalidArgument, text).not_executed()
            };
            self.fault.get_or_insert_with(|| refused(error));
        }
    }

    /// Appends the argument that takes all bytes behind the others, which get their length before them.
    pub fn push_rest(&mut self, rest: Bytes) {
        let Some(encoded) = &mut self.body.encoded else { return };
        let mut length = EncodeBuffer::new();
        put_varint(encoded.written().len() as u64, length.buffer());
        encoded.prepend(length.written());
        self.body.rest = rest;
    }

    /// The call with these arguments.
    pub fn call<T>(self, channel: &Channel, method: TypedMethod) -> TypedCall<'_, C, T> {
        TypedCall::new(channel, method.path, method, self.body, self.fault)
    }

    /// The call with these arguments, of a method with a stream of responses.
    pub fn stream_call<T>(
        self,
        channel: &Channel,
        method: TypedMethod,
    ) -> ResponseStreamCall<'_, C, T> {
        ResponseStreamCall::new(channel, method, self.body.into_bytes(), self.fault)
    }
}

impl<C> Default for ArgumentWriter<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// Arguments of a call, in the server.
#[derive(Debug)]
pub struct ArgumentReader<C> {
    input: Bytes,
    method: TypedMethod,
    codec: PhantomData<C>,
}

impl<C> ArgumentReader<C> {
    /// The arguments of a method in the body of a request. Bytes behind the last one are ignored.
    #[must_use]
    pub fn new(method: TypedMethod, input: Bytes) -> Self {
        Self { input, method, codec: PhantomData }
    }

    /// Splits the argument off that takes all bytes behind the others.
    ///
    /// # Errors
    ///
    /// [`Code::FailedPrecondition`].
    pub fn split_rest(&mut self, name: &str) -> Result<Bytes, Status> {
        let wrong = |text: &str| self.method.undecodable(name, &CodecError::new(text));
        let (mut length, mut place) = (0_usize, 0);
        for byte in self.input.iter().take(5) {
            length |= usize::from(byte & 0x7F) << (7 * place);
            place += 1;
            if byte & 0x80 == 0 {
                break;
            }
        }
        if place == 0 || self.input[place - 1] & 0x80 != 0 || length > self.input.len() - place {
            return Err(wrong("the length of the arguments before it is wrong"));
        }
        self.input.advance(place);
        let rest = self.input.split_off(length);
        Ok(rest)
    }

    /// Takes the next argument.
    ///
    /// # Errors
    ///
    /// [`Code::FailedPrecondition`]: the bytes are no value of this type.
    pub fn next<T>(&mut self, name: &str) -> Result<T, Status>
    where
        C: Decode<T>,
    {
        C::decode(&mut self.input).map_err(|error| self.method.undecodable(name, &error))
    }
}
