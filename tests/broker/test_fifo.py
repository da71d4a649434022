"""Deduplication of messages in FIFO queues."""

import asyncio

from alpacamq.broker.queue.fifo import (
    WINDOW_MS,
    DeduplicationScope,
    DeduplicationWindow,
    FifoPublished,
    Usage,
    deduplication_key,
)


def key_of(
    deduplication_id: str, group: str = "g", scope: DeduplicationScope = DeduplicationScope.QUEUE
) -> bytes:
    return deduplication_key(deduplication_id.encode(), group.encode(), scope)


KEY = key_of("id")
SENT = FifoPublished(1_000, 2, 77)


def test_a_message_is_a_duplicate_for_five_minutes() -> None:
    window = DeduplicationWindow(Usage())
    window.add(KEY, SENT)
    assert window.find(KEY, SENT.sent_ms + WINDOW_MS - 1) == SENT
    assert window.find(KEY, SENT.sent_ms + WINDOW_MS) is None


def test_evicted_entries_no_longer_count() -> None:
    usage = Usage()
    window = DeduplicationWindow(usage)
    for number in range(10):
        window.add(key_of(str(number)), FifoPublished(number, 0, number))
    assert usage.entries == 10
    window.evict_before(4)
    assert usage.entries == 5
    window.clear()
    assert usage.entries == 0


def test_the_scope_decides_whether_groups_share_ids() -> None:
    per_group = DeduplicationScope.MESSAGE_GROUP
    assert key_of("id", "a", per_group) != key_of("id", "b", per_group) != KEY
    assert key_of("id", "a", per_group) == key_of("id", "a", per_group)
    assert key_of("id", "a") == key_of("id", "b")


def test_an_id_that_is_added_again_does_not_keep_older_ones() -> None:
    usage = Usage()
    window = DeduplicationWindow(usage)
    window.add(KEY, FifoPublished(0, 0, 0))
    window.add(key_of("other"), FifoPublished(1000, 0, 1))
    window.add(KEY, FifoPublished(200_000, 0, 2))
    assert usage.entries == 2
    assert window.find(key_of("other"), 1000 + WINDOW_MS) is None
    assert window.find(KEY, 1000 + WINDOW_MS) == FifoPublished(200_000, 0, 2)
    assert usage.entries == 1


async def test_a_duplicate_waits_for_the_result_of_the_first() -> None:
    usage = Usage()
    window = DeduplicationWindow(usage)
    window.claim(KEY)
    answer = window.find(KEY, 0)
    assert isinstance(answer, asyncio.Future)
    window.confirm(KEY, SENT)
    assert await answer == SENT
    assert window.find(KEY, SENT.sent_ms) == SENT
    assert usage.entries == 1


async def test_an_abandoned_claim_leaves_no_entry() -> None:
    usage = Usage()
    window = DeduplicationWindow(usage)
    window.claim(KEY)
    answer = window.find(KEY, 0)
    assert isinstance(answer, asyncio.Future)
    window.abandon(KEY)
    assert await answer is None
    assert window.find(KEY, 0) is None
    assert usage.entries == 0


def test_sequence_numbers_of_delayed_messages_exceed_all_offsets_of_their_partition() -> None:
    window = DeduplicationWindow(Usage())
    assert [window.next_sequence(0, end_offset) for end_offset in (5, 5, 20)] == [5, 6, 20]
    assert window.next_sequence(1, 3) == 3
    window.add(KEY, FifoPublished(1, 0, 40, "an-id"))
    assert window.next_sequence(0, 20) == 41
