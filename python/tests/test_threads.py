"""Calls and requests of threads."""

import array
import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import apus
import pytest
from conftest import VIEWS, environment, limited, node, program, reach, served, until, wait_until


def echo(request: apus.Request) -> apus.Message:
    return request.body


def test_a_call_has_a_response(way: dict[str, Any]) -> None:
    with served(echo, way) as address, node(way) as caller:
        client = caller.client()
        client.connect(address, timeout=20)
        for length in (0, 1, 100, 5_000, 100_000, 1_000_000):
            body = os.urandom(length)
            assert client.call(address, body, timeout=20) == body


def test_the_way_is_that_of_the_settings(way: dict[str, Any]) -> None:
    with served(echo, way) as address, node(way) as caller:
        client = caller.client()
        reach(client, caller, address, way)
        before = caller.stats()["calls"]
        client.call(address, b"hello", timeout=20)
        assert caller.stats()["calls"] == before + 1


@pytest.mark.parametrize("length", [100, 100_000])
def test_a_body_is_any_buffer(length: int) -> None:
    data = os.urandom(length)
    bodies: list[Any] = [data, bytearray(data), memoryview(data), memoryview(bytearray(data)), array.array("B", data)]
    with served(echo) as address, node() as caller:
        client = caller.client()
        for body in bodies:
            message = client.call(address, body, timeout=20)
            assert bytes(message) == data
            assert client.call(address, message, timeout=20) == data
            assert client.call(address, message[10:20], timeout=20) == data[10:20]
        with pytest.raises(TypeError):
            client.call(address, "text", timeout=20)  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            client.call(address, memoryview(data)[::2], timeout=20)
        # No buffer is held after its call.
        resizable = bytearray(data)
        client.call(address, resizable, timeout=20)
        client.call(address, bytearray(1), timeout=20)
        resizable.extend(b"more")


def test_a_buffer_that_was_sent_may_change(way: dict[str, Any]) -> None:
    with served(echo, way) as address, node(way) as caller:
        client = caller.client()
        for view in VIEWS:
            body = bytearray(b"a" * 1_000_000)
            client.send(address, view(body), 1)
            body[:] = b"b" * len(body)
            assert client.recv_many(timeout=60)[0].result() == b"a" * len(body)


def test_a_message_is_read_only_bytes() -> None:
    with served(echo) as address, node() as caller:
        message = caller.client().call(address, b"hello", timeout=20)
    view = memoryview(message)
    assert view.readonly and view.tobytes() == b"hello"
    with pytest.raises(TypeError):
        view[0] = 1
    assert (len(message), message[0], message[-1], message[1:3]) == (5, ord("h"), ord("o"), b"el")
    assert message.decode() == "hello" and message[::2] == b"hlo" and list(message) == list(b"hello")
    assert message == b"hello" and message != b"other" and hash(message) == hash(b"hello")
    assert repr(message) == "<apus.Message of 5 bytes: b'hello'>"
    with pytest.raises(IndexError):
        message[5]
    with pytest.raises(TypeError):
        message < b"x"  # noqa: B015


def test_calls_in_batches(way: dict[str, Any]) -> None:
    with served(echo, way, workers=2) as address, node(way) as caller:
        client = caller.client()
        for number in range(1000):
            client.send(address, f"call {number}".encode(), number, timeout=60, flush=number % 50 == 49)
        results: dict[int, bytes] = {}
        while len(results) < 1000:
            for response in client.recv_many(timeout=60):
                assert response.error is None
                results[response.cookie] = bytes(response.result())
        assert results == {number: f"call {number}".encode() for number in range(1000)}
        with pytest.raises(apus.ReceiveTimeoutError):
            client.recv_many(timeout=0.001)


