"""Nodes, servers and ways for tests."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apus
import pytest

for name in list(os.environ):
    if name.startswith("APUS_") and not name.startswith("APUS_TEST_"):
        del os.environ[name]
os.environ["APUS_METRICS"] = "off"

WAYS: dict[str, dict[str, Any]] = {
    "memory": {},
    "udp": {"link": "udp"},
    "loss": {"faults": "loss=0.05,dup=0.02,reorder=0.05,seed=7"},
}
"""Settings of both nodes of a test, by the way of their messages."""


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


def node(way: dict[str, Any] | None = None, **settings: Any) -> apus.Node:
    return apus.Node(listen="127.0.0.1:0", **(way or {}), **settings)


VIEWS: list[Callable[[bytearray], Any]] = [lambda body: body, lambda body: memoryview(body).toreadonly()]
"""Objects with the memory of a ``bytearray``, which the program may change."""

LIMIT = 60.0
"""The longest wait of a test, in seconds. Only a fault takes longer."""


def until(holds: Callable[[], bool]) -> Iterator[None]:
    """Goes on until a condition holds, for as long as a test waits."""
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, f"not within {LIMIT} s"
        yield


def wait_until(holds: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    for _ in until(holds):
        time.sleep(0)


def reach(client: apus.Client, caller: apus.Node, address: apus.Address, way: dict[str, Any]) -> None:
    """Calls until messages go the way that is wanted: two nodes of one host meet in memory after their first messages."""
    wanted = "udp" if way else "memory"
    client.connect(address, timeout=30)
    for _ in until(lambda: caller.route(address) == wanted):
        client.call(address, b"reach", timeout=30)


@contextmanager
def served(handler: Callable[[apus.Request], object], way: dict[str, Any] | None = None, **options: int) -> Iterator[apus.Address]:
    """A service in a thread of its own."""
    server = node(way)
    port = server.bind(4000)
    thread = threading.Thread(target=port.serve, args=(handler,), kwargs=options)
    thread.start()
    try:
        yield server.address(4000)
    finally:
        port.close()
        thread.join(30)
        assert not thread.is_alive()
        server.close()


def environment() -> dict[str, str]:
    """The environment of a program of Python that has the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(apus.__file__).parent.parent), *sys.path])}


@contextmanager
def program(text: str, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A program of Python that prints a line when it is ready. It is killed if it takes longer than a test waits."""
    command = [sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as child:
        with limited(child):
            assert child.stdout is not None
            yield child, child.stdout.readline().strip()


@contextmanager
def limited(child: "subprocess.Popen[str]") -> Iterator[None]:
    """Kills a program at the end, or when it has taken longer than a test waits."""
    killer = threading.Timer(2 * LIMIT, child.kill)
    killer.start()
    try:
        yield
    finally:
        killer.cancel()
        child.kill()
