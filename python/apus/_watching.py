"""Tasks of handlers, which are cancelled when nobody waits for their responses any more."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from apus import _native

# A task is watched for the end of its call once it has run for this long, in seconds: most handlers end before.
_WATCHED_AFTER = 0.001

Call = TypeVar("Call")


class Watcher(Generic[Call]):
    """Cancels the tasks of an event loop whose calls end. ``watch`` has a future end with a call, and returns the number of the operation."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reactor: _native.Reactor, watch: Callable[[Call, "asyncio.Future[Any]"], int]
    ) -> None:
        self._loop = loop
        self._reactor = reactor
        self._watch = watch
        self._unwatched: list[tuple[asyncio.Task[None], Call]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: "asyncio.Task[None]", call: Call) -> None:
        """Watches a task that begins."""
        self._unwatched.append((task, call))
        if self._timer is None:
            self._timer = self._loop.call_later(_WATCHED_AFTER, self._begin)

    def stop(self) -> None:
        """Watches no further tasks."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        """Watches the tasks that go on."""
        unwatched, self._unwatched = self._unwatched, []
        self._timer = None
        for task, call in unwatched:
            if not task.done():
                future = self._loop.create_future()
                number = self._watch(call, future)
                future.add_done_callback(functools.partial(_cancel, task))
                task.add_done_callback(functools.partial(_forget, self._reactor, number))


def _cancel(task: "asyncio.Task[None]", future: "asyncio.Future[None]") -> None:
    if not task.done() and not future.cancelled():
        task.cancel()


def _forget(reactor: _native.Reactor, number: int, task: "asyncio.Task[None]") -> None:
    reactor.cancel(number)