def test_quick_requests_overtake_a_slow_one() -> None:
    release = threading.Event()

    def handler(request: apus.Request) -> apus.Message:
        if request.body == b"slow":
            release.wait(60)
        return request.body

    with served(handler, workers=2) as address, node() as caller:
        client = caller.client()
        try:
            # Quick requests first, with which a thread could begin to take several at once.
            for round in range(20):
                bodies = [b"quick"] * 63 if round < 19 else [b"slow", *[b"quick"] * 63]
                for number, body in enumerate(bodies):
                    client.send(address, body, number, flush=number == len(bodies) - 1)
                answered = 0
                while answered < 63:
                    answered += len(client.recv_many(timeout=20))
        finally:
            release.set()
        assert client.recv_many(timeout=20)[0].result() == b"slow"


def test_an_error_of_a_port_ends_its_threads() -> None:
    with node() as server:
        port = server.bind(4000)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                port.serve(echo, workers=2)
                os.write(write, b"no error")
            except apus.ForkedError:
                os.write(write, b"forked")
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as result:
            assert result.read() == "forked"
        os.waitpid(child, 0)


def test_a_call_of_send_is_cancelled() -> None:
    server = node()
    port = server.bind(4000)
    with node() as caller:
        client = caller.client()
        client.send(server.address(4000), b"hello", 7)
        request = port.recv(timeout=20)
        assert not request.cancelled()
        assert client.cancel(7) and not client.cancel(7)
        [response] = client.recv_many(timeout=20)
        assert isinstance(response.error, apus.CallCancelledError) and response.error.may_have_executed
        assert response.body is None
        wait_until(request.cancelled)
        with pytest.raises(apus.ClientGoneError):
            request.reply(b"too late")


def test_a_deadline_reaches_the_handler_and_ends_the_call() -> None:
    seen: list[float | None] = []
    release = threading.Event()

    def handler(request: apus.Request) -> None:
        seen.append(request.remaining)
        release.wait()

    timeout = 0.1
    with served(handler) as address, node() as caller:
        try:
            # A machine that is busy needs longer until the handler begins.
            for _ in until(lambda: bool(seen)):
                timeout *= 2
                with pytest.raises(TimeoutError) as caught:
                    caller.client().call(address, b"hello", timeout=timeout)
            assert isinstance(caught.value, apus.DeadlineError) and caught.value.may_have_executed
            assert caught.value.kind == "Deadline"
        finally:
            release.set()
    assert seen[0] is not None and 0 < seen[0] <= timeout


