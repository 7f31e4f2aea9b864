//! Errors of `apus` as numbers and texts.

use std::fmt::Display;

use apus::{
    AddressError, CallError, CloseError, ConfigError, EventLoopError, OpenError, RecvError,
    ReplyError, ResolveError, RuleError, StartError,
};

use crate::error::apus_error::{self, *};

/// Bodies that are copied have at most this length, in bytes: the largest value of the setting `message_max`.
pub(crate) const LENGTH_MAX: usize = 1 << 30;

/// Why a function has failed. A pointer, because functions rarely fail.
pub(crate) struct Failure(pub(crate) Box<Details>);

/// The parts of a failure.
pub(crate) struct Details {
    pub(crate) number: apus_error,
    pub(crate) text: String,
    pub(crate) may_have_executed: bool,
}

impl Failure {
    #[cold]
    pub(crate) fn new(number: apus_error, text: impl Display) -> Self {
        Self(Box::new(Details { number, text: text.to_string(), may_have_executed: false }))
    }

    /// An argument has a value that is not allowed.
    #[cold]
    pub(crate) fn argument(name: &str, value: &dyn Display, allowed: &str) -> Self {
        Self::new(APUS_EINVAL, format_args!("{name}: {value}: expected {allowed}"))
    }

    #[cold]
    pub(crate) fn null(name: &str) -> Self {
        Self::argument(name, &"NULL", "a valid pointer")
    }

    #[cold]
    pub(crate) fn too_long(length: usize) -> Self {
        let text = format_args!("body of {length} bytes: at most {LENGTH_MAX} are allowed");
        Self::new(APUS_ETOO_LONG, text)
    }

    #[cold]
    pub(crate) fn forked() -> Self {
        Self::new(APUS_EFORKED, CloseError::Forked)
    }

    #[cold]
    pub(crate) fn closed() -> Self {
        Self::new(APUS_ECLOSED, "the node is closed")
    }

    #[cold]
    pub(crate) fn panicked(text: &str) -> Self {
        let text = format!("the library panicked: {text}");
        Self(Box::new(Details { number: APUS_EPANIC, text, may_have_executed: true }))
    }
}

impl From<CallError> for Failure {
    #[cold]
    fn from(error: CallError) -> Self {
        let may_have_executed = error.may_have_executed();
        let (number, text) = (of_call(&error), error.to_string());
        Self(Box::new(Details { number, text, may_have_executed }))
    }
}

fn of_call(error: &CallError) -> apus_error {
    match error {
        CallError::EmptyForLinux => APUS_EEMPTY,
        CallError::MessageTooLarge { .. } | CallError::TooLargeForLinux { .. } => APUS_ETOO_LONG,
        CallError::ResponseTooLarge { .. } => APUS_ERESPONSE_TOO_LONG,
        CallError::UnspecifiedAddress(_) => APUS_EADDRESS,
        CallError::OwnService { .. } => APUS_EOWN_SERVICE,
        CallError::Forked => APUS_EFORKED,
        CallError::NodePanicked => APUS_EPANIC,
        CallError::TooManyCalls { .. } => APUS_ETOO_MANY_CALLS,
        CallError::OverBudget { .. } => APUS_EOVER_BUDGET,
        CallError::TooManyPeers { .. } => APUS_ETOO_MANY_PEERS,
        CallError::PeerTimeout { .. } => APUS_EPEER_TIMEOUT,
        CallError::PeerUnreachable { .. } => APUS_EPEER_UNREACHABLE,
        CallError::NoSuchPort => APUS_ENO_SUCH_PORT,
        CallError::HandlerPanicked => APUS_EHANDLER_PANICKED,
        CallError::ResponseLost => APUS_ERESPONSE_LOST,
        CallError::MayHaveExecuted => APUS_EMAY_HAVE_EXECUTED,
        CallError::OtherVersion { .. } => APUS_EOTHER_VERSION,
        CallError::RequestTooLarge { .. } => APUS_EREQUEST_TOO_LONG,
        CallError::Overloaded { .. } => APUS_EOVERLOADED,
        CallError::Deadline { .. } => APUS_EDEADLINE,
        CallError::Cancelled => APUS_ECANCELLED,
        CallError::Closed => APUS_ECLOSED,
        CallError::EngineEnded => APUS_EENGINE_ENDED,
        CallError::NoEngine => APUS_ENO_ENGINE,
        CallError::NotSent => APUS_ENOT_SENT,
        CallError::WrongPeer(_) => APUS_EWRONG_PEER,
        CallError::HandshakeFailed { .. } => APUS_EHANDSHAKE,
        CallError::NoIdentity => APUS_ENO_IDENTITY,
        CallError::NoPlainPeer => APUS_ENO_PLAIN_PEER,
        CallError::PlainOnly => APUS_EPLAIN_ONLY,
        CallError::Forbidden => APUS_EFORBIDDEN,
        CallError::SealedOnly => APUS_ESEALED_ONLY,
        _ => APUS_EOTHER,
    }
}

