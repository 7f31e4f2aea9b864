"""Calls and requests in event loops."""

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apus
import apus.aio
import pytest
from conftest import VIEWS, environment, limited, program, served, until, wait_until
from test_threads import SERVER, descriptors

LOOPS = ["asyncio", "uvloop"]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine in an event loop."""
    if request.param == "asyncio":
        return asyncio.run
    uvloop = pytest.importorskip("uvloop", reason="skipped: uvloop is not installed")
    if sys.version_info < (3, 11):
        uvloop.install()
        return asyncio.run

    def run_in_uvloop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return run_in_uvloop


def node(way: dict[str, Any] | None = None) -> apus.aio.Node:
    return apus.aio.Node(listen="127.0.0.1:0", **(way or {}))


async def echo(request: apus.Request) -> apus.Message:
    return request.body


@asynccontextmanager
async def serving(handler: apus.aio.Handler, way: dict[str, Any] | None = None, **options: int) -> AsyncIterator[apus.Address]:
    """A service in the event loop that runs."""
    async with node(way) as server:
        port = server.bind(4000)
        task = asyncio.create_task(port.serve(handler, **options))
        try:
            yield server.address(4000)
        finally:
            port.close()
            await task


def test_calls_have_responses(run: Callable[..., None], way: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(echo, way) as address, node(way) as caller:
            client = caller.client()
            await client.connect(address, timeout=20)
            for length in (0, 100, 100_000, 1_000_000):
                body = os.urandom(length)
                assert await client.call(address, body, timeout=30) == body

    run(main())


def test_a_thousand_calls_are_awaited_at_once(run: Callable[..., None], way: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(lambda request: request.body, way) as address, node(way) as caller:
            client = caller.client()
            bodies = [f"call {number}".encode() for number in range(1000)]
            responses = await asyncio.gather(*(client.call(address, body, timeout=60) for body in bodies))
            assert [bytes(response) for response in responses] == bodies

    run(main())


def test_a_thread_serves_an_event_loop_and_the_other_way_round(run: Callable[..., None]) -> None:
    async def main() -> None:
        with served(lambda request: request.body) as address:
            async with node() as caller:
                assert await caller.client().call(address, b"hello", timeout=20) == b"hello"
        async with serving(echo) as address:
            with apus.Node(listen="127.0.0.1:0") as other:
                call = other.client().call
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, lambda: call(address, b"hello", timeout=20)) == b"hello"

    run(main())


def test_a_task_that_is_cancelled_ends_its_call_and_its_handler(run: Callable[..., None]) -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def handler(request: apus.Request) -> bytes:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.set()
                raise
            return b""

        async with serving(handler) as address, node() as caller:
            client = caller.client()
            call = asyncio.create_task(client.call(address, b"hello"))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(ended.wait(), 20)
            assert client._calls.outstanding() == []

    run(main())


def test_errors_are_those_of_threads(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    async def raising(request: apus.Request) -> None:
        if request.body == b"wait":
            await asyncio.sleep(3600)
        raise ValueError("on purpose")

    async def main() -> None:
        async with serving(raising) as address, node() as caller:
            client = caller.client()
            with pytest.raises(apus.HandlerError):
                await client.call(address, b"raise", timeout=20)
            with pytest.raises(TimeoutError) as caught:
                await client.call(address, b"wait", timeout=0.1)
            assert isinstance(caught.value, apus.DeadlineError) and caught.value.may_have_executed
            other = apus.Address(str(address).replace(":4000", ":4001"))
            with pytest.raises(apus.NoSuchPortError):
                await client.call(other, b"hello", timeout=20)
            waiting = asyncio.create_task(client.call(address, b"wait"))
            await asyncio.sleep(0)
            client.close()
            with pytest.raises(apus.ClosedError) as closed:
                await waiting
            assert closed.value.may_have_executed
            with pytest.raises(apus.ClosedError):
                await client.call(address, b"hello")

    with caplog.at_level(logging.ERROR, "apus"):
        run(main())
    assert "on purpose" in caplog.text


def test_a_buffer_may_change_while_its_call_waits(run: Callable[..., None], way: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(echo, way) as address, node(way) as caller:
            client = caller.client()
            for view in VIEWS:
                body = bytearray(b"a" * 1_000_000)
                call = asyncio.create_task(client.call(address, view(body), timeout=60))
                await asyncio.sleep(0)
                body[:] = b"b" * len(body)
                assert await call == b"a" * len(body)

    run(main())


def test_a_handler_that_begins_later_is_cancelled_as_well(run: Callable[..., None]) -> None:
    async def main() -> None:
        begun, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(request: apus.Request) -> bytes:
            if request.body == b"first":
                await goes_on.wait()
                return b""
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()
            return b""

        async with serving(handler, workers=1) as address, node() as caller:
            client = caller.client()
            calls = [asyncio.create_task(client.call(address, body)) for body in (b"first", b"second")]
            # Both requests are there, and the timer of the first one has passed.
            await asyncio.sleep(0.05)
            goes_on.set()
            await asyncio.wait_for(begun.wait(), 20)
            calls[1].cancel()
            await asyncio.wait_for(ended.wait(), 20)
            assert await calls[0] == b""

    run(main())


def test_a_handler_goes_on_after_its_reply(run: Callable[..., None]) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def handler(request: apus.Request) -> None:
            request.reply(b"early")
            # The timer of the watch passes.
            await asyncio.sleep(0.05)
            ended.set()

        async with serving(handler) as address, node() as caller:
            assert await caller.client().call(address, b"hello", timeout=60) == b"early"
            await asyncio.wait_for(ended.wait(), 20)

    run(main())


def test_a_plain_function_may_return_something_to_await(run: Callable[..., None]) -> None:
    async def main() -> None:
        running, most = 0, 0

        async def slow(prefix: bytes, request: apus.Request) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return prefix + bytes(request.body)

        async with serving(lambda request: slow(b"slow ", request), workers=3) as address, node() as caller:
            client = caller.client()
            responses = await asyncio.gather(*(client.call(address, b"hello", timeout=60) for _ in range(50)))
            assert all(response == b"slow hello" for response in responses)
        assert most == 3

    run(main())


def test_a_client_that_is_dropped_gives_its_port_back(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with node() as caller:
            # More than a node has ports.
            for number in range(33_000):
                caller.client()
                if number % 1000 == 0:
                    await asyncio.sleep(0)

    run(main())


def test_workers_bound_the_handlers(run: Callable[..., None]) -> None:
    async def main() -> None:
        running, most = 0, 0

        async def handler(request: apus.Request) -> apus.Message:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return request.body

        async with serving(handler, workers=3) as address, node() as caller:
            client = caller.client()
            await asyncio.gather(*(client.call(address, b"hello", timeout=60) for _ in range(50)))
        assert most == 3

    run(main())


def test_a_node_belongs_to_one_loop(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with serving(echo) as address, node() as caller:
            client = caller.client()
            failures: list[str] = []

            async def elsewhere() -> None:
                for operation in (client.call(address, b"hello"), caller.close()):
                    try:
                        await operation
                    except RuntimeError as error:
                        failures.append(str(error))
                # A loop of its own has a node of its own.
                async with node() as own:
                    assert await own.client().call(address, b"hello", timeout=20) == b"hello"

            thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
            thread.start()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
            assert len(failures) == 2 and all("another event loop" in failure for failure in failures)

    with pytest.raises(RuntimeError):
        node()
    run(main())


def test_a_node_that_is_closed_waits_for_its_calls(run: Callable[..., None]) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def handler(request: apus.Request) -> bytes:
            await release.wait()
            return b"done"

        async with serving(handler) as address:
            caller = node()
            call = asyncio.create_task(caller.client().call(address, b"hello", timeout=20))
            for _ in until(lambda: caller.stats()["calls"] > 0):
                await asyncio.sleep(0)
            closing = asyncio.create_task(caller.close(timeout=20))
            await asyncio.sleep(0.01)
            assert not closing.done()
            release.set()
            assert await call == b"done"
            await closing
            await caller.close()

    run(main())


def test_names_are_found(run: Callable[..., None]) -> None:
    async def main() -> None:
        async with node() as caller:
            assert (await caller.resolve("localhost:4000")).port == 4000
        assert (await apus.aio.resolve("localhost:4000@7000")).udp_port == 7000
        with pytest.raises(apus.ResolveError):
            await apus.aio.resolve("no address")

    run(main())


@pytest.mark.parametrize("link", ["auto", "udp"])
def test_a_server_that_is_killed_ends_all_calls(run: Callable[..., None], link: str) -> None:
    way = {"link": link, "peer_timeout": "500ms"}

    async def main(server: "subprocess.Popen[str]", address: str) -> None:
        async with node(way) as caller:
            client = caller.client()
            assert await client.call(address, b"hello", timeout=20) == b"hello"
            calls = [asyncio.create_task(client.call(address, b"wait", timeout=60)) for _ in range(100)]
            # Its two threads are in handlers.
            assert server.stdout is not None
            for _ in range(2):
                await asyncio.get_running_loop().run_in_executor(None, server.stdout.readline)
            server.kill()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, apus.CallError) and not isinstance(result, apus.DeadlineError)

    with program(SERVER, repr(way)) as (server, address):
        run(main(server, address))


def test_nothing_leaks(run: Callable[..., None]) -> None:
    import gc
    import tracemalloc

    async def main() -> None:
        async def round() -> None:
            async with serving(echo) as address, node() as caller:
                client = caller.client()
                await asyncio.gather(*(client.call(address, bytes(8_000), timeout=60) for _ in range(200)))
                calls = [asyncio.create_task(client.call(address, b"hello")) for _ in range(20)]
                await asyncio.sleep(0)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

        for _ in range(2):
            await round()
        before = descriptors()
        tracemalloc.start()
        await round()
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            await round()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
        assert grown < 100_000
        assert descriptors() <= before

    run(main())


CALLS = """
import apus.aio, asyncio, sys, threading
async def main(address):
    async with apus.aio.Node(listen="127.0.0.1:0") as node:
        client = node.client()
        await client.connect(address)
        for number in range(50):
            await client.call(address, b"warm")
        print(threading.get_native_id(), flush=True)
        sys.stdin.readline()
        for number in range(200):
            await client.call(address, b"hello")
        print("done", flush=True)
        sys.stdin.readline()
