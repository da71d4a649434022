"""Stored queue records: round trips, truncated, damaged and unknown records."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.model.errors import CorruptState
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change, Pending
from alpacamq.queues.engine import EngineLimits, QueueEngine
from alpacamq.queues.messages import Action, ConfigureRequest, ListReply, ListRequest, QueueId
from alpacamq.queues.records import chunk_key, head_key, parse_key, queue_key

from .fake_log import FakeLog
from .queue_host import QUEUE, QueueHost

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def rich() -> QueueHost:
    """Return a queue with messages in every state."""
    log = FakeLog()
    log.add(QUEUE.topic, {"queue.max.deliveries": "9"})
    host = QueueHost(log)
    host.publish(300)
    host.publish(20, Lane.HIGH)
    host.ask(ConfigureRequest(queue=QUEUE, overrides={"queue.visibility.timeout.ms": "60000"}))
    messages = host.receive(310, consumer="näher")
    host.settle(Action.ACK, *messages[3:200:2])
    host.settle(Action.NACK, *messages[4:20:2])
    host.settle(Action.RELEASE, messages[0], messages[290])
    host.settle(Action.REJECT, messages[2], reason="kaputt: größer als erlaubt")
    host.settle(Action.MOVE, messages[302], target="archive")
    host.advance(500)
    host.receive(1, consumer="")
    return host


RICH = rich()
STORED = [*RICH.engine.snapshot()]


def engine() -> QueueEngine:
    return QueueEngine(RICH.log, lambda: 1, EngineLimits())


@given(NAMES, NAMES, st.integers(0, 2**31 - 1), st.integers(0, 2**55))
def test_keys_round_trip(group: str, topic: str, partition: int, index: int) -> None:
    queue = QueueId(group, topic)
    assert parse_key(queue_key(queue)) == (b"q", queue, 0, 0)
    assert parse_key(head_key(queue, partition)) == (b"h", queue, partition, 0)
    assert parse_key(chunk_key(queue, partition, index)) == (b"c", queue, partition, index)


def test_a_restart_restores_everything_stored() -> None:
    RICH.check_changes()
    again = engine()
    for key, value in STORED:
        again.replay(key, value)
    again.loaded(RICH.now_ms)
    assert [*again.snapshot()] == STORED


@pytest.mark.parametrize("stored", STORED, ids=lambda change: change.key[:1].decode())
def test_a_record_truncated_anywhere_is_corrupt(stored: Change) -> None:
    assert stored.value is not None
    for cut in range(len(stored.value)):
        with pytest.raises(CorruptState):
            engine().replay(stored.key, stored.value[:cut])
    for cut in range(1, len(stored.key)):
        with pytest.raises(CorruptState):
            engine().replay(stored.key[:cut], stored.value)


@pytest.mark.parametrize("stored", STORED, ids=lambda change: change.key[:1].decode())
def test_a_record_with_trailing_bytes_is_corrupt(stored: Change) -> None:
    assert stored.value is not None
    with pytest.raises(CorruptState, match="too many"):
        engine().replay(stored.key, stored.value + b"\0")


@pytest.mark.parametrize("stored", STORED, ids=lambda change: change.key[:1].decode())
def test_a_record_of_a_later_version_is_corrupt(stored: Change) -> None:
    assert stored.value is not None
    with pytest.raises(CorruptState, match="version 2"):
        engine().replay(stored.key, b"\2" + stored.value[1:])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STORED), st.data())
def test_a_damaged_record_is_corrupt_or_leads_to_a_valid_state(stored: Change, data: st.DataObject) -> None:
    assert stored.value is not None
    damaged = bytearray(stored.value)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    again = engine()
    for change in STORED:
        if change is not stored:
            again.replay(*change)
    with suppress(CorruptState):
        again.replay(stored.key, bytes(damaged))
        again.loaded(RICH.now_ms)
        again.tick(2**62)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_garbage_is_corrupt_or_ignored(key: bytes, value: bytes) -> None:
    for kind in (b"", b"q", b"h", b"c"):
        with suppress(CorruptState):
            engine().replay(kind + key, value)
        with suppress(CorruptState):
            engine().replay(kind + key, None)
    for stored in STORED:
        with suppress(CorruptState):
            engine().replay(stored.key, value)


def test_unknown_kinds_are_ignored() -> None:
    again = engine()
    again.replay(b"z" + queue_key(QUEUE)[1:], b"value")
    again.replay(b"z" + queue_key(QUEUE)[1:], None)
    assert again.handle([Pending(ListRequest(), 1)], 0).replies == [(1, ListReply(queues=()))]


def test_a_head_with_a_negative_start_offset_is_corrupt() -> None:
    with pytest.raises(CorruptState, match="start offset -1"):
        engine().replay(head_key(QUEUE, 0), struct.pack(">Bqqqq", 0, 1, -1, 0, -1))
