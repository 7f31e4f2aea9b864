"""gRPC's stubs and servicers over Apus, as protoc makes them."""

import asyncio
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import apus
import apus.aio
import pytest
from conftest import node, program, wait_until

grpc = pytest.importorskip("grpc", reason="skipped: gRPC: grpcio is not installed")
protoc = pytest.importorskip("grpc_tools.protoc", reason="skipped: gRPC: grpcio-tools is not installed")

import apus.grpc  # noqa: E402
import apus.grpc.aio  # noqa: E402
from grpc import StatusCode  # noqa: E402

PROTOS = Path(__file__).parent.parent.parent / "crates" / "apus-tonic" / "proto"


class Generated:
    """The modules that protoc makes."""

    hello: Any
    hello_grpc: Any
    route: Any
    route_grpc: Any


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    if not PROTOS.is_dir():
        pytest.skip("skipped: gRPC: the services of apus-tonic are not here")
    out = tmp_path_factory.mktemp("generated")
    protos = ["helloworld.proto", "routeguide.proto"]
    arguments = ["protoc", f"-I{PROTOS}", f"--python_out={out}", f"--grpc_python_out={out}", *protos]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, str(out))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    made = Generated()
    made.hello, made.hello_grpc = module("helloworld_pb2"), module("helloworld_pb2_grpc")
    made.route, made.route_grpc = module("routeguide_pb2"), module("routeguide_pb2_grpc")
    return made


