"""Servers whose handlers run in an event loop."""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
from grpc import aio as grpc_aio

import apus
import apus.aio
from apus import _native
from apus._watching import Watcher
from apus.grpc._shared import (
    CallDetails,
    ContextFacts,
    Registered,
    code_of,
    deserialized,
    grace_of,
    longest_received,
    metadata_of,
    number_of,
    operation,
    serialized,
)

_log = logging.getLogger("apus.grpc")


class Context(ContextFacts, grpc_aio.ServicerContext):
    """The context of a call in its handler."""

    def __init__(self, call: _native.RpcServerCall, reactor: _native.Reactor) -> None:
        super().__init__(call)
        self._details = ""
        self._reactor = reactor
        self._handler: Any = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._has_written = False

    async def read(self) -> Any:
        """The next request, or ``grpc.aio.EOF``. A request that cannot be read aborts the call."""
        message = await operation(self._reactor, self._call.read_in)
        if message is not None:
            return deserialized(message, self._handler.request_deserializer)
        if (fault := self._call.fault) is not None:
            await self.abort(code_of(fault[0]), fault[1])
        if self._call.is_over:
            raise asyncio.CancelledError()
        return grpc_aio.EOF

    async def write(self, message: Any) -> None:
        """Sends a response, of several."""
        self._has_written = True
        response = serialized(message, self._handler.response_serializer)
        if not await operation(self._reactor, functools.partial(self._call.send_in, response)):
            raise asyncio.CancelledError()

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Sends metadata before the response is there."""
        self._call.set_metadata(initial_metadata, True)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call with a status, by an exception."""
        if number_of(code) == 0:
            code, details = grpc.StatusCode.UNKNOWN, ""
        self._code, self._details = code, details
        if trailing_metadata:
            self._trailers = trailing_metadata
        raise grpc_aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """As ``abort``, with the parts of a status."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def invocation_metadata(self) -> Any:
        """The metadata of the request."""
        return metadata_of(self._call.metadata)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls the callback when the handler has ended."""
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        """Whether nobody waits for the response."""
        return self._call.is_over

    def done(self) -> bool:
        """Whether the call is over."""
        return self._call.is_over

    def over(self) -> None:
        """Runs the callbacks."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Server(Registered, grpc_aio.Server):
    """Serves generated servicers in an event loop. Made by ``server``."""

    def __init__(
        self,
        port: int | None,
        handlers: Sequence[grpc.GenericRpcHandler] | None,
        interceptors: Sequence[grpc_aio.ServerInterceptor] | None,
        options: Any,
        maximum_concurrent_rpcs: int | None,
        node: apus.aio.Node | None,
    ) -> None:
        super().__init__(port, handlers)
        self._find: Callable[[CallDetails], Any] = self._find_method
        for interceptor in reversed(interceptors or ()):
            self._find = functools.partial(interceptor.intercept_service, self._find)
        self._options = options
        self._concurrency = maximum_concurrent_rpcs
        self._node = node
        self._owns_node = node is None
        self._rpc: _native.AsyncRpcServer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._stopped: asyncio.Future[None] | None = None
        # The calls have had their time.
        self._waited: asyncio.Future[None] | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: Watcher[_native.RpcServerCall] | None = None

    async def _find_method(self, details: CallDetails) -> Any:
        return self._methods.find(details)

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        """Not for Apus, which has certificates of nodes (settings ``tls_*``)."""
        raise ValueError("a node with a certificate speaks sealed: apus.aio.Node(tls_cert=..., tls_key=..., tls_ca=...)")

    async def start(self) -> None:
        """Opens the port, and serves."""
        if self._port is None:
            raise ValueError("the server has no port: apus.grpc.aio.server(4000)")
        loop = asyncio.get_running_loop()
        if self._node is None:
            self._node = apus.aio.Node(server=True)
        self._loop, self._reactor = loop, self._node._reactor
        reactor = self._reactor
        self._watcher = Watcher(loop, reactor, lambda call, future: call.end_in(reactor, future))
        self._ended, self._stopped, self._waited = loop.create_future(), loop.create_future(), loop.create_future()
        longest = longest_received(self._options)
        self._rpc = _native.AsyncRpcServer(
            self._node._node, self._port, self._concurrency, longest, self._reactor, self._take, self._ended
        )

    async def stop(self, grace: float | None) -> None:
        """Refuses further calls, and cancels those that have not ended after ``grace`` seconds. A later call with a shorter time shortens
        the wait."""
        seconds = grace_of(grace)
        if self._rpc is None or self._ended is None or self._stopped is None or self._waited is None:
            return
        is_first, self._stopping = not self._stopping, True
        timer = self._loop.call_later(seconds, _set, self._waited)
        try:
            if not is_first:
                await asyncio.wait([self._stopped])
                return
            self._rpc.shutdown()
            await asyncio.wait([self._ended, self._waited], return_when=asyncio.FIRST_COMPLETED)
            await self._finish(self._ended)
        finally:
            timer.cancel()
            if is_first:
                _set(self._stopped)

    async def _finish(self, ended: "asyncio.Future[None]") -> None:
        """Cancels the handlers, and closes the node of the server."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait([ended], timeout=1.0)
        if self._watcher is not None:
            self._watcher.stop()
        if self._owns_node and self._node is not None:
            try:
                await self._node.close(1.0)
            except apus.UnfinishedError:
                pass

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Waits until the server has ended. Returns whether it has within the time."""
        assert self._stopped is not None, "the server was not started"
        done, _ = await asyncio.wait([self._stopped], timeout=timeout)
        return bool(done)

    def _take(self, call: _native.RpcServerCall) -> None:
        task = self._loop.create_task(self._handle(call))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._over, call))
        assert self._watcher is not None
        self._watcher.add(task, call)

    def _over(self, call: _native.RpcServerCall, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # Before its first step: afterwards the task ends its call itself.
            call.finish(None, 1, "the handler was cancelled", None, None)

    async def _handle(self, call: _native.RpcServerCall) -> None:
        context = Context(call, self._reactor)
        try:
            handler = await self._find(CallDetails(call.path, context.invocation_metadata()))
            if handler is None:
                return context.finish(None, (12, "Method not found!"))
            context._handler = handler
            await self._answer(call, context, handler)
        except grpc_aio.AbortError:
            context.finish(None, (2, ""))
        except asyncio.CancelledError:
            # The call is over, or the server stops.
            context.finish(None, (1, "the handler was cancelled"))
        except Exception as error:
            if call.is_over:
                return
            _log.exception("Unexpected %s raised by servicer method", type(error).__name__)
            context.finish(None, (2, f"Unexpected {type(error)}: {error}"))
        finally:
            context.over()

    async def _answer(self, call: _native.RpcServerCall, context: Context, handler: Any) -> None:
        if handler.request_streaming:
            request: Any = _requests(context)
        else:
            message = await operation(self._reactor, call.read_in)
            if message is None:
                return context.finish(None, call.fault or (13, "the call has no request"))
            request = deserialized(message, handler.request_deserializer)
        kind = ("stream" if handler.request_streaming else "unary") + ("_stream" if handler.response_streaming else "_unary")
        result = getattr(handler, kind)(request, context)
        if inspect.isawaitable(result):
            result = await result
        if not handler.response_streaming:
            return context.finish(None if context.has_failed() else serialized(result, handler.response_serializer))
        if isinstance(result, AsyncIterable):
            async for response in result:
                await context.write(response)
        elif result is not None:
            for response in result:
                await context.write(response)
        context.finish(None)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _requests(context: Context) -> AsyncIterator[Any]:
    while (request := await context.read()) is not grpc_aio.EOF:
        yield request
