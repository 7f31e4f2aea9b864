//! The meaning of a failed attempt for its endpoint, and for the call.

use apus::CallError;

use crate::code::Code;
use crate::response::Response;
use crate::status::{Execution, Status};

/// The meaning of the end of an attempt for its endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndpointOutcome {
    /// It has answered.
    Answered,
    /// The end says nothing about it.
    Unknown,
    /// It has failed.
    Failed,
    /// It is about to end, in order.
    Drains,
}

/// Probes without an answer by which a call whose deadline has passed counts as a failure of its peer. One may be under way.
const UNANSWERED_MIN: u32 = 2;

impl EndpointOutcome {
    pub(crate) fn of(result: &Result<Response, Status>) -> Self {
        Self::of_status(result.as_ref().err())
    }

    /// `None` stands for a response.
    pub(crate) fn of_status(status: Option<&Status>) -> Self {
        let Some(status) = status else { return Self::Answered };
        let Some(error) = status.call_error() else {
            return match (status.execution(), status.code()) {
                (Execution::NoneByDraining, _) => Self::Drains,
                (_, Code::Unavailable) => Self::Failed,
                _ => Self::Answered,
            };
        };
        match error {
            CallError::Deadline { after, story } => {
                // A peer that answers probes is alive, and its handler is slow.
                let silent = story.peer_silent_for.is_none_or(|silent| silent >= *after);
                let is_failure = silent && story.probes_unanswered >= UNANSWERED_MIN;
                if is_failure { Self::Failed } else { Self::Unknown }
            }
            CallError::PeerTimeout { .. }
            | CallError::PeerUnreachable { .. }
            | CallError::ResponseLost
            | CallError::MayHaveExecuted
            | CallError::NoSuchPort
            | CallError::NotSent
            | CallError::HandshakeFailed { .. }
            | CallError::OtherVersion { .. }
            | CallError::WrongPeer(_)
            | CallError::PlainOnly
            | CallError::Forbidden
            | CallError::SealedOnly => Self::Failed,
            CallError::HandlerPanicked | CallError::RequestTooLarge { .. } => Self::Answered,
            _ => Self::Unknown,
        }
    }
}

/// Whether a failed attempt may succeed at another endpoint, and whether its repetition is a danger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repetition {
    /// No: the request may have been executed, or each endpoint would refuse it.
    No,
    /// Yes: the endpoint has done nothing with it.
    Free,
    /// Yes, but servers that have too much to do get more of it.
    Charged,
}

impl Repetition {
    /// For a request that was not executed. Answers about the request itself, such as UNAUTHENTICATED and UNIMPLEMENTED, would be
    /// the same everywhere.
    pub(crate) fn of(status: &Status) -> Self {
        if status.may_have_executed() {
            return Self::No;
        }
        match status.call_error() {
            None if status.execution() == Execution::NoneByDraining => Self::Free,
            None => match status.code() {
                Code::Unavailable | Code::ResourceExhausted => Self::Charged,
                _ => Self::No,
            },
            Some(CallError::Overloaded { .. }) => Self::Charged,
            Some(
                CallError::PeerTimeout { .. }
                | CallError::PeerUnreachable { .. }
                | CallError::NoSuchPort
                | CallError::NotSent
                | CallError::NoEngine
                | CallError::HandshakeFailed { .. }
                | CallError::OtherVersion { .. }
                | CallError::WrongPeer(_)
                | CallError::PlainOnly
                | CallError::Forbidden
                | CallError::SealedOnly,
            ) => Self::Free,
            Some(_) => Self::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: Code, executed: Execution) -> Status {
        Status::new(code, "").with_execution(executed)
    }

    #[test]
    fn failures_of_the_peer_count_against_it() {
        let table = [
            (Status::from(CallError::MayHaveExecuted), EndpointOutcome::Failed),
            (Status::from(CallError::ResponseLost), EndpointOutcome::Failed),
            (Status::from(CallError::NoSuchPort), EndpointOutcome::Failed),
            (Status::from(CallError::Cancelled), EndpointOutcome::Unknown),
            (Status::from(CallError::TooManyCalls { limit: 1 }), EndpointOutcome::Unknown),
            (Status::from(CallError::HandlerPanicked), EndpointOutcome::Answered),
            (answer(Code::Unavailable, Execution::Possible), EndpointOutcome::Failed),
            (answer(Code::Unavailable, Execution::NoneByDraining), EndpointOutcome::Drains),
            (answer(Code::NotFound, Execution::Possible), EndpointOutcome::Answered),
            (answer(Code::ResourceExhausted, Execution::None), EndpointOutcome::Answered),
        ];
        for (status, outcome) in table {
            assert_eq!(EndpointOutcome::of(&Err(status.clone())), outcome, "{status:?}");
        }
        assert_eq!(EndpointOutcome::of(&Ok(Response::default())), EndpointOutcome::Answered);
    }

    #[test]
    fn only_requests_that_were_not_executed_are_repeated_without_being_asked() {
        let table = [
            (Status::from(CallError::NoSuchPort), Repetition::Free),
            (Status::from(CallError::NotSent), Repetition::Free),
            (Status::from(CallError::MayHaveExecuted), Repetition::No),
            (Status::from(CallError::NoIdentity), Repetition::No),
            (answer(Code::Unavailable, Execution::NoneByDraining), Repetition::Free),
            (answer(Code::Unavailable, Execution::None), Repetition::Charged),
            (answer(Code::ResourceExhausted, Execution::None), Repetition::Charged),
            (answer(Code::Unauthenticated, Execution::None), Repetition::No),
            (answer(Code::Unavailable, Execution::Possible), Repetition::No),
        ];
        for (status, repetition) in table {
            assert_eq!(Repetition::of(&status), repetition, "{status:?}");
        }
    }
}
