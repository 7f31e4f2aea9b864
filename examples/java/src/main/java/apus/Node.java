package apus;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.Function;

/**
 * A node: calls services, and answers requests. Any thread may call any method. One thread of the node takes all responses and completes
 * the futures; a port has one that takes its requests, each of which is handled in a virtual thread.
 *
 * <p>An example, without a promise.
 */
public final class Node implements AutoCloseable {
    private static final int BATCH = 64;

    private final MemorySegment node;
    private final MemorySegment client;
    /** Read by operations, written by the one that frees the handles. */
    private final ReadWriteLock life = new ReentrantReadWriteLock();
    private boolean isClosed;

    private final AtomicLong tags = new AtomicLong();
    private final Map<Long, CompletableFuture<byte[]>> waiting = new ConcurrentHashMap<>();
    private final ExecutorService handlers = Executors.newVirtualThreadPerTaskExecutor();
    private final List<MemorySegment> ports = new ArrayList<>();
    private final List<Thread> receivers = new ArrayList<>();

    /** The address of a service: a node, by its IP address and UDP port, and a port on it. */
    public static final class Address {
        private final byte[] address;

        private Address(MemorySegment address) {
            this.address = address.toArray(JAVA_BYTE);
        }

        private MemorySegment in(Arena arena) {
            // Its first member is a number of four bytes, and none is longer.
            return arena.allocate(Library.ADDRESS_SIZE, 8).copyFrom(MemorySegment.ofArray(address));
        }

        /** The form that {@link Node#resolve} reads. */
        @Override
        public String toString() {
            try (var arena = Arena.ofConfined()) {
                var text = arena.allocate(Library.ADDRESS_TEXT);
                Library.attempt(Library.ADDRESS_FORMAT, in(arena), text, (long) Library.ADDRESS_TEXT);
                return text.getString(0);
            }
        }
    }

    /**
     * A request.
     *
     * @param body its bytes
     * @param remaining the time until its deadline, or null if it has none
     */
    public record Request(byte[] body, Duration remaining) {}

    /** Answers requests. An exception gives the request up: the client's call ends without a response. */
    @FunctionalInterface
    public interface Handler {
        byte[] answer(Request request) throws Exception;
    }

    /** Starts a node with settings, whose keys are those of a settings file, such as {@code listen}. Variables APUS_… override them. */
    public Node(Map<String, String> settings) {
        var config = (MemorySegment) Library.call(Library.CONFIG_NEW);
        try (var arena = Arena.ofConfined()) {
            settings.forEach((key, value) ->
                    Library.attempt(Library.CONFIG_SET, config, arena.allocateFrom(key), arena.allocateFrom(value)));
            Library.attempt(Library.CONFIG_ENVIRONMENT, config);
            node = made(Library.NODE_START, config);
        } finally {
            Library.call(Library.CONFIG_FREE, config);
        }
        client = made(Library.CLIENT_OPEN, node);
        receive("apus responses", this::takeResponses);
    }

    /** A handle that a function of C writes to its last argument. */
    private static MemorySegment made(MethodHandle function, Object... arguments) {
        try (var arena = Arena.ofConfined()) {
            var place = arena.allocate(ADDRESS);
            var all = new ArrayList<>(List.of(arguments));
            all.add(place);
            Library.attempt(function, all.toArray());
            return place.get(ADDRESS, 0);
        }
    }

    private void receive(String name, Runnable loop) {
        receivers.add(Thread.ofPlatform().daemon().name(name).start(loop));
    }

    /** The address of a port of this node. */
    public Address address(int port) {
        return whileOpen(arena -> {
            var address = arena.allocate(Library.ADDRESS_SIZE, 8);
            address.set(JAVA_INT, 0, Library.ADDRESS_SIZE);
            Library.attempt(Library.NODE_ADDRESS, node, address);
            address.set(JAVA_SHORT, Library.ADDRESS_PORT, (short) port);
            return new Address(address);
        });
    }

    /** Finds the first address of a service: HOST:PORT or HOST:PORT@UDPPORT. It may block for seconds, and {@link #close} waits for it. */
    public Address resolve(String text) {
        return whileOpen(arena -> {
            var address = arena.allocate(Library.ADDRESS_SIZE, 8);
            address.set(JAVA_INT, 0, Library.ADDRESS_SIZE);
            Library.attempt(Library.NODE_RESOLVE, node, arena.allocateFrom(text), address);
            return new Address(address);
        });
    }

    /**
     * Calls a service. The future ends with an {@link ApusException} if the call fails. A future that is cancelled gives the call up.
     *
     * @param timeout the time that the call has, or null
     */
    public CompletableFuture<byte[]> call(Address to, byte[] body, Duration timeout) {
        var ended = new CompletableFuture<byte[]>();
        long tag = tags.incrementAndGet();
        waiting.put(tag, ended);
        try {
            whileOpen(arena -> {
                var options = arena.allocate(Library.OPTIONS_SIZE, 8);
                options.set(JAVA_INT, 0, Library.OPTIONS_SIZE);
                options.set(JAVA_LONG, Library.OPTIONS_DEADLINE, timeout == null ? Library.FOREVER : Math.max(timeout.toNanos(), 0));
                var bytes = arena.allocateFrom(JAVA_BYTE, body);
                return Library.attempt(Library.SEND, client, to.in(arena), bytes, (long) body.length, options, tag);
            });
        } catch (ApusException failed) {
            waiting.remove(tag);
            ended.completeExceptionally(failed);
        }
        ended.whenComplete((response, failed) -> {
            if (ended.isCancelled() && waiting.remove(tag) != null) {
                whileOpen(arena -> Library.call(Library.CANCEL, client, tag));
            }
        });
        return ended;
    }

