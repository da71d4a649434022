"""Options: valid ones are parsed, invalid ones give an error that names them."""

import re
from pathlib import Path
from typing import Any

import pytest

from alpacamq.client.connect import Tls
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.model.address import Address
from alpacamq.model.batch import Codec
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.registry.framing import Part
from alpacamq_spark.decoding.registry import RegistryAccess
from alpacamq_spark.errors import InvalidOption
from alpacamq_spark.options import Derive, EncodeOptions, ReadMode, read_options, write_options
from alpacamq_spark.read.positions import Edge
from alpacamq_spark.read.subscription import Subscription

SERVERS = {"kafka.bootstrap.servers": "one:9092,two"}
TOPIC = {**SERVERS, "subscribe": "orders"}
REGISTRY = "http://one:8080/schemas"
ENCODE = {"topic": "orders", "encode": "value", "registry": REGISTRY}


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


def test_option_names_are_case_insensitive() -> None:
    options = read_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "one", "SUBSCRIBE": "a, b,a", "MINPARTITIONS": "4", "GroupID": "g"},
        ReadMode.BATCH,
    )
    assert options.subscription == Subscription(topics=(TopicName("a"), TopicName("b")))
    assert (options.min_partitions, options.group_id) == (4, "g")


def test_defaults_are_those_of_sparks_kafka_source_except_isolation() -> None:
    batch, stream = (read_options(TOPIC, mode) for mode in ReadMode)
    assert batch.servers == (Address("one", 9092), Address("two", 9092))
    assert (batch.starting.edge, batch.ending.edge) == (Edge.EARLIEST, Edge.LATEST)
    assert stream.starting.edge is Edge.LATEST
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.isolation is Isolation.COMMITTED
    assert batch.group_id is None


def test_the_password_of_the_user_is_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\r\nnot this\n")
    login = {"user": "ann", "passwordFile": str(file)}
    assert read_options({**TOPIC, **login}, ReadMode.BATCH).login == Login(user="ann", password="secret")  # noqa: S106
    written = write_options({**SERVERS, **login})
    assert written.login == Login(user="ann", password="secret")  # noqa: S106
    assert "secret" not in repr(written)
    assert read_options(TOPIC, ReadMode.BATCH).login is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user": "ann"}, "belong together"),
        ({"passwordFile": "x"}, "belong together"),
        ({"user": "ann", "passwordFile": "/missing"}, "cannot read /missing"),
        ({"user": "ann", "passwordFile": "/dev/null"}, "no password"),
    ],
)
def test_a_user_needs_a_password(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        write_options({**SERVERS, **options})


def test_options_that_tune_kafkas_client_are_taken_without_effect() -> None:
    tuned = {
        **TOPIC,
        "kafkaConsumer.pollTimeoutMs": "512",
        "kafka.fetch.min.bytes": "1000",
        "kafka.max.poll.records": "5",
        "kafka.enable.auto.commit": "false",
        # Not used without SASL and TLS, as in Kafka's client.
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.ssl.cipher.suites": "any",
    }
    options = read_options(tuned, ReadMode.BATCH)
    assert options == read_options(TOPIC, ReadMode.BATCH)
    assert options.ignored == (
        "kafka.fetch.min.bytes",
        "kafka.max.poll.records",
        "kafka.sasl.mechanism",
        "kafka.ssl.cipher.suites",
        "kafkaConsumer.pollTimeoutMs",
    )
    written = write_options({**SERVERS, "kafka.acks": "all", "kafka.linger.ms": "5", "kafka.retries": "3"})
    assert written.ignored == ("kafka.linger.ms", "kafka.retries")
    assert write_options({**SERVERS, "kafka.acks": "1"}).ignored == ("kafka.acks",)


def test_options_of_streams_are_taken_without_effect_by_batch_reads() -> None:
    given = {
        **TOPIC,
        "groupid": "g",
        "kafka.group.id": "h",
        "maxOffsetsPerTrigger": "9",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "30s",
        "kafka.linger.ms": "5",
    }
    assert read_options(given, ReadMode.BATCH).ignored == (
        "groupId",
        "kafka.group.id",
        "kafka.linger.ms",
        "maxOffsetsPerTrigger",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
    )
    assert read_options(given, ReadMode.STREAM).ignored == ("kafka.linger.ms",)
    assert read_options(TOPIC, ReadMode.BATCH).ignored == ()


JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="a\\"b; c";'
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}


