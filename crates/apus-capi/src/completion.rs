//! Results of calls of `apus_send`.

use apus::Response;

use crate::failure::{Details, Failure};
use crate::message::apus_message;
use crate::sized::Growing;

/// The result of a call of apus_send() or apus_send_owned().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct apus_completion {
    /// sizeof(apus_completion). The first element of an array states the size of all.
    pub size: u32,
    /// 0, or the number of the error with which the call ended.
    pub error: i32,
    /// The tag of the call.
    pub tag: u64,
    /// The response; if there is an error, a message with its text, behind which there is a NUL. Free it in both cases.
    pub message: *mut apus_message,
    /// 1 if the request may have been executed, 0 if it was not and will not be.
    pub may_have_executed: i32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: it is `repr(C)`, of numbers and a pointer, and begins with its size.
unsafe impl Growing for apus_completion {
    const NAME: &'static str = "apus_completion";
    const FIRST: usize = 32;
}

const _: () = assert!(size_of::<apus_completion>() >= apus_completion::FIRST);

impl apus_completion {
    /// The caller owns the message.
    pub(crate) fn of(response: Response) -> Self {
        let Response { cookie, result, .. } = response;
        let (error, message, may_have_executed) = match result {
            Ok(body) => (0, apus_message::new(body), 1),
            Err(error) => {
                let Details { number, text, may_have_executed } = *Failure::from(error).0;
                (number as i32, apus_message::of_text(&text), may_have_executed.into())
            }
        };
        let size = size_of::<Self>() as u32;
        Self { size, error, tag: cookie, message, may_have_executed, reserved: 0 }
    }
}
