"""Delayed records are written, and skipped while pending, by every client."""

import time

from alpacamq.model.headers import DELIVER_AT

from .client import Client, Record
from .confluent import Confluent

HOUR_MS = 3_600_000


def test_every_client_skips_pending_delayed_records_and_reads_the_others(
    client: Client, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, settings={"message.delays": "true"})
    later = ((DELIVER_AT, b"%d" % (time.time_ns() // 1_000_000 + HOUR_MS)),)
    past = ((DELIVER_AT, b"1"),)
    client.produce(topic, [Record(value=b"later", headers=later)] * 5)
    client.produce(topic, [Record(value=b"a", headers=past), Record(value=b"later", headers=later)])
    client.produce(topic, [Record(value=b"later", headers=later)])
    client.produce(topic, [Record(value=b"b")])

    assert [record.value for record in client.read(topic, count=2)] == [b"a", b"b"]
    assert confluent.ends(topic) == (0, 9)
