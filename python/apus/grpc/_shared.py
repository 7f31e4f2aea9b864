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


def excess(message: Any, longest: int) -> str | None:
    """What is wrong with a message that is longer than this side may send."""
    return f"Sent message larger than max ({len(message)} vs. {longest})" if len(message) > longest else None


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


class ContextFacts:
    """The part of a context that servers on threads and in event loops share: facts of the call, and its status."""

    def __init__(self, call: _native.RpcServerCall) -> None:
        self._call = call
        self._code: Any = None
        self._details: Any = None
        self._trailers: Any = ()

    def time_remaining(self) -> float | None:
        """The seconds until the deadline of the call."""
        return self._call.remaining

    def peer(self) -> str:
        """The address of the client, which is not authenticated."""
        return f"apus://{self._call.peer}"

    def peer_identities(self) -> list[bytes] | None:
        """The name of the client's certificate."""
        identity = self._call.identity
        return None if identity is None else [identity.encode()]

    def peer_identity_key(self) -> str | None:
        """The kind of the name."""
        return None if self._call.identity is None else "apus_peer"

    def auth_context(self) -> dict[str, list[bytes]]:
        """The name of the client's certificate, by its kind."""
        identity = self._call.identity
        return {} if identity is None else {"apus_peer": [identity.encode()]}

    def set_compression(self, compression: Any) -> None:
        """Messages are not compressed."""

    def disable_next_message_compression(self) -> None:
        """Messages are not compressed."""

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Sets the metadata after the response."""
        self._trailers = trailing_metadata

    def trailing_metadata(self) -> Any:
        """The metadata after the response."""
        return self._trailers

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the code with which the call ends."""
        self._code = code

    def code(self) -> Any:
        """The code with which the call ends."""
        return self._code

    def set_details(self, details: str) -> None:
        """Sets the message of the status."""
        self._details = details

    def details(self) -> Any:
        """The message of the status."""
        return self._details

    def has_failed(self) -> bool:
        """Whether the handler has set the code of a failure, so that it may have no response."""
        return self._code is not None and number_of(self._code) != 0

    def finish(self, response: Any, failure: tuple[int, str] | None = None) -> None:
        """Ends the call: with a response, or a failure of the handler that has set no code."""
        code = number_of(self._code) if self._code is not None else 0
        details = self._details.decode() if isinstance(self._details, bytes) else self._details or ""
        if failure is not None and code == 0:
            code, details = failure
        trailers, status_details = split_details(self._trailers)
        self._call.finish(response if code == 0 else None, code, details, status_details, trailers or None)


class Registered:
    """The part of a server that servers on threads and in event loops share: its port and its handlers."""

    def __init__(self, port: int | None, handlers: Sequence[grpc.GenericRpcHandler] | None) -> None:
        self._port = port
        self._methods = Methods(handlers)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds services, as generated code does."""
        self._methods.generic.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        """Adds the methods of a service, as generated code does."""
        self._methods.register(service_name, method_handlers)

    def add_insecure_port(self, address: str) -> int:
        """Sets the port, as ``apus://[::]:PORT``."""
        port = port_of(address)
        if self._port not in (None, port):
            raise ValueError(f"the server has the port {self._port}")
        self._port = port
        return port


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
