import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs Kafka's Java clients with the settings of each file: creates a topic, writes a record, reads it in a
 * group, and creates and deletes an access rule. Prints a line for each file: its name and "ok", or the error.
 */
public final class SecuredClient {
    private static final Duration LIMIT = Duration.ofSeconds(30);

    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) {
                settings.load(reader);
            }
            settings.putIfAbsent("default.api.timeout.ms", "20000");
            settings.putIfAbsent("request.timeout.ms", "10000");
            settings.putIfAbsent("max.block.ms", "20000");
            String topic = (String) settings.remove("topic");
            try {
                use(settings, topic);
                System.out.println(topic + " ok");
            } catch (Exception error) {
                Throwable cause = error;
                while (cause.getCause() != null) cause = cause.getCause();
                System.out.println(topic + " " + cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
        }
    }

    private static void use(Properties settings, String topic) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) -1))).all().get();
            AclBinding rule = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL),
                new AccessControlEntry("User:bob", "*", AclOperation.READ, AclPermissionType.ALLOW));
            admin.createAcls(List.of(rule)).all().get();
            if (!admin.describeAcls(rule.toFilter()).values().get().contains(rule))
                throw new IllegalStateException("the access rule is not there");
            admin.deleteAcls(List.of(rule.toFilter())).all().get();
        }
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "key", "tea")).get();
        }
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.putAll(Map.of("group.id", topic, "auto.offset.reset", "earliest"));
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + LIMIT.toNanos();
            ConsumerRecords<String, String> found = ConsumerRecords.empty();
            while (found.isEmpty() && System.nanoTime() < deadline) found = consumer.poll(Duration.ofMillis(200));
            if (found.isEmpty() || !found.iterator().next().value().equals("tea"))
                throw new IllegalStateException("the record is not there");
            consumer.commitSync();
        }
    }
}