/// Makes the conversion of an error without a request.
macro_rules! failures {
    ($($error:ident { $($variant:pat => $number:ident,)+ })+) => {
        $(impl From<$error> for Failure {
            #[cold]
            fn from(error: $error) -> Self {
                use $error::*;
                #[allow(unreachable_patterns, reason = "some types may get more variants")]
                let number = match &error {
                    $($variant => $number,)+
                    _ => APUS_EOTHER,
                };
                Self::new(number, error)
            }
        })+
    };
}

failures! {
    RecvError {
        Closed => APUS_ECLOSED,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
    }
    ReplyError {
        EmptyForLinux => APUS_EEMPTY,
        MessageTooLarge { .. } | TooLargeForLinux { .. } => APUS_ETOO_LONG,
        OverBudget { .. } => APUS_EOVER_BUDGET,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
        Gone => APUS_EGONE,
    }
    OpenError {
        PortOutOfRange(_) | PortReserved(_) => APUS_EINVAL,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
        PortInUse(_) => APUS_EIN_USE,
        NoPortLeft => APUS_ENO_RESOURCES,
        PortForbidden(_) => APUS_EPERMISSION,
        NoEngine => APUS_ENO_ENGINE,
        Closed => APUS_ECLOSED,
    }
    StartError {
        Config(ConfigError::File { .. }) | Capture { .. } | Identity(_) => APUS_EFILE,
        Config(_) | RawShards { .. } => APUS_ECONFIG,
        AddressInUse(_) => APUS_EIN_USE,
        AddressNotAvailable(_) => APUS_EADDRESS_NOT_AVAILABLE,
        PermissionDenied(_) => APUS_EPERMISSION,
        Link(_) => APUS_ELINK,
        UnspecifiedAddress(_) => APUS_EADDRESS,
        Engine { .. } => APUS_ENO_ENGINE,
        Descriptor(_) | Memory(_) | Thread(_) => APUS_ENO_RESOURCES,
    }
    CloseError {
        Unfinished { .. } => APUS_EUNFINISHED,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
    }
    EventLoopError {
        Delivery(_) | Shards(_) | InUse => APUS_EEVENT_LOOP,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
        Descriptor(_) => APUS_ENO_RESOURCES,
    }
    ConfigError {
        File { .. } => APUS_EFILE,
        _ => APUS_ECONFIG,
    }
    ResolveError {
        Form { .. } => APUS_EADDRESS,
        Lookup { .. } => APUS_ELOOKUP,
    }
    RuleError {
        Pattern(_) | TooMany { .. } | TooLong { .. } => APUS_EINVAL,
        NoIdentity => APUS_ENO_IDENTITY,
        NoEngine => APUS_ENO_ENGINE,
        Forked => APUS_EFORKED,
        NodePanicked => APUS_EPANIC,
    }
}

impl From<AddressError> for Failure {
    #[cold]
    fn from(error: AddressError) -> Self {
        Self::new(APUS_EADDRESS, error)
    }
}
