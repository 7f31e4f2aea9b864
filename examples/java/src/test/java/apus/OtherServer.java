package apus;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;

/** A server of another language, whose first line ends with its address. */
public final class OtherServer implements AutoCloseable {
    private final Process process;
    private final String address;

    public OtherServer(String... command) throws IOException {
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        var line = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        address = line.substring(line.lastIndexOf(' ') + 1);
    }

    public String address() {
        return address;
    }

    @Override
    public void close() {
        process.destroyForcibly().onExit().join();
    }
}
