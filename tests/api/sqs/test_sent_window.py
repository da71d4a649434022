"""What is remembered of messages sent to a FIFO queue."""

import asyncio

from alpacamq.api.sqs.sent_window import WINDOW_MS, Remembered, Room, SentWindow, key_of

KEY = key_of("id", None)
SENT = Remembered(1_000, 2, 77)


def test_a_message_is_remembered_for_five_minutes() -> None:
    window = SentWindow(Room())
    window.remember(KEY, SENT)
    assert window.find(KEY, SENT.sent_ms + WINDOW_MS - 1) == SENT
    assert window.find(KEY, SENT.sent_ms + WINDOW_MS) is None


def test_what_is_forgotten_gives_its_room_back() -> None:
    room = Room()
    window = SentWindow(room)
    for number in range(10):
        window.remember(key_of(str(number), None), Remembered(number, 0, number))
    assert room.used == 10
    window.forget_before(4)
    assert room.used == 5
    window.clear()
    assert room.used == 0


def test_ids_are_told_apart_per_group_where_that_is_asked_for() -> None:
    assert key_of("id", "a") != key_of("id", "b") != KEY
    assert key_of("id", "a") == key_of("id", "a")


async def test_who_comes_second_is_told_what_became_of_the_first() -> None:
    room = Room()
    window = SentWindow(room)
    window.claim(KEY)
    answer = window.find(KEY, 0)
    assert isinstance(answer, asyncio.Future)
    window.confirm(KEY, SENT)
    assert await answer == SENT
    assert window.find(KEY, SENT.sent_ms) == SENT
    assert room.used == 1


async def test_a_claim_given_up_leaves_nothing_behind() -> None:
    room = Room()
    window = SentWindow(room)
    window.claim(KEY)
    answer = window.find(KEY, 0)
    assert isinstance(answer, asyncio.Future)
    window.give_up(KEY)
    assert await answer is None
    assert window.find(KEY, 0) is None
    assert room.used == 0


def test_numbers_of_delayed_messages_rise_above_all_that_are_in_their_partition() -> None:
    window = SentWindow(Room())
    assert [window.next_number(0, end_offset) for end_offset in (5, 5, 20)] == [5, 6, 20]
    assert window.next_number(1, 3) == 3
    window.remember(KEY, Remembered(1, 0, 40, "an-id"))
    assert window.next_number(0, 20) == 41
