"""Incremental fetch sessions."""

import pytest

from alpacamq.api.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_SESSION_PARTITIONS,
    MAX_SESSIONS,
    FetchSession,
    FetchSessionNotFound,
    FetchSessions,
    InvalidFetchSessionEpoch,
)
from alpacamq.protocol.fetch_codec import FetchCall, PartitionFetched, PartitionWanted

OWNER = "User:alice"


def call(
    session_id: int = 0,
    epoch: int = INITIAL_EPOCH,
    wanted: dict[bytes, list[int]] | None = None,
    forgotten: dict[bytes, list[int]] | None = None,
) -> FetchCall:
    topics = [
        (topic, [PartitionWanted(index, -1, 0, -1, -1, 1 << 20) for index in indexes])
        for topic, indexes in (wanted or {}).items()
    ]
    return FetchCall(0, 1, 1 << 20, 0, session_id, epoch, topics, list((forgotten or {}).items()), "", -1, -1)


def opened(sessions: FetchSessions, request: FetchCall) -> FetchSession:
    session = sessions.open(request, by_id=False, owner=OWNER)
    assert session is not None
    return session


def names(session: FetchSession) -> list[tuple[bytes, int]]:
    return [(topic, part.partition) for topic, partitions in session.topics() for part in partitions]


def test_a_session_remembers_partitions_and_takes_changes() -> None:
    sessions = FetchSessions()
    first = opened(sessions, call(wanted={b"a": [0, 1], b"b": [0]}))
    again = opened(sessions, call(first.id, 1, wanted={b"c": [5]}, forgotten={b"a": [0]}))
    assert again is first
    assert names(again) == [(b"a", 1), (b"b", 0), (b"c", 5)]


def test_only_the_next_epoch_of_a_session_is_accepted() -> None:
    sessions = FetchSessions()
    session = opened(sessions, call(wanted={b"a": [0]}))
    opened(sessions, call(session.id, 1))
    with pytest.raises(InvalidFetchSessionEpoch):
        sessions.open(call(session.id, 1), by_id=False, owner=OWNER)


def test_a_session_of_another_principal_is_not_found_and_not_ended() -> None:
    sessions = FetchSessions()
    session = opened(sessions, call(wanted={b"a": [0]}))
    with pytest.raises(FetchSessionNotFound):
        sessions.open(call(session.id, 1), by_id=False, owner="User:mallory")
    sessions.open(call(session.id, FINAL_EPOCH), by_id=False, owner="User:mallory")
    sessions.open(call(session.id, wanted={b"b": [0]}), by_id=False, owner="User:mallory")
    assert opened(sessions, call(session.id, 1)) is session


def test_an_unknown_or_closed_session_is_not_found() -> None:
    sessions = FetchSessions()
    session = opened(sessions, call(wanted={b"a": [0]}))
    assert sessions.open(call(session.id, FINAL_EPOCH), by_id=False, owner=OWNER) is None
    with pytest.raises(FetchSessionNotFound):
        sessions.open(call(session.id, 1), by_id=False, owner=OWNER)


def test_a_session_made_with_names_cannot_go_on_with_ids() -> None:
    sessions = FetchSessions()
    session = opened(sessions, call(wanted={b"a": [0]}))
    with pytest.raises(FetchSessionNotFound):
        sessions.open(call(session.id, 1), by_id=True, owner=OWNER)


def test_the_least_recently_used_session_makes_room() -> None:
    sessions = FetchSessions()
    made = [opened(sessions, call(wanted={b"a": [0]})) for _ in range(MAX_SESSIONS)]
    opened(sessions, call(made[0].id, 1))
    opened(sessions, call(wanted={b"a": [0]}))
    opened(sessions, call(made[0].id, 2))
    with pytest.raises(FetchSessionNotFound):
        sessions.open(call(made[1].id, 1), by_id=False, owner=OWNER)


def test_too_many_partitions_are_served_without_a_session() -> None:
    sessions = FetchSessions()
    assert (
        sessions.open(call(wanted={b"a": list(range(MAX_SESSION_PARTITIONS + 1))}), by_id=False, owner=OWNER)
        is None
    )


def test_a_session_that_grows_too_large_is_dropped() -> None:
    sessions = FetchSessions()
    session = opened(sessions, call(wanted={b"a": [0]}))
    with pytest.raises(FetchSessionNotFound, match="too large"):
        sessions.open(
            call(session.id, 1, wanted={b"b": list(range(MAX_SESSION_PARTITIONS))}), by_id=False, owner=OWNER
        )
    with pytest.raises(FetchSessionNotFound, match="unknown fetch session"):
        sessions.open(call(session.id, 2), by_id=False, owner=OWNER)


def test_only_changed_partitions_are_returned() -> None:
    session = opened(FetchSessions(), call(wanted={b"a": [0]}))
    nothing = PartitionFetched(0, 0, 10, 10, 0)
    assert session.is_news((b"a", 0), nothing)
    session.tell((b"a", 0), nothing)
    assert not session.is_news((b"a", 0), nothing)
    assert session.is_news((b"a", 0), nothing._replace(high_watermark=11))
    assert session.is_news((b"a", 0), nothing._replace(records_bytes=100))
    assert session.is_news((b"a", 0), nothing._replace(error_code=1))


def test_a_partition_that_had_records_goes_last_so_that_none_starves() -> None:
    session = opened(FetchSessions(), call(wanted={b"a": [0, 1, 2]}))
    session.tell((b"a", 0), PartitionFetched(0, 0, 10, 10, 0, records_bytes=100))
    assert names(session) == [(b"a", 1), (b"a", 2), (b"a", 0)]
