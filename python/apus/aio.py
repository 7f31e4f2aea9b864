"""Apus in an event loop of asyncio, with the names of ``apus``.

>>> async def main():
...     async with apus.aio.Node(listen="127.0.0.1:0") as node:
...         port = node.bind(4000)
...         serving = asyncio.create_task(port.serve(lambda request: request.body))
...         print(bytes(await node.client().call(node.address(4000), b"hello", timeout=5)))

The thread of the loop turns the node: a message wakes it and no other thread. A node belongs to the loop in which it was made, and
its coroutines run there only; other threads and loops have nodes of their own. Works with uvloop as well.
"""

import asyncio
import functools
import inspect
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import apus
from apus import _native
from apus._native import Address, Message, Request, Response, resolve as _resolve
from apus._watching import Watcher
from apus.errors import *  # noqa: F403
from apus.errors import ClientGoneError
from apus.errors import __all__ as _errors

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Address", "Client", "Message", "Node", "Port", "Request", "Response", "resolve", *_errors]

Handler = Callable[[Request], "Awaitable[Buffer | None] | Buffer | None"]
"""A function that gets a request, and returns its answer or something to await for it. ``None`` is no answer."""

_log = logging.getLogger("apus")


class Node:
    """An endpoint on the network, in the event loop that runs now. The settings are those of ``apus.Node``."""

    def __init__(
        self,
        *,
        config: str | None = None,
        environment: bool = True,
        server: bool = False,
        faults: str | None = None,
        **settings: str | int | float | bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._node = apus.Node(config=config, environment=environment, server=server, faults=faults, **settings)
        self._reactor = _native.Reactor(self._node)
        turns = _Turns(self._loop, self._reactor)
        for fileno in self._reactor.filenos():
            self._loop.add_reader(fileno, turns)
        self._schedule_turn = turns.schedule
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()

    def _check(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the node belongs to another event loop")

    @property
    def local_addr(self) -> str:
        """The address of the link, ``IP:UDPPORT``."""
        return self._node.local_addr

    def address(self, port: int) -> Address:
        """The address of a service of this node, as clients of this host name it."""
        return self._node.address(port)

    def client(self) -> "Client":
        """Opens a client on a port that the node chooses."""
        self._check()
        return Client(self)

    def bind(self, port: int) -> "Port":
        """Opens a port, 1 to 32766, that clients can call."""
        self._check()
        return Port(self, port)

    async def resolve(self, text: str) -> Address:
        """Finds the address of a service, ``HOST:PORT`` or ``HOST:PORT@UDPPORT``, and remembers its name for certificates."""
        self._check()
        return await self._loop.run_in_executor(None, self._node.resolve, text)

    def route(self, to: Address | str) -> str:
        """The way of messages to another node: ``memory``, ``engine``, ``udp`` or ``raw``."""
        return self._node.route(to)

    def stats(self) -> dict[str, int]:
        """The counters of the node since its start."""
        return self._node.stats()

    async def close(self, timeout: float = 0.0) -> None:
        """Waits until calls and requests have ended, for at most ``timeout`` seconds, and stops the node."""
        self._check()
        if self._reactor.closed:
            return
        begun = self._loop.time()
        # A response that arrives while the node stops would not reach its future.
        calls = [call for client in self._clients for call in client._calls.outstanding()]
        if calls and timeout > 0:
            await asyncio.wait(calls, timeout=timeout)
        timeout = max(0.0, timeout - (self._loop.time() - begun))
        try:
            await _finish(self._loop, self._reactor, functools.partial(_native.close_node, self._node, self._reactor, timeout))
        finally:
            self._leave()

    def _leave(self) -> None:
        _leave(self._loop, self._reactor)

    def __del__(self) -> None:
        reactor = getattr(self, "_reactor", None)
        if reactor is None or reactor.closed:
            return
        if self._loop.is_closed():
            reactor.close()
        else:
            self._loop.call_soon_threadsafe(_leave, self._loop, reactor)

    async def __aenter__(self) -> "Node":
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.close()
        except apus.UnfinishedError:
            pass

    def __repr__(self) -> str:
        return f"<apus.aio.Node {self._node!r}>"


class _Turns:
    """The turns of a node by an event loop: when its descriptor is readable, and again after the tasks that a turn has woken."""

    __slots__ = ("_is_due", "_loop", "_reactor", "_ready")

    def __init__(self, loop: asyncio.AbstractEventLoop, reactor: _native.Reactor) -> None:
        self._loop = loop
        self._reactor = reactor
        # The callbacks that are ready, of asyncio's own loops.
        self._ready: deque[object] | None = getattr(loop, "_ready", None)
        self._is_due = False

    def __call__(self) -> None:
        if self._reactor.turn(False):
            self.schedule()

    def schedule(self) -> None:
        """Turns the node after the callbacks that are ready, once."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._is_due = False
        if self._reactor.turn(self._ready is not None and not self._ready):
            self.schedule()


def _leave(loop: asyncio.AbstractEventLoop, reactor: _native.Reactor) -> None:
    """Ends the part of an event loop in a node."""
    for fileno in reactor.filenos():
        loop.remove_reader(fileno)
    reactor.close()


async def _finish(
    loop: asyncio.AbstractEventLoop, reactor: _native.Reactor, start: Callable[["asyncio.Future[Any]"], int]
) -> Any:
    """Awaits an operation of the native module, which ends with its task."""
    future = loop.create_future()
    number = start(future)
    try:
        return await future
    finally:
        reactor.cancel(number)


class Client:
    """Makes calls from a port of its own. Made by ``Node.client``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = node._loop
        self._client = node._node.client()
        self._calls = _native.AsyncClient(self._client, node._reactor, node._schedule_turn)
        node._clients.add(self)

    @property
    def port(self) -> int:
        """The Homa port of the client."""
        return self._client.port

    async def call(self, to: Address | str, body: "Buffer", /, timeout: float | None = None) -> Message:
        """Sends a request and awaits the response. A task that is cancelled gives its call up, and the server is notified."""
        loop = self._loop
        if asyncio.get_running_loop() is not loop:
            raise RuntimeError("the client belongs to another event loop")
        future: asyncio.Future[Message] = loop.create_future()
        cookie = self._calls.start(to, body, timeout, future)
        try:
            return await future
        except asyncio.CancelledError:
            self._calls.cancel(cookie)
            raise

    async def connect(self, to: Address | str, timeout: float | None = None) -> None:
        """Performs first contact with a node, so that the first call takes one round trip."""
        self._node._check()
        await _finish(self._loop, self._node._reactor, functools.partial(self._calls.connect, to, timeout))

    def expect(self, patterns: list[str]) -> None:
        """Calls only peers that one of the patterns names, from now on."""
        self._client.expect(patterns)

    def close(self) -> None:
        """Closes the port. Calls end with ``ClosedError``."""
        self._calls.close()

    def __repr__(self) -> str:
        return f"<apus.aio.Client at port {self.port}>"


class Port:
    """A port that clients call. Made by ``Node.bind``."""

    def __init__(self, node: Node, number: int) -> None:
        self._node = node
        self._loop = node._loop
        self._port = node._node.bind(number)
        self._serving: _Serving | None = None

    @property
    def number(self) -> int:
        """The number of the Homa port."""
        return self._port.number

    def allow(self, patterns: list[str]) -> None:
        """Admits only requests of peers that one of the patterns names."""
        self._port.allow(patterns)

    async def serve(self, handler: Handler, *, workers: int | None = None) -> None:
        """Gives each request to ``handler``, until the port is closed or the task is cancelled.

        A coroutine function, or a function that returns something to await, runs in a task of its own, of which there are at most
        ``workers`` at a time; the task is cancelled when nobody waits for the response any more. Another function runs at once. A result that is not ``None`` is the answer. An exception
        ends the request, so that its client gets ``HandlerError``, and is logged to the logger ``apus``.
        """
        self._node._check()
        if workers is not None and workers < 1:
            raise ValueError("workers: at least 1")
        if self._serving is not None:
            raise RuntimeError("the port is being served")
        self._serving = serving = _Serving(self._node, self._port, handler, workers)
        try:
            await serving.over
        finally:
            await serving.end()
            self._serving = None

    def close(self) -> None:
        """Closes the port. Unanswered requests are given up, and ``serve`` returns."""
        self._port.close()
        if self._serving is not None:
            self._serving.arrivals.close()

    def __repr__(self) -> str:
        return f"<apus.aio.Port {self.number}>"


class _Serving:
    """A port that is being served."""

    def __init__(self, node: Node, port: _native.Port, handler: Handler, workers: int | None) -> None:
        self._loop = node._loop
        self._reactor = node._reactor
        self._port = port
        self._handler = handler
        self._workers = workers
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Request] = deque()
        self.over: asyncio.Future[None] = self._loop.create_future()
        # A plain function may turn out to return something to await.
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))
        self.arrivals = _native.AsyncPort(port, node._reactor, node._schedule_turn, self._take)
        self._watcher = Watcher(self._loop, self._reactor, self.arrivals.watch)

    async def end(self) -> None:
        """Closes the port, and waits for its handlers, which are cancelled."""
        self._port.close()
        self.arrivals.detach()
        self._watcher.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _take(self, requests: list[Request] | None) -> None:
        """Takes requests, and ``None`` at the end."""
        if requests is None:
            return self._finish()
        for at, request in enumerate(requests):
            if self._is_async:
                self._waiting.extend(requests[at:])
                return self._begin()
            self._call(request)

    def _call(self, request: Request) -> None:
        """Calls a plain function."""
        failed = False
        try:
            answer: Any = self._handler(request)
            if inspect.isawaitable(answer):
                # A plain function that calls a coroutine function, such as a partial or a lambda.
                self._is_async = True
                return self._start(request, answer)
            if answer is not None:
                self.arrivals.reply(request, answer)
        except ClientGoneError:
            pass
        except Exception:
            failed = True
            _log.exception("a handler has raised")
        self.arrivals.ended(request, failed)

    def _begin(self) -> None:
        """Begins with requests that wait, as many as the workers can have."""
        while self._waiting and (self._workers is None or len(self._tasks) < self._workers):
            self._start(self._waiting.popleft())
        if self._workers is not None:
            self.arrivals.pause(len(self._tasks) >= self._workers)

    def _start(self, request: Request, begun: "Awaitable[Any] | None" = None) -> None:
        """Starts the task of a request, whose handler may have begun."""
        task = self._loop.create_task(self._handle(request, begun))
        self._tasks.add(task)
        self._watcher.add(task, request)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._workers is not None and not self.over.done():
            self._begin()

    async def _handle(self, request: Request, begun: "Awaitable[Any] | None") -> None:
        failed = False
        try:
            answer: Any = self._handler(request) if begun is None else begun
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None:
                self.arrivals.reply(request, answer)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            if not request.cancelled():
                request.abandon()
                raise
        except Exception:
            failed = True
            _log.exception("a handler has raised")
        finally:
            self.arrivals.ended(request, failed)


async def resolve(text: str) -> Address:
    """Finds the address of a service by its name."""
    return await asyncio.get_running_loop().run_in_executor(None, _resolve, text)

