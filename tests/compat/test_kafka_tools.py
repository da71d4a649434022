"""Kafka's command-line tools over SASL_SSL with --command-config; skipped without a JDK and the jars."""

import re
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka_tools import JARS, TOOL_JARS

from .round_trips import DEADLINE_S
from .secured_java import NEEDS_JAVA, PASSWORD, USER, Secured, compile_java, sasl, tls, write_properties

pytestmark = [
    *NEEDS_JAVA,
    pytest.mark.skipif(not TOOL_JARS.exists(), reason="the jars of Kafka's tools are not in the cache"),
]

MECHANISM = "SCRAM-SHA-512"
# A user without rights, made by kafka-configs.
BOB, BOBS_PASSWORD = "bob", "another secret"
TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
}


class Ran(NamedTuple):
    """The exit code of a tool, and what it printed."""

    code: int
    output: str


class Tools:
    """Runs Kafka's tools against a broker, as a user; one virtual machine serves all."""

    def __init__(self, secured: Secured, directory: Path, process: "subprocess.Popen[str]") -> None:
        self._secured = secured
        self._directory = directory
        self._process = process
        self.log_in(USER, PASSWORD)
        assert self.run(
            "configs",
            *("--alter", "--entity-type", "users", "--entity-name", BOB),
            *("--add-config", f"{MECHANISM}=[iterations=8192,password={BOBS_PASSWORD}]"),
        ).output.endswith("Completed updating config for user bob.\n")
        self.log_in(BOB, BOBS_PASSWORD)

    def log_in(self, name: str, password: str, more: str = "") -> None:
        """Write the file of --command-config for a user."""
        settings = {
            "security.protocol": "SASL_SSL",
            "request.timeout.ms": "10000",
            "default.api.timeout.ms": "15000",
            **tls(self._secured.certs),
            **sasl(MECHANISM, password, name, more),
        }
        write_properties(self._file(name), settings)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.properties"

    def run(self, tool: str, *arguments: str, user: str = USER) -> Ran:
        """Run kafka-<tool>.sh."""
        command = [TOOLS[tool], "--bootstrap-server", self._secured.encrypted]
        command += ["--command-config", str(self._file(user)), *arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(command) + "\n")
        self._process.stdin.flush()
        code, _, output = self._process.stdout.readline().partition(" ")
        return Ran(int(code), b64decode(output).decode())

    def output(self, tool: str, *arguments: str, user: str = USER) -> str:
        """Return what a tool prints that succeeds."""
        ran = self.run(tool, *arguments, user=user)
        assert ran.code == 0, ran.output
        return ran.output

    def refusal(self, tool: str, *arguments: str, user: str = BOB) -> str:
        """Return what a tool prints that fails."""
        ran = self.run(tool, *arguments, user=user)
        assert ran.code == 1, ran.output
        return ran.output


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tools"))
    try:
        made.broker.start()
        yield made
    finally:
        made.broker.end()


