"""Measures calls of 100 bytes of Apus and of grpcio, client and server in processes of their own, in one run.

    python compare.py [--seconds 3] [--awaits 1000] [--only TEXT] [--json]

The rows are measured in turns, so that a change of the machine's pace concerns all of them.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import apus
import apus.aio

BODY = bytes(100)
ROUNDS = 5


def serve_apus(way: str) -> None:
    """A server whose handler is a function, on a thread."""
    with apus.Node(listen="127.0.0.1:0", link=way) as node:
        port = node.bind(4000)
        print(node.address(4000), flush=True)
        port.serve(lambda request: request.body)


def serve_apus_aio(way: str) -> None:
    """A server whose handler is a coroutine function."""

    async def echo(request: apus.Request) -> apus.Message:
        return request.body

    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0", link=way) as node:
            port = node.bind(4000)
            print(node.address(4000), flush=True)
            await port.serve(echo)

    asyncio.run(main())


def methods() -> Any:
    """A generic handler of gRPC that echoes bytes."""
    import grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    return Echo()


def serve_grpcio(_: str) -> None:
    """A server of grpcio over TCP."""
    from concurrent import futures

    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(4), [methods()])
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    server.start()
    server.wait_for_termination()


def serve_apus_grpc(way: str) -> None:
    """A server of `apus.grpc`."""
    from apus.grpc import server as grpc_server

    node = apus.Node(listen="127.0.0.1:0", link=way)
    server = grpc_server(4000, [methods()], workers=4, node=node)
    server.start()
    print(f"apus://{node.address(4000)}", flush=True)
    server.wait_for_termination()


def serve_grpcio_aio(_: str) -> None:
    """A server of grpc.aio over TCP."""
    import grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            async def echo(request: bytes, context: Any) -> bytes:
                return request

            return grpc.unary_unary_rpc_method_handler(echo)

    async def main() -> None:
        server = grpc.aio.server(handlers=[Echo()])
        print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


SERVERS: dict[str, Callable[[str], None]] = {
    name.removeprefix("serve_"): function for name, function in list(globals().items()) if name.startswith("serve_")
}


@contextmanager
def server(name: str, way: str) -> Iterator[str]:
    """The address of a server in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, "--serve", name, way], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def wanted(rows: tuple[tuple[str, ...], ...], only: str) -> list[tuple[str, ...]]:
    """The rows whose names have this text."""
    return [row for row in rows if only in row[0]]


def times(call: Callable[[], object], seconds: float) -> list[float]:
    """Times of calls, one after the other, in microseconds."""
    taken = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        call()
        taken.append(1e6 * (time.perf_counter() - begin))
    return taken


def waiting(seconds: float, only: str, stack: ExitStack) -> dict[str, list[float]]:
    """Times of calls that a thread waits for."""
    calls: dict[str, Callable[[], object]] = {}
    for name, way in wanted((("apus, memory", "auto"), ("apus, UDP", "udp")), only):
        node = stack.enter_context(apus.Node(listen="127.0.0.1:0", link=way))
        client, address = node.client(), apus.Address(stack.enter_context(server("apus", way)))
        client.connect(address)
        calls[name] = lambda client=client, address=address: client.call(address, BODY)  # type: ignore[misc]
    try:
        import grpc

        from apus.grpc import insecure_channel
    except ImportError:
        print("grpcio is not installed", file=sys.stderr)
    else:
        for name, way in wanted((("apus.grpc, memory", "auto"), ("apus.grpc, UDP", "udp")), only):
            node = stack.enter_context(apus.Node(listen="127.0.0.1:0", link=way))
            carried = insecure_channel(stack.enter_context(server("apus_grpc", way)), node=node)
            calls[name] = lambda method=carried.unary_unary("/a.B/C"): method(BODY)  # type: ignore[misc]
        for name, way in wanted((("grpcio, TCP", ""),), only):
            channel = grpc.insecure_channel(stack.enter_context(server("grpcio", way)))
            calls[name] = lambda method=channel.unary_unary("/a.B/C"): method(BODY)  # type: ignore[misc]
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        times(call, 0.2)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            taken[name] += times(call, seconds / ROUNDS)
    return taken


async def rate(call: Callable[[], Any], awaits: int, seconds: float) -> float:
    """Calls per second of a number of tasks, each of which awaits one call after the other."""
    count = 0
    until = time.perf_counter() + seconds

    async def task() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await call()
            count += 1

    begin = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(awaits)))
    return count / (time.perf_counter() - begin)


async def alone(call: Callable[[], Any], seconds: float) -> float:
    """The median time of calls that one task awaits one after the other, in microseconds."""
    taken = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        await call()
        taken.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(taken)


async def awaiting(awaits: int, seconds: float, only: str, stack: ExitStack) -> dict[str, tuple[float, float]]:
    """Rates of calls that tasks await, and the median time of a call of one task."""
    rates: dict[str, tuple[float, float]] = {}

    async def measure(name: str, call: Callable[[], Any]) -> None:
        median = await alone(call, seconds / 2)
        rates[name] = (await rate(call, awaits, seconds), median)

    rows = (
        ("apus.aio, memory, server on a thread", "apus", "auto"),
        ("apus.aio, UDP, server on a thread", "apus", "udp"),
        ("apus.aio on both sides, memory", "apus_aio", "auto"),
        ("apus.aio on both sides, UDP", "apus_aio", "udp"),
    )
    for name, kind, way in wanted(rows, only):
        async with apus.aio.Node(listen="127.0.0.1:0", link=way) as node:
            client, address = node.client(), apus.Address(stack.enter_context(server(kind, way)))
            await client.connect(address)
            await measure(name, lambda: client.call(address, BODY))
    try:
        import grpc
    except ImportError:
        return rates
    for name, kind, way in wanted((("grpc.aio on both sides, TCP", "grpcio_aio", ""),), only):
        async with grpc.aio.insecure_channel(stack.enter_context(server(kind, way))) as channel:
            method = channel.unary_unary("/a.B/C")
            await measure(name, lambda: method(BODY))
    return rates


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds for each row")
    parser.add_argument("--awaits", type=int, default=1000, help="calls under way at once")
    parser.add_argument("--only", default="", help="rows whose names have this text")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.serve:
        name, way = arguments.serve
        return SERVERS[name](way)
    with ExitStack() as stack:
        taken = waiting(arguments.seconds, arguments.only, stack)
    with ExitStack() as stack:
        rates = asyncio.run(awaiting(arguments.awaits, arguments.seconds, arguments.only, stack))
    if arguments.json:
        print(json.dumps({"p50_us": {name: statistics.median(row) for name, row in taken.items()}, "per_second": rates}))
        return
    print(f"{'a thread waits for one call after the other':50} p50 us   p99 us")
    for name, row in taken.items():
        cuts = statistics.quantiles(row, n=100)
        print(f"{name:50} {cuts[49]:6.1f}   {cuts[98]:6.1f}")
    print(f"{f'{arguments.awaits} tasks await one call after the other':50} calls/s   one task: p50 us")
    for name, (per_second, median) in rates.items():
        print(f"{name:50} {per_second:7,.0f}   {median:6.1f}")


if __name__ == "__main__":
    main()
