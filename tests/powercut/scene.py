"""The topics that load is put on, their settings for one disk, and what those settings promise."""

from random import Random
from typing import Any

import boto3
import msgspec
from botocore.config import Config
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from .checker import Scene
from .history import Promise

RECORDS = "records"
TABLE = "table"
TRIMMED = "trimmed"
LEDGERS = ("ledger-a", "ledger-b")
COPY_SOURCE, COPY_TARGET = "copy-in", "copy-out"
JOBS, PAYMENTS = "jobs", "payments"
DEAD_LETTERS = {JOBS: "jobs.dlq", PAYMENTS: "payments-failed"}
REMINDERS, PARCELS = "reminders", "parcels"
STEPS = "steps.fifo"
CHURNED = tuple(f"churn-{number}" for number in range(3))
READERS, COPIERS, CHURNERS = "readers", "copiers", "churners"
WORKERS = {JOBS: "workers", PAYMENTS: "queue"}  # the SQS API uses the group `queue`
PARTITIONS = 3

SCENE = Scene(
    records=(RECORDS, TRIMMED, COPY_SOURCE),
    tables=(TABLE,),
    ledgers=LEDGERS,
    copy_source=COPY_SOURCE,
    copy_target=COPY_TARGET,
    copy_group=COPIERS,
    queues=(JOBS, PAYMENTS),
    delayed=(REMINDERS, PARCELS),
    fifo=(STEPS,),
    churned=CHURNED,
    churn_group=CHURNERS,
)

FLUSH_S = 1.0
# A flush is begun flush.ms after the first record it is for, and takes as long as the disk takes.
SLACK_S = 1.5
LEASE_MS = 1000
TRANSACTION_MS = 4000

_QUEUE = {
    "queue.visibility.timeout.ms": str(LEASE_MS),
    "queue.backoff.initial.ms": "50",
    "queue.backoff.max.ms": "200",
    "queue.max.deliveries": "3",
}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a disk's broker and topics."""

    syncs_everything: bool  # flush.messages=1 for every topic, the internal ones included
    synced: tuple[str, ...]  # flush.messages=1 for these
    small_segments: tuple[str, ...]
    checkpoint_bytes: int
    retention_check_ms: int

    @property
    def broker_config(self) -> str:
        """The broker's configuration file."""
        lines = [
            "[log]",
            f"checkpoint_bytes = {self.checkpoint_bytes}",
            f"retention_check_ms = {self.retention_check_ms}",
        ]
        if self.syncs_everything:
            lines += ["[topics.defaults]", '"flush.messages" = 1']
        return "\n".join(lines) + "\n"

    @property
    def promise(self) -> Promise:
        if self.syncs_everything:
            return Promise()
        window_s = FLUSH_S + SLACK_S
        names = (RECORDS, TABLE, TRIMMED, COPY_SOURCE, JOBS, PAYMENTS, REMINDERS, STEPS)
        return Promise(topics={name: window_s for name in names if name not in self.synced}, state_s=window_s)


ALL_TOPICS = (
    RECORDS,
    TABLE,
    TRIMMED,
    *LEDGERS,
    COPY_SOURCE,
    COPY_TARGET,
    JOBS,
    DEAD_LETTERS[JOBS],
    PAYMENTS,
    DEAD_LETTERS[PAYMENTS],
    REMINDERS,
    PARCELS,
    STEPS,
)


def plan(random: Random, *, syncs_everything: bool) -> Plan:
    """Draw random settings, to cover every order of flushes."""
    return Plan(
        syncs_everything=syncs_everything,
        synced=() if syncs_everything else tuple(name for name in ALL_TOPICS if random.random() < 0.25),
        small_segments=tuple(name for name in ALL_TOPICS if random.random() < 0.3),
        checkpoint_bytes=random.choice((4096, 65_536, 8 << 20)),
        retention_check_ms=random.choice((300, 30_000)),
    )


def sqs_client(address: str) -> Any:
    """Return the AWS SDK without retries, so that a request without an answer is known as such."""
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{address}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",  # noqa: S106
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=5, read_timeout=25
        ),
    )


def make_topics(kafka: str, sqs_address: str, plan: Plan) -> None:
    """Create everything load needs but the topics that it churns."""
    admin = AdminClient({"bootstrap.servers": kafka})
    special = {
        JOBS: _QUEUE,
        PARCELS: {"message.delays": "true"},
        TABLE: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": "5000"},
    }
    made = (
        RECORDS,
        TABLE,
        TRIMMED,
        *LEDGERS,
        COPY_SOURCE,
        COPY_TARGET,
        JOBS,
        DEAD_LETTERS[JOBS],
        REMINDERS,
        PARCELS,
    )
    wanted = [NewTopic(name, num_partitions=PARTITIONS, config=dict(special.get(name, {}))) for name in made]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    sqs = sqs_client(sqs_address)
    failed = sqs.create_queue(QueueName=DEAD_LETTERS[PAYMENTS])["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=failed, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = msgspec.json.encode({"deadLetterTargetArn": arn, "maxReceiveCount": 2}).decode()
    sqs.create_queue(QueueName=PAYMENTS, Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "1"})
    sqs.create_queue(QueueName=STEPS, Attributes={"FifoQueue": "true"})
    changes = []
    for name in ALL_TOPICS:
        settings = {}
        if name in plan.synced:
            settings["flush.messages"] = "1"
        if name in plan.small_segments:
            settings["segment.bytes"] = "20000"
        if settings:
            entries = [
                ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                for key, value in settings.items()
            ]
            changes.append(ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries))
    if changes:
        for future in admin.incremental_alter_configs(changes).values():
            future.result(30)