def test_authentication_and_tls_are_those_of_kafkas_client() -> None:
    given = {
        **SERVERS,
        **SASL,
        "kafka.sasl.jaas.config": JAAS,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "pem",
        "kafka.ssl.keystore.location": "/own.pem",
    }
    options = write_options(given)
    assert options.login == Login(user="ann", password='a"b; c', mechanism="SCRAM-SHA-512")  # noqa: S106
    assert options.tls == Tls(ca="/ca.pem", certificate="/own.pem")
    assert options.ignored == ()
    assert 'a"b; c' not in repr(options)
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required username=ann password="x" ;'
    login = {
        "kafka.security.protocol": "sasl_plaintext",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": plain,
    }
    unencrypted = read_options({**TOPIC, **login}, ReadMode.STREAM)
    assert unencrypted.login == Login(user="ann", password="x", mechanism="PLAIN")  # noqa: S106
    assert unencrypted.tls is None
    assert write_options({**SERVERS, "kafka.security.protocol": "SSL"}).tls == Tls()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kafka.security.protocol": "TLS"}, "'TLS' is not PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ({"kafka.security.protocol": "SSL", "user": "ann"}, "exclude each other"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism=GSSAPI is not one of"),
        (SASL, "kafka.sasl.jaas.config must be like"),
        ({**SASL, "kafka.sasl.jaas.config": "x.Krb5LoginModule required;"}, "jaas.config must be like"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/trusted.jks"},
            "kafka.ssl.truststore.location=/trusted.jks: kafka.ssl.truststore.type=JKS is not supported",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.cipher.suites": "x"},
            "kafka.ssl.cipher.suites is not supported, and ignoring it could be unsafe",
        ),
        ({"kafka.partitioner.class": "com.example.Mine"}, "use the column partition"),
        ({"kafka.partitioner.ignore.keys": "true"}, "rows go to the partition of their key"),
        ({"kafka.transactional.id": "x"}, "use transactionalId"),
        ({"kafka.key.serializer": "x"}, "write binary or string columns"),
    ],
)
def test_options_for_kafkas_client_that_cannot_be_ignored_are_refused(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOption, match=re.escape(reason)):
        write_options({**SERVERS, **options})


@pytest.mark.parametrize("name", ["kafka.auto.offset.reset", "kafka.value.deserializer"])
def test_options_that_would_change_what_is_read_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name} is not supported"):
        read_options({**TOPIC, name: "x"}, ReadMode.BATCH)


def test_a_batch_can_wait_for_records_for_a_limited_time() -> None:
    options = read_options({**TOPIC, "minOffsetsPerTrigger": "9"}, ReadMode.STREAM)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_s) == (9, 900)
    for text, seconds in (("1500", 1.5), ("250ms", 0.25), ("30s", 30), ("15m", 900), ("2 h", 7200)):
        given = {**TOPIC, "maxTriggerDelay": text}
        assert read_options(given, ReadMode.STREAM).max_trigger_delay_s == seconds


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param({"subscribe": "a"}, "kafka.bootstrap.servers is missing", id="no broker"),
        pytest.param(
            {"kafka.bootstrap.servers": ", ,", "subscribe": "a"}, "servers is missing", id="only commas"
        ),
        pytest.param(
            {**TOPIC, "startingOffset": "earliest"},
            "unknown option 'startingoffset'; did you mean startingOffsets?",
            id="a misspelt name",
        ),
        pytest.param({**TOPIC, "topic": "x"}, "the option 'topic' is for writing", id="for writing"),
        pytest.param(
            {**TOPIC, "pushFilters": "true"},
            "unknown option 'pushfilters'",
            id="filters, which Spark confuses",
        ),
        pytest.param({**TOPIC, "path": "x"}, "name topics with subscribe", id="a path"),
        pytest.param(SERVERS, "exactly one of subscribe, subscribePattern, assign", id="nothing to read"),
        pytest.param(
            {**TOPIC, "assign": '{"a":[0]}'}, "subscribe and assign were given", id="two ways at once"
        ),
        pytest.param(
            {**SERVERS, "subscribe": "a b"}, "topic name 'a b' may contain only", id="no topic name"
        ),
        pytest.param({**SERVERS, "subscribePattern": "("}, "'(' is not a regular expression", id="pattern"),
        pytest.param(
            {**SERVERS, "assign": '{"a":[0}'},
            "assign is not JSON: Expecting ',' delimiter at character 8, near '{\"a\":[0}'; "
            'the format is {"orders":[0,1]}',
            id="JSON cut short",
        ),
        pytest.param(
            {**SERVERS, "assign": '{"a":[-1]}'}, "assign: -1 is not a partition of 'a'", id="partition"
        ),
        pytest.param(
            {**TOPIC, "startingOffsets": "erliest"},
            'startingOffsets="erliest" is not earliest or latest, nor JSON like',
            id="a misspelt edge",
        ),
        pytest.param(
            {**TOPIC, "startingOffsets": '{"orders":{"0":"5"}}'},
            'startingOffsets: orders-0 has "5", which is not a number',
            id="an offset as text",
        ),
        pytest.param(
            {**TOPIC, "startingOffsets": '{"orders":[5]}'},
            "'orders' has [5] where partitions belong, like",
            id="a list of offsets",
        ),
        pytest.param(
            {**TOPIC, "endingOffsets": "earliest"}, "is not latest, nor JSON", id="ends at the start"
        ),
        pytest.param(
            {**TOPIC, "endingOffsets": '{"orders":{"0":-2}}'},
            "cannot end at the beginning",
            id="-2 as the end",
        ),
        pytest.param(
            {**TOPIC, "startingTimestamp": "today"},
            "startingTimestamp='today' is not a time in milliseconds since 1970",
            id="a time in words",
        ),
        pytest.param(
            {**TOPIC, "minPartitions": "0"}, "minPartitions='0' is not a whole number of 1", id="zero"
        ),
        pytest.param({**TOPIC, "failOnDataLoss": "maybe"}, "'maybe' is not one of true, false", id="maybe"),
        pytest.param(
            {**TOPIC, "kafka.isolation.level": "dirty"},
            "'dirty' is not one of read_committed, read_uncommitted",
            id="isolation",
        ),
        pytest.param({**TOPIC, "groupId": " "}, "groupId is empty", id="an empty group"),
        pytest.param({"kafka.bootstrap.servers": "a:x", "subscribe": "t"}, "'x' is not a port", id="no port"),
    ],
)
def test_a_wrong_option_of_a_read_is_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(reason)):
        read_options(options, ReadMode.BATCH)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidOption, match="endingOffsets is for batch reads"):
        read_options({**TOPIC, "endingOffsets": "latest"}, ReadMode.STREAM)


