"""Share groups: joins, assignments, expiry and restarts."""

from random import Random

import msgspec
import pytest

from alpacamq.coordinator.share.config import ShareConfig
from alpacamq.coordinator.share.messages import (
    MemberExpired,
    ShareGroupState,
    ShareHeartbeatReply,
    ShareHeartbeatRequest,
)
from alpacamq.model.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    UnknownMember,
)

from .consumer_clients import Topics
from .share_clients import CONFIG, GROUP, MAX_MEMBERS, ShareHost, beating, joining


@pytest.fixture
def host() -> ShareHost:
    return ShareHost(Topics(a=2, b=3))


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(msgspec.structs.replace(joining("m", "a"), group=""), id="no group"),
        pytest.param(joining("", "a"), id="no member id"),
        pytest.param(joining("m" * 300, "a"), id="a member id that is too long"),
        pytest.param(joining("m"), id="no subscription"),
        pytest.param(beating("m", 0), id="joining without a subscription"),
        pytest.param(beating("m", -2), id="an invalid epoch"),
        pytest.param(msgspec.structs.replace(joining("m", "a"), rack_id=""), id="an empty rack"),
        pytest.param(joining("m", "x" * 300_000), id="a subscription that is too long"),
    ],
)
def test_an_invalid_request_is_rejected(host: ShareHost, request_: ShareHeartbeatRequest) -> None:
    assert host.error_of(request_) is InvalidRequest
    assert not host.log


def test_an_epoch_beyond_that_of_the_group_is_fenced(host: ShareHost) -> None:
    epoch = host.reply_to(joining("m", "a")).member_epoch
    assert host.error_of(beating("m", epoch + 1)) is FencedMemberEpoch


def test_a_member_with_an_old_epoch_gets_the_current_assignment(host: ShareHost) -> None:
    first = host.reply_to(joining("m1", "a"))
    second = host.reply_to(joining("m2", "a"))
    reply = host.reply_to(beating("m1", first.member_epoch))
    assert reply.member_epoch == second.member_epoch
    assert reply.assignment is not None


def test_an_unknown_member_gets_an_error(host: ShareHost) -> None:
    host.reply_to(joining("m1", "a"))
    assert host.error_of(beating("m2", 1)) is UnknownMember
    assert host.error_of(beating("m2", -1)) is UnknownMember


def test_the_number_of_members_is_limited(host: ShareHost) -> None:
    for number in range(MAX_MEMBERS):
        host.reply_to(joining(f"m{number}", "a"))
    assert host.error_of(joining("one more", "a")) is GroupMaxSizeReached
    assert isinstance(host.ask(joining("m0", "b")), ShareHeartbeatReply)


def test_a_member_gets_new_topics_and_partitions(host: ShareHost) -> None:
    first = host.reply_to(joining("m", "a", "later"))
    assert host.reply_to(beating("m", first.member_epoch)).assignment is None
    host.topics.put("a", 4)
    grown = host.reply_to(beating("m", first.member_epoch))
    assert grown.assignment is not None
    assert [sorted(indexes) for indexes in grown.assignment.values()] == [[0, 1, 2, 3]]
    host.topics.put("later", 1)
    assert len(host.reply_to(beating("m", grown.member_epoch)).assignment or ()) == 2


def test_internal_topics_are_not_shared(host: ShareHost) -> None:
    host.topics.put("__consumer_offsets", 2)
    assert host.reply_to(joining("m", "__consumer_offsets")).assignment == {}


def test_an_expired_member_is_removed_and_reported_with_its_topics(host: ShareHost) -> None:
    host.reply_to(joining("m", "b", "a"))
    host.advance(CONFIG.session_timeout_ms - 1)
    assert host.members() == ["m"]
    host.advance(1)
    assert host.members() == []
    assert host.expired == [MemberExpired(group=GROUP, member_id="m", topics=("a", "b"))]


def test_a_member_that_leaves_is_not_reported_as_expired(host: ShareHost) -> None:
    epoch = host.reply_to(joining("m", "a")).member_epoch
    assert host.reply_to(beating("m", -1)).member_epoch == -1
    assert host.error_of(beating("m", epoch)) is UnknownMember
    host.advance(CONFIG.session_timeout_ms)
    assert not host.expired


def test_settings_apply_from_the_next_heartbeat(host: ShareHost) -> None:
    epoch = host.reply_to(joining("m", "a")).member_epoch
    host.config = ShareConfig(session_timeout_ms=2_000, heartbeat_interval_ms=500)
    assert host.reply_to(beating("m", epoch)).heartbeat_interval_ms == 500
    host.advance(2_000)
    assert host.members() == []


def test_only_an_empty_group_can_be_deleted(host: ShareHost) -> None:
    host.reply_to(joining("m", "a"))
    with pytest.raises(NonEmptyGroup):
        host.group.delete()
    host.reply_to(beating("m", -1))
    host.log += host.group.delete()
    host.restart()
    assert host.members() == []


def test_after_a_restart_every_member_gets_its_assignment_again(host: ShareHost) -> None:
    epoch = host.reply_to(joining("m", "a")).member_epoch
    host.restart()
    reply = host.reply_to(beating("m", epoch))
    assert reply.assignment is not None
    assert reply.member_epoch > epoch
    assert host.group.describe().state is ShareGroupState.STABLE


@pytest.mark.parametrize("seed", range(40))
def test_random_events_end_in_a_complete_assignment(seed: int) -> None:
    """Run joins, leaves, crashes, lost replies, topic changes and restarts."""
    random = Random(seed)
    host = ShareHost(Topics(a=random.randint(1, 5), b=random.randint(1, 5)))
    epochs: dict[str, int] = {}
    wants: dict[str, tuple[str, ...]] = {}

    def beat(name: str) -> None:
        answer = host.ask(beating(name, epochs[name]) if epochs[name] else joining(name, *wants[name]))
        if not isinstance(answer, ShareHeartbeatReply):
            epochs[name] = 0
        elif random.random() < 0.8:  # or the answer is lost
            epochs[name] = answer.member_epoch

    for _ in range(150):
        match random.randrange(9):
            case 0 if len(epochs) < MAX_MEMBERS:
                name = f"m{random.randrange(20)}"
                epochs[name] = 0
                wants[name] = tuple(random.sample(("a", "b"), random.randint(1, 2)))
            case 1 if epochs:
                name = random.choice([*epochs])
                host.ask(beating(name, -1))
                del epochs[name]
            case 2 if epochs:
                del epochs[random.choice([*epochs])]  # crashes
            case 3:
                host.topics.put("a", random.randint(1, 6))
            case 4:
                random.choice([host.restart, host.restart_from_snapshot, host.restart_from_compacted])()
            case 5:
                host.advance(random.randint(1, 30_000))
            case _ if epochs:
                beat(random.choice([*epochs]))
    for _ in range(4):
        host.advance(CONFIG.session_timeout_ms // 2)
        for name in epochs:
            host.now_ms += 1
            answer = host.ask(beating(name, epochs[name]) if epochs[name] else joining(name, *wants[name]))
            epochs[name] = answer.member_epoch if isinstance(answer, ShareHeartbeatReply) else 0
    described = host.group.describe()
    assert host.members() == sorted(epochs)
    assert {member.member_epoch for member in described.members} <= {described.epoch}
    for topic_name in ("a", "b"):
        topic = host.topics.get(topic_name)
        assert topic is not None
        held = [member.assignment.get(topic.id, frozenset()) for member in described.members]
        if any(topic_name in wants[name] for name in epochs):
            assert set().union(*held) == set(range(topic.partitions))