asyncio.run(main(sys.argv[1]))
"""


def test_a_response_wakes_no_other_thread(tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("skipped: wake-ups: strace is not installed")
    log = tmp_path / "calls.strace"
    with program(SERVER, repr({})) as (_, address):
        command = [sys.executable, "-c", CALLS, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as child, limited(child):
            assert child.stdin is not None and child.stdout is not None
            loop = child.stdout.readline().strip()
            trace = [strace, "-f", "-qq", "-e", "trace=futex,write,epoll_wait,sendto,sendmsg,recvfrom", "-o", str(log), "-p", str(child.pid)]
            with subprocess.Popen(trace, stderr=subprocess.PIPE, text=True) as tracer:
                wait_until(log.exists)
                if tracer.poll() is not None:
                    child.kill()
                    pytest.skip("skipped: wake-ups: strace may not attach here")
                child.stdin.write("\n")
                child.stdin.flush()
                assert child.stdout.readline() == "done\n"
                tracer.terminate()
                tracer.wait()
            child.stdin.close()
            child.wait(20)
    wakes, sleeps = 0, 0
    for line in log.read_text().splitlines():
        called = re.match(r"(\d+) +(\w+)\((.*)", line)
        if called and called.group(1) == loop:
            wakes += called.group(2) == "write" or "FUTEX_WAKE" in called.group(3)
            sleeps += bool(re.match(r".*, (-1|[1-9]\d*)\)", called.group(3))) and called.group(2) == "epoll_wait"
    # No call to wake another thread, and one sleep for each call, unless the response is there before.
    assert wakes < 200, f"{wakes} wake-ups by the loop in 200 calls"
    assert sleeps < 400, f"{sleeps} sleeps of the loop in 200 calls"