    private void takeResponses() {
        while (true) {
            try (var arena = Arena.ofConfined()) {
                var results = arena.allocate((long) Library.COMPLETION_SIZE * BATCH, 8);
                results.set(JAVA_INT, 0, Library.COMPLETION_SIZE);
                int count = (int) Library.call(Library.RECV_MANY, client, results, (long) BATCH, Library.FOREVER);
                if (count < 0) {
                    return; // the node is closed
                }
                for (long at = 0; at < (long) count * Library.COMPLETION_SIZE; at += Library.COMPLETION_SIZE) {
                    end(results.asSlice(at, Library.COMPLETION_SIZE), arena);
                }
            }
        }
    }

    private void end(MemorySegment result, Arena arena) {
        var message = result.get(ADDRESS, Library.COMPLETION_MESSAGE);
        byte[] bytes = Library.bytes(Library.MESSAGE_DATA, message, arena);
        Library.call(Library.MESSAGE_FREE, message);
        // A call that was cancelled is not there.
        var ended = waiting.remove(result.get(JAVA_LONG, Library.COMPLETION_TAG));
        int number = result.get(JAVA_INT, Library.COMPLETION_ERROR);
        if (ended == null) {
            return;
        }
        if (number == 0) {
            ended.complete(bytes);
        } else {
            boolean mayHaveExecuted = result.get(JAVA_INT, Library.COMPLETION_EXECUTED) != 0;
            ended.completeExceptionally(new ApusException(number, new String(bytes, UTF_8), mayHaveExecuted));
        }
    }

    /** Opens a port, 1 to 32766, and has a handler answer its requests until the node is closed. */
    public void bind(int number, Handler handler) {
        whileOpen(arena -> {
            var port = made(Library.BIND, node, (short) number);
            synchronized (ports) {
                ports.add(port);
                receive("apus port " + number, () -> takeRequests(port, handler));
            }
            return null;
        });
    }

    private void takeRequests(MemorySegment port, Handler handler) {
        while (true) {
            try (var arena = Arena.ofConfined()) {
                var requests = arena.allocate(ADDRESS, BATCH);
                int count = (int) Library.call(Library.PORT_RECV_MANY, port, requests, (long) BATCH, Library.FOREVER);
                if (count < 0) {
                    return; // the node is closed
                }
                for (int i = 0; i < count; i++) {
                    var request = requests.getAtIndex(ADDRESS, i);
                    handlers.execute(() -> answer(request, handler));
                }
            }
        }
    }

    /** The request, which keeps its node running, is this thread's. */
    private static void answer(MemorySegment request, Handler handler) {
        try (var arena = Arena.ofConfined()) {
            long remaining = (long) Library.call(Library.REQUEST_REMAINING, request);
            byte[] body = Library.bytes(Library.REQUEST_BODY, request, arena);
            byte[] response = handler.answer(new Request(body, remaining < 0 ? null : Duration.ofNanos(remaining)));
            // A reply that succeeds frees the request.
            Library.attempt(Library.REPLY, request, arena.allocateFrom(JAVA_BYTE, response), (long) response.length);
        } catch (Exception failed) { // of the handler; or the client has gone
            Library.call(Library.ABANDON, request);
        }
    }

    /** Runs an operation on the open node. */
    private <T> T whileOpen(Function<Arena, T> operation) {
        life.readLock().lock();
        try (var arena = Arena.ofConfined()) {
            if (isClosed) {
                throw new ApusException(ApusException.CLOSED, "the node is closed", false);
            }
            return operation.apply(arena);
        } finally {
            life.readLock().unlock();
        }
    }

    /** Takes no further calls and requests, waits until those under way have ended, at most ten seconds, and stops the node. */
    @Override
    public void close() {
        close(Duration.ofSeconds(10));
    }

    /** The same with another time. Does nothing if the node is closed. */
    public void close(Duration timeout) {
        try {
            whileOpen(arena -> Library.call(Library.NODE_CLOSE, node, timeout.toNanos()));
        } catch (ApusException closed) {
            return;
        }
        life.writeLock().lock();
        try {
            if (isClosed) {
                return;
            }
            isClosed = true;
        } finally {
            life.writeLock().unlock();
        }
        joinReceivers();
        ports.forEach(port -> Library.call(Library.PORT_FREE, port));
        Library.call(Library.CLIENT_FREE, client);
        Library.call(Library.NODE_FREE, node);
        var closed = new ApusException(ApusException.CLOSED, "the node is closed", true);
        waiting.values().forEach(call -> call.completeExceptionally(closed));
        waiting.clear();
        handlers.shutdown();
    }

    /** The functions in which they wait have returned, because the node is closed. */
    private void joinReceivers() {
        boolean isInterrupted = false;
        for (var receiver : receivers) {
            while (receiver.isAlive()) {
                try {
                    receiver.join();
                } catch (InterruptedException interrupted) {
                    isInterrupted = true;
                }
            }
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
