"""What one client writes, every other reads the same."""

import pytest

from tests.brokers import Broker

from .client import COMPRESSIONS, Client, Record
from .confluent import Confluent
from .conftest import CLIENTS, name_of, skip_if_unable

COUNT = 40


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda kind: f"read-by-{kind.name}")
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", CLIENTS, ids=name_of)
def test_what_one_client_writes_every_other_reads(
    broker: Broker,
    confluent: Confluent,
    topic: str,
    writer: type[Client],
    compression: str,
    reader: type[Client],
) -> None:
    skip_if_unable(writer, compression)
    skip_if_unable(reader, compression)
    confluent.create_topic(topic)
    sent = [
        Record(
            key=b"key-%d" % number,
            value=b"written by " + writer.name.encode() + b" %d " % number + b"-" * 100,
            headers=(("writer", writer.name.encode()), ("compression", compression.encode())),
        )
        for number in range(COUNT)
    ]

    writer(broker.address).produce(topic, sent, compression=compression)

    read = reader(broker.address).read(topic, count=COUNT)
    assert [(record.key, record.value, record.headers) for record in read] == [
        (record.key, record.value, record.headers) for record in sent
    ]
    assert [record.offset for record in read] == list(range(COUNT))
