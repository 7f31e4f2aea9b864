package apus.grpc;

import io.grpc.Metadata;
import io.grpc.Status;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** The envelope of services, docs/rpc-wire.md, as far as the client of a method without streams needs it. The rules are cited as E1, E2, … */
final class Envelope {
    private static final int MARK = 0xA1; // E1: the mark, and version 1
    private static final int HEAD_MAX = 16 << 10, PAIRS_MAX = 128, FRAME_MAX = 4 << 20, FRAME_HEAD = 5;
    private static final int HEAD = 1, END = 2, MORE = 4, NOT_EXECUTED = 8;

    /** The table of E9. */
    private static final List<String> NAMES = List.of(
            "content-type", "content-encoding", "accept-encoding", "user-agent",
            "authorization", "date", "server", "grpc-encoding",
            "grpc-accept-encoding", "grpc-timeout", "grpc-message-type", "grpc-previous-rpc-attempts",
            "grpc-retry-pushback-ms", "grpc-trace-bin", "grpc-tags-bin", "grpc-server-stats-bin",
            "endpoint-load-metrics-bin", "traceparent", "tracestate", "baggage",
            "b3", "x-request-id", "x-correlation-id", "x-forwarded-for",
            "x-forwarded-proto", "x-real-ip", "x-api-key", "x-tenant-id",
            "x-user-id", "x-session-id", "idempotency-key", "connect-protocol-version");

    /** A place for the details of a status, a google.rpc.Status, as over HTTP/2. */
    private static final Metadata.Key<byte[]> DETAILS =
            Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

    private Envelope() {}

    /**
     * A part of a response, of which more follows if the status is null, or its end.
     *
     * @param body bytes of the frame of the message
     */
    record Response(Metadata headers, Status status, boolean notExecuted, Metadata trailers, byte[] body) {
        /** This part behind others: their headers and bytes. */
        Response after(Metadata first, byte[] bytes) {
            if (bytes.length + body.length > FRAME_HEAD + FRAME_MAX) { // E17
                throw refusal(Status.RESOURCE_EXHAUSTED, "frame_too_long: a message of more than " + FRAME_MAX + " bytes");
            }
            byte[] all = Arrays.copyOf(bytes, bytes.length + body.length);
            System.arraycopy(body, 0, all, bytes.length, body.length);
            return new Response(first, status, notExecuted, trailers, all);
        }

        /** The only message of the body. */
        byte[] message() {
            return unframed(ByteBuffer.wrap(body));
        }
    }

    /** An OPEN of a call without streams, with a message in gRPC's frame. */
    static byte[] open(long id, String method, Metadata headers, byte[] message) {
        var out = new ByteArrayOutputStream();
        out.writeBytes(new byte[] {(byte) MARK, 1, 1}); // OPEN, END
        out.writeBytes(ByteBuffer.allocate(Long.BYTES).putLong(id).array());
        write(out, ("/" + method).getBytes(StandardCharsets.US_ASCII));
        writePairs(out, headers);
        out.writeBytes(ByteBuffer.allocate(FRAME_HEAD).put((byte) 0).putInt(message.length).array());
        out.writeBytes(message);
        return out.toByteArray();
    }

    /** The request that stands for a call whose response comes in parts. */
    static byte[] hold(long id) {
        return ByteBuffer.allocate(3 + Long.BYTES).put(new byte[] {(byte) MARK, 4, 0}).putLong(id).array();
    }

    /** The request for the next part of a response. */
    static byte[] pull(long id, long seq) {
        var out = new ByteArrayOutputStream();
        out.writeBytes(ByteBuffer.allocate(3 + Long.BYTES).put(new byte[] {(byte) MARK, 3, 0}).putLong(id).array());
        writeVarint(out, seq);
        return out.toByteArray();
    }

    private static void writePairs(ByteArrayOutputStream out, Metadata headers) {
        var pairs = new ByteArrayOutputStream();
        int count = 0;
        for (String name : headers.keys()) {
            for (byte[] value : values(headers, name)) {
                count++;
                int index = NAMES.indexOf(name);
                if (index >= 0) {
                    pairs.writeBytes(new byte[] {0, (byte) index});
                } else {
                    write(pairs, name.getBytes(StandardCharsets.US_ASCII));
                }
                write(pairs, value);
            }
        }
        writeVarint(out, count);
        out.writeBytes(pairs.toByteArray());
    }

