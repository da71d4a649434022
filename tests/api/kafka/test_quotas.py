"""Quotas through the Kafka API: administration, and how clients are throttled.

Quotas are counted by a clock that stands still unless a test moves it.
"""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from alpacamq.api.kafka import connection as kafka_connection
from alpacamq.api.kafka.requests import error_codes
from alpacamq.broker import quotas as broker_quotas
from alpacamq.broker.access import Caller
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from alpacamq.protocol.messages.metadata import MetadataRequest
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)
from alpacamq.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from alpacamq.security.principals import user
from alpacamq.security.quotas import EntityPart, QuotaEdit, QuotaKey, QuotaOp, TokenBucket, entity_of
from tests.secured import ADMIN, ALICE, SecuredBroker, secured_broker
from tests.waiting import eventually

from .share_member import Member
from .wire import CLIENT_ID, Wire, versions, wired

RATE = 100_000
BURST = RATE // 4
# An address that only tests of connections use.
ELSEWHERE = "127.0.0.9"


class StoppedClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, clock: StoppedClock) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("quotas"), acls=False) as broker:
        broker.broker.quotas.now = clock
        yield broker


@pytest.fixture
def secured(
    shared: SecuredBroker, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SecuredBroker]:
    """A broker without quotas, whose throttled connections soon notice when there are none."""
    monkeypatch.setattr(kafka_connection, "MUTE_CHECK_SECONDS", 0.05)
    yield shared
    for quota in shared.broker.quotas.all():
        removals = tuple(QuotaOp(key, None) for key in quota.values)
        shared.call(shared.broker.quotas.alter([QuotaEdit(quota.entity, removals)]))
    clock.now += 10_000  # what was used is paid for


@pytest.fixture
def alice(secured: SecuredBroker) -> Iterator[Wire]:
    with wired(secured.addresses[ALICE]) as wire:
        yield wire


@pytest.fixture
def admin(secured: SecuredBroker) -> Iterator[Wire]:
    with wired(secured.addresses[ADMIN]) as wire:
        yield wire


@pytest.fixture
def topic_id(secured: SecuredBroker, topic: str) -> UUID:
    return secured.call(secured.broker.topics.create(topic, partitions=1)).id


def limit(secured: SecuredBroker, key: str, value: float, **names: str | None) -> None:
    entity = entity_of(EntityPart(type_.replace("_", "-"), name) for type_, name in names.items())
    results = secured.call(secured.broker.quotas.alter([QuotaEdit(entity, (QuotaOp(key, value),))]))
    assert results.failures == (None,)


def batch(size: int) -> bytes:
    return bytes(write_batch([Record(0, 1, None, b"x" * size)]))


def produce(wire: Wire, topic_id: UUID, size: int, acks: int = -1) -> Any:
    data = PartitionProduceData(index=0, records=batch(size))
    topic_data = [TopicProduceData(topic_id=topic_id, partition_data=[data])]
    request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topic_data)
    if not acks:
        wire.send(request)
        return None
    response = wire.ask(request)
    assert response.responses[0].partition_responses[0].error_code == 0
    return response


def fetch(
    wire: Wire, topic_id: UUID | None, offset: int = 0, *, session: int = 0, epoch: int = -1, wait_ms: int = 0
) -> Any:
    return wire.ask(fetch_request(topic_id, offset, session=session, epoch=epoch, wait_ms=wait_ms))


def fetch_request(
    topic_id: UUID | None, offset: int = 0, *, session: int = 0, epoch: int = -1, wait_ms: int = 0
) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session,
        session_epoch=epoch,
        topics=[] if topic_id is None else [FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )


def fetched_bytes(response: Any) -> int:
    return sum(len(each.records or b"") for topic in response.responses for each in topic.partitions)


