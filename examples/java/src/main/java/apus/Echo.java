package apus;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;

/**
 * A server and a client.
 *
 * <pre>
 * Echo serve [LISTEN]        such as 0.0.0.0:20146; by default a port of loopback that the system chooses
 * Echo call ADDRESS TEXT     such as localhost:4000 hello
 * </pre>
 */
public final class Echo {
    private Echo() {}

    public static void main(String[] arguments) throws Exception {
        String command = arguments.length == 0 ? "" : arguments[0];
        if (command.equals("serve") && arguments.length <= 2) {
            serve(arguments.length == 2 ? arguments[1] : "127.0.0.1:0");
        } else if (command.equals("call") && arguments.length == 3) {
            call(arguments[1], arguments[2]);
        } else {
            System.err.println("usage: Echo serve [LISTEN] | Echo call ADDRESS TEXT");
            System.exit(2);
        }
    }

    private static void serve(String listen) throws InterruptedException {
        var node = new Node(Map.of("listen", listen));
        Runtime.getRuntime().addShutdownHook(new Thread(node::close)); // SIGINT, SIGTERM
        node.bind(4000, request -> request.body());
        System.out.println("serving " + node.address(4000));
        new CountDownLatch(1).await();
    }

    private static void call(String address, String text) throws InterruptedException {
        try (var node = new Node(Map.of())) {
            var response = node.call(node.resolve(address), text.getBytes(), Duration.ofSeconds(5));
            System.out.println(new String(response.get()));
        } catch (ExecutionException failed) {
            System.err.println(failed.getCause().getMessage());
            System.exit(1);
        }
    }
}
