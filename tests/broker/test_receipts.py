"""Receipt handles: round trip, and refusal of everything else."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.queue.deliveries import MAX_RECEIPT_CHARS, Receipt, read_receipt, write_receipt
from alpacamq.model.errors import InvalidReceipt
from alpacamq.model.topics import MAX_NAME_LENGTH
from alpacamq.queues.messages import QueueId

GROUPS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: len(name.encode()) <= 255
)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=MAX_NAME_LENGTH)
RECEIPTS = st.builds(
    Receipt,
    st.builds(QueueId, GROUPS, TOPICS),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**63 - 1),
)


@given(RECEIPTS)
def test_receipts_round_trip(receipt: Receipt) -> None:
    text = write_receipt(receipt)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert read_receipt(text) == receipt


def test_the_longest_names_fit() -> None:
    queue = QueueId("\N{SNOWMAN}" * 85, "t" * MAX_NAME_LENGTH)
    text = write_receipt(Receipt(queue, bytes(8), 1, 1, 1, 1))
    assert len(text) <= MAX_RECEIPT_CHARS
    assert read_receipt(text).queue == queue


@given(st.one_of(st.text(max_size=1100), st.text("abcABC019-_=", max_size=100)))
def test_invalid_receipts_are_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt):
        read_receipt(text)


@given(RECEIPTS, st.data())
def test_an_altered_receipt_is_refused(receipt: Receipt, data: st.DataObject) -> None:
    text = write_receipt(receipt)
    at = data.draw(st.integers(0, len(text) - 2))  # the last character may have unused bits
    other = data.draw(st.sampled_from("aZ0-_+/ é").filter(lambda character: character != text[at]))
    for touched in (text[:at] + other + text[at + 1 :], text[:at], text + other):
        with pytest.raises(InvalidReceipt):
            read_receipt(touched)
