"""Share sessions: epochs in order, bounds, and what their members hold when they end."""

from uuid import UUID

import pytest

from alpacamq.api.kafka.share import sessions as share_sessions
from alpacamq.api.kafka.share.sessions import (
    IDLE_SECONDS,
    InvalidShareSessionEpoch,
    SessionKey,
    ShareSession,
    ShareSessionLimitReached,
    ShareSessionNotFound,
    ShareSessions,
)
from alpacamq.coordinator.share.messages import MemberExpired

TOPIC = UUID(int=1)
KEY = ("group", "member")


class Stage:
    """Sessions, the time, and what became of those that ended."""

    def __init__(self) -> None:
        self.given_back: list[MemberExpired] = []
        self.ended: list[ShareSession] = []
        self.sessions = ShareSessions(self.given_back.append)
        self.now = 0.0

    def open(self, *indexes: int, key: SessionKey = KEY) -> ShareSession:
        return self.sessions.open(key, [(TOPIC, index) for index in indexes], self.now, self.ended.append)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def indexes(session: ShareSession) -> list[int]:
    return [index for _, index in session.partitions]


def test_a_session_remembers_partitions_and_takes_changes(stage: Stage) -> None:
    first = stage.open(0, 1)
    again = stage.sessions.proceed(KEY, 1, 0.0, added=[(TOPIC, 5)], forgotten=[(TOPIC, 0)])
    assert again is first
    assert indexes(again) == [1, 5]


def test_only_the_next_epoch_is_accepted(stage: Stage) -> None:
    stage.open(0)
    for epoch in (0, 2, -7):
        with pytest.raises(InvalidShareSessionEpoch):
            stage.sessions.proceed(KEY, epoch, 0.0)
    stage.sessions.proceed(KEY, 1, 0.0)
    with pytest.raises(InvalidShareSessionEpoch):
        stage.sessions.proceed(KEY, 1, 0.0)


def test_epochs_wrap_around(stage: Stage) -> None:
    stage.open(0).next_epoch = 2**31 - 1
    assert stage.sessions.proceed(KEY, 2**31 - 1, 0.0).next_epoch == 1


def test_an_unknown_session_is_an_error(stage: Stage) -> None:
    with pytest.raises(ShareSessionNotFound):
        stage.sessions.proceed(KEY, 1, 0.0)


def test_a_new_session_keeps_the_records_of_its_member(stage: Stage) -> None:
    first = stage.open(0)
    first.held["orders"] = {1}
    second = stage.open(1)
    assert not first.is_open
    assert stage.ended == [first]
    assert not stage.given_back
    assert second.held == {"orders": {1}}
    stage.sessions.drop(first)  # the connection of the first closes late
    assert stage.sessions.find(KEY) is second


def test_records_are_released_when_a_session_is_evicted(stage: Stage) -> None:
    session = stage.open(0)
    session.held |= {"orders": {2, 1}, "invoices": {0}}
    stage.sessions.drop(session)
    assert stage.given_back == [
        MemberExpired(
            group="group",
            member_id="member",
            topics=("invoices", "orders"),
            partitions={"orders": (1, 2), "invoices": (0,)},
        )
    ]
    assert not stage.sessions


def test_at_the_limit_new_sessions_need_an_idle_one_to_evict(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_sessions, "MAX_SESSIONS", 3)
    idle, busy, _ = [stage.open(0, key=("group", name)) for name in "abc"]
    with pytest.raises(ShareSessionLimitReached):
        stage.open(0)
    stage.now = IDLE_SECONDS
    stage.sessions.proceed(busy.key, 1, stage.now)
    stage.open(0)
    assert [each.member_id for each in stage.given_back] == [idle.key[1]]
    assert busy.is_open


def test_a_session_has_a_maximum_of_partitions(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "MAX_SESSION_PARTITIONS", 3)
    with pytest.raises(ShareSessionLimitReached):
        stage.open(*range(4))
    assert not stage.sessions
    stage.open(*range(3))
    with pytest.raises(ShareSessionLimitReached):
        stage.sessions.proceed(KEY, 1, 0.0, added=[(TOPIC, 9)])


def test_all_sessions_together_have_a_maximum_of_partitions(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_sessions, "MAX_CACHED_PARTITIONS", 4)
    idle = stage.open(0, 1, key=("group", "idle"))
    stage.now = IDLE_SECONDS
    growing = stage.open(0)
    stage.sessions.proceed(KEY, 1, stage.now, added=[(TOPIC, 1), (TOPIC, 2), (TOPIC, 3)])
    assert not idle.is_open
    with pytest.raises(ShareSessionLimitReached):
        stage.sessions.proceed(KEY, 2, stage.now, added=[(TOPIC, 4)])
    assert not growing.is_open
    assert not stage.sessions


def test_partitions_with_records_move_to_the_end(stage: Stage) -> None:
    session = stage.open(0, 1, 2)
    session.served((TOPIC, 0))
    session.served((TOPIC, 99))
    assert indexes(session) == [1, 2, 0]
