"""Servers whose handlers run on threads."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NoReturn

import grpc

import apus
from apus import _native
from apus.grpc._shared import (
    CallDetails,
    ContextFacts,
    Metadatum,
    Registered,
    code_of,
    deserialized,
    grace_of,
    longest_received,
    metadata_of,
    number_of,
    serialized,
)

_log = logging.getLogger("apus.grpc")


class Aborted(Exception):
    """A handler has ended its call by ``abort``."""


class Context(ContextFacts, grpc.ServicerContext):
    """The context of a call in its handler."""

    def __init__(self, call: _native.RpcServerCall) -> None:
        super().__init__(call)
        self._metadata: tuple[Metadatum, ...] | None = None

    def is_active(self) -> bool:
        """Whether the client waits for the response."""
        return not self._call.is_over

    def cancel(self) -> None:
        """Ends the call with ``CANCELLED``."""
        self._call.finish(None, 1, "the handler has cancelled the call", None, None)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls the callback on a thread when the call is over. ``False`` if it is."""
        if self._call.is_over:
            return False

        def wait() -> None:
            self._call.end()
            callback()

        threading.Thread(target=wait, name="apus-grpc-callback", daemon=True).start()
        return True

    def invocation_metadata(self) -> tuple[Metadatum, ...]:
        """The metadata of the request."""
        if self._metadata is None:
            self._metadata = metadata_of(self._call.metadata)
        return self._metadata

    def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Sends metadata before the response is there."""
        self._call.set_metadata(initial_metadata, True)

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with a status, by an exception."""
        if number_of(code) == 0:
            _log.error("abort() called with StatusCode.OK; returning UNKNOWN")
            code, details = grpc.StatusCode.UNKNOWN, ""
        self._code, self._details = code, details
        raise Aborted()

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """As ``abort``, with the trailers of a status."""
        self._trailers = status.trailing_metadata
        self.abort(status.code, status.details)



