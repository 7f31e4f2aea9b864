// An echo server, or a client that sends a known stream through one.
import net from "node:net";

const at = (offset) => ((offset * 31) >> 3) & 255;
const [role, port, bytes] = process.argv.slice(2);

if (role === "server") {
    const server = net.createServer({ allowHalfOpen: true }, (socket) => {
        socket.on("error", () => socket.destroy());
        socket.pipe(socket);
    });
    server.listen(0, "127.0.0.1", () => console.log(server.address().port));
} else {
    const all = Number(bytes);
    let got = 0;
    const socket = net.connect(Number(port), "127.0.0.1");
    socket.on("data", (chunk) => {
        for (const value of chunk) {
            if (value !== at(got++)) {
                console.error(`the byte at ${got - 1} is wrong`);
                process.exit(1);
            }
        }
    });
    socket.on("end", () => {
        if (got !== all) {
            console.error(`${got} of ${all} bytes`);
            process.exit(1);
        }
    });
    let done = 0;
    let size = 1;
    const send = () => {
        while (done < all) {
            const chunk = Buffer.alloc(Math.min(size, all - done), 0);
            for (let i = 0; i < chunk.length; i++) chunk[i] = at(done + i);
            done += chunk.length;
            size = ((size * 7) % 70000) + 1;
            if (!socket.write(chunk)) {
                socket.once("drain", send);
                return;
            }
        }
        socket.end();
    };
    send();
}
