"""What the metadata has about sessions of browsers: the secret that signs them, and those that were ended."""

import pytest

from alpacamq.cluster import access
from alpacamq.cluster.access import ENDED_MARGIN_MS, MAX_ENDED_OF_USER
from alpacamq.cluster.brokers import FeatureRange
from alpacamq.cluster.commands import EnableSessions, EndSession
from alpacamq.cluster.image import VERSION_FEATURE, ClusterImage
from alpacamq.model.errors import FeatureNotEnabled
from alpacamq.security.sessions import Session

from .clusters import Cluster

HOUR_MS = 3_600_000


def session(name: str, *, user: str = "bob", began_ms: int = 0) -> Session:
    return Session(name, user, "", "", False, began_ms, began_ms)


def end(cluster: Cluster, ended: Session, remaining_ms: int = HOUR_MS) -> None:
    cluster.ask(EndSession(id=ended.id, user=ended.user, began_ms=ended.began_ms, remaining_ms=remaining_ms))


def is_ended(image: ClusterImage, asked: Session) -> bool:
    found = image.ended_sessions.get(asked.user)
    return found is not None and found.has(asked)


def replayed(image: ClusterImage) -> ClusterImage:
    copy = ClusterImage()
    copy.apply(image.changes())
    return copy


def test_the_first_secret_stays() -> None:
    cluster = Cluster(3)
    for secret in (b"first", b"second"):
        cluster.ask(EnableSessions(secret=secret))
        for image in (cluster.image, replayed(cluster.image), cluster.image.copy()):
            assert image.session_secret == b"first"


def test_an_ended_session_is_known_until_it_would_have_ended_by_itself() -> None:
    cluster = Cluster(1)
    end(cluster, session("a"), HOUR_MS)
    end(cluster, session("b"), 3 * HOUR_MS)
    end(cluster, session("b"), 3 * HOUR_MS)  # the command may be repeated
    for image in (cluster.image, replayed(cluster.image), cluster.image.copy()):
        assert is_ended(image, session("a"))
        assert not is_ended(image, session("c"))
        assert not is_ended(image, session("a", user="alice"))
        assert len(image.ended_sessions["bob"].sessions) == 2
    cluster.advance(HOUR_MS + ENDED_MARGIN_MS + cluster.settings.token_check_ms, heard=[1])
    assert [each.id for each in cluster.image.ended_sessions["bob"].sessions] == ["b"]
    cluster.advance(2 * HOUR_MS, heard=[1])
    assert not cluster.image.ended_sessions


def test_with_too_many_ended_sessions_all_that_began_before_have_ended() -> None:
    cluster = Cluster(1)
    for number in range(MAX_ENDED_OF_USER + 1):
        end(cluster, session(str(number), began_ms=number * 10))
    last_ms = MAX_ENDED_OF_USER * 10
    for image in (cluster.image, replayed(cluster.image)):
        assert not image.ended_sessions["bob"].sessions
        assert is_ended(image, session("0"))
        assert is_ended(image, session("not ended by its user", began_ms=last_ms))
        assert not is_ended(image, session("later", began_ms=last_ms + 1))
        assert not is_ended(image, session("0", user="alice"))
    end(cluster, session("later", began_ms=last_ms + 1))
    assert is_ended(cluster.image, session("later", began_ms=last_ms + 1))
    assert is_ended(cluster.image, session("0"))
    cluster.advance(HOUR_MS + ENDED_MARGIN_MS + cluster.settings.token_check_ms, heard=[1])
    assert not cluster.image.ended_sessions


def test_the_sessions_that_are_listed_are_limited_for_all_users_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "MAX_ENDED_SESSIONS", 3)
    cluster = Cluster(1)
    for number in range(10):
        end(cluster, session("s", user=f"u{number}", began_ms=number))
    assert sum(len(each.sessions) for each in cluster.image.ended_sessions.values()) == 3
    assert all(is_ended(cluster.image, session("s", user=f"u{n}", began_ms=n)) for n in range(10))


def test_a_browser_does_not_raise_the_level_of_a_cluster() -> None:
    cluster = Cluster(0)
    cluster.register(1, features=FeatureRange(1, 2))
    for command in (
        EnableSessions(secret=b"s"),
        EndSession(id="a", user="bob", began_ms=0, remaining_ms=1),
    ):
        with pytest.raises(FeatureNotEnabled):
            cluster.ask(command)
    assert cluster.image.features[VERSION_FEATURE] == 2
