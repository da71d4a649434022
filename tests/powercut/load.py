"""Mixed load on one broker until it is killed.

`python -m tests.powercut.load '{…}'`, with the fields of `Settings`.
Every worker has a thread, its own clients and its own file in the history. A failure ends its worker: power
was lost.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.integration.queue_traffic import HttpConnection, Refused

from . import scene
from .history import (
    Acked,
    Cancelled,
    Cancelling,
    Changed,
    Changing,
    Committed,
    Committing,
    Decided,
    Deciding,
    Delayed,
    Delaying,
    Delivered,
    Event,
    FifoSending,
    FifoSent,
    Recorder,
    Seen,
    Sent,
    Settled,
    Settling,
    Trimmed,
    Trimming,
)

CALL_S = 10.0
PAUSE_S = 0.02
MAX_CHURNED_PARTITIONS = 5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the load."""

    kafka: str
    http: str
    sqs: str
    directory: str
    phase: int
    seed: int


class Work:
    """State of one worker: random numbers, a recorder, and unique values."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.dice = Random(f"{settings.seed}-{settings.phase}-{name}")
        self._recorder = Recorder(Path(settings.directory) / f"{settings.phase:03d}-{name}.jsonl")
        self._number = 0

    def value(self) -> str:
        self._number += 1
        return f"{self.settings.phase}.{self.name}.{self._number}"

    def write(self, *events: Event) -> None:
        if events:
            self._recorder.write(*events)

    def pause(self, seconds: float = PAUSE_S) -> None:
        time.sleep(self.dice.uniform(0, 2 * seconds))


def kafka_settings(address: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 100,
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }


def producing(address: str, **settings: Any) -> Any:
    return Producer({**kafka_settings(address), "linger.ms": 1, "enable.idempotence": True, **settings})


def consuming(address: str, group: str, **settings: Any) -> Any:
    return Consumer(
        {
            **kafka_settings(address),
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "isolation.level": "read_committed",
            **settings,
        }
    )


def from_committed(consumer: Any, topic: str) -> None:
    """Read on where the group has got to."""
    places = [TopicPartition(topic, partition) for partition in range(scene.PARTITIONS)]
    committed = consumer.committed(places, CALL_S)
    consumer.assign([TopicPartition(p.topic, p.partition, max(p.offset, 0)) for p in committed])


def produce_records(work: Work, topic: str) -> None:
    """Produce with idempotence and acks=all."""
    producer = producing(work.settings.kafka)
    while True:
        send_records(work, producer, topic, work.dice.randrange(1, 12))
        work.pause()


def send_records(work: Work, producer: Any, topic: str, count: int) -> None:
    """Send records to partitions in turn, and write down which were acknowledged."""
    acked: list[Event] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            value = message.value().decode()
            acked.append(Acked(message.topic(), value, message.partition(), message.offset()))

    values = [work.value() for _ in range(count)]
    work.write(*(Sent(topic, value) for value in values))
    first = work.dice.randrange(scene.PARTITIONS)
    for place, value in enumerate(values, first):
        producer.produce(topic, value, partition=place % scene.PARTITIONS, on_delivery=delivered)
    producer.flush(CALL_S)
    work.write(*acked)


def update_table(work: Work) -> None:
    """Write newer and newer values of a few keys to a topic that is compacted meanwhile."""
    producer = producing(work.settings.kafka)
    acked: list[Event] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            value = message.value().decode()
            acked.append(Acked(message.topic(), value, message.partition(), message.offset()))

    number = work.settings.phase * 1_000_000
    while True:
        for _ in range(10):
            number += 1
            key = f"k{work.dice.randrange(20)}"
            partition = int(key[1:]) % scene.PARTITIONS
            producer.produce(scene.TABLE, f"{key}/{number}", key, partition=partition, on_delivery=delivered)
        producer.flush(CALL_S)
        work.write(*acked)
        acked.clear()
        work.pause()


def trim_records(work: Work) -> None:
    """Write records, and delete all before some offset now and then."""
    producer = producing(work.settings.kafka)
    admin = AdminClient(kafka_settings(work.settings.kafka))
    while True:
        send_records(work, producer, scene.TRIMMED, 10)
        if work.dice.random() < 0.2:
            partition = work.dice.randrange(scene.PARTITIONS)
            consumer = consuming(work.settings.kafka, "trimmer")
            first, end = consumer.get_watermark_offsets(TopicPartition(scene.TRIMMED, partition), CALL_S)
            consumer.close()
            before = work.dice.choice((end, work.dice.randint(first, end)))
            work.write(Trimming(scene.TRIMMED, partition, before))
            for future in admin.delete_records([TopicPartition(scene.TRIMMED, partition, before)]).values():
                future.result(CALL_S)
            work.write(Trimmed(scene.TRIMMED, partition, before))
        work.pause(0.05)


def read_and_commit(work: Work) -> None:
    """Consume as a group, and commit offsets."""
    consumer = consuming(work.settings.kafka, scene.READERS)
    from_committed(consumer, scene.RECORDS)
    while True:
        last: dict[int, int] = {}
        seen: list[Event] = []
        for message in consumer.consume(100, 0.1):
            if message.error() is not None:
                continue
            last[message.partition()] = message.offset() + 1
            epoch = message.leader_epoch()
            place = message.topic(), message.partition(), message.offset()
            seen.append(Seen(*place, message.value().decode(), -1 if epoch is None else epoch))
        work.write(*seen)
        if last:
            places = [(scene.READERS, scene.RECORDS, partition, offset) for partition, offset in last.items()]
            work.write(*(Committing(*place) for place in places))
            offsets = [TopicPartition(topic, partition, offset) for _, topic, partition, offset in places]
            consumer.commit(offsets=offsets, asynchronous=False)
            work.write(*(Committed(*place) for place in places))


def transactional(address: str, name: str, timeout_ms: int = scene.TRANSACTION_MS) -> Any:
    """Make a transactional producer, which fences the one that had its name before."""
    producer = producing(address, **{"transactional.id": name, "transaction.timeout.ms": timeout_ms})
    insist(lambda: producer.init_transactions(CALL_S))
    return producer


def in_transactions(work: Work) -> None:
    """Run transactions over several topics, and abort some of them."""
    producer = transactional(work.settings.kafka, work.name)
    while True:
        one_transaction(work, producer, commit=work.dice.random() < 0.75)
        work.pause()


def one_transaction(work: Work, producer: Any, *, commit: bool = True, hold_s: float = 0.0) -> None:
    """Run one transaction, open for up to `hold_s` after its records were acknowledged."""
    records = tuple((work.dice.choice(scene.LEDGERS), work.value()) for _ in range(work.dice.randrange(1, 8)))
    name = records[0][1]
    work.write(*(Sent(*record) for record in records))
    producer.begin_transaction()
    for topic, value in records:
        producer.produce(topic, value, partition=work.dice.randrange(scene.PARTITIONS))
    # librdkafka fails if it has to abort while the former transaction prevents adding partitions.
    if hold_s or not commit or work.dice.random() < 0.3:
        producer.flush(CALL_S)
        time.sleep(work.dice.uniform(0, hold_s or 0.2))
    work.write(Deciding(name, commit, records))
    insist(lambda: (producer.commit_transaction if commit else producer.abort_transaction)(CALL_S))
    work.write(Decided(name, commit))


def insist(call: Callable[[], None]) -> None:
    """Retry while the coordinator is not available."""
    while True:
        try:
            call()
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise
        else:
            return


def copy(work: Work) -> None:
    """Read, write and commit offsets in one transaction."""
    producer = transactional(work.settings.kafka, work.name)
    consumer = consuming(work.settings.kafka, scene.COPIERS)
    from_committed(consumer, scene.COPY_SOURCE)
    while True:
        messages = [m for m in consumer.consume(work.dice.randrange(1, 60), 0.1) if m.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(scene.COPY_TARGET, message.value(), partition=message.partition())
        last = {message.partition(): message.offset() + 1 for message in messages}
        offsets = [TopicPartition(scene.COPY_SOURCE, partition, offset) for partition, offset in last.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S)
        insist(lambda: producer.commit_transaction(CALL_S))


def publish_jobs(work: Work) -> None:
    """Publish messages of a queue over HTTP."""
    http = HttpConnection(work.settings.http)
    while True:
        values = [work.value() for _ in range(work.dice.randrange(1, 10))]
        work.write(*(Sent(scene.JOBS, value) for value in values))
        body = {"messages": [{"value": value} for value in values]}
        answer = http.ask("POST", f"/topics/{scene.JOBS}/messages", body)
        work.write(
            *(
                Acked(scene.JOBS, value, result["partition"], result["offset"])
                for value, result in zip(values, answer["results"], strict=True)
                if "error" not in result
            )
        )
        work.pause()


ACTIONS = {"ack": 55, "nack": 15, "reject": 20, "forget": 10}


def work_off_jobs(work: Work) -> None:
    """Consume a queue over HTTP, and fail now and then."""
    http = HttpConnection(work.settings.http)
    while True:
        poll = f"/groups/{scene.WORKERS[scene.JOBS]}/poll"
        answer = http.ask("GET", poll, topic=scene.JOBS, max=work.dice.choice((1, 5, 20)), wait_ms=200)
        chosen: dict[str, list[Any]] = {}
        for message in answer["messages"]:
            (action,) = work.dice.choices(list(ACTIONS), list(ACTIONS.values()))
            chosen.setdefault(action, []).append(message)
        messages = answer["messages"]
        work.write(*(Delivered(scene.JOBS, m["value"], m["delivery_count"]) for m in messages))
        for action, some in chosen.items():
            if action != "forget":
                settle(work, http, scene.JOBS, action, some)
        work.pause()


def settle(work: Work, http: HttpConnection, topic: str, action: str, messages: list[Any]) -> None:
    """Settle deliveries, and write down which settlements were confirmed."""
    work.write(*(Settling(topic, message["value"], action) for message in messages))
    try:
        answer = http.ask("POST", f"/messages/{action}", {"receipts": [m["receipt"] for m in messages]})
    except Refused:
        return  # the lease of the only one is over
    work.write(
        *(
            Settled(topic, message["value"], action)
            for message, result in zip(messages, answer["results"], strict=True)
            if "error" not in result
        )
    )


def redrive_jobs(work: Work) -> None:
    """Redrive dead letters."""
    http = HttpConnection(work.settings.http)
    while True:
        work.pause(1.0)
        http.ask("POST", f"/topics/{scene.DEAD_LETTERS[scene.JOBS]}/dead-letters/redrive")


def delay_over_http(work: Work) -> None:
    """Publish delayed messages over HTTP, and cancel some of them."""
    http = HttpConnection(work.settings.http)
    topic = scene.REMINDERS
    while True:
        messages = []
        for _ in range(work.dice.randrange(1, 8)):
            due_ms = int(time.time() * 1000) + work.dice.choice((50, 300, 1000, 2500))
            messages.append((work.value(), due_ms))
        work.write(*(Delaying(topic, value, due_ms) for value, due_ms in messages))
        body = {"messages": [{"value": value, "deliver_at": due_ms} for value, due_ms in messages]}
        answer = http.ask("POST", f"/topics/{topic}/messages", body)
        results = [r for r in zip(messages, answer["results"], strict=True) if "error" not in r[1]]
        # A message that became due on the way is an ordinary record.
        work.write(
            *(
                Delayed(topic, value)
                if "delayed_id" in result
                else Acked(topic, value, result["partition"], result["offset"])
                for (value, _), result in results
            )
        )
        for (value, _), result in results:
            if "delayed_id" in result and work.dice.random() < 0.15:
                work.write(Cancelling(topic, value))
                try:
                    http.ask(
                        "DELETE", f"/topics/{topic}/delayed/{result['partition']}/{result['delayed_id']}"
                    )
                except Refused:
                    continue  # its time had come
                work.write(Cancelled(topic, value))
        work.pause()


def delay_over_kafka(work: Work) -> None:
    """Produce delayed records with idempotence."""
    producer = producing(work.settings.kafka)
    acked: list[Event] = []
    dues_ms: dict[str, int] = {}

    def delivered(error: Any, message: Any) -> None:
        value = message.value().decode()
        # A message that became due on the way is an ordinary record.
        if error is None and time.time() * 1000 < dues_ms.pop(value):
            acked.append(Delayed(message.topic(), value))

    while True:
        for _ in range(work.dice.randrange(1, 8)):
            value = work.value()
            due_ms = dues_ms[value] = int(time.time() * 1000) + work.dice.choice((300, 1000, 2500))
            work.write(Delaying(scene.PARCELS, value, due_ms))
            headers = {"alpacamq-deliver-at": str(due_ms)}
            partition = work.dice.randrange(scene.PARTITIONS)
            producer.produce(
                scene.PARCELS, value, partition=partition, headers=headers, on_delivery=delivered
            )
        producer.flush(CALL_S)
        work.write(*acked)
        acked.clear()
        work.pause()


def send_payments(work: Work) -> None:
    """Send messages to a standard queue over SQS."""
    sqs = scene.sqs_client(work.settings.sqs)
    url = sqs.get_queue_url(QueueName=scene.PAYMENTS)["QueueUrl"]
    while True:
        values = [work.value() for _ in range(work.dice.randrange(1, 8))]
        work.write(*(Sent(scene.PAYMENTS, value) for value in values))
        entries = [{"Id": str(at), "MessageBody": value} for at, value in enumerate(values)]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        accepted = [values[int(each["Id"])] for each in answer.get("Successful", ())]
        work.write(*(Acked(scene.PAYMENTS, value, -1, -1) for value in accepted))
        work.pause(0.05)


def receive_payments(work: Work) -> None:
    """Receive, and delete most: what is received twice without being deleted becomes a dead letter."""
    sqs = scene.sqs_client(work.settings.sqs)
    url = sqs.get_queue_url(QueueName=scene.PAYMENTS)["QueueUrl"]
    failed = sqs.get_queue_url(QueueName=scene.DEAD_LETTERS[scene.PAYMENTS])["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=failed, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    while True:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in answer.get("Messages", ()):
            value, receipt = message["Body"], message["ReceiptHandle"]
            work.write(Delivered(scene.PAYMENTS, value, 0))
            if work.dice.random() < 0.6:
                work.write(Settling(scene.PAYMENTS, value, "ack"))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
                work.write(Settled(scene.PAYMENTS, value, "ack"))
            else:
                with suppress(sqs.exceptions.MessageNotInflight):  # the lease is over
                    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        if work.dice.random() < 0.05:
            try:
                sqs.start_message_move_task(SourceArn=arn)
            except sqs.exceptions.ClientError:
                continue  # one is under way
        work.pause()


def send_steps(work: Work) -> None:
    """Send messages to a FIFO queue, some of them twice under one deduplication id."""
    sqs = scene.sqs_client(work.settings.sqs)
    url = sqs.get_queue_url(QueueName=scene.STEPS)["QueueUrl"]
    sent: list[tuple[str, str]] = []
    while True:
        if sent and work.dice.random() < 0.25:
            each, group = work.dice.choice(sent[-30:])
        else:
            each, group = work.value(), f"table-{work.dice.randrange(4)}"
            sent.append((each, group))
        work.write(FifoSending(scene.STEPS, each, group))
        body = f"{each}/{work.value()}"
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=each)
        work.write(FifoSent(scene.STEPS, each, group))
        work.pause(0.05)


def churn_topics(work: Work) -> None:
    """Create, use, change and delete topics."""
    admin = AdminClient(kafka_settings(work.settings.kafka))
    listed = admin.list_topics(timeout=CALL_S).topics
    there = {name: len(listed[name].partitions) for name in scene.CHURNED if name in listed}
    while True:
        topic = work.dice.choice(scene.CHURNED)
        if topic not in there:
            there[topic] = create_topic(work, admin, topic)
            if work.dice.random() < 0.7:
                use_topic(work, topic)
        elif (action := work.dice.choice(("delete", "delete", "configure", "grow"))) == "delete":
            change(work, Changing(topic, "delete"), admin.delete_topics, topic)
            del there[topic]
        elif action == "configure":
            configure_topic(work, admin, topic)
        elif there[topic] < MAX_CHURNED_PARTITIONS:
            there[topic] += 1
            growing = NewPartitions(topic, there[topic])
            change(work, Changing(topic, "grow", there[topic]), admin.create_partitions, growing)
        work.pause(0.1)


def change(work: Work, changing: Changing, make: Callable[[list[Any]], dict[Any, Any]], wanted: Any) -> None:
    """Make one change, written down before and after."""
    work.write(changing)
    for future in make([wanted]).values():
        future.result(CALL_S)
    work.write(Changed(*msgspec.structs.astuple(changing)))


def create_topic(work: Work, admin: Any, topic: str) -> int:
    """Create a topic; with how many partitions."""
    changing = Changing(topic, "create", 2, work.dice.randrange(10**9, 10**10))
    settings = {
        "retention.ms": str(changing.retention_ms),
        "flush.messages": work.dice.choice(("1", "100000")),
    }
    wanted = NewTopic(topic, num_partitions=2, config=settings)
    change(work, changing, admin.create_topics, wanted)
    return changing.partitions


def configure_topic(work: Work, admin: Any, topic: str) -> None:
    changing = Changing(topic, "configure", 0, work.dice.randrange(10**9, 10**10))
    entry = ConfigEntry(
        "retention.ms", str(changing.retention_ms), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    change(work, changing, admin.incremental_alter_configs, resource)


def use_topic(work: Work, topic: str) -> None:
    """Write a few records, and let a group commit that it has read them, now and then."""
    producer = producing(work.settings.kafka)
    for _ in range(5):
        producer.produce(topic, work.value(), partition=0)
    producer.flush(CALL_S)
    if work.dice.random() < 0.6:
        consumer = consuming(work.settings.kafka, scene.CHURNERS)
        work.write(Committing(scene.CHURNERS, topic, 0, 5))
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        work.write(Committed(scene.CHURNERS, topic, 0, 5))
        consumer.close()


def workers() -> Iterator[tuple[str, Callable[[Work], None]]]:
    """Every worker by name."""
    yield "records", lambda work: produce_records(work, scene.RECORDS)
    yield "table", update_table
    yield "trimmer", trim_records
    yield "reader", read_and_commit
    yield "ledger-0", in_transactions
    yield "ledger-1", in_transactions
    yield "source", lambda work: produce_records(work, scene.COPY_SOURCE)
    yield "copier", copy
    yield "jobs", publish_jobs
    yield "worker-0", work_off_jobs
    yield "worker-1", work_off_jobs
    yield "redriver", redrive_jobs
    yield "reminders", delay_over_http
    yield "parcels", delay_over_kafka
    yield "payments", send_payments
    yield "cashier", receive_payments
    yield "steps", send_steps
    yield "churn", churn_topics


def run(work: Work, worker: Callable[[Work], None]) -> None:
    try:
        worker(work)
    except Exception as error:  # noqa: BLE001 - without power everything fails
        print(f"{time.monotonic():.3f} {work.name}: {error!r}\n", end="", flush=True)


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    threads = [
        threading.Thread(target=run, args=(Work(settings, name), worker)) for name, worker in workers()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
