"""Rates of a tenant through the Kafka API: by batch headers and offsets, for all its clients together.

They are counted by a clock that stands still unless a test moves it.
"""

from collections.abc import Iterator
from uuid import UUID

import pytest
from msgspec.structs import asdict

from alpacamq.api.kafka import connection as kafka_connection
from alpacamq.cluster.commands import AlterTenant
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.security.quotas import QuotaKey
from alpacamq.security.tenants import TenantLimits
from tests.secured import ADMIN, SecuredBroker, secured_broker

from .share_member import Member
from .test_quotas import StoppedClock, fetch, fetched_bytes, limit
from .wire import Wire, wired

ANNA, CARL, BORIS = "anna", "carl", "boris"
RED, BLUE = "red", "blue"
RATE = 400
BURST = RATE // 4


@pytest.fixture(scope="module")
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, clock: StoppedClock) -> Iterator[SecuredBroker]:
    """A broker with a tenant of two users, and one of another."""
    path = tmp_path_factory.mktemp("rates")
    with secured_broker(path, acls=False, users=(ADMIN, ANNA, CARL, BORIS)) as secured:
        access = secured.broker.access
        secured.broker.quotas.now = clock
        for tenant, names in ((RED, (ANNA, CARL)), (BLUE, (BORIS,))):
            secured.call(access.create_tenant(tenant, description="", limits=TenantLimits()))
            for name in names:
                secured.call(access.add_member(tenant, f"User:{name}", is_admin=True))
        yield secured


@pytest.fixture
def secured(
    shared: SecuredBroker, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SecuredBroker]:
    monkeypatch.setattr(kafka_connection, "MUTE_CHECK_SECONDS", 0.05)
    yield shared
    set_limits(shared, TenantLimits())
    clock.now += 10_000  # what was used is paid for


def set_limits(secured: SecuredBroker, limits: TenantLimits) -> None:
    secured.call(secured.broker.access.alter_tenant(AlterTenant(id=RED, limits=asdict(limits))))


@pytest.fixture
def topic_ids(secured: SecuredBroker, topic: str) -> dict[str, UUID]:
    """The ids of a topic that both tenants have."""
    return {
        tenant: secured.call(secured.broker.topics.create(f"{tenant}:{topic}", partitions=1)).id
        for tenant in (RED, BLUE)
    }


def produce(wire: Wire, topic_id: UUID, count: int) -> int:
    """Produce a batch of records; return how long the client is throttled."""
    records = bytes(write_batch([Record(offset, 1, None, b"x") for offset in range(count)]))
    data = PartitionProduceData(index=0, records=records)
    response = wire.ask(
        ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])],
        )
    )
    assert response.responses[0].partition_responses[0].error_code == 0
    throttle_ms: int = response.throttle_time_ms
    return throttle_ms


def produced(secured: SecuredBroker, name: str, topic_id: UUID, count: int) -> int:
    """Produce on a connection of its own, as a throttled one is not read."""
    with wired(secured.addresses[name]) as wire:
        return produce(wire, topic_id, count)


def test_messages_are_counted_by_batches_for_all_users_of_a_tenant(
    secured: SecuredBroker, clock: StoppedClock, topic_ids: dict[str, UUID]
) -> None:
    set_limits(secured, TenantLimits(produce_messages_per_second=RATE))
    assert produced(secured, ANNA, topic_ids[RED], BURST) == 0
    assert produced(secured, CARL, topic_ids[RED], RATE) == 1000
    assert produced(secured, ANNA, topic_ids[RED], RATE) == 2000
    assert produced(secured, BORIS, topic_ids[BLUE], 10 * RATE) == 0
    assert secured.broker.quotas.stats.requests[QuotaKey.PRODUCE_MESSAGES] == 2
    clock.now += 2.25
    assert produced(secured, CARL, topic_ids[RED], BURST) == 0


def test_bytes_of_a_tenant_are_limited_beside_the_quotas_of_its_users(
    secured: SecuredBroker, clock: StoppedClock, topic_ids: dict[str, UUID]
) -> None:
    set_limits(secured, TenantLimits(produce_bytes_per_second=1000))
    with_tenant = produced(secured, ANNA, topic_ids[RED], RATE)
    assert with_tenant > 1000
    clock.now += 10_000
    limit(secured, "producer_byte_rate", 500, user=ANNA)
    with_both = produced(secured, ANNA, topic_ids[RED], RATE)
    assert with_both == pytest.approx(2 * with_tenant, rel=0.1)
    # Carl pays for what anna has used of the tenant, not for her quota.
    assert with_tenant < produced(secured, CARL, topic_ids[RED], 1) < with_both


def test_fetched_messages_are_counted_by_offsets(
    secured: SecuredBroker, clock: StoppedClock, topic_ids: dict[str, UUID]
) -> None:
    for _ in range(8):
        for name, tenant in ((ANNA, RED), (BORIS, BLUE)):
            produced(secured, name, topic_ids[tenant], BURST)
    set_limits(secured, TenantLimits(fetch_messages_per_second=RATE))
    with wired(secured.addresses[ANNA]) as anna:
        everything = fetch(anna, topic_ids[RED])
    assert everything.throttle_time_ms == 7 * BURST * 1000 // RATE
    with wired(secured.addresses[CARL]) as carl:
        refused = fetch(carl, topic_ids[RED])
    assert refused.throttle_time_ms == everything.throttle_time_ms
    assert fetched_bytes(refused) == 0
    with wired(secured.addresses[BORIS]) as boris:
        for _ in range(2):
            theirs = fetch(boris, topic_ids[BLUE])
            assert (theirs.throttle_time_ms, fetched_bytes(theirs)) == (0, fetched_bytes(everything))
    clock.now += 100
    with wired(secured.addresses[CARL]) as carl:
        # The size of messages is known now: a response has no more of them than the burst.
        again = fetch(carl, topic_ids[RED])
    assert (again.throttle_time_ms, fetched_bytes(again)) == (0, fetched_bytes(everything) // 8)


def test_messages_of_share_groups_are_counted(
    secured: SecuredBroker, clock: StoppedClock, topic: str, topic_ids: dict[str, UUID]
) -> None:
    with wired(secured.addresses[ANNA]) as anna:
        member = Member(anna, topic, group=topic).join()
        member.fetch(0)  # from here on
        set_limits(secured, TenantLimits(fetch_messages_per_second=RATE))
        produced(secured, CARL, topic_ids[RED], 2 * BURST)
        got = member.ask_fetch(0, max_records=2 * BURST)
        (partition,) = got.responses[0].partitions
        count = sum(each.last_offset - each.first_offset + 1 for each in partition.acquired_records)
        assert count > BURST
        assert got.throttle_time_ms == (count - BURST) * 1000 // RATE
        assert member.ask_fetch().responses == []
        clock.now += 60
