import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one virtual machine. Each line of the input is the class of a
 * tool and its arguments, separated by tabs; each line of the output is its exit code and what it printed, in Base64.
 */
public final class Tools {
    private static final class Exited extends RuntimeException {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static final ByteArrayOutputStream printed = new ByteArrayOutputStream();
    // Of the first exit of the tool that runs: some take what ends them for an error, print it and exit again.
    private static Integer exitCode;
    private static byte[] output;

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        // Scala keeps the stream that it finds first.
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(System.out);
        Exit.setExitProcedure(Tools::exit);
        Exit.setHaltProcedure(Tools::exit);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            printed.reset();
            exitCode = null;
            try {
                Class.forName(words[0])
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            } catch (InvocationTargetException thrown) {
                if (!(thrown.getCause() instanceof Exited)) {
                    thrown.getCause().printStackTrace();
                    exited(1);
                }
            }
            if (exitCode == null) exited(0);
            answers.println(exitCode + " " + Base64.getEncoder().encodeToString(output));
            answers.flush();
        }
    }

    private static void exit(int code, String message) {
        exited(code);
        throw new Exited();
    }

    private static void exited(int code) {
        if (exitCode != null) return;
        exitCode = code;
        output = printed.toByteArray();
    }
}
