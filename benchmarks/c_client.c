/* A Kafka client with next to no cost per message, so that the server is what is measured.
 *
 *   c_client version
 *   c_client produce BROKER TOPIC SIZE COUNT [key=value ...]
 *   c_client fetch   BROKER TOPIC PARTITIONS COUNT [key=value ...]
 *   c_client latency BROKER TOPIC SIZE RATE SECONDS ACKED SEEN [key=value ...]
 *
 * `produce` and `fetch` print the seconds they took. `latency` sends at a fixed rate whatever the
 * server does and writes nanoseconds since each message's intended time of sending, as native
 * 64-bit integers: to the file ACKED until it was acknowledged, to the file SEEN until a
 * consumer had it (with "-" for SEEN there is no consumer). Settings are librdkafka's.
 */
#include <errno.h>
#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FETCHED_AT_ONCE = 10000, WAIT_MS = 60000, SERVE_EVERY = 1024 };

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void sleep_until(int64_t due_ns) {
    struct timespec due = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
    }
}

static long number(const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0) fail("%s is not a number", text);
    return value;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char reason[512];
    if (rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK) fail("%s", reason);
}

static rd_kafka_conf_t *configured(const char *broker, char **settings) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", broker);
    for (; *settings != NULL; settings++) {
        char *equals = strchr(*settings, '=');
        if (equals == NULL) fail("%s is not key=value", *settings);
        *equals = '\0';
        set(conf, *settings, equals + 1);
        *equals = '=';
    }
    return conf;
}

static rd_kafka_t *client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char reason[512];
    rd_kafka_t *made = rd_kafka_new(type, conf, reason, sizeof reason);
    if (made == NULL) fail("%s", reason);
    return made;
}

/* The topic's metadata is fetched before the clock starts. */
static rd_kafka_topic_t *known_topic(rd_kafka_t *producer, const char *name) {
    const struct rd_kafka_metadata *metadata;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, name, NULL);
    rd_kafka_resp_err_t error = rd_kafka_metadata(producer, 0, topic, &metadata, WAIT_MS);
    if (error) fail("metadata: %s", rd_kafka_err2str(error));
    rd_kafka_metadata_destroy(metadata);
    return topic;
}

static void refuse_failure(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque) {
    (void)producer;
    (void)opaque;
    if (message->err) fail("a message was refused: %s", rd_kafka_message_errstr(message));
}

static void produce_one(rd_kafka_t *producer, rd_kafka_topic_t *topic, int32_t partition, void *value,
                        size_t size) {
    while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, value, size, NULL, 0, NULL) == -1) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            fail("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(producer, 1);
    }
}

static void flush(rd_kafka_t *producer) {
    rd_kafka_resp_err_t error = rd_kafka_flush(producer, WAIT_MS);
    if (error) fail("flush: %s", rd_kafka_err2str(error));
}

static void produce(const char *broker, const char *topic_name, long size, long count, char **settings) {
    rd_kafka_conf_t *conf = configured(broker, settings);
    rd_kafka_conf_set_dr_msg_cb(conf, refuse_failure);
    rd_kafka_t *producer = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = known_topic(producer, topic_name);
    char *value = malloc(size);
    memset(value, 'x', size);
    int64_t began_ns = now_ns();
    for (long sent = 0; sent < count; sent++) {
        produce_one(producer, topic, RD_KAFKA_PARTITION_UA, value, size);
        if (sent % SERVE_EVERY == 0) rd_kafka_poll(producer, 0);
    }
    flush(producer);
    printf("%.6f\n", (now_ns() - began_ns) / 1e9);
    free(value);
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(producer);
}

static rd_kafka_t *reader(const char *broker, const char *topic, int partitions, char **settings) {
    rd_kafka_conf_t *conf = configured(broker, settings);
    set(conf, "group.id", "bench");
    set(conf, "enable.auto.commit", "false");
    rd_kafka_t *consumer = client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    for (int partition = 0; partition < partitions; partition++)
        rd_kafka_topic_partition_list_add(list, topic, partition)->offset = 0;
    rd_kafka_resp_err_t error = rd_kafka_assign(consumer, list);
    if (error) fail("assign: %s", rd_kafka_err2str(error));
    rd_kafka_topic_partition_list_destroy(list);
    return consumer;
}

static rd_kafka_message_t *next_message(rd_kafka_t *consumer) {
    rd_kafka_message_t *message = rd_kafka_consumer_poll(consumer, WAIT_MS);
    if (message == NULL) fail("nothing came for %d ms", WAIT_MS);
    if (message->err) fail("fetch: %s", rd_kafka_message_errstr(message));
    return message;
}

/* The clock starts at the first message: connecting is not what is measured. */
static void fetch(const char *broker, const char *topic, long partitions, long count, char **settings) {
    static rd_kafka_message_t *messages[FETCHED_AT_ONCE];
    rd_kafka_t *consumer = reader(broker, topic, partitions, settings);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    rd_kafka_message_destroy(next_message(consumer));
    int64_t began_ns = now_ns();
    for (long left = count - 1; left > 0;) {
        size_t room = left < FETCHED_AT_ONCE ? left : FETCHED_AT_ONCE;
        ssize_t got = rd_kafka_consume_batch_queue(queue, WAIT_MS, messages, room);
        if (got <= 0) fail("nothing came for %d ms", WAIT_MS);
        for (ssize_t index = 0; index < got; index++) {
            if (messages[index]->err) fail("fetch: %s", rd_kafka_message_errstr(messages[index]));
            rd_kafka_message_destroy(messages[index]);
        }
        left -= got;
    }
    printf("%.6f\n", (now_ns() - began_ns) / 1e9);
    rd_kafka_queue_destroy(queue);
    rd_kafka_consumer_close(consumer);
    rd_kafka_destroy(consumer);
}

