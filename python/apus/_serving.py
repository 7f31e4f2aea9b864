"""Threads that serve a port."""

import threading
from collections.abc import Callable

from apus._native import Port, Request


def serve(port: Port, handler: Callable[[Request], object], workers: int) -> None:
    """Serves on threads of its own, so that the calling thread sees Ctrl-C while it waits for them."""
    if workers < 1:
        raise ValueError("workers: at least 1")
    threads = [
        threading.Thread(target=port._serve_here, args=(handler,), name=f"apus-serve-{port.number}-{number}", daemon=True)
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        port.close()
        raise
