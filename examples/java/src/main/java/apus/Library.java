package apus;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;

/** The functions of libapus.so.0, which the loader finds as usual (LD_LIBRARY_PATH, /etc/ld.so.conf), and the layouts of its structures. */
final class Library {
    /** A time without end. */
    static final long FOREVER = -1;

    /** Sizes of structures, and offsets of their members. */
    static final int ADDRESS_SIZE = 32, ADDRESS_PORT = 6, ADDRESS_TEXT = 80;
    static final int OPTIONS_SIZE = 48, OPTIONS_DEADLINE = 8;
    static final int COMPLETION_SIZE = 32, COMPLETION_ERROR = 4, COMPLETION_TAG = 8, COMPLETION_MESSAGE = 16, COMPLETION_EXECUTED = 24;

    private static final SymbolLookup SYMBOLS = SymbolLookup.libraryLookup("libapus.so.0", Arena.global());

    static final MethodHandle CONFIG_NEW = function("apus_config_new", ADDRESS);
    static final MethodHandle CONFIG_SET = function("apus_config_set", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CONFIG_ENVIRONMENT = function("apus_config_apply_environment", JAVA_INT, ADDRESS);
    static final MethodHandle CONFIG_FREE = function("apus_config_free", null, ADDRESS);
    static final MethodHandle NODE_START = function("apus_node_start", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle NODE_CLOSE = function("apus_node_close", JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle NODE_FREE = function("apus_node_free", null, ADDRESS);
    static final MethodHandle NODE_ADDRESS = function("apus_node_address", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle NODE_RESOLVE = function("apus_node_resolve", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle ADDRESS_FORMAT = function("apus_address_format", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle CLIENT_OPEN = function("apus_client_open", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle CLIENT_FREE = function("apus_client_free", null, ADDRESS);
    static final MethodHandle SEND =
            function("apus_send", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG);
    static final MethodHandle CANCEL = function("apus_cancel", JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle RECV_MANY = function("apus_recv_many", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle MESSAGE_DATA = function("apus_message_data", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle MESSAGE_FREE = function("apus_message_free", null, ADDRESS);
    static final MethodHandle BIND = function("apus_bind", JAVA_INT, ADDRESS, JAVA_SHORT, ADDRESS);
    static final MethodHandle PORT_RECV_MANY =
            function("apus_port_recv_many", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle PORT_FREE = function("apus_port_free", null, ADDRESS);
    static final MethodHandle REQUEST_BODY = function("apus_request_body", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle REQUEST_REMAINING = function("apus_request_remaining_ns", JAVA_LONG, ADDRESS);
    static final MethodHandle REPLY = function("apus_reply", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle ABANDON = function("apus_request_abandon", null, ADDRESS);
    private static final MethodHandle LAST_ERROR = function("apus_last_error", ADDRESS);
    private static final MethodHandle ERROR_NAME = function("apus_error_name", ADDRESS, JAVA_INT);

    private Library() {}

    /** A function whose result is nothing if the layout is null. */
    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
        var descriptor = result == null ? FunctionDescriptor.ofVoid(arguments) : FunctionDescriptor.of(result, arguments);
        return Linker.nativeLinker().downcallHandle(SYMBOLS.find(name).orElseThrow(), descriptor);
    }

    /** Calls a function. */
    static Object call(MethodHandle function, Object... arguments) {
        try {
            return function.invokeWithArguments(arguments);
        } catch (RuntimeException | Error failed) {
            throw failed;
        } catch (Throwable failed) {
            throw new AssertionError("functions of C throw nothing", failed);
        }
    }

    /** Calls a function that returns a negative number with an error, whose text is that of the calling thread. */
    static int attempt(MethodHandle function, Object... arguments) {
        int number = (int) call(function, arguments);
        if (number < 0) {
            throw new ApusException(number, text((MemorySegment) call(LAST_ERROR)), false);
        }
        return number;
    }

    static String errorName(int number) {
        var name = (MemorySegment) call(ERROR_NAME, number);
        return name.address() == 0 ? "APUS_EOTHER" : text(name);
    }

    private static String text(MemorySegment text) {
        return text.reinterpret(Long.MAX_VALUE).getString(0);
    }

    /** A copy of the bytes of a message or a request. */
    static byte[] bytes(MethodHandle function, MemorySegment handle, Arena arena) {
        var length = arena.allocate(JAVA_LONG);
        var data = (MemorySegment) call(function, handle, length);
        return data.reinterpret(length.get(JAVA_LONG, 0)).toArray(JAVA_BYTE);
    }
}