/* One run of `latency`: one partition, so that acknowledgements come in the order of sending. */
typedef struct {
    const char *broker, *topic;
    long count;
    int64_t began_ns, interval_ns;
    atomic_long acked;
    atomic_int is_watched, is_over;
    int64_t *acked_ns, *seen_ns;
    rd_kafka_t *producer;
} pace_t;

static int64_t due_ns(const pace_t *pace, long index) { return pace->began_ns + index * pace->interval_ns; }

static void note_acked(rd_kafka_t *producer, const rd_kafka_message_t *message, void *opaque) {
    pace_t *pace = opaque;
    refuse_failure(producer, message, NULL);
    if (pace->began_ns == 0) return; /* the message that finds out whether all is set up */
    long index = atomic_load(&pace->acked);
    pace->acked_ns[index] = now_ns() - due_ns(pace, index);
    atomic_store(&pace->acked, index + 1);
}

static void *serve(void *opaque) {
    pace_t *pace = opaque;
    while (!atomic_load(&pace->is_over)) rd_kafka_poll(pace->producer, 100);
    return NULL;
}

static void *watch(void *opaque) {
    static char *no_settings[] = {NULL};
    pace_t *pace = opaque;
    rd_kafka_t *consumer = reader(pace->broker, pace->topic, 1, no_settings);
    rd_kafka_message_destroy(next_message(consumer));
    atomic_store(&pace->is_watched, 1);
    for (long index = 0; index < pace->count; index++) {
        rd_kafka_message_t *message = next_message(consumer);
        pace->seen_ns[index] = now_ns() - due_ns(pace, index);
        rd_kafka_message_destroy(message);
    }
    rd_kafka_consumer_close(consumer);
    rd_kafka_destroy(consumer);
    return NULL;
}

static void write_all(const char *path, const int64_t *values, long count) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(values, sizeof *values, count, file) != (size_t)count || fclose(file) != 0)
        fail("%s: %s", path, strerror(errno));
}

static void latency(const char *broker, const char *topic_name, long size, long rate, long seconds,
                    const char *acked_path, const char *seen_path, char **settings) {
    int is_watched = strcmp(seen_path, "-") != 0;
    long count = rate * seconds;
    pace_t pace = {.broker = broker, .topic = topic_name, .count = count, .interval_ns = 1000000000 / rate};
    pace.acked_ns = calloc(count, sizeof *pace.acked_ns);
    pace.seen_ns = calloc(count, sizeof *pace.seen_ns);
    char *value = calloc(1, size);
    rd_kafka_conf_t *conf = configured(broker, settings);
    rd_kafka_conf_set_dr_msg_cb(conf, note_acked);
    rd_kafka_conf_set_opaque(conf, &pace);
    pace.producer = client(RD_KAFKA_PRODUCER, conf);
    rd_kafka_topic_t *topic = known_topic(pace.producer, topic_name);
    pthread_t server, watcher;
    produce_one(pace.producer, topic, 0, value, size);
    flush(pace.producer);
    if (is_watched) {
        pthread_create(&watcher, NULL, watch, &pace);
        while (!atomic_load(&pace.is_watched)) sleep_until(now_ns() + 1000000);
    }
    pthread_create(&server, NULL, serve, &pace);
    pace.began_ns = now_ns() + 10000000;
    for (long index = 0; index < count; index++) {
        sleep_until(due_ns(&pace, index));
        produce_one(pace.producer, topic, 0, value, size);
    }
    int64_t deadline_ns = now_ns() + WAIT_MS * INT64_C(1000000);
    while (atomic_load(&pace.acked) < count) {
        if (now_ns() > deadline_ns) fail("%ld of %ld were acknowledged", atomic_load(&pace.acked), count);
        sleep_until(now_ns() + 1000000);
    }
    atomic_store(&pace.is_over, 1);
    pthread_join(server, NULL);
    write_all(acked_path, pace.acked_ns, count);
    if (is_watched) {
        pthread_join(watcher, NULL);
        write_all(seen_path, pace.seen_ns, count);
    }
    rd_kafka_topic_destroy(topic);
    rd_kafka_destroy(pace.producer);
}

int main(int count, char **argument) {
    if (count == 2 && strcmp(argument[1], "version") == 0)
        puts(rd_kafka_version_str());
    else if (count >= 6 && strcmp(argument[1], "produce") == 0)
        produce(argument[2], argument[3], number(argument[4]), number(argument[5]), argument + 6);
    else if (count >= 6 && strcmp(argument[1], "fetch") == 0)
        fetch(argument[2], argument[3], number(argument[4]), number(argument[5]), argument + 6);
    else if (count >= 9 && strcmp(argument[1], "latency") == 0)
        latency(argument[2], argument[3], number(argument[4]), number(argument[5]), number(argument[6]),
                argument[7], argument[8], argument + 9);
    else
        fail("see the head of c_client.c");
    return 0;
}
