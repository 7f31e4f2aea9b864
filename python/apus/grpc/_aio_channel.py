"""Channels for asyncio."""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import Any

import grpc
from grpc import aio as grpc_aio

import apus
import apus.aio
from apus import _native
from apus.errors import ApusError
from apus.grpc._shared import (
    Serializer,
    Status,
    code_of,
    deserialized,
    excess,
    longest_received,
    longest_sent,
    operation,
    refuse_credentials,
    serialized,
    trailers_of,
    unavailable,
)

_log = logging.getLogger("apus.grpc")

_PAUSE_FIRST, _PAUSE_LONGEST = 0.02, 1.0


class AioRpcFailed(grpc_aio.AioRpcError):
    """The status of a call that has failed, as an exception of ``grpc.aio``."""

    def __init__(self, status: Status, initial_metadata: Any = ()) -> None:
        super().__init__(
            code_of(status[0]),
            _metadata(initial_metadata),
            grpc_aio.Metadata(*trailers_of(status)),
            status[1],
            f"{code_of(status[0]).name}: {status[1]}",
        )
        self.apus_status = status
        self.may_have_executed: bool = status[4]
        """Whether a handler may have seen the request. If not, the call may be repeated, whatever its method does."""


def _metadata(pairs: Any) -> grpc_aio.Metadata:
    return grpc_aio.Metadata(*((name, value) for name, value in pairs or ()))


