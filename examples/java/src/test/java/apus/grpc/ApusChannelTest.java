package apus.grpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import apus.Node;
import apus.OtherServer;
import com.google.protobuf.StringValue;
import io.grpc.CallOptions;
import io.grpc.ClientInterceptors;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;

/**
 * Calls by the functions that generated stubs use. A StringValue has the bytes of a HelloRequest and of a HelloReply: field 1 is a string in
 * all of them.
 */
@Timeout(60)
class ApusChannelTest {
    private static final Metadata.Key<String> TENANT = Metadata.Key.of("x-tenant-id", Metadata.ASCII_STRING_MARSHALLER);

    private final Node node = new Node(Map.of("listen", "127.0.0.1:0"));

    @AfterEach
    void close() {
        node.close();
    }

    private static MethodDescriptor<StringValue, StringValue> method(MethodType type) {
        var messages = ProtoUtils.marshaller(StringValue.getDefaultInstance());
        return MethodDescriptor.newBuilder(messages, messages).setType(type).setFullMethodName("helloworld.Greeter/SayHello").build();
    }

    private static String hello(io.grpc.Channel channel, String name) {
        var options = CallOptions.DEFAULT.withDeadlineAfter(1, TimeUnit.MINUTES);
        return ClientCalls.blockingUnaryCall(channel, method(MethodType.UNARY), options, StringValue.of(name)).getValue();
    }

    /** The variable names the example greeter of apus-tonic. */
    @Test
    @EnabledIfEnvironmentVariable(named = "APUS_TEST_GREETER", matches = ".+")
    void aServerOfTonicAnswers() throws Exception {
        try (var server = new OtherServer(System.getenv("APUS_TEST_GREETER"), "serve")) {
            var channel = new ApusChannel(node, server.address());
            assertEquals("Hello Ada!", hello(channel, "Ada"));
            var headers = new Metadata();
            headers.put(TENANT, "7");
            var received = new AtomicReference<Metadata>();
            var with = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers),
                    MetadataUtils.newCaptureMetadataInterceptor(received, new AtomicReference<>()));
            assertEquals("Hello Eve!", hello(with, "Eve"));
            assertEquals("7", received.get().get(TENANT));
            String name = "a".repeat(200_000);
            assertEquals("Hello " + name + "!", hello(channel, name));
            var failed = assertThrows(StatusRuntimeException.class, () -> hello(channel, ""));
            assertEquals(Status.Code.INVALID_ARGUMENT, failed.getStatus().getCode());
            assertEquals("a name has one or more characters", failed.getStatus().getDescription());
        }
    }

    @Test
    void errorsOfTheTransportHaveTheirCode() {
        var channel = new ApusChannel(node, node.address(9).toString());
        var failed = assertThrows(StatusRuntimeException.class, () -> hello(channel, "Ada"));
        assertEquals(Status.Code.UNAVAILABLE, failed.getStatus().getCode());
        assertFalse(ApusChannel.mayHaveExecuted(failed));
    }

    @Test
    void methodsWithStreamsAreRefused() {
        var channel = new ApusChannel(node, node.address(9).toString());
        var responses = ClientCalls.blockingServerStreamingCall(
                channel, method(MethodType.SERVER_STREAMING), CallOptions.DEFAULT, StringValue.of("Ada"));
        var failed = assertThrows(StatusRuntimeException.class, responses::hasNext);
        assertEquals(Status.Code.UNIMPLEMENTED, failed.getStatus().getCode());
    }

    @Test
    void theDeadlineOfTheOptionsEndsACall() {
        var release = new CountDownLatch(1);
        node.bind(4000, request -> {
            release.await();
            return request.body();
        });
        var channel = new ApusChannel(node, node.address(4000).toString());
        var options = CallOptions.DEFAULT.withDeadlineAfter(200, TimeUnit.MILLISECONDS);
        var failed = assertThrows(StatusRuntimeException.class,
                () -> ClientCalls.blockingUnaryCall(channel, method(MethodType.UNARY), options, StringValue.of("Ada")));
        release.countDown();
        assertEquals(Status.Code.DEADLINE_EXCEEDED, failed.getStatus().getCode());
    }
}
