//! Options of calls.

use std::time::Duration;

use apus::{CallOptions, Flush, TraceContext};

use crate::argument;
use crate::failure::Failure;
use crate::sized::{self, Growing};

/// A time that does not end, for arguments in nanoseconds.
pub const APUS_FOREVER: i64 = -1;

/// Flag of a call: if the limits and budgets of the node have no room for it, it ends at once with APUS_ETOO_MANY_CALLS or
/// APUS_EOVER_BUDGET. Without it apus_call() waits for room; apus_send() never does.
pub const APUS_CALL_WITHOUT_WAIT: u32 = 1;

/// Flag of a call of apus_send(): another operation on the node follows within microseconds, and the request may stay queued
/// until then, to share a datagram and a system call with it.
pub const APUS_CALL_LATER: u32 = 2;

/// The place of a call in a distributed trace, as in a `traceparent` header of W3C Trace Context.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct apus_trace {
    /// The id of the trace. All zeros, with a span of zeros: none.
    pub trace_id: [u8; 16],
    /// The id of the span of the caller.
    pub span_id: [u8; 8],
    /// 1: the caller may have recorded its span. Others pass through.
    pub flags: u8,
    /// Zeros.
    pub reserved: [u8; 7],
}

/// Options of a call. APUS_CALL_OPTIONS_INIT has the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct apus_call_options {
    /// sizeof(apus_call_options).
    pub size: u32,
    /// Some of the flags APUS_CALL_….
    pub flags: u32,
    /// The call ends with APUS_EDEADLINE if it has no response this many nanoseconds after its start. Negative, as APUS_FOREVER:
    /// it has no deadline, and ends when the peer has been silent for the setting `peer_timeout`. Zero ends it at once.
    pub deadline_ns: i64,
    /// The place of the call in a distributed trace; zeros: none.
    pub trace: apus_trace,
}

// SAFETY: it is `repr(C)`, of numbers, and begins with its size.
unsafe impl Growing for apus_call_options {
    const NAME: &'static str = "apus_call_options";
    const FIRST: usize = 48;
}

const _: () = assert!(size_of::<apus_call_options>() >= apus_call_options::FIRST);

impl apus_trace {
    pub(crate) const NONE: Self =
        Self { trace_id: [0; 16], span_id: [0; 8], flags: 0, reserved: [0; 7] };

    pub(crate) fn of(context: &TraceContext) -> Self {
        Self {
            trace_id: context.trace_id(),
            span_id: context.span_id(),
            flags: context.flags(),
            ..Self::NONE
        }
    }

    #[inline]
    fn context(&self) -> Result<Option<TraceContext>, Failure> {
        if self.trace_id == [0; 16] && self.span_id == [0; 8] {
            return Ok(None);
        }
        let context = TraceContext::new(self.trace_id, self.span_id, self.flags);
        let wrong = || {
            let allowed = "two ids, or zeros in both";
            Failure::argument("options->trace", &"one id of zeros", allowed)
        };
        context.map(Some).ok_or_else(wrong)
    }
}

/// Reads options; NULL stands for the defaults.
#[inline(always)]
pub(crate) unsafe fn of(
    options: *const apus_call_options,
) -> Result<(CallOptions, Flush), Failure> {
    if options.is_null() {
        return Ok((const { CallOptions::new() }, Flush::Now));
    }
    // SAFETY: as of this function.
    unsafe { given(options) }
}

unsafe fn given(options: *const apus_call_options) -> Result<(CallOptions, Flush), Failure> {
    // SAFETY: as of this function.
    let options = unsafe { sized::read("options", options)? };
    let known = APUS_CALL_WITHOUT_WAIT | APUS_CALL_LATER;
    if options.flags & !known != 0 {
        let value = format_args!("{:#x}", options.flags);
        let allowed = "APUS_CALL_WITHOUT_WAIT and APUS_CALL_LATER only";
        return Err(Failure::argument("options->flags", &value, allowed));
    }
    let mut read = CallOptions::new().wait_for_room(options.flags & APUS_CALL_WITHOUT_WAIT == 0);
    if let Some(deadline) = argument::time(options.deadline_ns) {
        read = read.deadline(deadline);
    }
    if let Some(context) = options.trace.context()? {
        read = read.trace_context(context);
    }
    let flush = if options.flags & APUS_CALL_LATER == 0 { Flush::Now } else { Flush::Later };
    Ok((read, flush))
}

/// A time in nanoseconds that fits the type.
pub(crate) fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
