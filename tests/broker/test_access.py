"""Authentication and authorization in the broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from alpacamq.broker.access import (
    FREE_FAILURES,
    WRONG_PASSWORD_SECONDS,
    Access,
    Caller,
    FailureLimit,
    SecuritySettings,
)
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.cluster.commands import UserEdit
from alpacamq.model.errors import (
    AuthenticationFailed,
    ClusterNotAuthorized,
    GroupNotAuthorized,
    InvalidPrincipal,
    RateLimited,
    TopicNotAuthorized,
    UnknownApiKey,
)
from alpacamq.model.ids import BrokerId
from alpacamq.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from alpacamq.security.principals import ANONYMOUS, user
from alpacamq.security.scram import DEFAULT_ITERATIONS, MAX_ITERATIONS, Mechanism, credential_of

HERE = "127.0.0.1"


@pytest.fixture
async def access(tmp_path: Path) -> AsyncIterator[Access]:
    settings = BrokerSettings(
        node_id=BrokerId(1),
        data_directory=tmp_path,
        security=SecuritySettings(authentication=True, acls=True, super_users=(user("admin"),)),
    )
    broker = Broker(settings)
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        yield broker.access
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


async def create(access: Access, name: str, password: str) -> None:
    await access.set_password(name, password, tuple(Mechanism), DEFAULT_ITERATIONS)


async def test_a_user_logs_in_with_its_password_until_it_is_changed(access: Access) -> None:
    await create(access, "alice", "first")
    for _ in range(2):  # the second time without hashing
        assert (await access.log_in("alice", "first", HERE)).name == "User:alice"
    await create(access, "alice", "second")
    with pytest.raises(AuthenticationFailed):
        await access.log_in("alice", "first", HERE)
    await access.log_in("alice", "second", HERE)
    await access.alter_users([UserEdit("alice", None)])
    with pytest.raises(AuthenticationFailed):
        await access.log_in("alice", "second", HERE)


async def test_an_unknown_user_and_a_wrong_password_get_the_same_answer(access: Access) -> None:
    await create(access, "alice", "secret")
    answers = []
    for name in ("alice", "nobody"):
        with pytest.raises(AuthenticationFailed) as refused:
            await access.log_in(name, "wrong", HERE)
        answers.append(str(refused.value))
    assert answers[0] == answers[1]


async def test_addresses_with_many_wrong_passwords_are_refused_and_others_are_not(access: Access) -> None:
    await create(access, "alice", "secret")
    for _ in range(2 * FREE_FAILURES):
        access.failed(HERE)
    with pytest.raises(RateLimited):
        await access.log_in("alice", "secret", HERE)
    await access.log_in("alice", "secret", "10.0.0.1")


async def test_an_address_has_few_passwords_checked_at_the_same_time(access: Access) -> None:
    await create(access, "alice", "secret")
    tried = [access.log_in("alice", f"wrong {number}", HERE) for number in range(5 * FREE_FAILURES)]
    results = await asyncio.gather(*tried, return_exceptions=True)
    refused = [each for each in results if isinstance(each, RateLimited)]
    assert len(refused) >= 3 * FREE_FAILURES
    await access.log_in("alice", "secret", "10.0.0.1")


def test_all_addresses_of_an_ipv6_network_count_as_one() -> None:
    limit = FailureLimit(lambda: 0.0)
    for number in range(FREE_FAILURES):
        limit.count(f"2001:db8::{number + 1:x}")
    assert limit.is_exceeded("2001:db8::ffff:1")
    assert not limit.is_exceeded("2001:db8:0:1::1")


async def test_a_wrong_password_takes_as_long_for_users_with_costly_credentials(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer does not depend on how long hashing takes, nor on whether the user exists."""
    await access.set_password("alice", "secret", [Mechanism.SHA_512], MAX_ITERATIONS)
    waits: list[float] = []
    real_sleep, login = asyncio.sleep, asyncio.current_task()

    async def sleep(seconds: float) -> None:
        # Tasks of the broker sleep too; one that repeats something would never let others run.
        if asyncio.current_task() is login:
            waits.append(seconds)
        else:
            await real_sleep(seconds)

    # Of this module only: tasks of the broker that sleep in a loop would never end it.
    names = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr("alpacamq.broker.access.asyncio", names)
    for name in ("alice", "nobody"):
        with pytest.raises(AuthenticationFailed):
            await access.log_in(name, "wrong", HERE)
        # What hashing took is part of the time.
        assert waits.pop() < WRONG_PASSWORD_SECONDS