class Server(Registered, grpc.Server):
    """Serves generated servicers. Made by ``apus.grpc.server``."""

    def __init__(
        self,
        port: int | None,
        handlers: Sequence[grpc.GenericRpcHandler] | None,
        interceptors: Sequence[grpc.ServerInterceptor] | None,
        options: Any,
        maximum_concurrent_rpcs: int | None,
        workers: int,
        node: apus.Node | None,
    ) -> None:
        if workers < 1:
            raise ValueError("workers: at least 1")
        super().__init__(port, handlers)
        self._find: Callable[[CallDetails], grpc.RpcMethodHandler | None] = self._methods.find
        for interceptor in reversed(interceptors or ()):
            self._find = _intercepted(interceptor, self._find)
        self._interceptors = interceptors
        self._options = options
        self._concurrency = maximum_concurrent_rpcs
        self._workers = workers
        self._node = node
        self._own_node: apus.Node | None = None
        self._rpc: _native.RpcServer | None = None
        self._threads: list[threading.Thread] = []
        self._active: set[_native.RpcServerCall] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stopping = False
        self._tcp: list[str] = []
        self._tcp_server: grpc.Server | None = None

    def add_secure_port(self, address: str, server_credentials: Any) -> int:
        """Not for Apus, which has certificates of nodes (settings ``tls_*``)."""
        raise ValueError("a node with a certificate speaks sealed: apus.Node(tls_cert=..., tls_key=..., tls_ca=...)")

    def also_tcp(self, address: str) -> None:
        """Serves the same services over TCP as well, by a server of grpcio."""
        self._tcp.append(address)

    def start(self) -> None:
        """Opens the port, and serves on threads."""
        if self._port is None:
            raise ValueError("the server has no port: apus.grpc.server(4000)")
        if self._rpc is not None:
            raise ValueError("the server was started before")
        node = self._node
        if node is None:
            node = self._own_node = apus.Node(server=True)
        self._rpc = _native.RpcServer(node, self._port, self._concurrency, longest_received(self._options))
        self._threads = [
            threading.Thread(target=self._serve, name=f"apus-grpc-{self._port}-{number}", daemon=True)
            for number in range(self._workers)
        ]
        for thread in self._threads:
            thread.start()
        if self._tcp:
            pool = futures.ThreadPoolExecutor(self._workers)
            self._tcp_server = grpc.server(pool, self._methods.generic, self._interceptors, self._options, self._concurrency)
            for address in self._tcp:
                self._tcp_server.add_insecure_port(address)
            self._tcp_server.start()

    def stop(self, grace: float | None) -> threading.Event:
        """Refuses further calls, and cancels those that have not ended after ``grace`` seconds. The event is set at the end. A later
        call with a shorter time shortens the wait."""
        seconds = grace_of(grace)
        with self._lock:
            is_first, self._stopping = not self._stopping, True
        target = self._stop if is_first else self._end_calls
        threading.Thread(target=target, args=(seconds,), name="apus-grpc-stop", daemon=True).start()
        return self._stopped

    def _stop(self, grace: float) -> None:
        try:
            self._end_calls(grace)
            if self._rpc is not None:
                self._rpc.wait(1.0)
            if self._own_node is not None:
                self._own_node.close(1.0)
        except apus.UnfinishedError:
            pass
        except BaseException:
            _log.exception("the server has not stopped in order")
        finally:
            self._stopped.set()

    def _end_calls(self, grace: float) -> None:
        """Cancels the calls that have not ended after ``grace`` seconds."""
        tcp = self._tcp_server.stop(grace) if self._tcp_server is not None else None
        if self._rpc is not None:
            self._rpc.shutdown()
            self._rpc.wait(grace)
            with self._lock:
                active = list(self._active)
            for call in active:
                call.finish(None, 1, "the server stops", None, None)
        if tcp is not None:
            tcp.wait()

    def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Waits until the server has ended. Returns whether the time has passed before."""
        return not self._stopped.wait(timeout)

    def _serve(self) -> None:
        assert self._rpc is not None
        while (call := self._rpc.next_call()) is not None:
            with self._lock:
                self._active.add(call)
            try:
                self._handle(call)
            except BaseException:
                _log.exception("a call has failed")
                call.finish(None, 13, "the server has failed", None, None)
            with self._lock:
                self._active.discard(call)

    def _handle(self, call: _native.RpcServerCall) -> None:
        context = Context(call)
        path = call.path
        try:
            handler = self._find(CallDetails(path, context.invocation_metadata()))
            if handler is None:
                return context.finish(None, (12, "Method not found!"))
            self._answer(call, context, handler)
        except Aborted:
            context.finish(None, (2, ""))
        except Exception as error:
            if call.is_over:
                # The handler has noticed in its own way that nobody waits.
                return
            if (fault := call.fault) is not None:
                return context.finish(None, fault)
            _log.exception("Exception calling application: %s", error)
            context.finish(None, (2, f"Exception calling application: {error}"))

    def _answer(self, call: _native.RpcServerCall, context: Context, handler: Any) -> None:
        if handler.request_streaming:
            request: Any = _requests(call, handler.request_deserializer)
        else:
            message = call.read()
            if message is None:
                fault = call.fault or (13, "the call has no request")
                return context.finish(None, fault)
            try:
                request = deserialized(message, handler.request_deserializer)
            except Exception as error:
                _log.exception("Exception deserializing request!")
                return context.finish(None, (13, f"Exception deserializing request! {error}"))
        if not handler.response_streaming:
            behavior = handler.stream_unary if handler.request_streaming else handler.unary_unary
            response = behavior(request, context)
            return context.finish(None if context.has_failed() else serialized(response, handler.response_serializer))
        behavior = handler.stream_stream if handler.request_streaming else handler.unary_stream
        for response in behavior(request, context):
            if not call.send(serialized(response, handler.response_serializer)):
                return
        context.finish(None)


def _requests(call: _native.RpcServerCall, deserializer: Any) -> Iterator[Any]:
    """The requests of a stream."""
    while (message := call.read()) is not None:
        yield deserialized(message, deserializer)
    fault = call.fault
    if fault is not None or call.is_over:
        raise grpc.RpcError("the stream of requests has ended early" if fault is None else f"{code_of(fault[0]).name}: {fault[1]}")


def _intercepted(interceptor: grpc.ServerInterceptor, find: Callable[[CallDetails], Any]) -> Callable[[CallDetails], Any]:
    def service(details: CallDetails) -> Any:
        return interceptor.intercept_service(find, details)

    return service
