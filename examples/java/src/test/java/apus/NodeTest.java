package apus;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class NodeTest {
    private static final Duration LONG = Duration.ofMinutes(1);

    private Node node;
    private Node server;

    @BeforeEach
    void start() {
        node = new Node(Map.of("listen", "127.0.0.1:0"));
        server = new Node(Map.of("listen", "127.0.0.1:0"));
    }

    @AfterEach
    void close() {
        node.close(Duration.ZERO);
        server.close(Duration.ZERO);
    }

    private Node.Address serve(Node.Handler handler) {
        server.bind(4000, handler);
        return server.address(4000);
    }

    @Test
    void bodiesOfAllLengthsComeBack() throws Exception {
        var to = serve(Node.Request::body);
        for (int length : new int[] {0, 1, 100, 1_400, 70_000, 3_000_000}) {
            byte[] body = new byte[length];
            Arrays.fill(body, (byte) 7);
            assertArrayEquals(body, node.call(to, body, LONG).get());
        }
        assertEquals(to.toString(), node.resolve(to.toString()).toString());
    }

    @Test
    void manyCallsAreOutstanding() throws Exception {
        var all = new CountDownLatch(200);
        var to = serve(request -> {
            all.countDown();
            all.await(); // The handlers wait for each other, so each has a thread.
            return request.body();
        });
        var calls = IntStream.range(0, 200).mapToObj(number -> {
            byte[] body = ("call " + number).getBytes(StandardCharsets.UTF_8);
            return node.call(to, body, LONG).thenAccept(response -> assertArrayEquals(body, response));
        });
        CompletableFuture.allOf(calls.toArray(CompletableFuture<?>[]::new)).get();
    }

    @Test
    void aDeadlineEndsACallAndReachesTheHandler() {
        var remaining = new CompletableFuture<Duration>();
        var release = new CountDownLatch(1);
        var to = serve(request -> {
            remaining.complete(request.remaining());
            release.await();
            return request.body();
        });
        var call = node.call(to, new byte[1], Duration.ofSeconds(1));
        var failed = assertInstanceOf(ApusException.class, assertThrows(ExecutionException.class, call::get).getCause());
        release.countDown();
        assertEquals("APUS_EDEADLINE", failed.name());
        assertTrue(failed.mayHaveExecuted());
        assertTrue(remaining.join().compareTo(Duration.ofSeconds(1)) <= 0);
    }

    @Test
    void aFutureThatIsCancelledGivesTheCallUp() throws Exception {
        var begun = new CountDownLatch(1);
        var release = new CountDownLatch(1);
        var to = serve(request -> {
            begun.countDown();
            release.await();
            return request.body();
        });
        var call = node.call(to, new byte[1], null);
        begun.await();
        call.cancel(false);
        assertThrows(CancellationException.class, call::get);
        release.countDown();
    }

    @Test
    void errorsHaveANumberATextAndWhetherTheRequestMayHaveBeenExecuted() {
        var call = node.call(server.address(9), new byte[1], LONG);
        var failed = assertInstanceOf(ApusException.class, assertThrows(ExecutionException.class, call::get).getCause());
        assertEquals(ApusException.NO_SUCH_PORT, failed.number());
        assertFalse(failed.mayHaveExecuted());
        assertFalse(failed.getMessage().isEmpty());
        var to = serve(request -> {
            throw new IllegalStateException("no");
        });
        var given = assertThrows(ExecutionException.class, node.call(to, new byte[1], LONG)::get);
        assertTrue(assertInstanceOf(ApusException.class, given.getCause()).mayHaveExecuted());
        var config = assertThrows(ApusException.class, () -> new Node(Map.of("listen", "nowhere")));
        assertEquals("APUS_ECONFIG", config.name());
        assertThrows(ApusException.class, () -> node.resolve("no address"));
    }

    @Test
    void theEndOfANodeEndsItsCalls() throws Exception {
        var begun = new CountDownLatch(1);
        var release = new CountDownLatch(1);
        var to = serve(request -> {
            begun.countDown();
            release.await();
            return request.body();
        });
        var call = node.call(to, new byte[1], null);
        begun.await();
        node.close(Duration.ZERO);
        release.countDown();
        var failed = assertThrows(ExecutionException.class, call::get);
        assertEquals(ApusException.CLOSED, assertInstanceOf(ApusException.class, failed.getCause()).number());
        assertTrue(node.call(to, new byte[1], null).isCompletedExceptionally());
        node.close();
    }
}
