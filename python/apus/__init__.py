"""Apus: Homa for user space. Short messages stay fast, and every request is executed at most once.

>>> import apus
>>> node = apus.Node(listen="127.0.0.1:0")
>>> port = node.bind(4000)
>>> serving = threading.Thread(target=port.serve, args=(lambda request: request.body,), daemon=True)
>>> serving.start()
>>> bytes(node.client().call(node.address(4000), b"hello", timeout=5))
b'hello'

``apus.aio`` has the same names for asyncio, ``apus.grpc`` carries the calls of gRPC's stubs and servicers, and ``apus.results`` reads
the files of ``apus sim``, ``apus bench`` and ``apus lab``.
"""

from apus import _native, _serving
from apus._native import Address, Client, Message, Node, Port, Request, Response, resolve
from apus.errors import (
    ApusError,
    CallCancelledError,
    CallError,
    ClientGoneError,
    ClosedError,
    ConfigError,
    DeadlineError,
    ForkedError,
    HandlerError,
    IdentityError,
    NoSuchPortError,
    OpenError,
    OverloadedError,
    PeerTimeoutError,
    PeerUnreachableError,
    ReceiveTimeoutError,
    ReplyError,
    ResolveError,
    ResponseLostError,
    RuleError,
    StartError,
    TooLargeError,
    UnfinishedError,
)

__all__ = [
    "Address",
    "ApusError",
    "CallCancelledError",
    "CallError",
    "Client",
    "ClientGoneError",
    "ClosedError",
    "ConfigError",
    "DeadlineError",
    "ForkedError",
    "HandlerError",
    "IdentityError",
    "Message",
    "NoSuchPortError",
    "Node",
    "OpenError",
    "OverloadedError",
    "PeerTimeoutError",
    "PeerUnreachableError",
    "Port",
    "ReceiveTimeoutError",
    "ReplyError",
    "Request",
    "ResolveError",
    "Response",
    "ResponseLostError",
    "RuleError",
    "StartError",
    "TooLargeError",
    "UnfinishedError",
    "resolve",
]

__version__ = _native.VERSION

Port.serve = _serving.serve  # type: ignore[method-assign]
