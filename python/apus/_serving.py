"""Threads that serve a port.

The loop is in Python, although the library has one: an interpreter that ends unwinds the stacks of its daemon threads, which code in
Rust below a handler does not survive.
"""

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable

from apus._native import Port, Request
from apus.errors import ClosedError

_log = logging.getLogger("apus")

# Requests that arrive together are handled together while a handler takes less than this, in seconds, for each.
_QUICK = 20e-6
_BATCH_MAX = 64

_served: "weakref.WeakSet[Port]" = weakref.WeakSet()


def serve(self: Port, handler: Callable[[Request], object], *, workers: int = 1) -> None:
    """Gives each request to ``handler`` on one of ``workers`` threads, until the port is closed. The calling thread waits meanwhile.

    A result of the handler that is not ``None`` is the answer. An exception ends the request, so that its client gets ``HandlerError``, and
    is logged to the logger ``apus``. An error of the port other than ``ClosedError`` closes it, and is raised.
    """
    if workers < 1:
        raise ValueError("workers: at least 1")
    _served.add(self)
    # Requests that a thread has taken wait for it, so several threads take one at a time.
    most = _BATCH_MAX if workers == 1 else 1
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_work, args=(self, handler, most, failures), name=f"apus-serve-{self.number}-{number}", daemon=True)
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    # The threads that call handlers are not the calling one, so that it sees Ctrl-C.
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        self.close()
        raise
    if failures:
        raise failures[0]


def _work(port: Port, handler: Callable[[Request], object], longest: int, failures: list[BaseException]) -> None:
    try:
        _take(port, handler, longest)
    except ClosedError:
        pass
    except BaseException as error:
        failures.append(error)
        port.close()


def _take(port: Port, handler: Callable[[Request], object], longest: int) -> None:
    most = 1
    while True:
        requests = port.recv_many(most)
        began = time.perf_counter()
        left = len(requests)
        for request in requests:
            left -= 1
            try:
                answer = handler(request)
                if answer is not None:
                    request._answer(answer, left == 0)
            except BaseException:
                request._fail()
                _log.exception("a handler has raised")
        quick = time.perf_counter() - began < _QUICK * len(requests)
        most = min(2 * most, longest) if quick else 1


@atexit.register
def _close_ports() -> None:
    """Threads that wait for requests end before the interpreter does."""
    for port in list(_served):
        port.close()
