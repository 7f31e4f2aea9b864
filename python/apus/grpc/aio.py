"""gRPC over Apus for asyncio, as ``grpc.aio``.

>>> async with apus.grpc.aio.insecure_channel("apus://localhost:4000") as channel: ...
>>> server = apus.grpc.aio.server(4000)

The thread of the event loop sends and receives itself. A channel and a server have nodes of their own unless they are given one.
"""

from collections.abc import Sequence
from typing import Any

import grpc
from grpc import aio as grpc_aio

import apus.aio
from apus.grpc._aio_channel import AioRpcFailed, Channel
from apus.grpc._aio_server import Server

__all__ = ["AioRpcFailed", "Channel", "Server", "insecure_channel", "server"]


def insecure_channel(
    target: str,
    options: Sequence[tuple[str, Any]] | None = None,
    compression: grpc.Compression | None = None,
    interceptors: Sequence[grpc_aio.ClientInterceptor] | None = None,
    *,
    node: apus.aio.Node | None = None,
) -> "Channel":
    """A channel to ``apus://HOST:PORT``, for the stubs of protoc. ``node`` is the node of the channel, which has one of its own without it."""
    if interceptors:
        raise ValueError("interceptors: not for channels of apus.grpc.aio")
    return Channel(target, options, node)


def server(
    port: int | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[grpc_aio.ServerInterceptor] | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    node: apus.aio.Node | None = None,
) -> "Server":
    """A server at a port of Apus, for the servicers of protoc. ``node`` is the node that serves; without it, the server starts one at UDP
    port 20146. Plain functions as handlers run in the thread of the loop. After ``stop``, the last responses arrive as with
    ``apus.grpc.server``."""
    return Server(port, handlers, interceptors, options, maximum_concurrent_rpcs, node)