def test_times_go_before_offsets() -> None:
    options = {**TOPIC, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders":{"0":7}}'}
    assert read_options(options, ReadMode.BATCH).starting.timestamps_ms == {place("orders", 0): 7}
    options["startingTimestamp"] = "9"
    assert read_options(options, ReadMode.BATCH).starting.timestamp_ms == 9


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param({"topic": "a/b"}, "topic: topic name 'a/b' may contain only", id="no topic name"),
        pytest.param({"batchId": "4"}, "batchId needs a transactionalId", id="a number without a name"),
        pytest.param(
            {"transactionalId": "x", "batchId": "-4"},
            "batchId='-4' is not a whole number of 0",
            id="negative",
        ),
        pytest.param({"kafka.compression.type": "rar"}, "'rar' is not one of none, gzip", id="compression"),
        pytest.param({"subscribe": "x"}, "the option 'subscribe' is for reading", id="for reading"),
        pytest.param({"topic": "a", "encode": "value"}, "encode needs a schema registry", id="no registry"),
        pytest.param(
            {"encode": "value", "registry": REGISTRY}, "encode needs the option topic", id="no topic"
        ),
        pytest.param(
            {"topic": "a", "encode": "data", "registry": REGISTRY}, "encode='data' is not", id="part"
        ),
        pytest.param({"topic": "a", "derive": "always"}, "derive is for encode=value", id="no encode"),
        pytest.param(
            {**ENCODE, "derive": "often"}, "'often' is not one of missing, always, never", id="derive"
        ),
        pytest.param({**ENCODE, "schemaType": "xml"}, "'xml' is not one of avro, json, protobuf", id="type"),
        pytest.param({**ENCODE, "version": "0"}, "version='0' is not a whole number of 1", id="version"),
        pytest.param(
            {**ENCODE, "version": "1", "derive": "always"}, "version and derive=always exclude", id="both"
        ),
        pytest.param({**ENCODE, "encode": "key", "subject": "s"}, "subject is for values", id="only keys"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(reason)):
        write_options({**SERVERS, **options})


def test_columns_are_encoded_by_a_registry_with_the_access_of_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    login = {"user": "ann", "passwordFile": str(file)}
    options = write_options({**SERVERS, **ENCODE, **login, "encode": "value, key,value"})
    assert options.encode == EncodeOptions(
        parts=(Part.VALUE, Part.KEY),
        registry=RegistryAccess(url=REGISTRY, login=options.login),
        derive=Derive.MISSING,
        schema_type=None,
        subject=None,
        version=None,
        message=None,
    )
    assert write_options(SERVERS).encode is None


def test_options_of_a_write() -> None:
    given: dict[str, Any] = {
        **SERVERS,
        "topic": "orders",
        "transactionalId": "billing",
        "batchId": "7",
        "kafka.compression.type": "zstd",
        "kafka.transaction.timeout.ms": "60000",
        "checkpointLocation": "/somewhere",
        "queryName": "q",
    }
    options = write_options(given)
    assert (options.topic, options.transactional_id, options.batch_id) == ("orders", "billing", 7)
    assert (options.codec, options.transaction_timeout_ms) == (Codec.ZSTD, 60_000)
