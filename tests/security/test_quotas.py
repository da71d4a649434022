"""Quotas: entities and their precedence, and the limiter."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.errors import InvalidRequest, UnsupportedQuotaEntity
from alpacamq.security.quotas import (
    CLIENT_ID,
    IP,
    USER,
    Applied,
    ClientQuota,
    Entity,
    EntityPart,
    FilterPart,
    MatchType,
    QuotaEdit,
    QuotaFilter,
    QuotaKey,
    QuotaOp,
    QuotaTable,
    TokenBucket,
    bucket_of,
    edited,
    entity_of,
)

DEFAULT = None
MAX_THROTTLE_SECONDS = 600


def entity(**names: str | None) -> Entity:
    return entity_of(EntityPart(type_.replace("_", "-"), name) for type_, name in names.items())


def quota(value: float, key: QuotaKey = QuotaKey.PRODUCE, **names: str | None) -> ClientQuota:
    return ClientQuota(entity=entity(**names), values={key: value})


# From the most specific to the least, with the names whose use is counted together.
PRECEDENCE = [
    (quota(1, user="alice", client_id="app"), Applied(1, "alice", "app")),
    (quota(2, user="alice", client_id=DEFAULT), Applied(2, "alice", "app")),
    (quota(3, user="alice"), Applied(3, "alice", "")),
    (quota(4, user=DEFAULT, client_id="app"), Applied(4, "alice", "app")),
    (quota(5, user=DEFAULT, client_id=DEFAULT), Applied(5, "alice", "app")),
    (quota(6, user=DEFAULT), Applied(6, "alice", "")),
    (quota(7, client_id="app"), Applied(7, "", "app")),
    (quota(8, client_id=DEFAULT), Applied(8, "", "app")),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_quota_of_the_most_specific_entity_applies(first: int) -> None:
    table = QuotaTable(each for each, _ in PRECEDENCE[first:])
    assert table.of_client(QuotaKey.PRODUCE, "alice", "app") == PRECEDENCE[first][1]


def test_precedence_is_decided_key_by_key() -> None:
    table = QuotaTable([quota(1, user="alice"), quota(2, QuotaKey.FETCH, client_id="app")])
    assert table.of_client(QuotaKey.PRODUCE, "alice", "app") == Applied(1, "alice", "")
    assert table.of_client(QuotaKey.FETCH, "alice", "app") == Applied(2, "", "app")
    assert table.of_client(QuotaKey.REQUEST, "alice", "app") is None


@pytest.mark.parametrize("client_id", [None, ""])
def test_a_client_without_a_client_id_has_only_quotas_of_its_user(client_id: str | None) -> None:
    table = QuotaTable(each for each, _ in PRECEDENCE)
    assert table.of_client(QuotaKey.PRODUCE, "alice", client_id) == Applied(3, "alice", "")
    others = QuotaTable([quota(1, client_id=DEFAULT), quota(2, user="alice", client_id=DEFAULT)])
    assert others.of_client(QuotaKey.PRODUCE, "alice", client_id) is None


def test_other_users_and_client_ids_have_no_quota() -> None:
    table = QuotaTable([quota(1, user="alice", client_id="app"), quota(2, client_id="tool")])
    assert table.of_client(QuotaKey.PRODUCE, "bob", "app") is None
    assert table.of_client(QuotaKey.PRODUCE, "alice", "other") is None


def test_an_address_has_its_own_quota_or_the_default() -> None:
    key = QuotaKey.CONNECTION_RATE
    table = QuotaTable([quota(1, key, ip="10.0.0.1"), quota(2, key, ip=DEFAULT)])
    assert table.of_address(key, "10.0.0.1") == 1
    assert table.of_address(key, "10.0.0.2") == 2
    assert table.of_address(QuotaKey.CONNECTION_COUNT, "10.0.0.1") is None
    assert not table.limits_clients


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "needs an entity"),
        ([EntityPart("group", "g")], "unknown entity type 'group'"),
        ([EntityPart(USER, "")], "1 to 255 characters"),
        ([EntityPart(USER, "x" * 256)], "1 to 255 characters"),
        ([EntityPart(USER, "a"), EntityPart(USER, None)], "each type once"),
        ([EntityPart(IP, "10.0.0.1"), EntityPart(USER, "a")], "cannot be combined"),
        ([EntityPart(IP, "10.0.0.256")], "not an IP address"),
    ],
)
def test_an_invalid_entity_is_refused_with_a_reason(parts: list[EntityPart], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        entity_of(parts)


@pytest.mark.parametrize(
    ("names", "key", "value", "reason"),
    [
        ({"user": "a"}, "speed", 1, "unknown quota 'speed'"),
        ({"client_id": "a"}, "connection_creation_rate", 1, "unknown quota"),
        ({"user": "a", "client_id": "b"}, "connection_count", 1, "unknown quota"),
        ({"user": "a"}, "connection_count", 1.5, "whole number"),
        ({"ip": "10.0.0.1"}, "producer_byte_rate", 1, "unknown quota"),
        ({"user": "a"}, "producer_byte_rate", 0, "greater than 0"),
        ({"user": "a"}, "producer_byte_rate", -1, "greater than 0"),
        ({"user": "a"}, "producer_byte_rate", float("nan"), "greater than 0"),
        ({"user": "a"}, "producer_byte_rate", float("inf"), "greater than 0"),
        ({"user": "a"}, "producer_byte_rate", 0.5, "whole number"),
        ({"user": "a"}, "producer_byte_rate", 1e19, "at most"),
        ({"ip": None}, "connection_creation_rate", 2**31, "at most"),
        ({"ip": None}, "connection_count", 1.5, "whole number"),
    ],
)
def test_an_invalid_value_is_refused_with_a_reason(
    names: dict[str, str | None], key: str, value: float, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        edited(None, QuotaEdit(entity(**names), (QuotaOp(key, value),)))


def test_values_are_set_replaced_and_removed_until_none_is_left() -> None:
    alice = entity(user="alice")
    first = edited(
        None, QuotaEdit(alice, (QuotaOp("producer_byte_rate", 1000), QuotaOp("request_percentage", 0.5)))
    )
    assert first == ClientQuota(entity=alice, values={"producer_byte_rate": 1000, "request_percentage": 0.5})
    second = edited(
        first, QuotaEdit(alice, (QuotaOp("producer_byte_rate", 2000), QuotaOp("request_percentage", None)))
    )
    assert second == ClientQuota(entity=alice, values={"producer_byte_rate": 2000})
    assert edited(second, QuotaEdit(alice, (QuotaOp("producer_byte_rate", None),))) is None
    # To remove what is not there is no error.
    assert edited(None, QuotaEdit(alice, (QuotaOp("producer_byte_rate", None),))) is None


def test_a_quota_cannot_be_changed_twice_at_once() -> None:
    ops = (QuotaOp("producer_byte_rate", 1), QuotaOp("producer_byte_rate", None))
    with pytest.raises(InvalidRequest, match="twice"):
        edited(None, QuotaEdit(entity(user="alice"), ops))


ALICE, ALICE_APP, ANY_USER, APP = (
    entity(user="alice"),
    entity(user="alice", client_id="app"),
    entity(user=None),
    entity(client_id="app"),
)
EXACT, IS_DEFAULT, ANY = MatchType.EXACT, MatchType.DEFAULT, MatchType.ANY


@pytest.mark.parametrize(
    ("parts", "is_strict", "expected"),
    [
        ([], False, [ALICE, ALICE_APP, ANY_USER, APP]),
        ([], True, []),
        ([FilterPart(USER, EXACT, "alice")], False, [ALICE, ALICE_APP]),
        ([FilterPart(USER, EXACT, "alice")], True, [ALICE]),
        ([FilterPart(USER, IS_DEFAULT)], False, [ANY_USER]),
        ([FilterPart(USER, ANY)], False, [ALICE, ALICE_APP, ANY_USER]),
        ([FilterPart(USER, ANY), FilterPart(CLIENT_ID, ANY)], True, [ALICE_APP]),
        ([FilterPart(IP, ANY)], False, []),
    ],
)
def test_filters_find_entities(parts: list[FilterPart], is_strict: bool, expected: list[Entity]) -> None:
    wanted = QuotaFilter(parts, is_strict=is_strict)
    found = [
        each
        for each in (ALICE, ALICE_APP, ANY_USER, APP)
        if wanted.matches(ClientQuota(entity=each, values={"producer_byte_rate": 1}))
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([FilterPart("", ANY)], InvalidRequest),
        ([FilterPart("tenant", ANY)], UnsupportedQuotaEntity),
        ([FilterPart(USER, ANY), FilterPart(USER, ANY)], InvalidRequest),
        ([FilterPart(USER, ANY), FilterPart(IP, ANY)], InvalidRequest),
        ([FilterPart(USER, EXACT, None)], InvalidRequest),
        ([FilterPart(USER, ANY, "alice")], InvalidRequest),
        ([FilterPart(USER, IS_DEFAULT, "alice")], InvalidRequest),
    ],
)
def test_an_invalid_filter_is_refused(parts: list[FilterPart], error: type[Exception]) -> None:
    with pytest.raises(error):
        QuotaFilter(parts, is_strict=False)


amounts = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(0, 30)),  # an amount, and the pause before it
    min_size=1,
    max_size=50,
)
rates = st.floats(1, 1e6)


@given(rates, amounts)
def test_clients_that_wait_take_no_more_than_rate_burst_and_last_amount(
    rate: float, taken: list[tuple[float, float]]
) -> None:
    bucket = bucket_of(QuotaKey.PRODUCE, rate, 0.0)
    now = total = 0.0
    for amount, pause in taken:
        now += pause
        assert total <= rate * now + bucket.burst + 1e-6 * (1 + total)
        amount = min(amount, rate * MAX_THROTTLE_SECONDS)
        total += amount
        now += bucket.charge(amount, now)


@given(rates, amounts)
def test_a_client_never_waits_longer_than_the_limit_and_is_admitted_afterwards(
    rate: float, taken: list[tuple[float, float]]
) -> None:
    bucket = bucket_of(QuotaKey.FETCH, rate, 0.0)
    now = 0.0
    for amount, pause in taken:
        now += pause
        seconds = bucket.charge(amount, now)
        assert seconds <= MAX_THROTTLE_SECONDS
        assert bucket.wait_seconds(now) == pytest.approx(seconds)
        assert bucket.wait_seconds(now + seconds * (1 + 1e-9) + 1e-9) == pytest.approx(0.0, abs=1e-6)


@given(rates, st.floats(0.1, 10))
def test_many_clients_that_share_a_quota_wait_one_after_the_other(rate: float, size: float) -> None:
    bucket = TokenBucket(rate, 0.0, 1000.0, 0.0)
    waits = [bucket.charge(size * rate, 0.0) for _ in range(20)]
    for earlier, later in pairwise(waits):
        assert later - earlier == pytest.approx(size)


def test_request_percentage_is_a_share_of_the_time() -> None:
    bucket = bucket_of(QuotaKey.REQUEST, 10, 0.0)
    assert bucket.charge(0.025, 0.0) == 0.0
    assert bucket.charge(0.1, 0.0) == pytest.approx(1.0)
    # The client can change a quota that is too low.
    assert bucket.charge(1000.0, 0.0) == pytest.approx(10.0)
