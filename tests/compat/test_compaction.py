"""A compacted log has gaps between offsets; every client reads across them."""

from collections import Counter

import pytest

from tests import stored
from tests.brokers import Broker
from tests.waiting import eventually

from .client import COMPRESSIONS, Record
from .confluent import Confluent
from .conftest import CLIENTS, skip_if_unable

KEYS = 10
ROUNDS = 30


def is_compacted(broker: Broker, topic: str) -> bool:
    """Return whether each key occurs once in the closed segments."""
    *closed, _ = stored.segments(broker.directory_of(topic), topic)
    try:
        keys = Counter(
            record.key for file in closed for batch in stored.batches_in(file) for record in batch.records()
        )
    except FileNotFoundError:
        return False  # replaced while reading
    return max(keys.values()) == 1


@pytest.mark.parametrize(
    ("compression", "idempotent"), [*((each, False) for each in COMPRESSIONS), ("none", True)]
)
def test_a_compacted_topic_is_read_by_every_client(
    broker: Broker, confluent: Confluent, topic: str, compression: str, idempotent: bool
) -> None:
    """Of idempotent producers, one in each round, the headers of their last batches are left."""
    confluent.create_topic(
        topic,
        settings={
            "cleanup.policy": "compact",
            "segment.bytes": "2048",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    for number in range(ROUNDS):
        confluent.produce(
            topic,
            # Each round changes all keys but one, so that an early record survives many segments.
            [
                Record(key=b"key-%d" % key, value=b"round %d " % number + b"." * 40)
                for key in range(KEYS)
                if key or not number
            ],
            compression=compression,
            idempotent=idempotent,
        )
    end = confluent.ends(topic)[1]
    eventually(lambda: is_compacted(broker, topic), what=f"{topic} is compacted")

    batches = list(stored.batches(broker.directory_of(topic), topic))
    of_producers = [
        batch for batch in batches if batch.header.is_idempotent and not batch.header.record_count
    ]
    assert len(of_producers) > ROUNDS / 2 if idempotent else not of_producers
    kept = [(record.offset, record.key, record.value) for batch in batches for record in batch.records()]
    assert kept[0][:2] == (0, b"key-0")
    assert len(kept) < end / 2
    assert {key: value for _, key, value in kept} == {
        b"key-%d" % key: b"round %d " % (ROUNDS - 1 if key else 0) + b"." * 40 for key in range(KEYS)
    }
    for kind in CLIENTS:
        skip_if_unable(kind, compression)
        reader = kind(broker.address)
        read = reader.read(topic, count=len(kept))
        assert [(record.offset, record.key, record.value) for record in read] == kept, kind.name
        # An offset in a gap is a valid start.
        later = [entry for entry in kept if entry[0] >= 1 + kept[0][0]]
        read = reader.read(topic, start=1, count=len(later))
        assert [(record.offset, record.key, record.value) for record in read] == later, kind.name
        assert confluent.ends(topic)[1] == end
