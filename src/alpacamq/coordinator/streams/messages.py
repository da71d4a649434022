"""Requests and replies of streams groups (KIP-1071). Fields have the meaning of Kafka's protocol.

Warm-up tasks are not assigned: a task moves to its new member at once, which restores its state from the
changelog topics.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

import msgspec

from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    MAX_SUBSCRIPTION_CHARACTERS,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT,
)
from alpacamq.coordinator.messages import GroupRequest
from alpacamq.model.errors import InvalidRequest, StreamsInvalidTopology
from alpacamq.model.state_machine import Request

STREAMS_PROTOCOL = "streams"
# The profile of a member is one record, whose size is limited.
MAX_TAG_CHARACTERS = 10_000

TaskIds = Mapping[str, frozenset[int]]  # partitions by subtopology


class Tasks(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of a member by role."""

    active: TaskIds = {}
    standby: TaskIds = {}

    def __bool__(self) -> bool:
        return bool(self.active or self.standby)


class InternalTopic(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A topic that the group needs and the broker creates. Partitions 0: derived from other topics."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()  # sorted


class Subtopology(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A part of a topology that is connected to the others by repartition topics only."""

    id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[tuple[str, ...], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the topics that its tasks read."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_source_topics))

    @property
    def internal_topics(self) -> tuple[InternalTopic, ...]:
        return (*self.repartition_source_topics, *self.changelog_topics)

    def check(self) -> None:
        """Raise StreamsInvalidTopology if it can never have tasks."""
        if not self.id:
            raise StreamsInvalidTopology("invalid subtopology id: must not be empty")
        if self.source_topic_regex:
            raise StreamsInvalidTopology(
                f"subtopology {self.id!r} has source topic patterns, which are not supported"
            )
        if not self.inputs:
            raise StreamsInvalidTopology(f"subtopology {self.id!r} has no source topics")
        for topic in self.changelog_topics:
            if topic.partitions != 0:
                raise StreamsInvalidTopology(
                    f"changelog topic {topic.name!r} must not have a number of partitions of its own, "
                    f"but has {topic.partitions}"
                )
        for topic in self.repartition_source_topics:
            if topic.partitions < 0:
                raise StreamsInvalidTopology(
                    f"invalid number of partitions of repartition topic {topic.name!r}: {topic.partitions}"
                )

    def texts(self) -> Iterable[str]:
        """Yield the texts of which its record consists."""
        yield self.id
        yield from self.inputs
        yield from self.source_topic_regex
        yield from self.repartition_sink_topics
        for group in self.copartition_groups:
            yield from group
        for topic in self.internal_topics:
            yield topic.name
            for name, value in topic.configs:
                yield name
                yield value


class Topology(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The topology of an application. A higher epoch replaces a lower one."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]  # sorted by id

    def check(self) -> None:
        """Raise StreamsInvalidTopology if the topology can never run."""
        if not self.subtopologies:
            raise StreamsInvalidTopology("invalid topology: must have a subtopology")
        if len({each.id for each in self.subtopologies}) < len(self.subtopologies):
            raise StreamsInvalidTopology("invalid topology: two subtopologies have the same id")
        size = 0
        for each in self.subtopologies:
            each.check()
            # With a few bytes for the length of each text.
            size += sum(len(text) + 4 for text in each.texts())
        if size > MAX_SUBSCRIPTION_CHARACTERS:
            raise StreamsInvalidTopology(
                f"topology too large: the limit is {MAX_SUBSCRIPTION_CHARACTERS} characters"
            )
        self._check_partition_counts()

    def _check_partition_counts(self) -> None:
        """Check that every number of partitions follows from those of other topics."""
        readers: dict[str, list[Subtopology]] = {}
        for each in self.subtopologies:
            for topic in each.repartition_source_topics:
                if not topic.partitions:
                    readers.setdefault(topic.name, []).append(each)
        undecided = set(readers)
        determined = [each for each in self.subtopologies if not undecided.issuperset(each.inputs)]
        while determined:
            for name in undecided.intersection(determined.pop().repartition_sink_topics):
                undecided.discard(name)
                determined += readers[name]
        if undecided:
            names = ", ".join(sorted(undecided)[:10])
            raise StreamsInvalidTopology(
                f"no subtopology determines the number of partitions of these repartition topics: {names}"
            )


class StreamsGroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of a streams group, and its number of standby tasks."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    num_standby_replicas: int = 0
    # For members that wait for tasks or internal topics.
    reconciling_interval_ms: int = 500
    acceptable_recovery_lag: int = 10_000
    task_offset_interval_ms: int = 60_000


class StatusCode(IntEnum):
    """Statuses in heartbeat responses, by their number on the wire."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4


class Status(msgspec.Struct, frozen=True):
    """A status of the group, and its reason."""

    code: StatusCode
    detail: str


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where a process answers interactive queries."""

    host: str
    port: int


class EndpointPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """The source partitions of the tasks at an endpoint, by topic."""

    endpoint: Endpoint
    active: Mapping[str, tuple[int, ...]]
    standby: Mapping[str, tuple[int, ...]]


class StreamsHeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch and tasks of a member; without tasks or endpoints they are unchanged."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    statuses: tuple[Status, ...] = ()
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None


class StreamsHeartbeatRequest(GroupRequest[StreamsHeartbeatReply], frozen=True, kw_only=True):
    """Join, renew the session, confirm tasks, or leave, depending on the epoch."""

    member_epoch: int
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_TIMEOUT
    topology: Topology | None = None
    owned: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    endpoint_epoch: int = -1
    shutdown_application: bool = False
    client_id: str = ""
    client_host: str = ""

    @property
    def may_be_repeated(self) -> bool:
        # A join without an id creates a member, and a second leave fails.
        return bool(self.member_id) and self.member_epoch >= JOIN_EPOCH

    def check(self) -> None:
        """Raise InvalidRequest or StreamsInvalidTopology if invalid in any state of the group."""
        if not self.group:
            raise InvalidRequest("invalid group id: must not be empty")
        if not self.member_id:
            raise InvalidRequest("invalid member id: must not be empty")
        if self.instance_id == "":
            raise InvalidRequest("invalid group instance id: must not be empty")
        if self.rack_id == "":
            raise InvalidRequest("invalid rack id: must not be empty")
        if self.rebalance_timeout_ms != UNCHANGED_TIMEOUT and self.rebalance_timeout_ms <= 0:
            raise InvalidRequest(f"rebalance timeout must be positive, not {self.rebalance_timeout_ms} ms")
        if sum(len(name) + len(value) for name, value in self.client_tags or ()) > MAX_TAG_CHARACTERS:
            raise InvalidRequest(f"client tags too large: the limit is {MAX_TAG_CHARACTERS} characters")
        if self.member_epoch == JOIN_EPOCH:
            self._check_join()
        elif self.topology is not None:
            raise InvalidRequest("only a join may contain a topology")
        elif self.member_epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequest(f"invalid member epoch {self.member_epoch}")
        elif self.member_epoch == STATIC_LEAVE_EPOCH and self.instance_id is None:
            raise InvalidRequest(f"member epoch {STATIC_LEAVE_EPOCH} requires a group instance id")

    def _check_join(self) -> None:
        if self.rebalance_timeout_ms == UNCHANGED_TIMEOUT:
            raise InvalidRequest("a join requires a rebalance timeout")
        if self.owned is None or self.owned:
            raise InvalidRequest("a join requires empty lists of owned tasks")
        if not self.process_id:
            raise InvalidRequest("a join requires a process id")
        if self.topology is None:
            raise InvalidRequest("a join requires a topology")
        self.topology.check()


class StreamsGroupState(StrEnum):
    """The state of a group, with Kafka's names."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsMemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member with its current and target assignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    endpoint: Endpoint | None
    client_tags: tuple[tuple[str, str], ...]
    assignment: Tasks
    target_assignment: Tasks


class StreamsGroupDescription(msgspec.Struct, frozen=True, kw_only=True, tag="streams"):
    """A streams group."""

    group: str
    state: StreamsGroupState
    epoch: int
    assignment_epoch: int
    topology: Topology | None
    members: tuple[StreamsMemberDescription, ...]


class CreateInternalTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: create the internal topics that a group waits for."""

    group: str
    topics: tuple[InternalTopic, ...]


class InternalTopicsFailed(Request[None], frozen=True, kw_only=True):
    """Event: internal topics of a group could not be created."""

    group: str
    reason: str
