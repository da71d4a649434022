"""Consumers of all clients in groups: assignment, membership changes, and committed offsets."""

from collections.abc import Callable, Iterator

import pytest

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.ports import lasting_address

from . import kcat
from .client import Record
from .confluent import Confluent
from .kcat import Kcat
from .members import Member, Style, all_read, members_of, read_once, settled

EAGER = [
    Style("confluent-kafka", "range"),
    Style("confluent-kafka", "roundrobin"),
    Style("kafka-python", "range"),
    Style("kafka-python", "sticky"),
    Style("aiokafka", "range"),
    Style("aiokafka", "sticky"),
]
COOPERATIVE = [
    Style("confluent-kafka", "cooperative-sticky"),
    Style("kafka-python", "cooperative-sticky"),
    Style("confluent-kafka", "kip-848"),
]
STYLES = EAGER + COOPERATIVE
ONE_OF_EACH_CLIENT = [
    Style("confluent-kafka", "range"),
    Style("kafka-python", "range"),
    Style("aiokafka", "range"),
]
PARTITIONS = 4

Start = Callable[..., Member]


@pytest.fixture
def start(broker: Broker, confluent: Confluent, topic: str) -> Iterator[Start]:
    """Start members of the test's own group, on its own topic."""
    confluent.create_topic(topic, partitions=PARTITIONS)
    with members_of(broker.address, topic, topic) as start:
        yield start


def produce(client: Confluent, topic: str, values: list[str]) -> None:
    client.produce(
        topic,
        [Record(value=value.encode(), partition=number % PARTITIONS) for number, value in enumerate(values)],
        idempotent=True,
    )


def values(first: int, count: int) -> list[str]:
    return [f"value {number}" for number in range(first, first + count)]


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_members_share_the_partitions_and_read_everything_once(
    start: Start, confluent: Confluent, topic: str, style: Style
) -> None:
    produce(confluent, topic, values(0, 100))

    first = start(style)
    all_read([first], values(0, 100))
    second = start(style)
    settled([first, second], PARTITIONS)
    produce(confluent, topic, values(100, 100))
    all_read([first, second], values(0, 200))

    read_once([first, second], values(0, 200))


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_partitions_of_a_leaving_member_are_reassigned(
    start: Start, confluent: Confluent, topic: str, style: Style
) -> None:
    staying, leaving = start(style), start(style)
    settled([staying, leaving], PARTITIONS)
    produce(confluent, topic, values(0, 100))
    all_read([staying, leaving], values(0, 100))

    leaving.stop()
    # Well before the end of its session.
    settled([staying], PARTITIONS, within_s=5)
    produce(confluent, topic, values(100, 100))
    all_read([staying, leaving], values(0, 200))

    read_once([staying, leaving], values(0, 200))


@pytest.mark.parametrize("style", [*ONE_OF_EACH_CLIENT, *COOPERATIVE[:2]], ids=str)
def test_a_killed_member_is_replaced_when_its_session_ends(
    start: Start, confluent: Confluent, topic: str, style: Style
) -> None:
    staying, killed = start(style, session_ms=3000), start(style, session_ms=3000)
    settled([staying, killed], PARTITIONS)

    killed.kill()
    settled([staying], PARTITIONS)
    produce(confluent, topic, values(0, 100))

    all_read([staying], values(0, 100))


@pytest.mark.parametrize("style", COOPERATIVE, ids=str)
def test_a_member_keeps_reading_partitions_that_do_not_move(
    start: Start, confluent: Confluent, topic: str, style: Style
) -> None:
    first = start(style)
    settled([first], PARTITIONS)

    second = start(style)
    settled([first, second], PARTITIONS)
    third = start(style)
    settled([first, second, third], PARTITIONS)

    # Half of them with two members, at most one more with three.
    assert sorted(map(len, first.losses)) in ([2], [1, 2])
    assert all(len(lost) == 1 for lost in second.losses)
    assert not third.losses


