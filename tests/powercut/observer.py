"""Inspects a broker after a restart: reads every topic, drains every queue, fetches every offset."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.integration.queue_traffic import HttpConnection
from tests.waiting import eventually

from . import scene
from .history import (
    Acked,
    Decided,
    Deciding,
    Delivered,
    FifoSending,
    FifoSent,
    Found,
    FoundRecord,
    History,
    Place,
)
from .load import (
    CALL_S,
    Settings,
    Work,
    kafka_settings,
    one_transaction,
    producing,
    send_records,
    settle,
    transactional,
)
from .straddler import NAME as STRADDLER

_TRANSACTIONAL_IDS = ("ledger-0", "ledger-1", STRADDLER)
_STUCK_S = 20.0
_DRAIN_S = 30.0
_RESENT = 40
_WRITTEN_AFTER = 60


class Observer:
    """Looks, and writes down as a client what it does: it is part of the next phase."""

    def __init__(self, settings: Settings, history: History) -> None:
        self._settings = settings
        self._history = history
        self._work = Work(settings, "observer")
        self._admin: Any = AdminClient(kafka_settings(settings.kafka))
        self._http = HttpConnection(settings.http)
        self._watermarks = self._consumer("read_uncommitted")

    def ends(self) -> dict[Place, int]:
        """Return the end offsets of partitions in which groups have offsets."""
        return {
            (topic, partition): self._bounds(topic, partition)[1]
            for topic in (scene.RECORDS, scene.COPY_SOURCE)
            for partition in range(scene.PARTITIONS)
        }

    def close(self) -> None:
        self._watermarks.close()

    def look(self) -> Found:
        """Everything the checker needs."""
        found = Found(topics=self._topics())
        # Fences a producer that has a transaction open under this name, which aborts the transaction.
        producers = {name: transactional(self._settings.kafka, name) for name in _TRANSACTIONAL_IDS}
        transactional(self._settings.kafka, "copier")
        committed = {topic: self._read(topic, found.stuck) for topic in (*scene.LEDGERS, scene.COPY_TARGET)}
        found.group_offsets = self._group_offsets()
        for name, producer in producers.items():
            one_transaction(Work(self._settings, f"after-{name}"), producer)
        # The next transaction of the same name may reveal more.
        found.committed = {
            topic: [*{*before, *self._read(topic, found.stuck)}] for topic, before in committed.items()
        }
        # Offsets that the cut has freed are used again.
        producer = producing(self._settings.kafka)
        for topic in (scene.RECORDS, scene.TRIMMED):
            send_records(self._work, producer, topic, _WRITTEN_AFTER)
        for topic in scene.SCENE.queues:
            found.live[topic] = self._drained(topic)
        self._resend_steps()
        self._wait_for_delays()
        for topic in scene.ALL_TOPICS:
            found.all_records[topic] = self._read(topic, found.stuck, "read_uncommitted")
        self._note(found)
        return found

    def _topics(self) -> dict[str, tuple[int, int]]:
        listed = self._admin.list_topics(timeout=CALL_S).topics
        there = {name: len(listed[name].partitions) for name in scene.CHURNED if name in listed}
        if not there:
            return {}
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
        configs = {
            resource.name: future.result(CALL_S)
            for resource, future in self._admin.describe_configs(wanted).items()
        }
        return {
            name: (partitions, int(configs[name]["retention.ms"].value)) for name, partitions in there.items()
        }

    def _group_offsets(self) -> dict[tuple[str, str, int], int]:
        found = {}
        for group in (scene.READERS, scene.COPIERS, scene.CHURNERS):
            request = [ConsumerGroupTopicPartitions(group)]
            for future in self._admin.list_consumer_group_offsets(request, require_stable=True).values():
                for place in future.result(CALL_S).topic_partitions:
                    if place.offset >= 0:
                        found[group, place.topic, place.partition] = place.offset
        return found

    def _consumer(self, isolation: str) -> Any:
        return Consumer(
            {
                **kafka_settings(self._settings.kafka),
                "group.id": "observer",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "check.crcs": True,
            }
        )

    def _read(self, topic: str, stuck: list[str], isolation: str = "read_committed") -> list[FoundRecord]:
        """Every record from the first offset to the end of now; partitions that cannot be read are noted."""
        consumer = self._consumer(isolation)
        records: list[FoundRecord] = []
        ends: dict[int, int] = {}
        firsts: dict[int, int] = {}
        try:
            for partition in range(scene.PARTITIONS):
                first, end = self._bounds(topic, partition)
                if first < end:
                    firsts[partition], ends[partition] = first, end
            consumer.assign([TopicPartition(topic, partition, firsts[partition]) for partition in ends])
            deadline = time.monotonic() + _STUCK_S
            while ends and time.monotonic() < deadline:
                for message in consumer.consume(500, 0.2):
                    if message.error() is None:
                        records.append(_found(message))
                for place in consumer.position([TopicPartition(topic, partition) for partition in ends]):
                    if place.offset >= ends[place.partition]:
                        del ends[place.partition]
            for partition, end in ends.items():
                (place,) = consumer.position([TopicPartition(topic, partition)])
                stuck.append(f"{topic}-{partition} ends at {end}, {isolation} stops at {place.offset}")
        finally:
            consumer.close()
        return records

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset and the one after the last record, committed or not."""
        first, end = self._watermarks.get_watermark_offsets(TopicPartition(topic, partition), CALL_S)
        return first, end

    def _drained(self, topic: str) -> list[str]:
        """Receive and acknowledge all that is left of a queue, and then of its dead letters."""
        taken = self._taken(topic, topic, scene.WORKERS[topic], _is_empty)
        taken += self._taken(topic, scene.DEAD_LETTERS[topic], "queue", _is_idle)
        # A redrive that the cut has ended holds its leases for a while yet.
        held = self._http.ask("GET", f"/groups/queue/queues/{scene.DEAD_LETTERS[topic]}/messages", limit=1000)
        return taken + [each["value"] for each in held["messages"]]

    def _taken(
        self, topic: str, source: str, group: str, is_done: Callable[[Sequence[Any]], bool]
    ) -> list[str]:
        taken: list[str] = []
        deadline = time.monotonic() + _DRAIN_S
        while True:
            answer = self._http.ask("GET", f"/groups/{group}/poll", topic=source, max=100, wait_ms=100)
            if messages := answer["messages"]:
                delivered = [Delivered(topic, each["value"], each["delivery_count"]) for each in messages]
                self._work.write(*delivered)
                settle(self._work, self._http, topic, "ack", messages)
                taken += [each["value"] for each in messages]
                continue
            partitions = self._http.ask("GET", f"/groups/{group}/queues/{source}")["partitions"]
            if is_done(partitions):
                return taken
            if time.monotonic() > deadline:
                raise AssertionError(f"{source} cannot be drained: {partitions}")

    def _resend_steps(self) -> None:
        """Resend existing messages of the FIFO queue: none may be stored again."""
        there = {record.value.partition("/")[0] for record in self._read(scene.STEPS, [], "read_uncommitted")}
        sent = {event.deduplication_id: event.group for _, event in self._history.of(FifoSending)}
        sqs = scene.sqs_client(self._settings.sqs)
        url = sqs.get_queue_url(QueueName=scene.STEPS)["QueueUrl"]
        for each in [each for each in sent if each in there][-_RESENT:]:
            group = sent[each]
            self._work.write(FifoSending(scene.STEPS, each, group))
            sqs.send_message(
                QueueUrl=url,
                MessageBody=f"{each}/{self._work.value()}",
                MessageGroupId=group,
                MessageDeduplicationId=each,
            )
            self._work.write(FifoSent(scene.STEPS, each, group))

    def _wait_for_delays(self) -> None:
        eventually(
            lambda: self._http.ask("GET", "/delay/stats")["pending"] == 0,
            within_s=_DRAIN_S,
            what="every delayed message is delivered",
        )

    def _note(self, found: Found) -> None:
        """Mark data that was found, though unacknowledged, as known: it must not disappear any more."""
        acked = {(event.topic, event.value) for _, event in self._history.of(Acked)}
        for topic in scene.SCENE.records:
            self._work.write(
                *(
                    Acked(topic, record.value, record.partition, record.offset)
                    for record in found.all_records[topic]
                    if (topic, record.value) not in acked
                )
            )
        visible = {(topic, each.value) for topic in scene.LEDGERS for each in found.committed[topic]}
        decided = {event.transaction for _, event in self._history.of(Decided)}
        for _, event in self._history.of(Deciding):
            if event.commit and event.transaction not in decided and visible.issuperset(event.records):
                self._work.write(Decided(event.transaction, True))


def _is_empty(partitions: Sequence[Any]) -> bool:
    return all(each["start_offset"] == each["end_offset"] for each in partitions) and _is_idle(partitions)


def _is_idle(partitions: Sequence[Any]) -> bool:
    return not any(each["ready"] or each["resting"] or each["dead_lettering"] for each in partitions)


def _found(message: Any) -> FoundRecord:
    epoch = message.leader_epoch()
    return FoundRecord(
        message.partition(),
        message.offset(),
        message.value().decode(errors="replace"),
        -1 if epoch is None else epoch,
        message.timestamp()[1],
    )