async def test_the_challenge_of_an_unknown_user_is_like_that_of_some_user(access: Access) -> None:
    for mechanism in Mechanism:
        assert access.credential(mechanism, "nobody").iterations == DEFAULT_ITERATIONS
    salts = {"alice": 16, "bob": 40}
    edits = [
        UserEdit(name, Mechanism.SHA_256, credential_of(Mechanism.SHA_256, bytes(32), bytes(size), 8192))
        for name, size in salts.items()
    ]
    await access.alter_users(edits)
    made_up = [access.credential(Mechanism.SHA_256, f"nobody-{number}") for number in range(50)]
    assert {each.iterations for each in made_up} == {8192}
    assert {len(each.salt) for each in made_up} == {16, 40}
    assert made_up[0] == access.credential(Mechanism.SHA_256, "nobody-0")


def test_failures_are_forgotten_with_time() -> None:
    now = 0.0
    limit = FailureLimit(lambda: now)
    for _ in range(FREE_FAILURES):
        assert not limit.is_exceeded(HERE)
        limit.count(HERE)
    assert limit.is_exceeded(HERE)
    now += 1.5
    for _ in range(2):
        assert not limit.is_exceeded(HERE)
        limit.count(HERE)
    assert limit.is_exceeded(HERE)


async def test_a_user_needs_a_valid_name(access: Access) -> None:
    with pytest.raises(InvalidPrincipal, match="control"):
        await create(access, "a\nb", "secret")


async def test_a_rule_is_in_force_with_the_next_decision(access: Access) -> None:
    await create(access, "alice", "secret")
    alice = await access.log_in("alice", "secret", HERE)
    assert not access.may_topic(alice, Operation.READ, "orders")
    rule = Acl(
        ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
    )
    assert (await access.create_acls([rule])).failures == (None,)
    assert access.may_topic(alice, Operation.READ, "orders")
    assert list(access.acls(AclFilter())) == [rule]
    await access.delete_acls([AclFilter()])
    assert not access.may_topic(alice, Operation.READ, "orders")


async def test_what_is_not_allowed_has_an_error_of_its_kind(access: Access) -> None:
    anonymous = Caller(ANONYMOUS, HERE)
    with pytest.raises(TopicNotAuthorized, match="WRITE is not allowed on topic 'orders'"):
        access.check_topic(anonymous, Operation.WRITE, "orders")
    with pytest.raises(GroupNotAuthorized):
        access.check_group(anonymous, Operation.READ, "g")
    with pytest.raises(ClusterNotAuthorized, match="CREATE is not allowed on the cluster"):
        access.check_cluster(anonymous, Operation.CREATE)


async def test_a_key_is_replaced_by_one_with_the_same_rights(access: Access) -> None:
    old, old_text = await access.create_api_key(
        "admin", expires_ms=None, scopes=[Operation.READ], description="reports"
    )
    new, text = await access.rotate_api_key(old, overlap_ms=3_600_000)
    assert (new.owner, new.scopes, new.description) == (old.owner, old.scopes, old.description)
    assert {access.by_key(each, HERE).key_id for each in (text, old_text)} == {new.id, old.id}
    await access.rotate_api_key(old, overlap_ms=0)
    with pytest.raises(AuthenticationFailed, match="has expired"):
        access.by_key(old_text, HERE)
    assert access.by_key(text, HERE).key_id == new.id


async def test_a_key_acts_for_its_owner_within_its_scopes(access: Access) -> None:
    key, text = await access.create_api_key(
        "admin", expires_ms=None, scopes=[Operation.READ], description="reports"
    )
    caller = access.by_key(text, HERE)
    assert caller.name == "User:admin"
    assert access.may_topic(caller, Operation.READ, "orders")
    assert not access.may_topic(caller, Operation.WRITE, "orders")
    assert access.last_use_ms[key.id] > 0
    await access.delete_api_key(key.id)
    with pytest.raises(AuthenticationFailed, match="unknown API key"):
        access.by_key(text, HERE)
    with pytest.raises(UnknownApiKey):
        await access.delete_api_key(key.id)


async def test_an_expired_key_is_refused(access: Access) -> None:
    _, text = await access.create_api_key("admin", expires_ms=1, scopes=(), description="")
    with pytest.raises(AuthenticationFailed, match="expired"):
        access.by_key(text, HERE)


@pytest.mark.parametrize("text", ["amq_unknown_secret", "nonsense"])
async def test_an_unknown_key_is_refused(access: Access, text: str) -> None:
    with pytest.raises(AuthenticationFailed, match="unknown API key"):
        access.by_key(text, HERE)


async def test_a_key_with_another_secret_is_refused(access: Access) -> None:
    key, _ = await access.create_api_key("admin", expires_ms=None, scopes=(), description="")
    with pytest.raises(AuthenticationFailed, match="unknown API key"):
        access.by_key(f"amq_{key.id}_{key.aws_secret}", HERE)
