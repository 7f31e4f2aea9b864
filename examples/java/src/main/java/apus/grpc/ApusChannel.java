package apus.grpc;

import apus.ApusException;
import apus.Node;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Carries the calls of generated stubs over Apus, in place of a channel of grpc-netty. Methods without streams only; others end with
 * UNIMPLEMENTED.
 *
 * <p>An example, without a promise.
 */
public final class ApusChannel extends Channel {
    private final Node node;
    private final String target;
    private final Node.Address to;
    private final AtomicLong ids = new AtomicLong(new SecureRandom().nextLong()); // E7

    /** A channel to apus://HOST:PORT on a node, which stays the program's. */
    public ApusChannel(Node node, String target) {
        this.node = node;
        this.target = target.replaceFirst("^apus://", "");
        to = node.resolve(this.target);
    }

    @Override
    public String authority() {
        return target;
    }

    @Override
    public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> method, CallOptions options) {
        return new UnaryCall<>(method, options);
    }

    /** False if the request of a call that ended with an error was not executed and will not be. */
    public static boolean mayHaveExecuted(Throwable failed) {
        for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
            if (cause instanceof ApusException error) {
                return error.mayHaveExecuted();
            }
        }
        return true;
    }

    /** A call of a method without streams: its request is sent when it is whole. */
    private final class UnaryCall<Q, R> extends ClientCall<Q, R> {
        private final MethodDescriptor<Q, R> method;
        private final CallOptions options;
        private final Executor executor;
        private Listener<R> listener;
        private Metadata headers;
        private Q request;
        /** Messages of the call, to be given up when it is cancelled. */
        private final List<CompletableFuture<byte[]>> outstanding = new ArrayList<>();

        private Status cancelled;

        UnaryCall(MethodDescriptor<Q, R> method, CallOptions options) {
            this.method = method;
            this.options = options;
            executor = options.getExecutor() == null ? ForkJoinPool.commonPool() : options.getExecutor();
        }

        @Override
        public void start(Listener<R> listener, Metadata headers) {
            this.listener = listener;
            this.headers = headers;
            if (method.getType() != MethodType.UNARY) {
                String text = method.getFullMethodName() + " has streams, which this channel does not carry; over TCP it can be called";
                var status = Status.UNIMPLEMENTED.withDescription(text);
                executor.execute(() -> listener.onClose(status, new Metadata()));
            }
        }

        @Override
        public void request(int messages) {} // There is one, which is wanted.

        @Override
        public void sendMessage(Q message) {
            request = message;
        }

        @Override
        public void halfClose() {
            if (method.getType() != MethodType.UNARY) {
                return;
            }
            byte[] message;
            try (var stream = method.streamRequest(request)) {
                message = stream.readAllBytes();
            } catch (IOException failed) {
                throw new UncheckedIOException(failed);
            }
            long id = ids.incrementAndGet();
            byte[] open = Envelope.open(id, method.getFullMethodName(), headers, message);
            send(open).thenApply(Envelope::response).thenCompose(part -> part.status() != null ? CompletableFuture.completedStage(part) : rest(id, part))
                    .whenCompleteAsync(this::end, executor);
        }

        /** Sends a message of the call, unless it is cancelled. */
        private synchronized CompletableFuture<byte[]> send(byte[] message) {
            if (cancelled != null) {
                return CompletableFuture.failedFuture(cancelled.asRuntimeException());
            }
            var answer = node.call(to, message, timeout());
            outstanding.add(answer);
            return answer;
        }

        /** Takes the rest of a response that does not fit in one message (E22). */
        private CompletionStage<Envelope.Response> rest(long id, Envelope.Response first) {
            var hold = send(Envelope.hold(id));
            return pulled(id, 1, first).whenComplete((response, failed) -> hold.cancel(false));
        }

        private CompletionStage<Envelope.Response> pulled(long id, long seq, Envelope.Response before) {
            return send(Envelope.pull(id, seq)).thenApply(Envelope::response).thenCompose(part -> {
                var all = part.after(before.headers(), before.body());
                return all.status() != null ? CompletableFuture.completedStage(all) : pulled(id, seq + 1, all);
            });
        }

        @Override
        public synchronized void cancel(String message, Throwable cause) {
            cancelled = Status.CANCELLED.withDescription(message).withCause(cause);
            outstanding.forEach(answer -> answer.cancel(false));
        }

        /** The shorter one of the call and of the request in whose handler it is made. */
        private Duration timeout() {
            Deadline deadline = options.getDeadline();
            Deadline outer = Context.current().getDeadline();
            if (deadline == null || outer != null && outer.isBefore(deadline)) {
                deadline = outer;
            }
            return deadline == null ? null : Duration.ofNanos(deadline.timeRemaining(TimeUnit.NANOSECONDS));
        }

        /** Ends the call, in the executor of its options. */
        private void end(Envelope.Response response, Throwable failed) {
            R message = null;
            try {
                if (failed != null) {
                    listener.onClose(statusOf(failed), new Metadata());
                    return;
                }
                if (response.status().isOk()) {
                    message = method.parseResponse(new ByteArrayInputStream(response.message()));
                }
            } catch (StatusRuntimeException refused) { // E16
                listener.onClose(refused.getStatus(), new Metadata());
                return;
            }
            listener.onHeaders(response.headers());
            if (message != null) {
                listener.onMessage(message);
            }
            listener.onClose(response.status(), response.trailers());
        }

        private synchronized Status statusOf(Throwable failed) {
            var cause = failed instanceof CompletionException && failed.getCause() != null ? failed.getCause() : failed;
            return cancelled != null ? cancelled : status(cause);
        }
    }

    private static Status status(Throwable failed) {
        if (failed instanceof StatusRuntimeException refused) { // E16
            return refused.getStatus();
        } else if (!(failed instanceof ApusException error)) {
            return Status.UNKNOWN.withCause(failed);
        } else {
            return statusOfCall(error);
        }
    }

    private static Status statusOfCall(ApusException error) {
        var status = switch (error.name()) { // the table of apus-rpc
            case "APUS_EDEADLINE" -> Status.DEADLINE_EXCEEDED;
            case "APUS_ECANCELLED" -> Status.CANCELLED;
            case "APUS_ETOO_MANY_CALLS", "APUS_ETOO_MANY_PEERS", "APUS_EOVER_BUDGET", "APUS_EOVERLOADED", "APUS_ETOO_LONG",
                    "APUS_ERESPONSE_TOO_LONG", "APUS_EREQUEST_TOO_LONG" -> Status.RESOURCE_EXHAUSTED;
            case "APUS_ENO_SUCH_PORT", "APUS_ENOT_SENT", "APUS_ENO_ENGINE", "APUS_EPEER_TIMEOUT", "APUS_EPEER_UNREACHABLE",
                    "APUS_EMAY_HAVE_EXECUTED", "APUS_EENGINE_ENDED", "APUS_EHANDSHAKE", "APUS_ECLOSED" -> Status.UNAVAILABLE;
            case "APUS_EOTHER_VERSION", "APUS_ENO_IDENTITY", "APUS_ENO_PLAIN_PEER", "APUS_EPLAIN_ONLY" -> Status.FAILED_PRECONDITION;
            case "APUS_EWRONG_PEER", "APUS_ESEALED_ONLY" -> Status.UNAUTHENTICATED;
            case "APUS_EFORBIDDEN" -> Status.PERMISSION_DENIED;
            case "APUS_EADDRESS", "APUS_EEMPTY" -> Status.INVALID_ARGUMENT;
            case "APUS_EHANDLER_PANICKED", "APUS_EOWN_SERVICE", "APUS_EFORKED", "APUS_EPANIC" -> Status.INTERNAL;
            default -> Status.UNKNOWN;
        };
        return status.withDescription(error.getMessage()).withCause(error);
    }
}
