"""Counts of partitions by state, and warnings."""

import pytest

from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.commands import DrainBroker
from alpacamq.cluster.image import ClusterImage, broker_change
from alpacamq.cluster.partition_state import PartitionState
from alpacamq.cluster.summary import BrokerCounts, Summary, is_below_min_isr, is_missing_replicas, warnings
from alpacamq.model.ids import BrokerId

from .clusters import Cluster


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param(PartitionState(replicas=(1, 2), isr=(2, 1), leader=1), False, id="all in sync"),
        pytest.param(PartitionState(replicas=(1, 2), isr=(1,), leader=1), True, id="one is missing"),
        pytest.param(PartitionState(replicas=(1, 2), isr=()), True, id="no leader"),
        pytest.param(
            PartitionState(replicas=(3, 1), isr=(1,), leader=1, adding=(3,), removing=(1,)),
            False,
            id="one that is being added does not count",
        ),
    ],
)
def test_a_partition_is_under_replicated_if_a_replica_is_not_in_sync(
    state: PartitionState, expected: bool
) -> None:
    assert is_missing_replicas(state) is expected


@pytest.mark.parametrize(
    ("in_sync", "configured", "expected"),
    [
        pytest.param((1, 2, 3), None, False, id="all"),
        pytest.param((1, 2), None, False, id="two of three are enough"),
        pytest.param((1,), None, True, id="one is not"),
        pytest.param((1,), 1, False, id="unless it is configured"),
        pytest.param((1, 2), 3, True, id="all are needed"),
    ],
)
def test_a_partition_below_min_isr_takes_no_records(
    in_sync: tuple[int, ...], configured: int | None, expected: bool
) -> None:
    state = PartitionState(replicas=(1, 2, 3), isr=in_sync, leader=1)
    assert is_below_min_isr(state, configured) is expected


def test_partitions_are_counted_by_state_and_broker() -> None:
    summary = Summary()
    summary.add(
        [
            PartitionState(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1),
            PartitionState(replicas=(1, 2, 3), isr=(2,), leader=2),
            PartitionState(replicas=(3,), isr=(3,)),
            PartitionState(replicas=(), isr=()),
        ],
        None,
    )
    assert (summary.partitions, summary.under_replicated, summary.below_min_isr) == (3, 1, 1)
    assert (summary.offline, summary.not_preferred, summary.moving) == (1, 1, 0)
    assert summary.by_broker == {
        1: BrokerCounts(leaders=1, replicas=2, in_sync=1),
        2: BrokerCounts(leaders=1, replicas=2, in_sync=2, under_replicated=1, below_min_isr=1),
        3: BrokerCounts(replicas=3, in_sync=2, offline=1),
    }


def test_nodes_on_one_rack_are_warned_about() -> None:
    cluster = Cluster(0)
    for broker in (1, 2):
        cluster.start(broker, rack="host")
    (warning,) = warnings(cluster.image)
    assert "2 nodes are on rack 'host'" in warning
    assert warnings(cluster.image, 1)
    assert not warnings(cluster.image, 2), "the configuration asks for replicas"
    cluster.start(3, rack="other")
    assert not warnings(cluster.image)
    cluster.ask(DrainBroker(broker_id=BrokerId(3)))
    assert warnings(cluster.image)


def test_different_versions_are_warned_about() -> None:
    image = ClusterImage()
    cluster = Cluster(2)
    for number, version in ((1, "0.1.0"), (2, "0.2.0")):
        broker = cluster.image.broker(number)
        changed = {**{name: getattr(broker, name) for name in BrokerRegistration.__struct_fields__}}
        image.apply([broker_change(BrokerRegistration(**{**changed, "software_version": version}))])
    assert warnings(image) == ["nodes run different versions: 0.1.0, 0.2.0"]