    private static List<byte[]> values(Metadata headers, String name) {
        if (name.endsWith(Metadata.BINARY_HEADER_SUFFIX)) {
            return toList(headers.getAll(Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER)));
        }
        var texts = toList(headers.getAll(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER)));
        return texts.stream().map(text -> text.getBytes(StandardCharsets.US_ASCII)).toList();
    }

    private static <T> List<T> toList(Iterable<T> values) {
        var list = new ArrayList<T>();
        values.forEach(list::add);
        return list;
    }

    private static void write(ByteArrayOutputStream out, byte[] bytes) {
        writeVarint(out, bytes.length);
        out.writeBytes(bytes);
    }

    private static void writeVarint(ByteArrayOutputStream out, long value) { // E2
        for (; value > 0x7F; value >>>= 7) {
            out.write((int) (value | 0x80));
        }
        out.write((int) value);
    }

    /**
     * Reads a response.
     *
     * @throws io.grpc.StatusRuntimeException if it is refused, with a code of E15
     */
    static Response response(byte[] message) {
        var in = new Reader(ByteBuffer.wrap(message));
        in.mark();
        int flags = in.octet();
        if ((flags & (END | MORE)) == (END | MORE)) { // E4
            throw refusal(Status.INTERNAL, "bad_flags: MORE together with END");
        }
        var headers = (flags & HEAD) != 0 ? in.pairs() : new Metadata();
        if ((flags & END) == 0) {
            return new Response(headers, null, false, new Metadata(), in.body());
        }
        var status = Status.fromCodeValue((int) Math.min(in.varint(), Integer.MAX_VALUE)); // E13: unknown codes are UNKNOWN
        String text = in.text();
        byte[] details = in.bytes();
        var trailers = in.pairs();
        if (details.length > 0) {
            trailers.put(DETAILS, details);
        }
        boolean notExecuted = (flags & NOT_EXECUTED) != 0;
        return new Response(headers, status.isOk() ? status : status.withDescription(text), notExecuted, trailers, in.body());
    }

    private static byte[] unframed(ByteBuffer body) {
        int length = body.remaining() - FRAME_HEAD;
        if (length < 0 || body.getInt(body.position() + 1) != length) {
            throw refusal(Status.INTERNAL, "the body has " + body.remaining() + " bytes, which are not one message of gRPC");
        } else if (body.get(body.position()) != 0) {
            throw refusal(Status.UNIMPLEMENTED, "the message is compressed");
        } else if (length > FRAME_MAX) { // E17
            throw refusal(Status.RESOURCE_EXHAUSTED, "frame_too_long: a message of " + length + " bytes, and at most " + FRAME_MAX
                    + " are accepted");
        }
        byte[] message = new byte[length];
        body.position(body.position() + FRAME_HEAD).get(message);
        return message;
    }

    private static io.grpc.StatusRuntimeException refusal(Status status, String text) {
        return status.withDescription(text).asRuntimeException();
    }

    /** Reads the head of a message. */
    private static final class Reader {
        private final ByteBuffer rest;

        Reader(ByteBuffer message) {
            rest = message;
        }

        byte[] take(long length) {
            if (length < 0 || length > HEAD_MAX - rest.position() && rest.limit() > HEAD_MAX) { // E5
                throw refusal(Status.RESOURCE_EXHAUSTED, "head_too_long: the head of the message is longer than " + HEAD_MAX + " bytes");
            } else if (length > rest.remaining()) { // E3
                throw refusal(Status.INTERNAL, "too_short: the message ends within its envelope");
            }
            byte[] taken = new byte[(int) length];
            rest.get(taken);
            return taken;
        }

        int octet() {
            return take(1)[0] & 0xFF;
        }

        void mark() { // E1
            if (!rest.hasRemaining() || (rest.get(0) & 0xF0) != (MARK & 0xF0)) {
                throw refusal(Status.UNIMPLEMENTED, "not_an_envelope: the message has no envelope");
            } else if (octet() != MARK) {
                throw refusal(Status.UNIMPLEMENTED, "other_version: the envelope has another version than 1");
            }
        }

        long varint() { // E2
            long value = 0;
            for (int shift = 0; ; shift += 7) {
                int last = octet();
                if (shift == 63 && last > 1 || shift > 0 && last == 0) {
                    throw refusal(Status.INTERNAL, "bad_varint: a number has more bytes than it needs, or more than 64 bits");
                }
                value |= (long) (last & 0x7F) << shift;
                if (last < 0x80) {
                    return value;
                }
            }
        }

        byte[] bytes() {
            return take(varint());
        }

        /** The bytes behind the head. */
        byte[] body() {
            byte[] body = new byte[rest.remaining()];
            rest.get(body);
            return body;
        }

        String text() { // E13
            try {
                return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes())).toString();
            } catch (CharacterCodingException malformed) {
                throw refusal(Status.INTERNAL, "bad_message: the message of the status is not UTF-8");
            }
        }

        Metadata pairs() {
            long count = varint();
            if (count < 0 || count > PAIRS_MAX) { // E8
                throw refusal(Status.RESOURCE_EXHAUSTED, "too_many_pairs: at most " + PAIRS_MAX + " pairs of metadata are accepted");
            }
            var pairs = new Metadata();
            for (; count > 0; count--) {
                put(pairs, name(), bytes());
            }
            return pairs;
        }

        private void put(Metadata pairs, String name, byte[] value) { // E10
            if (name.endsWith(Metadata.BINARY_HEADER_SUFFIX)) {
                pairs.put(Metadata.Key.of(name, Metadata.BINARY_BYTE_MARSHALLER), value);
                return;
            }
            for (byte character : value) {
                if (character < ' ' || character > '~') {
                    throw refusal(Status.INTERNAL, "bad_value: the value of '" + name + "' has characters that are not allowed");
                }
            }
            var text = new String(value, StandardCharsets.US_ASCII);
            pairs.put(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), text);
        }

        private String name() { // E9
            long length = varint();
            if (length == 0) {
                int index = octet();
                if (index >= NAMES.size()) {
                    throw refusal(Status.INTERNAL, "unknown_name: the table of names has no " + index);
                }
                return NAMES.get(index);
            }
            var name = new String(take(length), StandardCharsets.ISO_8859_1);
            if (!name.matches("[a-z0-9_.-]+") || name.equals(Metadata.BINARY_HEADER_SUFFIX)) {
                throw refusal(Status.INTERNAL, "bad_name: '" + name + "' is no name of metadata");
            }
            return name;
        }
    }
}
