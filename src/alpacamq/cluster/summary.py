"""Counts partitions by their state: of the cluster, and of each broker."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .image import ClusterImage
from .partition_state import PartitionState, min_isr
from .placement import default_replication_factor
from .topics import BY_DEFAULT


@dataclass(slots=True)
class BrokerCounts:
    """The partitions of one broker. Those not fully in sync count at their leader."""

    leaders: int = 0
    replicas: int = 0
    in_sync: int = 0
    under_replicated: int = 0
    below_min_isr: int = 0
    # Partitions without a leader that it has a replica of.
    offline: int = 0


@dataclass(slots=True)
class Summary:
    """The partitions of a cluster."""

    partitions: int = 0
    under_replicated: int = 0
    below_min_isr: int = 0
    offline: int = 0
    moving: int = 0
    not_preferred: int = 0
    by_broker: dict[int, BrokerCounts] = field(default_factory=lambda: defaultdict(BrokerCounts))

    def add(self, states: Iterable[PartitionState], configured: int | None) -> None:
        """Count partitions of a topic whose min.insync.replicas is `configured`."""
        by_broker = self.by_broker
        for state in states:
            if not state.replicas:
                continue  # its record has not been applied yet
            self.partitions += 1
            for replica in state.replicas:
                counts = by_broker[replica]
                counts.replicas += 1
                counts.in_sync += replica in state.isr
                counts.offline += state.leader is None
            is_under_replicated = is_missing_replicas(state)
            is_below = is_below_min_isr(state, configured)
            self.under_replicated += is_under_replicated
            self.below_min_isr += is_below
            self.moving += state.is_moving
            if state.leader is None:
                self.offline += 1
                continue
            self.not_preferred += not state.is_led_by_preferred
            leader = by_broker[state.leader]
            leader.leaders += 1
            leader.under_replicated += is_under_replicated
            leader.below_min_isr += is_below


def is_missing_replicas(state: PartitionState) -> bool:
    """Return whether a partition is under-replicated. Replicas that are still being added do not count."""
    return not set(state.original_replicas).issubset(state.isr)


def is_below_min_isr(state: PartitionState, configured: int | None) -> bool:
    """Return whether the partition takes no records with acks=all."""
    return len(state.isr) < min_isr(configured, state.replication_factor)


def warnings(image: ClusterImage, replication_factor: int = BY_DEFAULT) -> list[str]:
    """Return what an operator should change although everything works.

    `replication_factor` is the configured one of topics that do not say.
    """
    found = []
    staying = [broker for broker in image.brokers.values() if not broker.is_leaving]
    factor = default_replication_factor(image) if replication_factor == BY_DEFAULT else replication_factor
    racks = {broker.rack for broker in staying}
    if len(staying) > 1 and factor == 1 and len(racks) == 1:
        found.append(
            f"all {len(staying)} nodes are on rack {racks.pop()!r}, so new topics get 1 replica and are lost "
            "with their node; set cluster.rack or cluster.replication_factor"
        )
    versions = {broker.software_version for broker in staying}
    if len(versions) > 1:
        found.append(f"nodes run different versions: {', '.join(sorted(versions))}")
    return found