class Channel(grpc_aio.Channel):
    """Carries the calls of stubs. Made by ``insecure_channel``."""

    def __init__(self, target: str, options: Any, node: apus.aio.Node | None) -> None:
        self._target = target
        self._options = options
        self._node = node
        self._owns_node = node is None
        self._opening: asyncio.Future[_native.RpcChannel] | None = None
        self._closed = False
        self._calls: set[_Call] = set()
        self.longest_sent = longest_sent(options)

    async def opened(self) -> tuple[_native.RpcChannel, _native.Reactor]:
        """The channel below, which is made with the first call."""
        if self._closed:
            raise grpc_aio.UsageError("Channel is closed.")
        if self._node is None:
            self._node = apus.aio.Node()
        node = self._node
        node._check()
        opening = self._opening
        if opening is None:
            make = functools.partial(_native.RpcChannel, self._target, node._node, longest_received(self._options))
            opening = self._opening = asyncio.ensure_future(node._loop.run_in_executor(None, make))
        if not opening.done():
            await asyncio.wait([opening])
        try:
            return opening.result(), node._reactor
        except ApusError as error:
            # Another call may have begun a new attempt meanwhile.
            if self._opening is opening:
                self._opening = None
            raise AioRpcFailed(unavailable(error)) from error

    def unary_unary(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool | None = False
    ) -> "_Method":
        """A method with one request and one response."""
        return _Method(self, method, request_serializer, response_deserializer, UnaryUnaryCall)

    def unary_stream(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool | None = False
    ) -> "_Method":
        """A method with one request and a stream of responses."""
        return _Method(self, method, request_serializer, response_deserializer, UnaryStreamCall)

    def stream_unary(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool | None = False
    ) -> "_StreamMethod":
        """A method with a stream of requests and one response."""
        return _StreamMethod(self, method, request_serializer, response_deserializer, StreamUnaryCall)

    def stream_stream(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool | None = False
    ) -> "_StreamMethod":
        """A method with streams of requests and responses."""
        return _StreamMethod(self, method, request_serializer, response_deserializer, StreamStreamCall)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """``IDLE`` before the first call, then ``READY``."""
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        is_open = self._opening is not None and self._opening.done()
        return grpc.ChannelConnectivity.READY if is_open else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state is another one."""
        pause = _PAUSE_FIRST
        while self.get_state() is last_observed_state:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_LONGEST)

    async def channel_ready(self) -> None:
        """Waits until the server was reached."""
        pause = _PAUSE_FIRST
        while True:
            try:
                rpc, _ = await self.opened()
                await asyncio.get_running_loop().run_in_executor(None, rpc.contact, 1.0)
                return
            except (ApusError, grpc_aio.AioRpcError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_LONGEST)

    async def close(self, grace: float | None = None) -> None:
        """Ends the channel. Calls that have not ended after ``grace`` seconds are cancelled."""
        self._closed = True
        tasks = [call._over for call in self._calls]
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for call in list(self._calls):
            call.cancel()
        if self._owns_node and self._node is not None:
            node, self._node = self._node, None
            try:
                await node.close()
            except apus.UnfinishedError:
                pass

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class _Method:
    """A method of a channel."""

    def __init__(
        self, channel: Channel, path: str, serializer: Serializer, deserializer: Serializer, call: "type[_Call]"
    ) -> None:
        self.channel = channel
        self.path = path
        self._serializer = serializer
        self._deserializer = deserializer
        self._call = call

    def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Any:
        """Begins a call."""
        refuse_credentials(credentials)
        return self._call(self, request, timeout, metadata, bool(wait_for_ready))

    def serialized(self, request: Any) -> Any:
        """A request as bytes."""
        return serialized(request, self._serializer)

    def excess(self, message: Any) -> str | None:
        """What is wrong with a request that is too long."""
        return excess(message, self.channel.longest_sent)

    def deserialized(self, message: Any) -> Any:
        """A response as a value."""
        return deserialized(message, self._deserializer)


class _StreamMethod(_Method):
    """A method with a stream of requests."""

    def __call__(
        self, request_iterator: Any = None, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Any:
        """Begins a call."""
        refuse_credentials(credentials)
        return self._call(self, request_iterator, timeout, metadata, bool(wait_for_ready))


class _Call(grpc_aio.Call):
    """A call that has begun, or is about to."""

    has_request_stream = False

    def __init__(self, method: _Method, request: Any, timeout: float | None, metadata: Any, wait_for_ready: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._method = method
        self._request = request
        self._until = None if timeout is None else time.monotonic() + timeout
        self._pairs = list(metadata) if metadata is not None else None
        self._wait_for_ready = wait_for_ready
        self._call: _native.RpcCall | None = None
        self._reactor: _native.Reactor | None = None
        self._status: Status | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._sending: asyncio.Task[None] | None = None
        method.channel._calls.add(self)
        self._task: asyncio.Task[Any] = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ran)

    async def _run(self) -> Any:
        """Begins the call. Calls with one response wait for it."""
        raise NotImplementedError

    def _ran(self, task: "asyncio.Task[Any]") -> None:
        if task.cancelled():
            self._end((1, "Locally cancelled by application!", b"", [], True))
        elif (error := task.exception()) is not None and self._status is None:
            status = getattr(error, "apus_status", None)
            self._end(status or (2, str(error), b"", [], True))

    async def _begin(self) -> _native.RpcCall:
        rpc, self._reactor = await self._method.channel.opened()
        first = None if self.has_request_stream else self._method.serialized(self._request)
        if first is not None and (text := self._method.excess(first)) is not None:
            raise AioRpcFailed((8, text, b"", [], False))
        timeout = None if self._until is None else self._until - time.monotonic()
        call = rpc.start(self._method.path, self._pairs, timeout, first, not self.has_request_stream)
        self._call = call
        if not self._begun.done():
            self._begun.set_result(None)
        return call

    async def _next(self, call: _native.RpcCall) -> Any:
        """The next response, or ``None`` at the end, when there is a status."""
        assert self._reactor is not None
        message = await operation(self._reactor, call.read_in)
        if message is None:
            self._end(call.status or (2, "the call is not over", b"", [], True))
        return message

    def _end(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._call is not None:
            self._call.cancel()
        if self._sending is not None:
            self._sending.cancel()
        self._method.channel._calls.discard(self)
        for future in (self._begun, self._over):
            if not future.done():
                future.set_result(None)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _failure(self) -> AioRpcFailed:
        assert self._status is not None
        return AioRpcFailed(self._status, self._call.metadata if self._call is not None else ())

    def cancelled(self) -> bool:
        """Whether the call has ended with ``CANCELLED``."""
        return self._status is not None and self._status[0] == 1

    def done(self) -> bool:
        """Whether the call is over."""
        return self._status is not None

    def time_remaining(self) -> float | None:
        """The seconds until the deadline."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def cancel(self) -> bool:
        """Gives the call up."""
        if self.done():
            return False
        self._end((1, "Locally cancelled by application!", b"", [], True))
        self._task.cancel()
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls the callback with this call when it is over."""
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def _finished(self) -> Status:
        if self._status is None:
            await asyncio.wait([self._over])
        assert self._status is not None
        return self._status

    async def _started(self) -> None:
        """Waits until the call has begun."""
        if not self._begun.done():
            await asyncio.wait([self._begun])

    async def initial_metadata(self) -> grpc_aio.Metadata:
        """The metadata before the response."""
        await self._started()
        if self._call is None:
            return grpc_aio.Metadata()
        if self._status is None:
            assert self._reactor is not None
            await operation(self._reactor, self._call.head_in)
        return _metadata(self._call.metadata)

    async def trailing_metadata(self) -> grpc_aio.Metadata:
        """The metadata after the response."""
        return grpc_aio.Metadata(*trailers_of(await self._finished()))

    async def code(self) -> grpc.StatusCode:
        """The code."""
        return code_of((await self._finished())[0])

    async def details(self) -> str:
        """The message of the status."""
        return (await self._finished())[1]

    async def debug_error_string(self) -> str:
        """A text for logs."""
        return str(AioRpcFailed(await self._finished()).debug_error_string())

    async def wait_for_connection(self) -> None:
        """Waits until the call has begun."""
        await self._started()


class _OneResponse(_Call):
    """A call with one response."""

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._task.__await__())
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def _response(self, call: _native.RpcCall) -> Any:
        message = await self._next(call)
        if message is None:
            raise self._failure()
        if await self._next(call) is not None:
            self._end((13, "Too many responses", b"", [], True))
        assert self._status is not None
        if self._status[0] != 0:
            raise self._failure()
        return self._method.deserialized(message)


class UnaryUnaryCall(_OneResponse, grpc_aio.UnaryUnaryCall):
    """A call with one request and one response, which is awaited."""

    async def _run(self) -> Any:
        pause = _PAUSE_FIRST
        while True:
            call = await self._begin()
            if not self._wait_for_ready:
                return await self._response(call)
            assert self._reactor is not None
            await operation(self._reactor, call.head_in)
            status = call.status
            if status is None or status[0] != 14 or status[4]:
                return await self._response(call)
            left = self.time_remaining()
            if left is not None and left <= pause:
                self._end((4, "Deadline Exceeded", b"", [], False))
                raise self._failure()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_LONGEST)


class _ManyResponses(_Call):
    """A call with a stream of responses."""

    async def _run(self) -> None:
        await self._begin()

    async def read(self) -> Any:
        """The next response, or ``grpc.aio.EOF``."""
        await self._started()
        message = None
        if self._status is None and self._call is not None:
            message = await self._next(self._call)
        if message is not None:
            return self._method.deserialized(message)
        if self._status is None:
            await self._task
        assert self._status is not None
        if self._status[0] == 0:
            return grpc_aio.EOF
        if self.cancelled() and self._task.cancelled():
            raise asyncio.CancelledError()
        raise self._failure()

    async def _all(self) -> AsyncIterator[Any]:
        try:
            while (response := await self.read()) is not grpc_aio.EOF:
                yield response
        finally:
            self.cancel()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._all()


class UnaryStreamCall(_ManyResponses, grpc_aio.UnaryStreamCall):
    """A call with one request and a stream of responses."""


class _ManyRequests(_Call):
    """A call with a stream of requests: an iterable that was given, or those of ``write``."""

    has_request_stream = True

    def _send_iterable(self) -> None:
        if self._request is not None:
            self._sending = self._loop.create_task(self._send(self._request))

    async def _send(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    if not await self._write(request):
                        return
            else:
                for request in requests:
                    if not await self._write(request):
                        return
            assert self._call is not None
            self._call.close_sender()
        except Exception:
            # A request that is too long has ended the call.
            if not self.done():
                _log.exception("the requests of a call have raised")
                self.cancel()

    async def _write(self, request: Any) -> bool:
        """Sends a request. ``False`` if the call is over. A request that is too long ends it, and is raised."""
        assert self._call is not None and self._reactor is not None
        message = self._method.serialized(request)
        if (text := self._method.excess(message)) is not None:
            self._end((8, text, b"", [], True))
            raise self._failure()
        return bool(await operation(self._reactor, functools.partial(self._call.send_in, message)))

    async def write(self, request: Any) -> None:
        """Sends a request."""
        if self._request is not None:
            raise grpc_aio.UsageError("The iterator and read/write APIs may not be mixed on a single RPC.")
        await self._started()
        if self._call is None or not await self._write(request):
            if self._call is not None:
                while await self._next(self._call) is not None:
                    pass
            raise asyncio.InvalidStateError("RPC already finished.")

    async def done_writing(self) -> None:
        """Ends the requests."""
        await self._started()
        if self._call is not None:
            self._call.close_sender()


class StreamUnaryCall(_ManyRequests, _OneResponse, grpc_aio.StreamUnaryCall):
    """A call with a stream of requests and one response, which is awaited."""

    async def _run(self) -> Any:
        call = await self._begin()
        self._send_iterable()
        return await self._response(call)


class StreamStreamCall(_ManyRequests, _ManyResponses, grpc_aio.StreamStreamCall):
    """A call with streams of requests and responses."""

    async def _run(self) -> None:
        await self._begin()
        self._send_iterable()