@pytest.fixture(scope="module")
def tools(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    directory = tmp_path_factory.mktemp("classes")
    compile_java("Tools", directory)
    # Tool after tool for a few seconds: a full compiler would not pay.
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", f"{directory}:{TOOL_JARS}/*:{JARS}/*", "Tools"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Tools(secured, directory, process)
        finally:
            process.kill()


@contextmanager
def allowed(tools: Tools, *rule: str) -> Iterator[None]:
    """Give Bob a right with kafka-acls for the duration of the block."""
    arguments = ("--allow-principal", f"User:{BOB}", *rule)
    assert "Adding ACLs for resource" in tools.output("acls", "--add", *arguments)
    try:
        yield
    finally:
        tools.output("acls", "--remove", "--force", *arguments)


def test_kafka_acls_adds_lists_and_removes_rules(tools: Tools, topic: str) -> None:
    rule = ("--operation", "Read", "--topic", topic, "--resource-pattern-type", "prefixed")
    with allowed(tools, *rule):
        listed = tools.output("acls", "--list", "--principal", f"User:{BOB}")
        assert f"ResourcePattern(resourceType=TOPIC, name={topic}, patternType=PREFIXED)" in listed
        assert f"(principal=User:{BOB}, host=*, operation=READ, permissionType=ALLOW)" in listed
    assert topic not in tools.output("acls", "--list", "--principal", f"User:{BOB}")
    assert "ClusterAuthorizationException: DESCRIBE" in tools.refusal("acls", "--list")
    refused = tools.refusal("acls", "--add", "--allow-principal", f"User:{BOB}", *rule)
    assert "ClusterAuthorizationException: ALTER is not allowed on the cluster" in refused


def test_kafka_topics_creates_describes_and_deletes_what_is_allowed(tools: Tools, topic: str) -> None:
    create = ("--create", "--topic", topic, "--partitions", "3")
    assert f"CREATE is not allowed on topic '{topic}'" in tools.refusal("topics", *create)
    operations = ("Create", "Describe", "DescribeConfigs", "Alter", "Delete")
    rights = [word for operation in operations for word in ("--operation", operation)]
    with allowed(tools, *rights, "--topic", topic):
        assert tools.output("topics", *create, user=BOB).endswith(f"Created topic {topic}.\n")
        described = tools.output("topics", "--describe", "--topic", topic, user=BOB)
        assert re.search(rf"Topic: {topic}\tTopicId: \S+\tPartitionCount: 3\tReplicationFactor: 1", described)
        assert described.count("Leader: 1") == 3
        assert tools.output("topics", "--list", user=BOB) == f"{topic}\n"
        tools.output("topics", "--alter", "--topic", topic, "--partitions", "4", user=BOB)
        assert "PartitionCount: 4" in tools.output("topics", "--describe", "--topic", topic, user=BOB)
    # A topic that is forbidden looks like one that does not exist.
    assert tools.output("topics", "--list", user=BOB).split() == []
    assert f"Topic '{topic}' does not exist" in tools.refusal("topics", "--describe", "--topic", topic)
    tools.output("topics", "--delete", "--topic", topic)
    assert topic not in tools.output("topics", "--list")


def test_kafka_configs_sets_the_settings_of_a_topic(tools: Tools, topic: str) -> None:
    tools.output("topics", "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    change = ("--alter", *entity, "--add-config", "retention.ms=3600000")
    # The tool describes before it changes.
    with allowed(tools, "--operation", "DescribeConfigs", "--topic", topic):
        assert f"ALTER_CONFIGS is not allowed on topic '{topic}'" in tools.refusal("configs", *change)
    assert tools.output("configs", *change) == f"Completed updating config for topic {topic}.\n"
    described = tools.output("configs", "--describe", *entity)
    assert "retention.ms=3600000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:" in described


def test_kafka_configs_sets_quotas_of_users_clients_and_addresses(tools: Tools) -> None:
    for entity, name, quota in (
        (("users", "carol"), "user-principal 'carol'", "producer_byte_rate=1048576"),
        (
            ("users", "carol", "clients", "app"),
            "user-principal 'carol', client-id 'app'",
            "request_percentage=50",
        ),
        (("clients", "app"), "client-id 'app'", "consumer_byte_rate=2097152"),
        (("ips", "127.0.0.9"), "ip '127.0.0.9'", "connection_creation_rate=10"),
    ):
        pairs = zip(entity[::2], entity[1::2], strict=True)
        options = [word for kind, of in pairs for word in ("--entity-type", kind, "--entity-name", of)]
        assert "Completed updating config" in tools.output(
            "configs", "--alter", *options, "--add-config", quota
        )
        described = tools.output("configs", "--describe", *options)
        assert f"Quota configs for {name} are {quota}.0" in described
        key = quota.partition("=")[0]
        tools.output("configs", "--alter", *options, "--delete-config", key)
        assert quota not in tools.output("configs", "--describe", *options)
        with allowed(tools, "--operation", "DescribeConfigs", "--cluster"):
            refused = tools.refusal("configs", "--alter", *options, "--add-config", quota)
        assert "ALTER_CONFIGS is not allowed on the cluster" in refused


def test_kafka_configs_changes_and_removes_passwords(tools: Tools) -> None:
    entity = ("--entity-type", "users", "--entity-name", "dora")
    for iterations, password in ((4096, "first"), (8192, "second")):
        change = f"{MECHANISM}=[iterations={iterations},password={password}]"
        tools.output("configs", "--alter", *entity, "--add-config", change)
        assert tools.output("configs", "--describe", *entity) == (
            f"SCRAM credential configs for user-principal 'dora' are {MECHANISM}=iterations={iterations}\n"
        )
        tools.log_in("dora", password)
        assert tools.output("topics", "--list", user="dora").split() == []
    refused = tools.refusal("configs", "--alter", *entity, "--add-config", f"{MECHANISM}=[password=mine]")
    assert "ClusterAuthorizationException" in refused
    tools.output("configs", "--alter", *entity, "--delete-config", MECHANISM)
    assert "wrong user name or password" in tools.refusal("topics", "--list", user="dora")


def test_kafka_delegation_tokens_creates_renews_and_expires_a_token(tools: Tools) -> None:
    created = tools.output(
        "delegation-tokens", "--create", "--max-life-time-period", "-1", "--renewer-principal", f"User:{BOB}"
    )
    row = re.search(rf"^(\w{{32}}) (\S+)\s+User:{USER}\s+User:{USER}\s+\[User:{BOB}\]", created, re.MULTILINE)
    assert row is not None, created
    token, hmac = row.groups()
    owner = ("--describe", "--owner-principal", f"User:{USER}")
    assert "Total number of tokens : 1" in tools.output("delegation-tokens", *owner)
    tools.log_in(token, hmac, ' tokenauth="true"')
    assert "Feature: alpacamq.version" in tools.output("features", "describe", user=token)
    # A token does not make another.
    refused = tools.refusal("delegation-tokens", "--create", "--max-life-time-period", "-1", user=token)
    assert "DelegationToken" in refused
    renew = ("--renew", "--renew-time-period", "60000", "--hmac", hmac)
    assert "Completed renew operation" in tools.output("delegation-tokens", *renew, user=BOB)
    expire = ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "Completed expire operation" in tools.output("delegation-tokens", *expire)
    assert "Total number of tokens : 0" in tools.output("delegation-tokens", *owner)
    assert "wrong user name or password" in tools.refusal("features", "describe", user=token)


def test_kafka_consumer_groups_describes_resets_and_deletes_a_group(
    tools: Tools, secured: Secured, topic: str
) -> None:
    settings = {
        "bootstrap.servers": secured.encrypted,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.certs / "ca.pem"),
        "sasl.mechanism": MECHANISM,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    producer = Producer(settings)
    for _ in range(5):
        producer.produce(topic, b"tea", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({**settings, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()

    assert topic in tools.output("consumer-groups", "--list").split()
    assert topic not in tools.output("consumer-groups", "--list", user=BOB)
    described = tools.output("consumer-groups", "--describe", "--group", topic)
    assert re.search(rf"^{topic}\s+{topic}\s+0\s+3\s+5\s+2\s", described, re.MULTILINE), described
    # This tool ends with 0 even then.
    refused = tools.output("consumer-groups", "--describe", "--group", topic, user=BOB)
    assert "GroupAuthorizationException" in refused
    reset = ("--reset-offsets", "--group", topic, "--topic", topic, "--to-earliest", "--execute")
    assert re.search(
        rf"^{topic}\s+{topic}\s+0\s+0\s*$", tools.output("consumer-groups", *reset), re.MULTILINE
    )
    deleted = tools.output("consumer-groups", "--delete", "--group", topic)
    assert f"Deletion of requested consumer groups ('{topic}') was successful." in deleted


def test_kafka_features_needs_the_right_to_alter_the_cluster(tools: Tools) -> None:
    # Everybody may see the levels: they are in ApiVersions.
    described = tools.output("features", "describe", user=BOB)
    assert re.search(r"Feature: alpacamq.version\tSupportedMinVersion: 1\tSupportedMaxVersion: (\d+)\t"
                     r"FinalizedVersionLevel: \1", described), described  # fmt: skip
    upgrade = ("upgrade", "--feature", "group.version=1")
    for arguments in (upgrade, (*upgrade, "--dry-run"), ("downgrade", "--feature", "group.version=0")):
        assert "ALTER is not allowed on the cluster" in tools.refusal("features", *arguments)
    with allowed(tools, "--cluster", "--operation", "Describe"):
        assert "ALTER is not allowed on the cluster" in tools.refusal("features", *upgrade)
    with allowed(tools, "--cluster", "--operation", "Alter"):
        assert tools.output("features", *upgrade, user=BOB) == "group.version was upgraded to 1.\n"
        refused = tools.refusal("features", "upgrade", "--feature", "alpacamq.version=99")
        assert "broker 1 does not support alpacamq.version level 99" in refused
    assert "ALTER is not allowed on the cluster" in tools.refusal("features", *upgrade)
