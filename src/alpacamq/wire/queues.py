"""Queues, their stats and redrives, as the HTTP API describes them."""

from collections.abc import Iterable

import msgspec

_RUNNING = frozenset({"running", "cancelling"})


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. `resting` messages are in backoff. Totals count since the broker started."""

    ready: int
    in_flight: int
    resting: int
    enqueued_total: int
    delivered_total: int


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in a queue by state, and event counts since the broker started.

    `resting` messages are in backoff.
    """

    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    received_total: int
    acked_total: int
    nacked_total: int
    rejected_total: int
    expired_leases_total: int
    dead_lettered_total: int
    redelivered_total: int
    waiting_receives: int


class QueuePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a queue. All messages before `start_offset` are processed.

    `resting` messages are in backoff.
    """

    partition: int
    start_offset: int
    end_offset: int
    oldest_offset: int | None
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    lanes: dict[str, LaneStats]


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group on a topic. `settings` are the group's overrides of the topic's settings.

    `dead_letter_topic` is null if messages are never dead-lettered.
    """

    group: str
    topic: str
    generation: int
    settings: dict[str, str]
    dead_letter_topic: str | None
    totals: QueueTotals
    partitions: list[QueuePartition]

    def lanes(self) -> dict[str, LaneStats]:
        """Return the lanes of all partitions, added up by name."""
        by_name: dict[str, list[LaneStats]] = {}
        for partition in self.partitions:
            for name, lane in partition.lanes.items():
                by_name.setdefault(name, []).append(lane)
        return {name: sum_of_lanes(lanes) for name, lanes in by_name.items()}


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one queue."""

    group: str
    topic: str
    totals: QueueTotals


class ReliabilityStats(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries, acknowledgements, retries and dead letters of these queues together, and of each."""

    totals: QueueTotals
    queues: list[QueueStats]


class RedriveDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive; `state` is running, completed, cancelling, cancelled or failed."""

    id: str
    source: str
    target: str | None
    state: str
    started: int
    moved: int
    to_move: int
    messages_per_second: int | None
    failure: str

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING


class RedriveList(msgspec.Struct, frozen=True, kw_only=True):
    """Running and finished redrives, newest first."""

    redrives: list[RedriveDescription]


def sum_of_lanes(lanes: Iterable[LaneStats]) -> LaneStats:
    """Add up lanes of the same name."""
    lanes = list(lanes)
    return LaneStats(
        ready=sum(each.ready for each in lanes),
        in_flight=sum(each.in_flight for each in lanes),
        resting=sum(each.resting for each in lanes),
        enqueued_total=sum(each.enqueued_total for each in lanes),
        delivered_total=sum(each.delivered_total for each in lanes),
    )
