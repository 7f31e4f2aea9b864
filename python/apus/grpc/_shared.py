"""Statuses, metadata and options, which both kinds of channels and servers have."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import grpc

from apus import _native
from apus.errors import ApusError

Status: TypeAlias = tuple[int, str, bytes, list[tuple[str, str | bytes]], bool]
"""Code, message, details, trailers, and whether the request may have been executed."""

Serializer: TypeAlias = Callable[[Any], Any] | None

DETAILS = "grpc-status-details-bin"
"""The trailer in which grpcio has the details of a status."""

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_LONGEST_DEFAULT = 4 << 20
_UNBOUNDED = (1 << 32) - 1


class Metadatum(NamedTuple):
    """A pair of a name and a value."""

    key: str
    value: str | bytes


def code_of(number: int) -> grpc.StatusCode:
    """The code with a number."""
    return _CODES.get(number, grpc.StatusCode.UNKNOWN)


def number_of(code: Any) -> int:
    """The number of a code, which may be given as a number."""
    return int(code.value[0]) if isinstance(code, grpc.StatusCode) else int(code)


def metadata_of(pairs: Sequence[tuple[str, str | bytes]] | None) -> tuple[Metadatum, ...]:
    """Metadata as grpcio has it."""
    return tuple(Metadatum(*pair) for pair in pairs or ())


def trailers_of(status: Status) -> tuple[Metadatum, ...]:
    """Trailers, with the details where grpcio has them."""
    trailers = metadata_of(status[3])
    return (*trailers, Metadatum(DETAILS, status[2])) if status[2] else trailers


def split_details(trailers: Any) -> tuple[list[tuple[str, str | bytes]], bytes | None]:
    """Trailers of a handler without the details, and these."""
    rest: list[tuple[str, str | bytes]] = []
    details = None
    for key, value in trailers or ():
        if key == DETAILS:
            details = value if isinstance(value, bytes) else value.encode()
        else:
            rest.append((key, value))
    return rest, details


def longest(options: Any, name: str, default: int = _LONGEST_DEFAULT) -> int:
    """A limit on the length of messages; negative: no limit."""
    value = dict(options or ()).get(name, default)
    return _UNBOUNDED if value < 0 else int(value)


def longest_received(options: Any) -> int:
    """The longest message that is accepted: 4 MiB unless the options say otherwise."""
    return longest(options, "grpc.max_receive_message_length")


def longest_sent(options: Any) -> int:
    """The longest message that is sent: any unless the options say otherwise."""
    return longest(options, "grpc.max_send_message_length", -1)


def serialized(value: Any, serializer: Serializer) -> Any:
    """A message as bytes."""
    return value if serializer is None else serializer(value)


def deserialized(message: Any, deserializer: Serializer) -> Any:
    """A message as a value."""
    return bytes(message) if deserializer is None else deserializer(bytes(message))


def grace_of(grace: float | None) -> float:
    """The seconds that calls have when a server stops: none without a time, at most some 30 years."""
    grace = 0.0 if grace is None else float(grace)
    if math.isnan(grace):
        raise ValueError("grace: a time in seconds, or None")
    return min(max(grace, 0.0), 1e9)


async def operation(reactor: _native.Reactor, start: Callable[..., int]) -> Any:
    """Awaits an operation of the native module."""
    future = asyncio.get_running_loop().create_future()
    number = start(reactor, future)
    if future.done():
        return future.result()
    try:
        return await future
    finally:
        reactor.cancel(number)


def refuse_credentials(credentials: Any) -> None:
    """Credentials of calls would be sent to anybody: Apus has certificates of nodes."""
    if credentials is not None:
        raise ValueError("credentials: Apus knows its peers by the certificates of their nodes (settings tls_*)")


class RpcFailed(grpc.RpcError, grpc.Call):
    """The status of a call that has failed, as an exception of grpcio."""

    def __init__(self, status: Status, initial_metadata: Any = ()) -> None:
        super().__init__(f"{code_of(status[0]).name}: {status[1]}")
        self._status = status
        self._initial_metadata = metadata_of(initial_metadata)

    @property
    def may_have_executed(self) -> bool:
        """Whether a handler may have seen the request. If not, the call may be repeated, whatever its method does."""
        return self._status[4]

    def code(self) -> grpc.StatusCode:
        """The code."""
        return code_of(self._status[0])

    def details(self) -> str:
        """The message."""
        return self._status[1]

    def initial_metadata(self) -> tuple[Metadatum, ...]:
        """The metadata before the response."""
        return self._initial_metadata

    def trailing_metadata(self) -> tuple[Metadatum, ...]:
        """The metadata after the response."""
        return trailers_of(self._status)

    def debug_error_string(self) -> str:
        """A text for logs."""
        return str(self)

    def is_active(self) -> bool:
        """The call is over."""
        return False

    def time_remaining(self) -> None:
        """The call is over."""
        return None

    def cancel(self) -> bool:
        """The call is over."""
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """The call is over."""
        return False


def unavailable(error: ApusError) -> Status:
    """The status of a call without a channel."""
    return (14, str(error), b"", [], False)


class Methods:
    """The methods of a server, by their paths."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler] | None) -> None:
        self.generic: list[grpc.GenericRpcHandler] = list(handlers or ())
        self.registered: dict[str, grpc.RpcMethodHandler] = {}

    def register(self, service: str, handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        """Adds the methods of a service."""
        self.registered.update({f"/{service}/{method}": handler for method, handler in handlers.items()})

    def find(self, details: "CallDetails") -> grpc.RpcMethodHandler | None:
        """The handler of a call."""
        handler = self.registered.get(details.method)
        if handler is not None:
            return handler
        for generic in self.generic:
            handler = generic.service(details)
            if handler is not None:
                return handler
        return None


class CallDetails(grpc.HandlerCallDetails):
    """The method and the metadata of a call, for interceptors."""

    def __init__(self, method: str, invocation_metadata: Any) -> None:
        self.method = method
        self.invocation_metadata = invocation_metadata


def port_of(address: str) -> int:
    """The port in ``apus://HOST:PORT``."""
    if not address.startswith("apus://"):
        raise ValueError(f"'{address}': expected apus://[::]:PORT; also_tcp('{address}') serves over TCP as well")
    return int(address.rpartition(":")[2])
