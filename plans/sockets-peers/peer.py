"""An echo server, or a client that sends a known stream through one, by asyncio over uvloop if that is installed."""

import asyncio
import sys

try:
    import uvloop

    uvloop.install()
except ImportError:
    if "--uvloop" in sys.argv:
        sys.exit("uvloop is not installed")


def known(start, end):
    return bytes((offset * 31) >> 3 & 255 for offset in range(start, end))


async def echo(reader, writer):
    while data := await reader.read(50000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def send(writer, stream):
    done, size = 0, 1
    while done < len(stream):
        writer.write(stream[done : done + size])
        await writer.drain()
        done, size = done + size, size * 7 % 70000 + 1
    writer.write_eof()


async def client(port, count):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stream = known(0, count)
    sending = asyncio.create_task(send(writer, stream))
    got = await reader.read()
    await sending
    if got != stream:
        sys.exit(f"{len(got)} of {count} bytes, or others")


role, *arguments = (argument for argument in sys.argv[1:] if argument != "--uvloop")
asyncio.run(serve() if role == "server" else client(*map(int, arguments)))
