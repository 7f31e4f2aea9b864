"""Exceptions of Apus.

Each exception has ``may_have_executed``: whether the server may have executed the request of the call. If not, the call may be
repeated, whatever its request does. ``kind`` is the name of the library's error, for logs.
"""

__all__ = [
    "ApusError",
    "CallCancelledError",
    "CallError",
    "ClientGoneError",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "ForkedError",
    "HandlerError",
    "IdentityError",
    "NoSuchPortError",
    "OpenError",
    "OverloadedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "ReceiveTimeoutError",
    "ReplyError",
    "ResolveError",
    "ResponseLostError",
    "RuleError",
    "StartError",
    "TooLargeError",
    "UnfinishedError",
]


class ApusError(Exception):
    """Any error of Apus."""

    may_have_executed: bool = False
    """Whether the server may have executed the request. False for errors of other operations than calls."""

    kind: str = ""
    """Name of the error in the library, such as ``PeerTimeout``."""


class ConfigError(ApusError, ValueError):
    """A setting, or the value of a setting, does not exist or is out of its range."""


class StartError(ApusError):
    """A node does not start: its port is in use, for example."""


class OpenError(ApusError):
    """A client or a port is not opened."""


class ResolveError(ApusError):
    """A name has no address."""


class RuleError(ApusError):
    """A rule for peers is not accepted."""


class ReceiveTimeoutError(ApusError, TimeoutError):
    """No message arrived in the time given."""


class UnfinishedError(ApusError):
    """A node was closed before all calls and requests had ended."""


class ReplyError(ApusError):
    """The node did not accept a response. The request can be answered again."""


class ClientGoneError(ReplyError):
    """The client no longer waits for the response, or the request was answered before."""


class CallError(ApusError):
    """A call has no response."""


class ForkedError(CallError):
    """The node was started by the parent of this process, before the fork. Start another one. Raised by all operations."""


class ClosedError(CallError):
    """The client, the port or its node was closed. Raised by all operations."""


class CallCancelledError(CallError):
    """The call was cancelled on this side."""


class DeadlineError(CallError, TimeoutError):
    """The time given with the call has passed."""


class PeerTimeoutError(CallError, ConnectionError):
    """The peer was silent and left probes unanswered."""


class PeerUnreachableError(CallError, ConnectionError):
    """The network reports that the peer cannot be reached, or that no node listens there."""


class NoSuchPortError(CallError, ConnectionError):
    """The peer does not serve the port. The request was not executed."""


class HandlerError(CallError):
    """The server's handler raised or panicked. The request may have been executed in part."""


class ResponseLostError(CallError, ConnectionError):
    """The server gave the request up, or was restarted. The request may have been executed once."""


class OverloadedError(CallError):
    """The limits and budgets of a side left no room for the request, which was not executed."""


class TooLargeError(CallError):
    """A message is longer than one of the sides accepts."""


class IdentityError(CallError):
    """The identity of one of the sides is missing or refused. Nothing was executed unless ``may_have_executed`` says so."""
