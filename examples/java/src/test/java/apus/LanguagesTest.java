package apus;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/** Beside programs in C. */
@Timeout(60)
class LanguagesTest {
    /** The variable names the example echo_server of apus-capi. */
    @Test
    @EnabledIfEnvironmentVariable(named = "APUS_TEST_ECHO_SERVER", matches = ".+")
    void aServerInCAnswers() throws Exception {
        try (var server = new OtherServer(System.getenv("APUS_TEST_ECHO_SERVER"));
                var node = new Node(Map.of())) {
            var response = node.call(node.resolve(server.address()), "hello".getBytes(), Duration.ofMinutes(1));
            assertEquals("hello", new String(response.get()));
        }
    }

    /** The variable names the example echo_client of apus-capi. */
    @Test
    @EnabledIfEnvironmentVariable(named = "APUS_TEST_ECHO_CLIENT", matches = ".+")
    void aClientInCIsAnswered() throws Exception {
        try (var node = new Node(Map.of("listen", "127.0.0.1:0"))) {
            node.bind(4000, Node.Request::body);
            var client = new ProcessBuilder(System.getenv("APUS_TEST_ECHO_CLIENT"), node.address(4000).toString(), "hello").start();
            assertEquals("hello\n", new String(client.getInputStream().readAllBytes()));
            assertEquals(0, client.waitFor());
        }
    }
}
