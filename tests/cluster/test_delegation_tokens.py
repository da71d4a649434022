"""Delegation tokens in the metadata."""

import pytest

from alpacamq.cluster.access import MAX_TOKENS_OF_OWNER
from alpacamq.cluster.brokers import FeatureRange
from alpacamq.cluster.commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from alpacamq.cluster.image import ClusterImage
from alpacamq.model.errors import (
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    FeatureNotEnabled,
    InvalidRequest,
)
from alpacamq.security.delegation_tokens import DelegationToken, hash_of, hmac_of

from .clusters import Cluster

HOUR_MS = 3_600_000
OWNER, RENEWER, OTHER = "User:alice", "User:bob", "User:mallory"


def create(cluster: Cluster, name: str = "t1", owner: str = OWNER) -> DelegationToken:
    return cluster.ask(
        CreateDelegationToken(
            id=name,
            owner=owner,
            requester=owner,
            renewers=(RENEWER,),
            hmac_hash=hash_of(hmac_of(b"secret", name)),
            credentials={},
            max_lifetime_ms=3 * HOUR_MS,
            renew_ms=HOUR_MS,
        )
    )


def renew(cluster: Cluster, token: DelegationToken, by: str = OWNER, ms: int = HOUR_MS) -> DelegationToken:
    return cluster.ask(RenewDelegationToken(hmac_hash=token.hmac_hash, principal=by, renew_ms=ms))


def expire(cluster: Cluster, token: DelegationToken, by: str = OWNER, ms: int = -1) -> DelegationToken:
    return cluster.ask(ExpireDelegationToken(hmac_hash=token.hmac_hash, principal=by, expire_ms=ms))


def replayed(image: ClusterImage) -> ClusterImage:
    copy = ClusterImage()
    copy.apply(image.changes())
    return copy


def test_a_token_is_found_by_its_hash_also_after_a_replay() -> None:
    cluster = Cluster(1)
    token = create(cluster)
    for image in (cluster.image, replayed(cluster.image), cluster.image.copy()):
        assert image.delegation_token_by_hash(token.hmac_hash) == token
    expire(cluster, token)
    for image in (cluster.image, replayed(cluster.image)):
        assert image.delegation_token_by_hash(token.hmac_hash) is None
        assert not image.delegation_tokens


def test_a_repeated_command_finds_the_token_that_it_created() -> None:
    cluster = Cluster(1)
    first = create(cluster)
    cluster.advance(1000, heard=[1])
    assert create(cluster) == first
    with pytest.raises(InvalidRequest, match="exists already"):
        cluster.ask(
            CreateDelegationToken(
                id="t1",
                owner=OTHER,
                requester=OTHER,
                hmac_hash="other",
                credentials={},
                max_lifetime_ms=1,
                renew_ms=1,
            )
        )


def test_renewals_end_with_the_maximum() -> None:
    cluster = Cluster(1)
    token = create(cluster)
    for _ in range(5):
        cluster.advance(HOUR_MS // 2, heard=[1])
        token = renew(cluster, token, RENEWER)
    assert token.expires_ms == token.max_ms == token.issued_ms + 3 * HOUR_MS


def test_only_owner_and_renewers_change_a_token() -> None:
    cluster = Cluster(1)
    token = create(cluster)
    for change in (renew, expire):
        with pytest.raises(DelegationTokenOwnerMismatch):
            change(cluster, token, OTHER)
    assert cluster.image.delegation_tokens == {"t1": token}


def test_an_expired_token_is_removed_by_the_controller() -> None:
    cluster = Cluster(1)
    token, other = create(cluster), create(cluster, "t2")
    other = expire(cluster, other, ms=10 * HOUR_MS)
    assert other.expires_ms == other.max_ms
    cluster.advance(HOUR_MS, heard=[1])
    cluster.now_ms += 1  # without a tick
    with pytest.raises(DelegationTokenExpired):
        renew(cluster, token)
    with pytest.raises(DelegationTokenExpired):
        expire(cluster, token, ms=1)
    cluster.advance(cluster.settings.token_check_ms, heard=[1])
    assert set(cluster.image.delegation_tokens) == {"t2"}
    with pytest.raises(DelegationTokenNotFound):
        renew(cluster, token)


def test_expired_tokens_are_looked_for_at_an_interval() -> None:
    cluster = Cluster(1)
    cluster.tick()
    begun_ms = cluster.now_ms
    expire(cluster, create(cluster), ms=1000)
    cluster.now_ms = begun_ms + cluster.settings.token_check_ms - 1
    cluster.tick()
    assert cluster.image.delegation_tokens
    cluster.now_ms += 1
    cluster.tick()
    assert not cluster.image.delegation_tokens


def test_an_owner_has_a_limited_number_of_tokens() -> None:
    cluster = Cluster(1)
    for number in range(MAX_TOKENS_OF_OWNER):
        create(cluster, f"t{number}")
    with pytest.raises(InvalidRequest, match="an owner has at most"):
        create(cluster, "one more")
    create(cluster, "of another", OTHER)


def test_brokers_of_an_older_version_are_not_given_tokens() -> None:
    cluster = Cluster(0)
    cluster.register(1, features=FeatureRange(1, 2))
    cluster.register(2)
    with pytest.raises(FeatureNotEnabled, match="delegation tokens need level 3"):
        create(cluster)
