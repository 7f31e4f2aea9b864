package apus.grpc;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Arrays;
import java.util.HexFormat;
import org.junit.jupiter.api.Test;

class EnvelopeTest {
    private static byte[] bytes(String text) {
        return HexFormat.of().parseHex(text.replace(" ", ""));
    }

    private static Metadata.Key<String> key(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    /** The example of docs/rpc-wire.md, with gRPC's frame around its bodies. */
    @Test
    void theExampleOfThePage() {
        var headers = new Metadata();
        headers.put(key("x-tenant-id"), "7");
        byte[] open = Envelope.open(0x0102030405060708L, "shop.Calc/Add", headers, "hi".getBytes());
        String wanted = "a1 01 01 01 02 03 04 05 06 07 08"
                + "0e 2f 73 68 6f 70 2e 43 61 6c 63 2f 41 64 64 01 00 1b 01 37 00 00 00 00 02 68 69";
        assertArrayEquals(bytes(wanted), open);
        var response = Envelope.response(bytes("a1 02 00 00 00 00 00 00 00 00 02 6f 6b"));
        assertTrue(response.status().isOk());
        assertArrayEquals("ok".getBytes(), response.message());
    }

    @Test
    void aResponseHasMetadataAStatusAndTrailers() {
        // HEAD, END, NOT_EXECUTED; a: 1; NOT_FOUND; "no"; details 01; traceparent: 0
        byte[] message = bytes("a1 0b 01 01 61 01 31 05 02 6e 6f 01 01 01 00 11 01 30");
        var response = Envelope.response(message);
        assertEquals(Status.Code.NOT_FOUND, response.status().getCode());
        assertEquals("no", response.status().getDescription());
        assertEquals("1", response.headers().get(key("a")));
        assertEquals("0", response.trailers().get(key("traceparent")));
        var details = Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);
        assertArrayEquals(new byte[] {1}, response.trailers().get(details));
        assertTrue(response.notExecuted());
        assertEquals(0, response.body().length);
        for (int length = 0; length < message.length; length++) {
            byte[] part = Arrays.copyOf(message, length);
            assertThrows(StatusRuntimeException.class, () -> Envelope.response(part), "the first " + length + " bytes");
        }
    }

    @Test
    void refusalsHaveACodeAndAReason() {
        refused("", Status.Code.UNIMPLEMENTED, "not_an_envelope");
        refused("51", Status.Code.UNIMPLEMENTED, "not_an_envelope");
        refused("a2 02", Status.Code.UNIMPLEMENTED, "other_version");
        refused("a1 06 00 00 00 00", Status.Code.INTERNAL, "bad_flags");
        refused("a1 02 80 00", Status.Code.INTERNAL, "bad_varint");
        refused("a1 02 ff ff ff ff ff ff ff ff ff 02", Status.Code.INTERNAL, "bad_varint");
        refused("a1 02 00 01 ff 00 00", Status.Code.INTERNAL, "bad_message");
        refused("a1 01 81 01", Status.Code.RESOURCE_EXHAUSTED, "too_many_pairs");
        refused("a1 01 01 00 20 00", Status.Code.INTERNAL, "unknown_name");
        refused("a1 01 01 01 41 00", Status.Code.INTERNAL, "bad_name");
        refused("a1 01 01 01 61 01 0a", Status.Code.INTERNAL, "bad_value");
        refused("a1 01 01 01 61 80 80 01" + "61".repeat(16 << 10), Status.Code.RESOURCE_EXHAUSTED, "head_too_long");
        refused("a1 02 00 00 00 00 01 00 00 00 00", Status.Code.UNIMPLEMENTED, "compressed");
        refused("a1 02 00 00 00 00 00 00 00 00 02 61", Status.Code.INTERNAL, "not one message");
        assertNull(Envelope.response(bytes("a1 04 61")).status());
        assertEquals(Status.Code.UNKNOWN, Envelope.response(bytes("a1 02 63 00 00 00")).status().getCode());
    }

    private static void refused(String message, Status.Code code, String reason) {
        var status = assertThrows(StatusRuntimeException.class, () -> Envelope.response(bytes(message)).message()).getStatus();
        assertEquals(code, status.getCode(), reason);
        assertTrue(status.getDescription().contains(reason), status.getDescription());
    }
}