def alter(
    wire: Wire, entity: dict[str, str | None], ops: dict[str, float | None], version: int = 1, **options: Any
) -> Any:
    entry = AlterEntryData(
        entity=[EntityData(entity_type=type_, entity_name=name) for type_, name in entity.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )
    (result,) = wire.ask(AlterClientQuotasRequest(entries=[entry], **options), version).entries
    assert {each.entity_type: each.entity_name for each in result.entity} == entity
    return result


def described(wire: Wire, *components: ComponentData, strict: bool = False, version: int = 1) -> Any:
    response = wire.ask(DescribeClientQuotasRequest(components=components, strict=strict), version)
    if response.error_code:
        return ErrorCode(response.error_code)
    return [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in response.entries
    ]


@pytest.mark.parametrize("version", versions(AlterClientQuotasRequest))
def test_quotas_are_set_described_and_removed(admin: Wire, version: int) -> None:
    bob: dict[str, str | None] = {"user": "bob"}
    pair: dict[str, str | None] = {"client-id": None, "user": "bob"}
    assert alter(admin, bob, {"producer_byte_rate": 1000, "request_percentage": 1.5}, version).error_code == 0
    assert alter(admin, pair, {"consumer_byte_rate": 2000}, version).error_code == 0
    bobs = ComponentData(entity_type="user", match_type=0, match="bob")
    first = (bob, {"producer_byte_rate": 1000, "request_percentage": 1.5})
    assert described(admin, bobs, strict=True, version=version) == [first]
    assert described(admin, bobs, version=version) == [first, (pair, {"consumer_byte_rate": 2000})]
    assert alter(admin, bob, {"producer_byte_rate": None}, version).error_code == 0
    assert described(admin, bobs, strict=True, version=version) == [(bob, {"request_percentage": 1.5})]
    assert alter(admin, bob, {"request_percentage": None}, version).error_code == 0
    assert described(admin, bobs, strict=True, version=version) == []


def test_a_validated_change_is_not_made(admin: Wire) -> None:
    bob: dict[str, str | None] = {"user": "bob"}
    assert alter(admin, bob, {"producer_byte_rate": 1000}, validate_only=True).error_code == 0
    refused = alter(admin, bob, {"producer_byte_rate": -1}, validate_only=True)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert described(admin) == []


def test_an_invalid_change_is_refused_and_others_are_made(admin: Wire) -> None:
    entries = [
        AlterEntryData(
            entity=[EntityData(entity_type=type_, entity_name="bob")], ops=[OpData(key=key, value=5)]
        )
        for type_, key in (
            ("user", "speed"),
            ("user", "producer_byte_rate"),
            ("client-id", "connection_creation_rate"),
        )
    ]
    results = admin.ask(AlterClientQuotasRequest(entries=entries)).entries
    codes = [each.error_code for each in results]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert "unknown quota 'speed'" in results[0].error_message
    assert described(admin) == [({"user": "bob"}, {"producer_byte_rate": 5})]


@pytest.mark.parametrize(
    ("component", "expected"),
    [
        (ComponentData(entity_type="tenant", match_type=2), ErrorCode.UNSUPPORTED_VERSION),
        (ComponentData(entity_type="user", match_type=7), ErrorCode.INVALID_REQUEST),
        (ComponentData(entity_type="user", match_type=0), ErrorCode.INVALID_REQUEST),
        (ComponentData(), ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_filter_is_refused(admin: Wire, component: ComponentData, expected: ErrorCode) -> None:
    assert described(admin, component) == expected


# What takes more of a quota than is saved up. Each has to be paid for longer than any test takes.
EXCESSES: dict[QuotaKey, Callable[[Wire, UUID], Any]] = {
    QuotaKey.PRODUCE: lambda wire, topic_id: produce(wire, topic_id, 10 * BURST),
    QuotaKey.FETCH: lambda wire, topic_id: fetch(wire, topic_id),
    QuotaKey.REQUEST: lambda wire, _: wire.ask(MetadataRequest()),
}


@pytest.mark.parametrize("key", EXCESSES)
def test_other_clients_are_served_as_always_while_one_is_throttled(
    secured: SecuredBroker, admin: Wire, topic: str, topic_id: UUID, key: QuotaKey
) -> None:
    """Others are not refused, throttled or kept waiting behind it, even on the same partition."""
    produce(admin, topic_id, 4 * BURST)
    limit(secured, key, 0.0001 if key is QuotaKey.REQUEST else 1000, user=ALICE)
    limit(secured, key, 1000 * RATE, user=ADMIN)  # the other has a quota of its own
    with wired(secured.addresses[ALICE]) as alice:
        assert EXCESSES[key](alice, topic_id).throttle_time_ms >= 10_000
        alice.send(ApiVersionsRequest())  # before all requests of the other
        with wired(secured.addresses[ADMIN]) as second:
            for wire in (admin, second):
                for response in (
                    wire.ask(ApiVersionsRequest()),
                    wire.ask(MetadataRequest()),
                    produce(wire, topic_id, BURST),
                    fetch(wire, topic_id),
                    fetch(wire, topic_id, epoch=0),
                    wire.ask(creation(f"{topic}-{id(wire)}")),
                    wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{topic}-{id(wire)}")])),
                ):
                    assert response.throttle_time_ms == 0, response
                    assert not any(error_codes(response)), response
            # A request that waits for records is answered as soon as they are there.
            end = fetch(admin, topic_id).responses[0].partitions[0].high_watermark
            second.send(fetch_request(topic_id, end, wait_ms=60_000))
            produce(admin, topic_id, 100)
            found = second.receive(FetchRequest)
            assert (found.throttle_time_ms, fetched_bytes(found) > 100) == (0, True)
        assert not select.select([alice.socket], [], [], 0)[0]
        limit(secured, key, 1000 * RATE, user=ALICE)
        assert alice.receive(ApiVersionsRequest).error_code == 0


@pytest.mark.parametrize("entity", ["ip", "user"])
def test_others_connect_as_always_while_one_opens_too_many_connections(
    secured: SecuredBroker, entity: str
) -> None:
    limit(secured, "connection_creation_rate", 1, **{entity: ELSEWHERE if entity == "ip" else ALICE})
    host = ELSEWHERE if entity == "ip" else ""
    addresses = secured.addresses[ALICE]

    def is_served(host: str, address: tuple[str, int]) -> bool:
        with wired(address, host) as wire:
            try:
                return bool(wire.ask(ApiVersionsRequest()).throttle_time_ms == 0)
            except ConnectionError:
                return False

    with wired(addresses, host) as opened:
        assert opened.ask(ApiVersionsRequest()).throttle_time_ms == 0
        assert [is_served(host, addresses) for _ in range(4)] == [True, False, False, False]
        for _ in range(10):  # each of them between two that are refused
            assert is_served("", secured.addresses[ADMIN])
            assert not is_served(host, addresses)
        # Nor is the connection affected that was there before.
        assert opened.ask(ApiVersionsRequest()).throttle_time_ms == 0


def test_producing_more_than_the_quota_is_answered_at_once_with_the_time_to_wait(
    secured: SecuredBroker, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    throttled = []
    for _ in range(3):
        with wired(secured.addresses[ALICE]) as alice:  # another connection: this one is not read now
            throttled.append(produce(alice, topic_id, BURST).throttle_time_ms)
    # The burst pays for most of the first; all that follows has to be waited for.
    first, second, third = throttled
    assert 0 < first < 10
    assert second - first == pytest.approx(250, abs=10)
    assert third - second == pytest.approx(second - first, abs=1)


def test_what_was_used_is_paid_for_with_time(
    secured: SecuredBroker, clock: StoppedClock, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        throttle_ms = produce(alice, topic_id, 2 * BURST).throttle_time_ms
    assert throttle_ms > 250
    clock.now += throttle_ms / 1000 + 0.25
    with wired(secured.addresses[ALICE]) as alice:
        assert produce(alice, topic_id, BURST - 1000).throttle_time_ms == 0


def test_small_requests_are_charged_for_all_their_bytes(
    secured: SecuredBroker, topic_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(secured, "producer_byte_rate", 1000 * RATE, user=ALICE)
    charge = TokenBucket.charge
    charged: list[float] = []
    sent: list[int] = []

    def counted(bucket: TokenBucket, amount: float, now: float) -> float:
        if bucket.rate == 1000 * RATE:
            charged.append(amount)
        return charge(bucket, amount, now)

    monkeypatch.setattr(TokenBucket, "charge", counted)
    data = PartitionProduceData(index=0, records=batch(10))
    topic_data = [TopicProduceData(topic_id=topic_id, partition_data=[data])]
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topic_data)
    with wired(secured.addresses[ALICE]) as alice:
        send_frame = alice.send_frame

        def noted(payload: bytes) -> None:
            sent.append(len(payload))
            send_frame(payload)

        monkeypatch.setattr(alice, "send_frame", noted)
        for _ in range(50):
            alice.send(request)
        for _ in range(50):
            assert alice.receive(ProduceRequest).throttle_time_ms == 0
        eventually(lambda: sum(charged) == sum(sent))


def test_quotas_are_charged_when_a_credit_of_the_connection_is_used_up(
    secured: SecuredBroker, admin: Wire, topic_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connection.Shared, "settle_soon", lambda *_: None)
    limit(secured, "producer_byte_rate", 100 * RATE, user=ALICE)
    credit = 100 * BURST // 100
    amounts: list[float] = []
    charge = TokenBucket.charge

    def counted(bucket: TokenBucket, amount: float, now: float) -> float:
        if bucket.rate == 100 * RATE:
            amounts.append(amount)
        return charge(bucket, amount, now)

    monkeypatch.setattr(TokenBucket, "charge", counted)
    with wired(secured.addresses[ALICE]) as alice:
        for _ in range(5):
            produce(alice, topic_id, credit // 6)
        assert not amounts
        produce(alice, topic_id, credit // 3)
        assert len(amounts) == 1
        assert amounts[0] > credit
        produce(alice, topic_id, 100)
    # The rest, when the connection is closed.
    eventually(lambda: len(amounts) == 2)
    assert 100 < amounts[1] < 500


def test_connections_that_each_use_a_little_are_throttled_together(
    secured: SecuredBroker, topic_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connection, "SETTLED_AT_ONCE", 10)
    limit(secured, "producer_byte_rate", 100 * RATE, user=ALICE)
    with ExitStack() as stack:
        # Each uses less than its credit, and all together more than can be saved up.
        throttled = secured.broker.quotas.stats.requests
        before = throttled[QuotaKey.PRODUCE]
        alices = [stack.enter_context(wired(secured.addresses[ALICE])) for _ in range(150)]
        assert produce(alices[0], topic_id, 100 * BURST // 120).throttle_time_ms == 0
        for alice in alices[1:]:
            produce(alice, topic_id, 100 * BURST // 120)
        eventually(lambda: throttled[QuotaKey.PRODUCE] > before)
        assert produce(alices[0], topic_id, 100 * BURST // 50).throttle_time_ms > 0


@pytest.mark.parametrize("is_reset", [False, True])
def test_what_a_throttled_client_sent_before_it_left_is_served_and_its_connection_closed(
    secured: SecuredBroker, admin: Wire, topic: str, topic_id: UUID, is_reset: bool
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        produce(alice, topic_id, 60 * RATE // 10)
        connection = secured.latest[ALICE]
        for _ in range(3):
            produce(alice, topic_id, RATE, acks=0)
        if is_reset:
            alice.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def check() -> bool:
        if not connection.is_closed:
            connection.check_timeouts(monotonic())
        return connection.is_closed

    eventually(lambda: secured.call(check()))
    partition = secured.broker.topics.partition(topic, 0)
    assert is_reset or partition.end_offset == 4


def test_a_throttled_connection_is_not_read_while_others_are(
    secured: SecuredBroker, alice: Wire, admin: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    assert produce(alice, topic_id, 60 * RATE // 10).throttle_time_ms > 5000
    alice.send(ApiVersionsRequest())
    for _ in range(10):
        assert produce(admin, topic_id, BURST).throttle_time_ms == 0
    assert not select.select([alice.socket], [], [], 0)[0]
    # It is released when quotas change.
    limit(secured, "producer_byte_rate", 1000 * RATE, user=ALICE)
    assert alice.receive(ApiVersionsRequest).error_code == 0


def test_requests_that_came_with_a_throttled_one_wait_as_well(
    secured: SecuredBroker, alice: Wire, admin: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    alice.ask(MetadataRequest(topics=[]))
    data = PartitionProduceData(index=0, records=batch(60 * RATE // 10))
    request = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])]
    )
    alice.send(request)
    alice.send(ApiVersionsRequest())
    assert alice.receive(ProduceRequest).throttle_time_ms > 5000
    admin.ask(ApiVersionsRequest())
    assert not select.select([alice.socket], [], [], 0)[0]
    limit(secured, "producer_byte_rate", 1000 * RATE, user=ALICE)
    assert alice.receive(ApiVersionsRequest).error_code == 0


def test_large_requests_that_came_with_a_throttled_one_are_done_later(
    secured: SecuredBroker, alice: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", 10 * RATE, user=ALICE)
    data = PartitionProduceData(index=0, records=batch(RATE))
    topic_data = [TopicProduceData(topic_id=topic_id, partition_data=[data])]
    # The socket has more to read when the broker begins to throttle the connection.
    for _ in range(6):
        alice.send(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topic_data))
    throttled = [alice.receive(ProduceRequest).throttle_time_ms for _ in range(6)]
    assert throttled[:2] == [0, 0]
    assert all(throttled[2:])


def test_a_producer_without_acknowledgements_is_throttled_too(
    secured: SecuredBroker, alice: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    produce(alice, topic_id, 60 * RATE // 10, acks=0)
    stats = secured.broker.quotas.stats
    eventually(lambda: stats.seconds[QuotaKey.PRODUCE] > 5)
    alice.send(ApiVersionsRequest())
    assert not select.select([alice.socket], [], [], 0)[0]


def test_a_throttled_connection_is_not_closed_as_idle_and_can_be_evicted(
    secured: SecuredBroker, alice: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    produce(alice, topic_id, 60 * RATE // 10)
    connection = secured.latest[ALICE]

    async def later() -> bool:
        connection.check_timeouts(monotonic() + 1e6)
        return connection.is_closed

    async def evict() -> None:
        assert connection.idle_since is not None
        connection.evict()

    assert not secured.call(later())
    secured.call(evict())
    assert alice.is_closed


def test_clients_of_one_user_share_its_quota_and_other_users_have_none(
    secured: SecuredBroker, admin: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    for expected in (False, True):
        with wired(secured.addresses[ALICE]) as alice:
            assert (produce(alice, topic_id, BURST // 2 + 1000).throttle_time_ms > 0) is expected
    assert produce(admin, topic_id, 10 * BURST).throttle_time_ms == 0


def test_the_quota_of_a_client_id_holds_for_all_users(
    secured: SecuredBroker, admin: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, client_id=CLIENT_ID)
    with wired(secured.addresses[ALICE]) as alice:
        assert produce(alice, topic_id, BURST).throttle_time_ms > 0
    assert produce(admin, topic_id, BURST).throttle_time_ms > 200
    # The quota of a user comes first.
    limit(secured, "producer_byte_rate", 1000 * RATE, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        assert produce(alice, topic_id, BURST).throttle_time_ms == 0


@pytest.fixture
def filled(secured: SecuredBroker, admin: Wire, topic_id: UUID) -> UUID:
    """A topic with ten batches of a fifth of the burst each."""
    for _ in range(10):
        produce(admin, topic_id, BURST // 5)
    return topic_id


def test_a_fetch_returns_no_more_than_the_burst_and_the_next_one_is_empty(
    secured: SecuredBroker, clock: StoppedClock, filled: UUID
) -> None:
    limit(secured, "consumer_byte_rate", RATE, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        first = fetch(alice, filled)
        assert 0 < fetched_bytes(first) <= BURST
        second = fetch(alice, filled)
    assert second.throttle_time_ms > 0
    with wired(secured.addresses[ALICE]) as alice:
        third = fetch(alice, filled, wait_ms=10_000)  # answered at once
    assert (third.error_code, third.responses) == (0, [])
    assert third.throttle_time_ms == second.throttle_time_ms
    clock.now += 60
    with wired(secured.addresses[ALICE]) as alice:
        assert fetched_bytes(fetch(alice, filled)) == fetched_bytes(first)


def test_a_batch_larger_than_the_burst_is_fetched(
    secured: SecuredBroker, admin: Wire, topic_id: UUID
) -> None:
    produce(admin, topic_id, 4 * BURST)
    limit(secured, "consumer_byte_rate", RATE, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        response = fetch(alice, topic_id)
    assert fetched_bytes(response) > 4 * BURST
    assert response.throttle_time_ms == pytest.approx(750, abs=10)


def test_a_throttled_fetch_keeps_its_session_and_begins_none(
    secured: SecuredBroker, clock: StoppedClock, alice: Wire, filled: UUID
) -> None:
    limit(secured, "consumer_byte_rate", RATE, user=ALICE)
    begun = fetch(alice, filled, epoch=0)
    assert begun.session_id > 0
    with wired(secured.addresses[ALICE]) as other:
        while not fetch(other, filled).throttle_time_ms:
            pass
    with wired(secured.addresses[ALICE]) as other:
        throttled = fetch(other, None, session=begun.session_id, epoch=1)
        assert throttled.throttle_time_ms > 0
        assert (throttled.session_id, throttled.responses) == (begun.session_id, [])
    with wired(secured.addresses[ALICE]) as other:
        refused = fetch(other, filled, epoch=0)
        assert refused.throttle_time_ms > 0
        assert (refused.session_id, refused.responses) == (0, [])
    clock.now += 60
    with wired(secured.addresses[ALICE]) as other:
        assert fetched_bytes(fetch(other, None, session=begun.session_id, epoch=2)) > 0


def test_a_share_consumer_gets_nothing_until_what_it_has_fetched_is_paid_for(
    secured: SecuredBroker, clock: StoppedClock, alice: Wire, admin: Wire, topic: str, topic_id: UUID
) -> None:
    member = Member(alice, topic, group=topic).join()
    member.fetch(0)  # from here on
    limit(secured, "consumer_byte_rate", RATE, user=ALICE)
    for _ in range(2):
        produce(admin, topic_id, 2 * BURST)
    first = member.ask_fetch(0, max_records=1)
    assert first.throttle_time_ms == pytest.approx(250, abs=10)
    second = member.ask_fetch()
    assert second.throttle_time_ms == first.throttle_time_ms
    assert second.responses == []
    clock.now += 60
    assert member.ask_fetch().throttle_time_ms == pytest.approx(250, abs=10)


def test_a_client_is_throttled_for_the_time_that_its_requests_take(
    secured: SecuredBroker, admin: Wire, topic: str, topic_id: UUID
) -> None:
    # A millionth of the time: each request takes more than can be saved up.
    limit(secured, "request_percentage", 0.0001, user=ALICE)
    requests: list[Callable[[Wire], Any]] = [
        lambda wire: wire.ask(ApiVersionsRequest()),
        lambda wire: wire.ask(MetadataRequest()),
        lambda wire: produce(wire, topic_id, 100),
        lambda wire: fetch(wire, topic_id),
        lambda wire: wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="unknown")])),
    ]
    for ask in requests:
        with wired(secured.addresses[ALICE]) as alice:
            assert ask(alice).throttle_time_ms > 0
    assert admin.ask(MetadataRequest()).throttle_time_ms == 0


def test_time_before_there_was_a_quota_of_it_is_not_charged(
    secured: SecuredBroker, alice: Wire, topic_id: UUID
) -> None:
    limit(secured, "producer_byte_rate", RATE, user=ALICE)
    assert produce(alice, topic_id, 100).throttle_time_ms == 0
    meter = secured.latest[ALICE].meter
    assert meter is not None
    meter.used_seconds += 3600
    limit(secured, "request_percentage", 50, user=ALICE)
    assert produce(alice, topic_id, 100).throttle_time_ms == 0


def creation(*names: str, partitions: int = 1, **options: Any) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, **options)


def test_topics_beyond_the_mutation_quota_are_refused(
    secured: SecuredBroker, clock: StoppedClock, topic: str
) -> None:
    limit(secured, "controller_mutation_rate", 2, user=ALICE)
    names = [f"{topic}-{number}" for number in range(4)]
    with wired(secured.addresses[ALICE]) as alice:
        assert alice.ask(creation(*names, validate_only=True)).throttle_time_ms == 0
        response = alice.ask(creation(*names))
    exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    # Two are saved up, and one more may be used before it is paid for.
    assert [each.error_code for each in response.topics] == [0, 0, 0, exceeded]
    assert response.throttle_time_ms == 500
    with wired(secured.addresses[ALICE]) as alice:
        grown = alice.ask(CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=names[0], count=2)]))
    assert ([each.error_code for each in grown.results], grown.throttle_time_ms) == ([exceeded], 500)
    with wired(secured.addresses[ALICE]) as alice:
        deleted = alice.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=names[0])]))
    assert ([each.error_code for each in deleted.responses], deleted.throttle_time_ms) == ([exceeded], 500)
    clock.now += 0.5
    with wired(secured.addresses[ALICE]) as alice:
        deleted = alice.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=names[0])]))
    assert ([each.error_code for each in deleted.responses], deleted.throttle_time_ms) == ([0], 500)


def test_clients_that_do_not_know_the_error_are_only_throttled(secured: SecuredBroker, topic: str) -> None:
    limit(secured, "controller_mutation_rate", 2, user=ALICE)
    with wired(secured.addresses[ALICE]) as alice:
        response = alice.ask(creation(*(f"{topic}-{number}" for number in range(5))), 5)
    assert [each.error_code for each in response.topics] == [0] * 5
    assert response.throttle_time_ms == 1500


def test_connections_beyond_the_rate_of_an_address_are_closed(
    secured: SecuredBroker, clock: StoppedClock, admin: Wire
) -> None:
    limit(secured, "connection_creation_rate", 2, ip=ELSEWHERE)

    def is_served() -> bool:
        with wired(secured.addresses[ALICE], ELSEWHERE) as wire:
            try:
                return bool(wire.ask(ApiVersionsRequest()).error_code == 0)
            except ConnectionError:
                return False

    assert [is_served() for _ in range(5)] == [True, True, True, False, False]
    clock.now += 0.5
    assert [is_served() for _ in range(2)] == [True, False]
    with wired(secured.addresses[ALICE]) as other:
        assert other.ask(ApiVersionsRequest()).error_code == 0


def test_an_address_has_no_more_open_connections_than_its_quota(secured: SecuredBroker) -> None:
    limit(secured, "connection_count", 2, ip=None)
    addresses = secured.addresses[ALICE]
    with wired(addresses, ELSEWHERE) as first, wired(secured.addresses[ADMIN], ELSEWHERE) as second:
        assert first.ask(ApiVersionsRequest()).error_code == second.ask(ApiVersionsRequest()).error_code == 0
        with wired(addresses, ELSEWHERE) as third:
            assert third.is_closed

    def is_served() -> bool:
        with wired(addresses, ELSEWHERE) as wire:
            try:
                return bool(wire.ask(ApiVersionsRequest()).error_code == 0)
            except ConnectionError:
                return False

    assert eventually(is_served)


def is_served(secured: SecuredBroker, name: str) -> bool:
    """Return whether a new connection of a user is served."""
    with wired(secured.addresses[name]) as wire:
        try:
            return bool(wire.ask(ApiVersionsRequest()).error_code == 0)
        except ConnectionError:
            return False


def test_a_user_has_no_more_open_connections_than_its_quota(
    secured: SecuredBroker, alice: Wire, admin: Wire
) -> None:
    assert alice.ask(ApiVersionsRequest()).error_code == 0  # opened before the quota was set
    limit(secured, "connection_count", 2, user=None)
    assert alice.ask(ApiVersionsRequest()).error_code == 0
    with wired(secured.addresses[ALICE]) as second:
        assert second.ask(ApiVersionsRequest()).error_code == 0
        assert not is_served(secured, ALICE)
        assert is_served(secured, ADMIN)  # a default is that of each user
        limit(secured, "connection_count", 1, user=ALICE)
        assert second.ask(ApiVersionsRequest()).error_code == 0  # those that are there stay
    assert eventually(lambda: not is_served(secured, ALICE))
    alice.close()
    assert eventually(lambda: is_served(secured, ALICE))
    assert secured.broker.quotas.stats.requests[QuotaKey.CONNECTION_COUNT] >= 2


def test_connections_beyond_the_rate_of_a_user_are_closed(
    secured: SecuredBroker, clock: StoppedClock
) -> None:
    limit(secured, "connection_creation_rate", 2, user=ALICE)
    assert [is_served(secured, ALICE) for _ in range(5)] == [True, True, True, False, False]
    assert is_served(secured, ADMIN)
    clock.now += 0.5
    assert [is_served(secured, ALICE) for _ in range(2)] == [True, False]


def test_a_connection_that_is_closed_counts_for_nobody(secured: SecuredBroker) -> None:
    limit(secured, "connection_count", 5, user=None)
    for _ in range(10):
        assert is_served(secured, ALICE)
    quotas = secured.broker.quotas
    assert eventually(lambda: not any(name == f"User:{ALICE}" for name in quotas._principals.values()))
    assert f"User:{ALICE}" not in quotas._by_principal


def test_the_number_of_clients_that_are_remembered_is_bounded(
    secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_quotas, "MAX_KEPT", 5)
    limit(secured, "producer_byte_rate", RATE, client_id=None)

    async def use() -> tuple[int, int]:
        quotas, caller = secured.broker.quotas, Caller(user(ALICE), "")
        in_use = quotas.of(caller, "kept")
        assert in_use is not None
        for number in range(100):
            quotas.of(caller, f"client-{number}")
        again = quotas.of(caller, "kept")
        assert again is not None
        assert again.produce is not None
        assert in_use.produce is not None
        assert again.produce.of_bytes[0] is in_use.produce.of_bytes[0]
        return len(quotas._kept), sum(each.client_id.startswith("client-") for each in quotas._limits)

    kept, known = secured.call(use())
    assert (kept, known) == (5, 4)