@pytest.mark.parametrize("style", [*ONE_OF_EACH_CLIENT, Style("confluent-kafka", "kip-848")], ids=str)
def test_a_restarted_static_member_gets_its_partitions_without_a_rebalance(
    start: Start, confluent: Confluent, topic: str, style: Style
) -> None:
    # The one that stays leads: a leader that joins twice, as kafka-python may on a busy machine, rebalances.
    first = start(style, instance="one")
    settled([first], PARTITIONS)
    second = start(style, instance="two")
    settled([first, second], PARTITIONS)
    losses, owned = list(first.losses), second.owned

    second.stop()
    again = start(style, instance="two")
    settled([first, again], PARTITIONS)

    assert again.owned == owned
    assert first.losses == losses
    produce(confluent, topic, values(0, 100))
    all_read([first, again], values(0, 100))


@pytest.mark.parametrize(
    ("kill", "style"),
    [
        pytest.param(kill, style, id=f"{'kill' if kill else 'stop'}-{style}")
        for kill, styles in [(True, [*ONE_OF_EACH_CLIENT, *COOPERATIVE]), (False, STYLES[:1])]
        for style in styles
    ],
)
def test_members_continue_at_their_offsets_after_a_restart_of_the_broker(
    new_broker: NewBroker, topic: str, kill: bool, style: Style
) -> None:
    broker = new_broker(kafka=lasting_address())
    broker.start()
    client = Confluent(broker.address)
    client.create_topic(topic, partitions=PARTITIONS)
    with members_of(broker.address, topic, topic) as start:
        # A client that has not found its coordinator again cannot leave, and the newcomer has to wait.
        members = [start(style, session_ms=10_000) for _ in range(2)]
        settled(members, PARTITIONS)
        produce(client, topic, values(0, 100))
        all_read(members, values(0, 100))

        broker.restart(kill=kill)

        produce(client, topic, values(100, 100))
        all_read(members, values(0, 200))
        settled(members, PARTITIONS)
        for member in members:
            member.stop()

    with members_of(broker.address, topic, topic) as start:
        newcomer = start(style)
        produce(client, topic, values(200, 100))
        all_read([newcomer], values(200, 100))
        # The last commit may be lost in the broker's restart, earlier ones may not.
        assert len(newcomer.values) <= 200
        assert not set(newcomer.values) & set(values(0, 100))


@pytest.mark.skipif(not kcat.installed(), reason="kcat is not installed")
def test_kcat_reads_as_a_member_and_continues_at_its_offset(
    broker: Broker, confluent: Confluent, topic: str
) -> None:
    confluent.create_topic(topic, partitions=PARTITIONS)
    client = Kcat(broker.address)
    produce(confluent, topic, values(0, 20))
    assert sorted(client.read_as_member(topic, topic, count=20)) == sorted(values(0, 20))

    produce(confluent, topic, values(20, 20))

    assert sorted(client.read_as_member(topic, topic, count=20)) == sorted(values(20, 20))


@pytest.mark.parametrize("style", [STYLES[0], Style("confluent-kafka", "kip-848")], ids=str)
def test_a_pattern_subscribes_to_every_topic_it_matches(
    broker: Broker, confluent: Confluent, topic: str, style: Style
) -> None:
    confluent.create_topic(topic, partitions=PARTITIONS)
    with members_of(broker.address, topic, f"^{topic}.*") as start:
        members = [start(style), start(style)]
        produce(confluent, topic, values(0, 100))

        all_read(members, values(0, 100))


def test_added_partitions_are_assigned_without_a_rebalance_of_the_rest(
    start: Start, confluent: Confluent, topic: str
) -> None:
    member = start(Style("confluent-kafka", "kip-848"))
    settled([member], PARTITIONS)

    confluent.add_partitions(topic, PARTITIONS + 2)

    settled([member], PARTITIONS + 2)
    assert not member.losses
