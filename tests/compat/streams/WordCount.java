import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts words with a repartition topic and a state store, as a member of a streams group.
 *
 * <p>Arguments: the application id, the input and the output topic, then settings as key=value. Prints its
 * state and its tasks whenever they change; ends when its standard input ends.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", arguments[0]);
        settings.put("group.protocol", "streams");
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        for (String setting : Arrays.copyOfRange(arguments, 3, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }

        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[1])
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("by-word"))
            .count(Materialized.as("counts"))
            .toStream()
            .to(arguments[2], Produced.with(Serdes.String(), Serdes.Long()));

        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((state, former) -> System.out.println("state " + state));
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_CLIENT;
        });
        CountDownLatch ended = new CountDownLatch(1);
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                System.out.println("failed " + error);
            }
            ended.countDown();
        });
        reader.setDaemon(true);
        reader.start();
        streams.start();
        String shown = "";
        while (!ended.await(200, java.util.concurrent.TimeUnit.MILLISECONDS)) {
            TreeSet<String> tasks = new TreeSet<>();
            for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
                thread.activeTasks().forEach(task -> tasks.add(task.taskId().toString()));
                thread.standbyTasks().forEach(task -> tasks.add(task.taskId() + "s"));
            }
            TreeSet<String> hosts = new TreeSet<>();
            streams.metadataForAllStreamsClients().forEach(client -> hosts.add(
                client.hostInfo().host() + ":" + client.hostInfo().port() + "/"
                    + client.topicPartitions().size()));
            String now = "tasks " + String.join(",", tasks) + " hosts " + String.join(",", hosts);
            if (!now.equals(shown)) {
                System.out.println(now);
                shown = now;
            }
        }
        System.out.println("closed " + streams.close(Duration.ofSeconds(20)));
    }
}