def test_errors_say_whether_the_request_may_have_been_executed() -> None:
    with served(echo) as address, node() as caller:
        client = caller.client()
        other = apus.Address(str(address).replace(":4000", ":4001"))
        with pytest.raises(apus.NoSuchPortError) as caught:
            client.call(other, b"hello", timeout=20)
        assert not caught.value.may_have_executed and isinstance(caught.value, ConnectionError)
        with pytest.raises(apus.TooLargeError):
            client.call(address, bytes(65 << 20), timeout=20)
        client.close()
        with pytest.raises(apus.ClosedError):
            client.call(address, b"hello")
    with pytest.raises(apus.ClosedError):
        caller.client()
    with pytest.raises(apus.ConfigError):
        apus.Node(no_such_setting=1)
    with pytest.raises(apus.ConfigError):
        apus.Node(peer_budget="much")
    with pytest.raises(TypeError):
        apus.Node(listen=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        apus.Address("example.org:4000")
    with pytest.raises(ValueError):
        client.call(address, b"hello", timeout=-1)


def test_an_exception_of_a_handler_ends_its_request(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: apus.Request) -> bytes:
        if request.body == b"raise":
            raise ValueError("on purpose")
        return b"fine"

    with served(handler) as address, node() as caller:
        client = caller.client()
        with pytest.raises(apus.HandlerError) as caught:
            client.call(address, b"raise", timeout=20)
        assert caught.value.may_have_executed
        assert client.call(address, b"hello", timeout=20) == b"fine"
    assert "on purpose" in caplog.text


def test_a_request_is_answered_by_another_thread_or_given_up() -> None:
    kept: list[apus.Request] = []

    def handler(request: apus.Request) -> None:
        if request.body == b"abandon":
            request.abandon()
        else:
            kept.append(request)
            threading.Thread(target=request.reply, args=(b"later",)).start()

    with served(handler) as address, node() as caller:
        client = caller.client()
        assert client.call(address, b"hello", timeout=20) == b"later"
        with pytest.raises(apus.ResponseLostError):
            client.call(address, b"abandon", timeout=20)
    assert kept[0].body == b"hello" and kept[0].peer is None
    assert str(kept[0].client).startswith("127.0.0.1:")


def test_many_threads_call_at_once(way: dict[str, Any]) -> None:
    failures: list[BaseException] = []

    def calls(client: apus.Client, address: apus.Address) -> None:
        try:
            for number in range(50):
                body = f"{threading.get_ident()} {number}".encode()
                assert client.call(address, body, timeout=60) == body
        except BaseException as error:
            failures.append(error)

    with served(echo, way, workers=3) as address, node(way) as caller:
        client = caller.client()
        threads = [threading.Thread(target=calls, args=(client, address)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_handles_are_not_pickled_but_addresses_are() -> None:
    with served(echo) as address, node() as caller:
        client = caller.client()
        port = caller.bind(4001)
        message = client.call(address, b"hello", timeout=20)
        for handle in (caller, client, port, message):
            with pytest.raises(TypeError):
                pickle.dumps(handle)
        assert pickle.loads(pickle.dumps(address)) == address


def test_a_forked_child_gets_errors() -> None:
    with served(echo) as address, node() as caller:
        client = caller.client()
        client.call(address, b"hello", timeout=20)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                results = []
                for operation in (lambda: client.call(address, b"x"), caller.client, lambda: caller.bind(9), client.recv_many):
                    try:
                        operation()
                        results.append("no error")
                    except apus.ForkedError:
                        results.append("forked")
                with node() as own:
                    results.append("own" if own.client() else "")
                os.write(write, " ".join(results).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as result:
            assert result.read() == "forked forked forked forked own"
        os.waitpid(child, 0)
        assert client.call(address, b"still", timeout=20) == b"still"


SERVER = """
import apus, sys, time
node = apus.Node(listen="127.0.0.1:0", **eval(sys.argv[1]))
port = node.bind(4000)
print(node.address(4000), flush=True)
def handler(request):
    if request.body == b"wait":
        print("waits", flush=True)
        time.sleep(3600)
    return request.body
port.serve(handler, workers=2)
"""


@pytest.mark.parametrize("link", ["auto", "udp"])
def test_a_server_that_is_killed_ends_its_calls(link: str) -> None:
    way = {"link": link, "peer_timeout": "500ms"}
    with program(SERVER, repr(way)) as (server, address), node(way) as caller:
        client = caller.client()
        assert client.call(address, b"hello", timeout=20) == b"hello"

        def kill() -> None:
            assert server.stdout is not None
            # The handler has begun.
            server.stdout.readline()
            server.kill()

        threading.Thread(target=kill).start()
        with pytest.raises(apus.CallError) as caught:
            client.call(address, b"wait", timeout=60)
        assert caught.value.may_have_executed and not isinstance(caught.value, apus.DeadlineError)


# A job in the background of a shell ignores Ctrl-C, so the programs set its handler. Two threads print at once, so each prints its
# line as a whole.
INTERRUPTED = """
import apus, os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
node = apus.Node(listen="127.0.0.1:0")
port = node.bind(4000)
def call():
    request = port.recv()
    os.kill(os.getpid(), signal.SIGINT)
    while not request.cancelled():
        pass
    print("cancelled\\n", end="", flush=True)
thread = threading.Thread(target=call)
thread.start()
try:
    node.client().call(node.address(4000), b"hello")
except KeyboardInterrupt:
    print("interrupted\\n", end="", flush=True)
thread.join()
for wait in (port.recv, lambda: port.serve(print), node.client().recv_many):
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


SILENT = """
import apus, os, signal, socket, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 0))
address = f"127.0.0.1:4000@{silent.getsockname()[1]}"
node = apus.Node(listen="127.0.0.1:0", link="udp", peer_timeout="1h")
client = node.client()
channel = apus._native.RpcChannel(f"apus://{address}", node, 1000)
client.send(address, b"hello", 1)
for wait in (lambda: client.connect(address), channel.contact, lambda: node.close(timeout=3600)):
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_first_contact_and_a_close() -> None:
    with program(SILENT) as (child, first):
        assert child.stdout is not None
        rest = child.stdout.read().split()
        assert [first, *rest] == ["interrupted"] * 3
        assert child.wait(20) == 0


# A look-up that has no end.
LOOK_UP = r"""
#include <unistd.h>
int getaddrinfo(const char *node, const char *service, const void *hints, void *found) {
    (void)node, (void)service, (void)hints, (void)found;
    (void)!write(1, "begun\n", 6);
    for (;;) pause();
}
"""

CLOSING = """
import apus, os, threading
node = apus.Node(listen="127.0.0.1:0")
threading.Thread(target=node.resolve, args=("name.example:4000",), daemon=True).start()
input()
node.close()
print("closed", flush=True)
os._exit(0)
"""


def test_a_close_does_not_wait_for_a_look_up(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("skipped: a close during a look-up: there is no C compiler")
    (tmp_path / "look_up.c").write_text(LOOK_UP)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "look_up.so", "look_up.c"], cwd=tmp_path, check=True)
    command = [sys.executable, "-c", CLOSING]
    preloaded = {**environment(), "LD_PRELOAD": str(tmp_path / "look_up.so")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=preloaded) as child, limited(child):
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "closed\n"


def test_ctrl_c_ends_a_wait() -> None:
    with program(INTERRUPTED) as (child, first):
        assert child.stdout is not None
        rest = child.stdout.read().split()
        assert sorted([first, *rest]) == ["cancelled", *["interrupted"] * 4]
        assert child.wait(20) == 0


FORKED = """
import apus, os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
def fork():
    with apus.Node(listen="127.0.0.1:0") as node:
        try:
            node.bind(4000).recv(timeout=0.001)
        except apus.ApusError:
            pass
    child = os.fork()
    if child:
        os._exit(os.waitpid(child, 0)[1])
    # The thread is the main one of the child.
    port = apus.Node(listen="127.0.0.1:0").bind(4000)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        port.recv()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    os._exit(0)
thread = threading.Thread(target=fork)
thread.start()
thread.join()
"""


def test_ctrl_c_ends_a_wait_in_a_child_of_another_thread() -> None:
    with program(FORKED) as (child, first):
        assert first == "interrupted"
        assert child.wait(20) == 0


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_nothing_leaks() -> None:
    import tracemalloc

    def round() -> None:
        with served(echo) as address, node() as caller:
            client = caller.client()
            for _ in range(200):
                client.call(address, bytearray(8_000), timeout=20)
            for _ in range(20):
                with pytest.raises(apus.NoSuchPortError):
                    client.call(apus.Address(str(address).replace(":4000", ":4001")), b"x", timeout=20)

    round()
    before = descriptors()
    tracemalloc.start()
    round()
    gc.collect()
    first = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        round()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - first
    tracemalloc.stop()
    assert grown < 100_000
    assert descriptors() <= before


def test_time_of_a_wait_is_kept() -> None:
    with node() as caller:
        port = caller.bind(4000)
        begin = time.monotonic()
        with pytest.raises(apus.ReceiveTimeoutError):
            port.recv(timeout=0.12)
        assert time.monotonic() - begin >= 0.12


ENDING = """
import apus, threading, time
node = apus.Node(listen="127.0.0.1:0")
port, other = node.bind(4000), node.bind(4001)
def handler(request):
    if request.body == b"sleep":
        time.sleep(3600)
    return request.body
threading.Thread(target=port.serve, args=(handler,), kwargs={"workers": 2}, daemon=True).start()
client = node.client()
client.call(node.address(4000), b"hello")
client.send(node.address(4000), b"sleep", 1)
for wait in (other.recv, client.recv_many, lambda: client.call(node.address(4001), b"hello")):
    threading.Thread(target=wait, daemon=True).start()
print("ready", flush=True)
"""


def test_an_interpreter_ends_while_threads_wait() -> None:
    for _ in range(3):
        with program(ENDING) as (child, ready):
            assert ready == "ready"
            assert child.wait(30) == 0
