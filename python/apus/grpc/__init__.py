"""gRPC over Apus: the stubs and servicers that protoc generates, with one other line on each side.

>>> channel = apus.grpc.insecure_channel("apus://localhost:4000")      # in place of grpc.insecure_channel("localhost:50051")
>>> server = apus.grpc.server(4000)                                    # in place of grpc.server(...) and add_insecure_port(...)

``apus.grpc.aio`` has the same for asyncio. The codes, messages and metadata of statuses are gRPC's, and the exceptions are those of
grpcio, which this module needs (``pip install grpcio``). Exceptions of calls also have ``may_have_executed``.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import grpc

import apus
from apus.grpc import aio
from apus.grpc._channel import Channel
from apus.grpc._server import Server
from apus.grpc._shared import RpcFailed

__all__ = ["Channel", "RpcFailed", "Server", "aio", "insecure_channel", "server"]

Options = Sequence[tuple[str, Any]]


def insecure_channel(
    target: str,
    options: Options | None = None,
    compression: grpc.Compression | None = None,
    *,
    node: apus.Node | None = None,
) -> Channel:
    """A channel to ``apus://HOST:PORT``, for the stubs of protoc.

    ``node`` is the node of the channel; without it, all channels of the process share one. Of the options,
    ``grpc.max_receive_message_length`` and ``grpc.max_send_message_length`` are used. Messages are not compressed.
    """
    return Channel(target, options, node)


def server(
    port: int | Executor | None = None,
    handlers: Sequence[grpc.GenericRpcHandler] | None = None,
    interceptors: Sequence[grpc.ServerInterceptor] | None = None,
    options: Options | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: grpc.Compression | None = None,
    *,
    workers: int = 10,
    node: apus.Node | None = None,
) -> Server:
    """A server at a port of Apus, for the servicers of protoc. Handlers run on ``workers`` threads.

    In place of the port, the thread pool of ``grpc.server`` may stand, whose number of threads is taken over; the port is then that of
    ``add_insecure_port("apus://[::]:4000")``. ``node`` is the node that serves; without it, the server starts one at UDP port 20146.

    The last responses may be under way when ``stop`` has ended. A node of the server's own waits a second for them. On another node, the
    port stays open and refuses calls until it is opened again or the node is closed.
    """
    if isinstance(port, Executor):
        workers = getattr(port, "_max_workers", workers)
        port = None
    return Server(port, handlers, interceptors, options, maximum_concurrent_rpcs, workers, node)
