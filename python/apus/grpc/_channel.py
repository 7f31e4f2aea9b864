"""Channels for threads."""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

import apus
from apus import _native
from apus.errors import ApusError
from apus.grpc._shared import (
    Metadatum,
    RpcFailed,
    Serializer,
    Status,
    deserialized,
    excess,
    longest_received,
    longest_sent,
    metadata_of,
    refuse_credentials,
    serialized,
    trailers_of,
    unavailable,
)

_log = logging.getLogger("apus.grpc")

_shared_node: tuple[int, apus.Node] | None = None
_shared_lock = threading.Lock()

# Pauses between the attempts of a call that waits until its server is ready, in seconds.
_PAUSE_FIRST, _PAUSE_LONGEST = 0.02, 1.0

# The message of calls that end with their channel.
_CLOSED = "Channel closed!"


def shared_node() -> apus.Node:
    """The node of all channels of the process. A forked child has one of its own."""
    global _shared_node
    with _shared_lock:
        if _shared_node is None or _shared_node[0] != os.getpid():
            _shared_node = (os.getpid(), apus.Node())
        return _shared_node[1]


class Channel(grpc.Channel):
    """Carries the calls of stubs. Made by ``insecure_channel``."""

    def __init__(self, target: str, options: Any, node: apus.Node | None) -> None:
        self._target = target
        self._options = options
        self._node = node
        self._lock = threading.Lock()
        self._rpc: _native.RpcChannel | None = None
        self._closed = False
        self._calls: weakref.WeakSet[_native.RpcCall] = weakref.WeakSet()
        self.longest_sent = longest_sent(options)
        self._subscribers: list[Callable[[grpc.ChannelConnectivity], None]] = []

    def rpc(self) -> _native.RpcChannel:
        """The channel below, which is made with the first call."""
        if self._rpc is not None:
            return self._rpc
        with self._lock:
            if self._closed:
                raise ValueError("Cannot invoke RPC on closed channel!")
            if self._rpc is None:
                node = self._node or shared_node()
                self._rpc = _native.RpcChannel(self._target, node, longest_received(self._options))
            return self._rpc

    def begun(self, call: _native.RpcCall) -> None:
        """Notes a call, which ends with the channel."""
        with self._lock:
            if not self._closed:
                self._calls.add(call)
                return
        call.cancel(1, _CLOSED)

    def unary_unary(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool = False
    ) -> "UnaryUnary":
        """A method with one request and one response."""
        return UnaryUnary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool = False
    ) -> "UnaryStream":
        """A method with one request and a stream of responses."""
        return UnaryStream(self, method, request_serializer, response_deserializer)

    def stream_unary(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool = False
    ) -> "StreamUnary":
        """A method with a stream of requests and one response."""
        return StreamUnary(self, method, request_serializer, response_deserializer)

    def stream_stream(
        self, method: str, request_serializer: Serializer = None, response_deserializer: Serializer = None, _registered_method: bool = False
    ) -> "StreamStream":
        """A method with streams of requests and responses."""
        return StreamStream(self, method, request_serializer, response_deserializer)

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool | None = False) -> None:
        """Calls the callback with ``IDLE``, and with ``READY`` once the server was reached, if a connection is wanted."""
        self._subscribers.append(callback)
        callback(grpc.ChannelConnectivity.IDLE)
        if try_to_connect:
            threading.Thread(target=self._reach, args=(callback,), name="apus-grpc-contact", daemon=True).start()

    def _reach(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        pause = _PAUSE_FIRST
        while callback in self._subscribers and not self._closed:
            try:
                self.rpc().contact(timeout=1.0)
            except (ApusError, ValueError):
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_LONGEST)
            else:
                callback(grpc.ChannelConnectivity.READY)
                return

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Calls the callback no more."""
        if callback in self._subscribers:
            self._subscribers.remove(callback)

    def close(self) -> None:
        """Ends the channel, and cancels its calls."""
        with self._lock:
            self._closed = True
            self._rpc = None
            calls = list(self._calls)
        for call in calls:
            call.cancel(1, _CLOSED)

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Method:
    """A method of a channel."""

    def __init__(self, channel: Channel, path: str, serializer: Serializer, deserializer: Serializer) -> None:
        self._channel = channel
        self._path = path
        self._serializer = serializer
        self._deserializer = deserializer

    def _serialized(self, request: Any) -> Any:
        message = serialized(request, self._serializer)
        if (text := excess(message, self._channel.longest_sent)) is not None:
            raise RpcFailed((8, text, b"", [], False))
        return message

    def _start(self, first: Any, is_last: bool, timeout: float | None, metadata: Any, credentials: Any) -> _native.RpcCall:
        refuse_credentials(credentials)
        try:
            rpc = self._channel.rpc()
        except ApusError as error:
            raise RpcFailed(unavailable(error)) from error
        call = rpc.start(self._path, metadata, timeout, first, is_last)
        self._channel.begun(call)
        return call

    def _unary(
        self, request: Any, timeout: float | None, metadata: Any, credentials: Any, wait_for_ready: bool | None
    ) -> tuple[Any, _native.RpcCall]:
        """A call with one response."""
        first = self._serialized(request)
        until = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE_FIRST
        while True:
            call = self._start(first, True, timeout, metadata, credentials)
            message = call.read()
            status = ended(call) if message is None else None
            if status is None or not (wait_for_ready and status[0] == 14 and not status[4]):
                return self._response(call, message), call
            if until is not None:
                timeout = until - time.monotonic()
                if timeout <= pause:
                    raise RpcFailed((4, "Deadline Exceeded", b"", [], False))
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_LONGEST)

    def _response(self, call: _native.RpcCall, message: Any) -> Any:
        """The only response, once the call has ended in order."""
        return self.only_response(call, message, message is not None and call.read() is not None)

    def only_response(self, call: _native.RpcCall, message: Any, has_more: bool) -> Any:
        """The only response of a call that has ended, unless it has more."""
        if has_more:
            call.cancel()
            raise RpcFailed((13, "Too many responses", b"", [], True), call.metadata)
        status = ended(call)
        if status[0] != 0:
            raise RpcFailed(status, call.metadata)
        if message is None:
            raise RpcFailed((13, "No response", b"", [], True), call.metadata)
        return deserialized(message, self._deserializer)

    def _send_all(self, call: _native.RpcCall, requests: Iterator[Any]) -> threading.Thread:
        """Sends the requests on a thread."""
        thread = threading.Thread(target=self._send, args=(call, requests), name="apus-grpc-requests", daemon=True)
        thread.start()
        return thread

    def _send(self, call: _native.RpcCall, requests: Iterator[Any]) -> None:
        try:
            for request in requests:
                message = serialized(request, self._serializer)
                if (text := excess(message, self._channel.longest_sent)) is not None:
                    call.cancel(8, text)
                    return
                if not call.send(message):
                    return
        except BaseException:
            call.cancel()
            raise
        call.close_sender()


def ended(call: _native.RpcCall) -> Status:
    """The status of a call that is over."""
    return call.status or (2, "the call is not over", b"", [], True)


class CallFacts(grpc.Call):
    """The facts of a call: metadata and status. They are waited for."""

    def __init__(self, call: _native.RpcCall, timeout: float | None) -> None:
        self._call = call
        self._until = None if timeout is None else time.monotonic() + timeout
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def _wait(self) -> Status:
        while self._call.status is None:
            self._call.read()
        self._over()
        return ended(self._call)

    def _over(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def is_active(self) -> bool:
        """Whether the call goes on."""
        return self._call.status is None

    def time_remaining(self) -> float | None:
        """The seconds until the deadline."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def cancel(self) -> bool:
        """Gives the call up."""
        cancelled = self._call.cancel()
        self._over()
        return cancelled

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls the callback when the end of the call is seen. ``False`` if it is over."""
        # The end of a call takes the callbacks after it has a status, so it takes this one as well.
        with self._lock:
            if not self.is_active():
                return False
            self._callbacks.append(callback)
            return True

    def initial_metadata(self) -> tuple[Metadatum, ...]:
        """The metadata before the response."""
        self._call.head()
        return metadata_of(self._call.metadata)

    def trailing_metadata(self) -> tuple[Metadatum, ...]:
        """The metadata after the response."""
        return trailers_of(self._wait())

    def code(self) -> grpc.StatusCode:
        """The code."""
        return RpcFailed(self._wait()).code()

    def details(self) -> str:
        """The message of the status."""
        return self._wait()[1]

    def debug_error_string(self) -> str:
        """A text for logs."""
        return str(RpcFailed(self._wait()))


class Responses(CallFacts):
    """The responses of a call, as an iterator."""

    def __init__(self, method: _Method, call: _native.RpcCall, timeout: float | None) -> None:
        super().__init__(call, timeout)
        self._method = method
        self._buffered: list[Any] = []

    def _wait(self) -> Status:
        # The responses are read later.
        while self._call.status is None:
            message = self._call.read()
            if message is not None:
                self._buffered.append(message)
        return super()._wait()

    def __iter__(self) -> "Responses":
        return self

    def __next__(self) -> Any:
        message = self._buffered.pop(0) if self._buffered else self._call.read()
        if message is not None:
            return deserialized(message, self._method._deserializer)
        status = ended(self._call)
        self._over()
        if status[0] == 0:
            raise StopIteration
        raise RpcFailed(status, self._call.metadata)

    def __del__(self) -> None:
        self._call.cancel()


_shared_ends: tuple[int, _native.RpcEnds] | None = None


def _ends() -> _native.RpcEnds:
    """The calls that the thread of the process waits for. A forked child has a thread of its own."""
    global _shared_ends
    with _shared_lock:
        if _shared_ends is None or _shared_ends[0] != os.getpid():
            _shared_ends = (os.getpid(), _native.RpcEnds())
            threading.Thread(target=_take_ends, args=(_shared_ends[1],), name="apus-grpc-futures", daemon=True).start()
        return _shared_ends[1]


def _take_ends(ends: _native.RpcEnds) -> None:
    while True:
        for taker, message, has_more in ends.wait():
            try:
                taker(message, has_more)
            except BaseException:
                _log.exception("a callback of a future has raised")


class Future(CallFacts, grpc.Future):
    """A call with one response. One thread of the process waits for all of them, and runs their callbacks."""

    def __init__(self, method: _Method, call: _native.RpcCall, timeout: float | None) -> None:
        super().__init__(call, timeout)
        self._method = method
        self._future: futures.Future[Any] = futures.Future()
        _ends().watch(call, self._ended)

    def _ended(self, message: Any, has_more: bool) -> None:
        try:
            result = self._method.only_response(self._call, message, has_more)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)
        self._over()

    def _wait(self) -> Status:
        futures.wait([self._future])
        return ended(self._call)

    def cancelled(self) -> bool:
        """Whether the call was given up on this side."""
        status = self._call.status
        return status is not None and status[0] == 1

    def running(self) -> bool:
        """Whether the call goes on."""
        return not self._future.done()

    def done(self) -> bool:
        """Whether the call is over."""
        return self._future.done()

    def _settled(self, timeout: float | None) -> None:
        if futures.wait([self._future], timeout).not_done:
            raise grpc.FutureTimeoutError()
        if self.cancelled():
            raise grpc.FutureCancelledError()

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the response."""
        self._settled(timeout)
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end, and returns the exception of a call that has failed."""
        self._settled(timeout)
        return self._future.exception()

    def traceback(self, timeout: float | None = None) -> Any:
        """Waits for the end, and returns the traceback of a call that has failed."""
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def add_done_callback(self, fn: Callable[["Future"], None]) -> None:
        """Calls a function with this future when the call is over."""
        self._future.add_done_callback(lambda _: fn(self))


class UnaryUnary(_Method, grpc.UnaryUnaryMultiCallable):
    """A method with one request and one response."""

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Any:
        """Waits for the response."""
        return self._unary(request, timeout, metadata, credentials, wait_for_ready)[0]

    def with_call(
        self, request: Any, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> tuple[Any, CallFacts]:
        """Waits for the response, and returns it with the facts of its call."""
        response, call = self._unary(request, timeout, metadata, credentials, wait_for_ready)
        return response, CallFacts(call, timeout)

    def future(
        self, request: Any, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Future:
        """Begins a call, whose response the future gets."""
        call = self._start(self._serialized(request), True, timeout, metadata, credentials)
        return Future(self, call, timeout)


class UnaryStream(_Method, grpc.UnaryStreamMultiCallable):
    """A method with one request and a stream of responses."""

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Responses:
        """Begins a call, and returns its responses."""
        call = self._start(self._serialized(request), True, timeout, metadata, credentials)
        return Responses(self, call, timeout)


class StreamUnary(_Method, grpc.StreamUnaryMultiCallable):
    """A method with a stream of requests and one response."""

    def _begin(self, requests: Iterator[Any], timeout: float | None, metadata: Any, credentials: Any) -> _native.RpcCall:
        call = self._start(None, False, timeout, metadata, credentials)
        self._send_all(call, requests)
        return call

    def __call__(
        self, request_iterator: Iterator[Any], timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Any:
        """Sends the requests, and waits for the response."""
        call = self._begin(request_iterator, timeout, metadata, credentials)
        return self._response(call, call.read())

    def with_call(
        self, request_iterator: Iterator[Any], timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> tuple[Any, CallFacts]:
        """Sends the requests, waits for the response, and returns it with the facts of its call."""
        call = self._begin(request_iterator, timeout, metadata, credentials)
        return self._response(call, call.read()), CallFacts(call, timeout)

    def future(
        self, request_iterator: Iterator[Any], timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Future:
        """Begins a call, whose response the future gets. A thread sends the requests."""
        call = self._begin(request_iterator, timeout, metadata, credentials)
        return Future(self, call, timeout)


class StreamStream(_Method, grpc.StreamStreamMultiCallable):
    """A method with streams of requests and responses."""

    def __call__(
        self, request_iterator: Iterator[Any], timeout: float | None = None, metadata: Any = None, credentials: Any = None,
        wait_for_ready: bool | None = None, compression: Any = None,
    ) -> Responses:
        """Begins a call, and returns its responses. A thread sends the requests."""
        call = self._start(None, False, timeout, metadata, credentials)
        self._send_all(call, request_iterator)
        return Responses(self, call, timeout)
