"""Selection of traced messages: sampling by offset, and traces begun by producers."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.tracing.partition import (
    MAX_TRACED,
    RememberedOffsets,
    TracedOffsets,
    begins_traced,
    traced_records,
)
from alpacamq.model.batch import Codec, read_header
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, Record, write_batch

TOPIC_ID = UUID(int=7).bytes
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = Header("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
NOT_SAMPLED = Header("traceparent", f"00-{TRACE}-{SPAN}-00".encode())


def traced(rate: float, partition: int = 0, remembered: RememberedOffsets | None = None) -> TracedOffsets:
    offsets = TracedOffsets(
        TopicPartition(TopicName("orders"), partition), TOPIC_ID, remembered or RememberedOffsets()
    )
    offsets.sample(rate)
    return offsets


def batch(*headers: tuple[Header, ...], codec: Codec = Codec.NONE, value: bytes = b"v" * 50) -> bytearray:
    records = [Record(place, 1000, b"k%d" % place, value, each) for place, each in enumerate(headers)]
    return write_batch(records, codec=codec)


@given(
    st.floats(0, 1),
    st.integers(0, 2**40),
    st.integers(0, 300),
    st.integers(0, 5),
)
def test_a_range_samples_the_same_offsets_as_single_lookups(
    rate: float, first: int, count: int, partition: int
) -> None:
    offsets = traced(rate, partition)
    alone = [offset for offset in range(first, first + count) if offsets.find(offset) is not None]
    assert list(offsets.sampled(first, first + count)) == alone == offsets.between(first, first + count)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0, 0), (5e-324, 0), (0.001, 10), (0.01, 100), (0.5, 5000), (1, 10_000)],
)
def test_the_rate_is_kept_exactly(rate: float, expected: int) -> None:
    assert len(traced(rate).sampled(0, 10_000)) == expected


def test_a_sampled_message_always_has_the_same_trace() -> None:
    before, after = traced(0.1), traced(0.1)
    contexts = [before.find(offset) for offset in before.sampled(0, 1000)]
    assert contexts == [after.find(offset) for offset in after.sampled(0, 1000)]
    assert len({context.trace_id for context in contexts if context is not None}) == 100
    elsewhere = traced(0.1, partition=1)
    others = {elsewhere.find(offset) for offset in elsewhere.sampled(0, 1000)}
    assert not others & set(contexts)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50))), st.integers(0, 50), st.integers(0, 50))
def test_known_offsets_of_a_range_are_those_remembered_in_it(
    steps: list[tuple[bool, int]], first: int, end: int
) -> None:
    offsets, model = traced(0), set()
    for is_new, offset in steps:
        if is_new:
            offsets.remember(TRACE, offset)
            model.add(offset)
        else:
            offsets.forget(offset)
            model.discard(offset)
    assert offsets.known(first, end) == sorted(each for each in model if first <= each < end)


def test_remembered_offsets_are_bounded_across_partitions() -> None:
    remembered = RememberedOffsets(limit=10)
    one, other = traced(0, 0, remembered), traced(0, 1, remembered)
    for offset in range(20):
        one.remember(TRACE, offset)
    for offset in range(4):
        other.remember(TRACE, offset)
    assert one.known(0, 100) == list(range(14, 20))
    assert other.known(0, 100) == list(range(4))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_trace_in_the_first_record_is_found_with_any_codec(codec: Codec) -> None:
    with_trace = batch((Header("a", b"1"), SAMPLED, Header("b", None)), (), codec=codec)
    assert begins_traced(with_trace, read_header(with_trace))
    for headers in ((), (Header("a", b""),), (NOT_SAMPLED,), (Header("traceparent", b"tea"),)):
        without = batch(headers, (SAMPLED,), codec=codec)
        assert not begins_traced(without, read_header(without))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_large_compressed_batch_is_not_unpacked_for_its_first_record(codec: Codec) -> None:
    large = batch(*[()] * 20, codec=codec, value=b"v" * 50_000)
    assert not begins_traced(large, read_header(large))


@pytest.mark.parametrize("value", [b"", b"v" * 200, b"v" * 100_000])
def test_a_trace_behind_a_value_of_any_size_is_found_in_uncompressed_batches(value: bytes) -> None:
    large = batch((SAMPLED,), value=value)
    assert begins_traced(large, read_header(large))


@given(st.binary(max_size=200), st.sampled_from(list(Codec)))
def test_garbage_behind_a_header_does_not_raise(body: bytes, codec: Codec) -> None:
    data = bytearray(batch((), codec=Codec.NONE)[:61] + body)
    header = read_header(data)._replace(attributes=codec)
    begins_traced(data, header)


@pytest.mark.parametrize("codec", list(Codec))
def test_all_records_with_a_trace_are_found_with_their_keys(codec: Codec) -> None:
    found = traced_records(batch((SAMPLED,), (), (NOT_SAMPLED,), (SAMPLED,), codec=codec), 1 << 20)
    assert [(each.delta, each.key, each.context.trace_id) for each in found] == [
        (0, b"k0", TRACE), (3, b"k3", TRACE),
    ]  # fmt: skip


def test_traced_records_per_batch_are_limited() -> None:
    assert len(traced_records(batch(*[(SAMPLED,)] * 300), 1 << 20)) == MAX_TRACED
