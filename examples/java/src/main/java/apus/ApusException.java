package apus;

/** An error of the library. */
public final class ApusException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The numbers of some errors. apus.h has all; they keep their meaning in all versions. */
    public static final int CLOSED = -31, CANCELLED = -32, DEADLINE = -33, NO_SUCH_PORT = -62;

    private final int number;
    private final boolean mayHaveExecuted;

    ApusException(int number, String text, boolean mayHaveExecuted) {
        super(text);
        this.number = number;
        this.mayHaveExecuted = mayHaveExecuted;
    }

    /** The number of the error. */
    public int number() {
        return number;
    }

    /** The name of the error in C, such as APUS_EDEADLINE. */
    public String name() {
        return Library.errorName(number);
    }

    /** False if the request of a call was not executed and will not be: the call can be repeated then, whatever the request does. */
    public boolean mayHaveExecuted() {
        return mayHaveExecuted;
    }
}