def servicers(generated: Generated, server: Any) -> "Seen":
    """Adds both services to a server, with handlers for threads."""
    seen = Seen()
    route = generated.route

    class Greeter(generated.hello_grpc.GreeterServicer):
        def SayHello(self, request: Any, context: Any) -> Any:
            seen.metadata = dict(context.invocation_metadata())
            seen.remaining = context.time_remaining()
            match request.name:
                case "abort":
                    context.set_trailing_metadata((("cost", "3"), ("picture-bin", b"\x00\xff"), ("grpc-status-details-bin", b"details")))
                    context.abort(StatusCode.NOT_FOUND, "nobody of this name ☺")
                case "code":
                    context.set_code(StatusCode.OUT_OF_RANGE)
                    context.set_details("out of range")
                    return generated.hello.HelloReply()
                case "raise":
                    raise ValueError("on purpose")
                case "early":
                    context.send_initial_metadata((("x-initial", "early"),))
                    seen.release.wait(60)
                    return generated.hello.HelloReply(message="Hello early!")
                case "wait":
                    context.add_callback(seen.over.set)
                    seen.begun.set()
                    seen.over.wait(60)
                    seen.was_active = context.is_active()
            context.send_initial_metadata((("x-initial", "early"),))
            context.set_trailing_metadata((("x-trailing", "late"),))
            return generated.hello.HelloReply(message=f"Hello {request.name}!")

    class RouteGuide(generated.route_grpc.RouteGuideServicer):
        def ListFeatures(self, request: Any, context: Any) -> Iterator[Any]:
            for number in range(request.high.latitude):
                yield route.Feature(name="x" * 1000, location=route.Point(latitude=number))
            if request.low.latitude:
                context.abort(StatusCode.DATA_LOSS, "the rest is lost")

        def RecordRoute(self, request_iterator: Iterator[Any], context: Any) -> Any:
            count = sum(1 for _ in request_iterator)
            return route.RouteSummary(point_count=count)

        def RouteChat(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
            for note in request_iterator:
                yield route.RouteNote(message=f"echo {note.message}")

    generated.hello_grpc.add_GreeterServicer_to_server(Greeter(), server)
    generated.route_grpc.add_RouteGuideServicer_to_server(RouteGuide(), server)
    return seen


class Seen:
    """What handlers have seen."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.remaining: float | None = None
        self.begun = threading.Event()
        self.over = threading.Event()
        self.release = threading.Event()
        self.was_active: bool | None = None


@contextmanager
def serving(generated: Generated, way: dict[str, Any] | None = None, **options: Any) -> Iterator[tuple[str, Seen]]:
    with node(way) as own:
        server = apus.grpc.server(4000, node=own, **options)
        seen = servicers(generated, server)
        server.start()
        try:
            yield f"apus://{own.address(4000)}", seen
        finally:
            server.stop(0).wait()


def test_a_unary_call(generated: Generated, way: dict[str, Any]) -> None:
    with serving(generated, way) as (target, seen), node(way) as own, apus.grpc.insecure_channel(target, node=own) as channel:
        stub = generated.hello_grpc.GreeterStub(channel)
        metadata = (("x-tenant-id", "7"), ("picture-bin", b"\x00\xff"))
        reply, call = stub.SayHello.with_call(generated.hello.HelloRequest(name="ada"), timeout=30, metadata=metadata)
        assert reply.message == "Hello ada!" and call.code() is StatusCode.OK
        assert dict(call.initial_metadata()) == {"x-initial": "early"} and dict(call.trailing_metadata()) == {"x-trailing": "late"}
        assert seen.metadata["x-tenant-id"] == "7" and seen.metadata["picture-bin"] == b"\x00\xff"
        assert seen.remaining is not None and 0 < seen.remaining <= 30
        long = "x" * 1_000_000
        assert stub.SayHello(generated.hello.HelloRequest(name=long), timeout=30).message == f"Hello {long}!"
        futures = [stub.SayHello.future(generated.hello.HelloRequest(name=str(number)), timeout=30) for number in range(20)]
        assert [future.result().message for future in futures] == [f"Hello {number}!" for number in range(20)]
        grpc.channel_ready_future(channel).result(timeout=30)


def test_failures_have_grpcs_codes(generated: Generated) -> None:
    with serving(generated) as (target, _), apus.grpc.insecure_channel(target) as channel:
        stub = generated.hello_grpc.GreeterStub(channel)

        def failure(name: str, timeout: float = 30) -> Any:
            with pytest.raises(grpc.RpcError) as caught:
                stub.SayHello(generated.hello.HelloRequest(name=name), timeout=timeout)
            return caught.value

        error = failure("abort")
        assert (error.code(), error.details(), error.may_have_executed) == (StatusCode.NOT_FOUND, "nobody of this name ☺", True)
        trailers = dict(error.trailing_metadata())
        assert trailers == {"cost": "3", "picture-bin": b"\x00\xff", "grpc-status-details-bin": b"details"}
        assert failure("code").code() is StatusCode.OUT_OF_RANGE
        error = failure("raise")
        assert error.code() is StatusCode.UNKNOWN and "on purpose" in error.details()
        assert failure("wait", timeout=0.1).code() is StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as caught:
            generated.route_grpc.RouteGuideStub(channel).GetFeature(generated.route.Point(), timeout=30)
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/no.Such/Method")(b"", timeout=30)
        assert caught.value.code() is StatusCode.UNIMPLEMENTED
        with pytest.raises(ValueError):
            stub.SayHello(generated.hello.HelloRequest(), metadata=(("Wrong Name", "x"),))
    with node() as own, apus.grpc.insecure_channel(f"apus://{own.address(4000)}") as channel, pytest.raises(grpc.RpcError) as caught:
        generated.hello_grpc.GreeterStub(channel).SayHello(generated.hello.HelloRequest(), timeout=30)
    assert caught.value.code() is StatusCode.UNAVAILABLE and not caught.value.may_have_executed


def test_a_call_that_is_cancelled_ends_its_handler(generated: Generated) -> None:
    with serving(generated) as (target, seen), apus.grpc.insecure_channel(target) as channel:
        stub = generated.hello_grpc.GreeterStub(channel)
        future = stub.SayHello.future(generated.hello.HelloRequest(name="wait"))
        assert seen.begun.wait(30)
        assert future.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            future.result(timeout=30)
        assert seen.over.wait(30)
        wait_until(lambda: seen.was_active is not None)
        assert seen.was_active is False


def test_several_threads_wait_for_one_call(generated: Generated) -> None:
    with serving(generated) as (target, seen), apus.grpc.insecure_channel(target) as channel:
        future = generated.hello_grpc.GreeterStub(channel).SayHello.future(generated.hello.HelloRequest(name="early"), timeout=60)
        metadata: list[Any] = []
        threads = [threading.Thread(target=lambda: metadata.append(dict(future.initial_metadata()))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert metadata == [{"x-initial": "early"}] * 2
        seen.release.set()
        assert future.result(timeout=30).message == "Hello early!"


def test_several_tasks_wait_for_one_call(generated: Generated) -> None:
    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = apus.grpc.aio.server(4000, node=own)
            seen = async_servicers(generated, server)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                call = generated.hello_grpc.GreeterStub(channel).SayHello(generated.hello.HelloRequest(name="early"), timeout=60)
                assert dict(await asyncio.wait_for(call.initial_metadata(), 30)) == {"x-initial": "early"}
                seen.release.set()
                assert (await asyncio.wait_for(asyncio.shield(call), 30)).message == "Hello early!"
            await server.stop(1.0)

    asyncio.run(main())


def test_one_thread_waits_for_all_futures(generated: Generated) -> None:
    with serving(generated, workers=1) as (target, seen), apus.grpc.insecure_channel(target) as channel:
        stub = generated.hello_grpc.GreeterStub(channel)
        calls = [stub.SayHello.future(generated.hello.HelloRequest(name="early"), timeout=60) for _ in range(50)]
        done = threading.Semaphore(0)
        for call in calls:
            call.add_done_callback(lambda _: done.release())
        assert [thread.name for thread in threading.enumerate() if "future" in thread.name] == ["apus-grpc-futures"]
        seen.release.set()
        for _ in calls:
            assert done.acquire(timeout=60)
        assert {call.result(timeout=0).message for call in calls} == {"Hello early!"}


def test_no_callback_is_lost_at_the_end_of_a_call() -> None:
    from apus.grpc._channel import CallFacts

    class EndingCall:
        """A call that ends when its status is read for the first time."""

        ended = False

        @property
        def status(self) -> Any:
            if not self.ended:
                self.ended = True
                ending = threading.Thread(target=facts._over)
                ending.start()
                # It waits for the thread that adds the callback, or has lost it by now.
                ending.join(0.2)
                return None
            return (0, "", b"", [], False)

    called = threading.Event()
    facts = CallFacts(EndingCall(), None)  # type: ignore[arg-type]
    assert facts.add_callback(called.set)
    assert called.wait(20)
    assert not facts.add_callback(called.set)


def test_a_later_stop_shortens_the_wait(generated: Generated) -> None:
    with node() as own, apus.grpc.insecure_channel(f"apus://{own.address(4000)}") as channel:
        for first, second in ((float("inf"), 0.0), (3600.0, -1.0), (-1.0, None)):
            server = apus.grpc.server(4000, node=own)
            seen = servicers(generated, server)
            server.start()
            call = generated.hello_grpc.GreeterStub(channel).SayHello.future(generated.hello.HelloRequest(name="wait"))
            assert seen.begun.wait(30)
            with pytest.raises(ValueError):
                server.stop(float("nan"))
            server.stop(first)
            assert server.stop(second).wait(30)
            with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
                call.result(timeout=30)


def test_a_later_stop_shortens_the_wait_in_an_event_loop(generated: Generated) -> None:
    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = apus.grpc.aio.server(4000, node=own)
            seen = async_servicers(generated, server)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                call = generated.hello_grpc.GreeterStub(channel).SayHello(generated.hello.HelloRequest(name="wait"))
                await asyncio.wait_for(seen.begun.wait(), 30)
                with pytest.raises(ValueError):
                    await server.stop(float("nan"))
                first = asyncio.create_task(server.stop(float("inf")))
                await asyncio.sleep(0)
                await asyncio.wait_for(server.stop(0), 30)
                await asyncio.wait_for(first, 30)
                assert await asyncio.wait_for(call.code(), 30) is StatusCode.CANCELLED

    asyncio.run(main())


def test_messages_have_a_limit(generated: Generated) -> None:
    long = generated.hello.HelloRequest(name="x" * 200_000)
    with serving(generated, options=[("grpc.max_receive_message_length", 100_000)]) as (target, _):
        with apus.grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError) as caught:
            generated.hello_grpc.GreeterStub(channel).SayHello(long, timeout=30)
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    with serving(generated) as (target, _):
        for option in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
            with apus.grpc.insecure_channel(target, options=[(option, 100_000)]) as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    generated.hello_grpc.GreeterStub(channel).SayHello(long, timeout=30)
                assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED


RECORD_ROUTE = "/routeguide.RouteGuide/RecordRoute"
ROUTE_CHAT = "/routeguide.RouteGuide/RouteChat"

LONG = [b"", b"", b"x" * 200_000]
"""Serialized requests of a stream. The last one is longer than the limit of 100,000 bytes of the tests."""


async def failure_of(call: Any) -> Any:
    """The exception of a call of an event loop, whose responses are read if there are several."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if isinstance(call, grpc.aio.StreamStreamCall):
            async for _ in call:
                pass
        await call
    return caught.value


@contextmanager
def raised_by_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The exceptions that have ended threads."""
    raised: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", raised.append)
        yield raised


def test_a_request_of_a_stream_that_is_too_long_ends_its_call(generated: Generated, caplog: pytest.LogCaptureFixture) -> None:
    options = [("grpc.max_receive_message_length", 100_000)]
    with serving(generated, options=options) as (target, _), apus.grpc.insecure_channel(target) as channel:
        for method in (channel.stream_unary(RECORD_ROUTE).future, channel.stream_stream(ROUTE_CHAT)):
            call = method(iter(LONG), timeout=60)
            assert call.code() is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in call.details()
    assert not caplog.records

    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = apus.grpc.aio.server(4000, node=own, options=options)
            async_servicers(generated, server)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                for method in (channel.stream_unary(RECORD_ROUTE), channel.stream_stream(ROUTE_CHAT)):
                    error = await failure_of(method(LONG, timeout=60))
                    assert error.code() is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.details()
            await server.stop(1.0)

    asyncio.run(main())
    assert not caplog.records


def test_a_stream_of_requests_that_is_cancelled_has_no_end(generated: Generated) -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()
        results: list[Any] = []

        async def handler(requests: Any, context: Any) -> bytes:
            try:
                async for _ in requests:
                    begun.set()
                results.append("the end")
            except BaseException as error:
                results.append(error)
                raise
            finally:
                ended.set()
            return b""

        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = apus.grpc.aio.server(4000, [Method(grpc.stream_unary_rpc_method_handler(handler))], node=own)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                call = channel.stream_unary("/a.Service/Method")(timeout=60)
                await call.write(b"first")
                await asyncio.wait_for(begun.wait(), 30)
                call.cancel()
                await asyncio.wait_for(ended.wait(), 30)
                assert [type(result) for result in results] in ([asyncio.CancelledError], [grpc.aio.AbortError])
            await server.stop(1.0)

    asyncio.run(main())


def test_a_request_of_a_stream_that_may_not_be_sent_ends_its_call(
    generated: Generated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = [("grpc.max_send_message_length", 100_000)]
    with serving(generated) as (target, _):
        with apus.grpc.insecure_channel(target, options=options) as channel, raised_by_threads(monkeypatch) as raised:
            for method in (channel.stream_unary(RECORD_ROUTE).future, channel.stream_stream(ROUTE_CHAT)):
                call = method(iter(LONG), timeout=60)
                assert call.code() is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in call.details()
                wait_until(lambda: not any(thread.name == "apus-grpc-requests" for thread in threading.enumerate()))
            assert not raised

        async def main() -> None:
            async with apus.grpc.aio.insecure_channel(target, options=options) as channel:
                for method in (channel.stream_unary(RECORD_ROUTE), channel.stream_stream(ROUTE_CHAT)):
                    error = await failure_of(method(LONG, timeout=60))
                    assert error.code() is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.details()
                    call = method(timeout=60)
                    await call.write(b"")
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call.write(LONG[-1])
                    assert caught.value.code() is await call.code() is StatusCode.RESOURCE_EXHAUSTED

        asyncio.run(main())
    assert not caplog.records


class Method(grpc.GenericRpcHandler):
    """All methods, with one handler."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, handler_call_details: Any) -> Any:
        return self._handler


def test_a_message_beyond_the_frame_ends_its_call() -> None:
    # Its memory is never touched.
    endless = bytes(1 << 32)
    handler = Method(grpc.stream_stream_rpc_method_handler(lambda requests, context: (endless for _ in requests)))
    with node() as own, apus.grpc.insecure_channel(f"apus://{own.address(4000)}") as channel:
        server = apus.grpc.server(4000, [handler], node=own)
        server.start()
        for request in (b"", endless):
            call = channel.stream_stream("/a.Service/Method")(iter([request]), timeout=60)
            assert call.code() is StatusCode.RESOURCE_EXHAUSTED
        server.stop(0).wait()

    async def answer(requests: Any, context: Any) -> None:
        async for _ in requests:
            await context.write(endless)

    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = apus.grpc.aio.server(4000, [Method(grpc.stream_stream_rpc_method_handler(answer))], node=own)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                for request in (b"", endless):
                    error = await failure_of(channel.stream_stream("/a.Service/Method")([request], timeout=60))
                    assert error.code() is StatusCode.RESOURCE_EXHAUSTED
            await server.stop(0)

    asyncio.run(main())


def test_the_last_responses_arrive(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APUS_LISTEN", "127.0.0.1:0")
    response = b"x" * 500_000
    with node() as given, node(way) as caller:
        for own in (None, given):
            begun, release = threading.Event(), threading.Event()

            def handler(request: bytes, context: Any) -> bytes:
                begun.set()
                release.wait(60)
                return response

            server = apus.grpc.server(4000, [Method(grpc.unary_unary_rpc_method_handler(handler))], node=own)
            server.start()
            serves = own or server._own_node
            assert serves is not None
            with apus.grpc.insecure_channel(f"apus://{serves.address(4000)}", node=caller) as channel:
                call = channel.unary_unary("/a.Service/Method").future(b"", timeout=60)
                assert begun.wait(30)
                stopped = server.stop(60)
                release.set()
                assert stopped.wait(60)
                assert call.result(timeout=60) == response
                if own is given:
                    with pytest.raises(grpc.RpcError) as caught:
                        channel.unary_unary("/a.Service/Method")(b"", timeout=60)
                    assert caught.value.code() is StatusCode.UNAVAILABLE and not caught.value.may_have_executed
        # The port of a server that has ended can be opened again.
        given.bind(4000).close()


def test_the_last_responses_of_an_event_loop_arrive(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APUS_LISTEN", "127.0.0.1:0")
    response = b"x" * 500_000

    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as given, apus.aio.Node(listen="127.0.0.1:0", **way) as caller:
            for own in (None, given):
                begun, release = asyncio.Event(), asyncio.Event()

                async def handler(request: bytes, context: Any) -> bytes:
                    begun.set()
                    await release.wait()
                    return response

                server = apus.grpc.aio.server(4000, [Method(grpc.unary_unary_rpc_method_handler(handler))], node=own)
                await server.start()
                assert server._node is not None
                async with apus.grpc.aio.insecure_channel(f"apus://{server._node.address(4000)}", node=caller) as channel:
                    method = channel.unary_unary("/a.Service/Method")
                    call = method(b"", timeout=60)
                    await asyncio.wait_for(begun.wait(), 30)
                    stopping = asyncio.create_task(server.stop(60))
                    await asyncio.sleep(0)
                    release.set()
                    await asyncio.wait_for(stopping, 60)
                    assert await asyncio.wait_for(call, 60) == response
                    if own is given:
                        with pytest.raises(grpc.aio.AioRpcError) as caught:
                            await method(b"", timeout=60)
                        assert caught.value.code() is StatusCode.UNAVAILABLE and not caught.value.may_have_executed
            # The port of a server that has ended can be opened again.
            given.bind(4000).close()

    asyncio.run(main())


def test_a_channel_that_is_closed_cancels_its_calls(generated: Generated) -> None:
    with serving(generated) as (target, seen):
        channel = apus.grpc.insecure_channel(target)
        greeter, route = generated.hello_grpc.GreeterStub(channel), generated.route
        future = greeter.SayHello.future(generated.hello.HelloRequest(name="wait"))
        area = route.Area(high=route.Point(latitude=1_000_000))
        features = generated.route_grpc.RouteGuideStub(channel).ListFeatures(area)
        assert next(features).location.latitude == 0 and seen.begun.wait(30)
        channel.close()
        with pytest.raises(grpc.FutureCancelledError):
            future.result(timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            list(features)
        assert caught.value.code() is StatusCode.CANCELLED and caught.value.details() == "Channel closed!"
        assert seen.over.wait(30)
        with pytest.raises(ValueError):
            greeter.SayHello(generated.hello.HelloRequest(name="late"))


def test_calls_share_a_channel_that_cannot_be_opened() -> None:
    async def main() -> None:
        async with apus.grpc.aio.insecure_channel("apus://name.invalid:4000") as channel:
            calls = [channel.unary_unary("/a.Service/Method")(b"", timeout=60) for _ in range(3)]
            assert await asyncio.gather(*(call.code() for call in calls)) == [StatusCode.UNAVAILABLE] * 3

    asyncio.run(main())


def test_a_task_that_is_cancelled_before_it_begins_ends_its_call(generated: Generated) -> None:
    class Cancelling(apus.grpc.aio.Server):
        def _take(self, call: Any) -> None:
            super()._take(call)
            for task in self._tasks:
                task.cancel()

    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0") as own:
            server = Cancelling(4000, None, None, None, None, own)
            async_servicers(generated, server)
            await server.start()
            async with apus.grpc.aio.insecure_channel(f"apus://{own.address(4000)}") as channel:
                call = generated.hello_grpc.GreeterStub(channel).SayHello(generated.hello.HelloRequest(name="ada"), timeout=60)
                assert await call.code() is StatusCode.CANCELLED
            await server.stop(0)

    asyncio.run(main())


def test_streams(generated: Generated, way: dict[str, Any]) -> None:
    route = generated.route
    with serving(generated, way) as (target, _), node(way) as own, apus.grpc.insecure_channel(target, node=own) as channel:
        stub = generated.route_grpc.RouteGuideStub(channel)
        area = route.Area(high=route.Point(latitude=500))
        features = stub.ListFeatures(area, timeout=60)
        assert [feature.location.latitude for feature in features] == list(range(500))
        assert features.code() is StatusCode.OK
        area.low.latitude = 1
        features = stub.ListFeatures(area, timeout=60)
        with pytest.raises(grpc.RpcError) as caught:
            list(features)
        assert caught.value.code() is StatusCode.DATA_LOSS and features.details() == "the rest is lost"
        points = (route.Point(latitude=number) for number in range(2000))
        assert stub.RecordRoute(points, timeout=60).point_count == 2000
        summary, call = stub.RecordRoute.with_call(iter([route.Point()]), timeout=60)
        assert summary.point_count == 1 and call.code() is StatusCode.OK
        assert stub.RecordRoute.future(iter([route.Point()]), timeout=60).result().point_count == 1
        chat = stub.RouteChat(iter([route.RouteNote(message=str(number)) for number in range(100)]), timeout=60)
        assert [note.message for note in chat] == [f"echo {number}" for number in range(100)]
        # Each request waits for the answer to the one before.
        answers: list[str] = []
        answered = threading.Semaphore(1)

        def notes() -> Iterator[Any]:
            for number in range(10):
                assert answered.acquire(timeout=30)
                yield route.RouteNote(message=str(number))

        for note in stub.RouteChat(notes(), timeout=60):
            answers.append(note.message)
            answered.release()
        assert answers == [f"echo {number}" for number in range(10)]
        # A stream that is dropped is given up.
        endless = stub.ListFeatures(route.Area(high=route.Point(latitude=1_000_000)), timeout=60)
        assert next(endless).location.latitude == 0
        endless.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            list(endless)
        assert caught.value.code() is StatusCode.CANCELLED


def test_interceptors_of_both_sides(generated: Generated) -> None:
    class Admit(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            if ("authorization", "secret") in [tuple(pair) for pair in handler_call_details.invocation_metadata]:
                return continuation(handler_call_details)

            def refuse(request: Any, context: Any) -> None:
                context.abort(StatusCode.UNAUTHENTICATED, "no token")

            return grpc.unary_unary_rpc_method_handler(refuse)

    class Token(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            details = client_call_details._replace(metadata=[("authorization", "secret")])
            return continuation(details, request)

    with serving(generated, interceptors=[Admit()]) as (target, _), apus.grpc.insecure_channel(target) as channel:
        request = generated.hello.HelloRequest(name="ada")
        with pytest.raises(grpc.RpcError) as caught:
            generated.hello_grpc.GreeterStub(channel).SayHello(request, timeout=30)
        assert caught.value.code() is StatusCode.UNAUTHENTICATED
        intercepted = grpc.intercept_channel(channel, Token())
        assert generated.hello_grpc.GreeterStub(intercepted).SayHello(request, timeout=30).message == "Hello ada!"


def test_a_call_waits_until_its_server_is_ready(generated: Generated) -> None:
    with node() as own, apus.grpc.insecure_channel(f"apus://{own.address(4000)}") as channel:
        stub = generated.hello_grpc.GreeterStub(channel)
        reply = stub.SayHello.future(generated.hello.HelloRequest(name="x"), timeout=30)
        with pytest.raises(grpc.RpcError):
            reply.result()
        replies: list[str] = []
        request = generated.hello.HelloRequest(name="ada")
        waiting = threading.Thread(target=lambda: replies.append(stub.SayHello(request, timeout=60, wait_for_ready=True).message))
        waiting.start()
        server = apus.grpc.server(4000, node=own)
        servicers(generated, server)
        server.start()
        waiting.join()
        assert replies == ["Hello ada!"]
        with pytest.raises(apus.OpenError):
            apus.grpc.server(4000, node=own).start()
        server.stop(None).wait()
        assert server.wait_for_termination() is False


def test_the_same_services_over_tcp(generated: Generated) -> None:
    with node() as own:
        server = apus.grpc.server(node=own)
        servicers(generated, server)
        assert server.add_insecure_port("apus://[::]:4000") == 4000
        with pytest.raises(ValueError):
            server.add_insecure_port("[::]:50051")
        server.also_tcp("unix-abstract:apus-test-%d" % os.getpid())
        server.start()
        with grpc.insecure_channel("unix-abstract:apus-test-%d" % os.getpid()) as channel:
            stub = generated.hello_grpc.GreeterStub(channel)
            assert stub.SayHello(generated.hello.HelloRequest(name="tcp"), timeout=30).message == "Hello tcp!"
        server.stop(0).wait()


def async_servicers(generated: Generated, server: Any) -> "AsyncSeen":
    seen = AsyncSeen()
    route = generated.route

    class Greeter(generated.hello_grpc.GreeterServicer):
        async def SayHello(self, request: Any, context: Any) -> Any:
            if request.name == "abort":
                await context.abort(StatusCode.NOT_FOUND, "nobody", (("cost", "3"),))
            if request.name == "early":
                await context.send_initial_metadata((("x-initial", "early"),))
                await seen.release.wait()
                return generated.hello.HelloReply(message="Hello early!")
            if request.name == "wait":
                seen.begun.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    seen.over.set()
            if request.name == "raise":
                raise ValueError("on purpose")
            await context.send_initial_metadata((("x-initial", "early"),))
            context.set_trailing_metadata((("x-trailing", "late"),))
            return generated.hello.HelloReply(message=f"Hello {request.name}!")

    class RouteGuide(generated.route_grpc.RouteGuideServicer):
        async def ListFeatures(self, request: Any, context: Any) -> Any:
            for number in range(request.high.latitude):
                yield route.Feature(name="x" * 1000, location=route.Point(latitude=number))

        async def RecordRoute(self, request_iterator: Any, context: Any) -> Any:
            count = 0
            async for _ in request_iterator:
                count += 1
            return route.RouteSummary(point_count=count)

        async def RouteChat(self, request_iterator: Any, context: Any) -> None:
            while (note := await context.read()) is not grpc.aio.EOF:
                await context.write(route.RouteNote(message=f"echo {note.message}"))

    generated.hello_grpc.add_GreeterServicer_to_server(Greeter(), server)
    generated.route_grpc.add_RouteGuideServicer_to_server(RouteGuide(), server)
    return seen


class AsyncSeen:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        self.release = asyncio.Event()


async def async_calls(generated: Generated, target: str, way: dict[str, Any]) -> None:
    """All forms of methods, and failures."""
    hello, route = generated.hello, generated.route
    async with apus.aio.Node(listen="127.0.0.1:0", **way) as own, apus.grpc.aio.insecure_channel(target, node=own) as channel:
        stub = generated.hello_grpc.GreeterStub(channel)
        call = stub.SayHello(hello.HelloRequest(name="ada"), timeout=30)
        assert (await call).message == "Hello ada!" and await call.code() is StatusCode.OK
        assert dict(await call.initial_metadata()) == {"x-initial": "early"}
        assert dict(await call.trailing_metadata()) == {"x-trailing": "late"}
        replies = await asyncio.gather(*(stub.SayHello(hello.HelloRequest(name=str(number)), timeout=60) for number in range(100)))
        assert [reply.message for reply in replies] == [f"Hello {number}!" for number in range(100)]
        for name, code in (("abort", StatusCode.NOT_FOUND), ("raise", StatusCode.UNKNOWN)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SayHello(hello.HelloRequest(name=name), timeout=30)
            assert caught.value.code() is code and caught.value.may_have_executed
        routes = generated.route_grpc.RouteGuideStub(channel)
        features = routes.ListFeatures(route.Area(high=route.Point(latitude=500)), timeout=60)
        assert [feature.location.latitude async for feature in features] == list(range(500))

        async def points() -> Any:
            for number in range(500):
                yield route.Point(latitude=number)

        assert (await routes.RecordRoute(points(), timeout=60)).point_count == 500
        assert (await routes.RecordRoute([route.Point()], timeout=60)).point_count == 1
        recording = routes.RecordRoute(timeout=60)
        for _ in range(3):
            await recording.write(route.Point())
        await recording.done_writing()
        assert (await recording).point_count == 3
        chat = routes.RouteChat(timeout=60)
        for number in range(20):
            await chat.write(route.RouteNote(message=str(number)))
            assert (await chat.read()).message == f"echo {number}"
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF and await chat.code() is StatusCode.OK
        endless = routes.ListFeatures(route.Area(high=route.Point(latitude=1_000_000)), timeout=60)
        async for _ in endless:
            break
        endless.cancel()
        assert await endless.code() is StatusCode.CANCELLED


def test_an_event_loop_serves_and_calls(generated: Generated, way: dict[str, Any]) -> None:
    async def main() -> None:
        async with apus.aio.Node(listen="127.0.0.1:0", **way) as own:
            server = apus.grpc.aio.server(4000, node=own)
            seen = async_servicers(generated, server)
            await server.start()
            target = f"apus://{own.address(4000)}"
            await async_calls(generated, target, way)
            async with apus.grpc.aio.insecure_channel(target) as channel:
                await channel.channel_ready()
                stub = generated.hello_grpc.GreeterStub(channel)
                waiting = asyncio.ensure_future(stub.SayHello(generated.hello.HelloRequest(name="wait")))
                await asyncio.wait_for(seen.begun.wait(), 30)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await asyncio.wait_for(seen.over.wait(), 30)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.SayHello(generated.hello.HelloRequest(name="wait"), timeout=0.1)
                assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
            await server.stop(1.0)

    asyncio.run(main())


def test_an_event_loop_calls_threads(generated: Generated) -> None:
    with serving(generated) as (target, _):
        asyncio.run(async_calls(generated, target, {}))


SERVER = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import apus, apus.grpc, test_grpc, conftest
class Made: pass
made = Made()
import helloworld_pb2, helloworld_pb2_grpc, routeguide_pb2, routeguide_pb2_grpc
made.hello, made.hello_grpc, made.route, made.route_grpc = helloworld_pb2, helloworld_pb2_grpc, routeguide_pb2, routeguide_pb2_grpc
node = apus.Node(listen="127.0.0.1:0")
server = apus.grpc.server(4000, node=node)
test_grpc.servicers(made, server)
server.start()
print(node.address(4000), flush=True)
server.wait_for_termination()
"""


@pytest.fixture(scope="session")
def greeter() -> str:
    """The example `greeter` of apus-tonic, which `cargo test --workspace` builds."""
    program = os.environ.get("APUS_TEST_GREETER")
    if not program:
        pytest.skip("skipped: gRPC between languages: APUS_TEST_GREETER does not name the example greeter of apus-tonic")
    return program


def test_a_client_of_tonic_calls_a_servicer(generated: Generated, greeter: str) -> None:
    with program(SERVER, ":".join(sys.path)) as (_, address):
        for name, answer in (("Tonic", "Hello Tonic!"), ("abort", "NotFound: nobody of this name ☺"), ("x" * 100_000, f"Hello {'x' * 100_000}!")):
            ran = subprocess.run([greeter, "call", f"apus://{address}", name], capture_output=True, text=True, timeout=60)
            assert ran.stdout.strip() == answer, ran.stderr


def test_stubs_call_a_server_of_tonic(generated: Generated, greeter: str) -> None:
    hello = generated.hello
    with subprocess.Popen([greeter, "serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            target = server.stdout.readline().strip()
            with node() as own, apus.grpc.insecure_channel(target, node=own) as channel:
                stub = generated.hello_grpc.GreeterStub(channel)
                request = hello.HelloRequest(name="Python")
                reply, call = stub.SayHello.with_call(request, timeout=60, metadata=(("x-tenant-id", "7"),))
                assert reply.message == "Hello Python!" and dict(call.initial_metadata()) == {"x-tenant-id": "7"}
                long = "x" * 1_000_000
                assert stub.SayHello(hello.HelloRequest(name=long), timeout=60).message == f"Hello {long}!"
                with pytest.raises(grpc.RpcError) as caught:
                    stub.SayHello(hello.HelloRequest(), timeout=60)
                assert caught.value.code() is StatusCode.INVALID_ARGUMENT

            async def main() -> None:
                async with apus.grpc.aio.insecure_channel(target) as channel:
                    reply = await generated.hello_grpc.GreeterStub(channel).SayHello(hello.HelloRequest(name="loop"), timeout=60)
                    assert reply.message == "Hello loop!"

            asyncio.run(main())
        finally:
            server.kill()
