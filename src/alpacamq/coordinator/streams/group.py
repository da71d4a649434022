"""One streams group of KIP-1071: its topology, its epoch and the heartbeats of its members.

The first member brings the topology. While source topics are missing or internal topics are not created yet,
members have no tasks and a status says why. The epoch grows whenever the members, the topology, its topics or
the number of standby tasks change. The next heartbeat computes a target assignment for the new epoch, and
each member reaches its target with its own heartbeats.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from alpacamq.coordinator.consumer.assignment import MemberState
from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT,
    TopicsView,
)
from alpacamq.coordinator.members import EpochGroup, MemberRoster
from alpacamq.coordinator.rebalances import RebalanceCause
from alpacamq.model.errors import GroupMaxSizeReached, InvalidRequest
from alpacamq.model.state_machine import Change

from .assignment import TargetTasks, TaskOwners, common, minus, reconcile, state_of, union
from .messages import (
    Endpoint,
    EndpointPartitions,
    InternalTopic,
    Status,
    StatusCode,
    StreamsGroupDescription,
    StreamsGroupSettings,
    StreamsGroupState,
    StreamsHeartbeatReply,
    StreamsHeartbeatRequest,
    StreamsMemberDescription,
    TaskIds,
    Tasks,
    Topology,
)
from .records import TOPOLOGY, Current, Profile, StoredGroup, decode_group, decode_topology, records
from .topology import ConfiguredTopology, configure

_MAX_INT32 = 2**31 - 1


class StreamsRoster(MemberRoster[Profile, Current, TaskOwners]):
    """The members of one streams group, by id."""

    def __init__(self, group: str) -> None:
        super().__init__(group, records, TaskOwners)

    def common(self, one: Tasks, other: Tasks) -> Tasks:
        """Return the tasks in both, in the same role."""
        return common(one, other)

    def _may_own(self, current: Current, owned: Tasks) -> bool:
        return not minus(owned, union(current.assigned, current.revoking))

    def available_to(self, member_id: str, wanted: Tasks) -> Tasks:
        """Return the wanted tasks that are free for a member."""
        return self._owners.available_to(member_id, wanted, self._process_of)

    def describe(self, member_id: str, target: Tasks) -> StreamsMemberDescription:
        """Describe a member with this target assignment."""
        profile, current = self.profiles[member_id], self.currents[member_id]
        return StreamsMemberDescription(
            member_id=member_id,
            instance_id=profile.instance_id,
            rack_id=profile.rack_id,
            member_epoch=current.epoch,
            client_id=profile.client_id,
            client_host=profile.client_host,
            topology_epoch=profile.topology_epoch,
            process_id=profile.process_id,
            endpoint=profile.endpoint,
            client_tags=profile.client_tags,
            assignment=current.assigned,
            target_assignment=target,
        )

    def _process_of(self, member_id: str) -> str:
        return self.profiles[member_id].process_id


def updated_profile(before: Profile | None, request: StreamsHeartbeatRequest) -> Profile:
    """Return the profile of a member with the changes of a request."""
    if request.member_epoch == JOIN_EPOCH:
        assert request.topology is not None
        assert request.process_id is not None
        return Profile(
            instance_id=request.instance_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topology_epoch=request.topology.epoch,
            process_id=request.process_id,
            rack_id=request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            endpoint=request.endpoint,
            client_tags=request.client_tags or (),
        )
    assert before is not None
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != UNCHANGED_TIMEOUT:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.process_id:
        changes["process_id"] = request.process_id
    if request.endpoint is not None:
        changes["endpoint"] = request.endpoint
    if request.client_tags is not None:
        changes["client_tags"] = request.client_tags
    return msgspec.structs.replace(before, **changes)


class StreamsGroup(EpochGroup[StreamsRoster, TargetTasks]):
    """One group."""

    def __init__(
        self, group: str, settings: Callable[[], StreamsGroupSettings], max_members: Callable[[], int]
    ) -> None:
        """Use the current settings: those of a group can be changed."""
        super().__init__(group, StreamsRoster(group), TargetTasks(group))
        self._current_settings = settings
        self._max_members = max_members
        self._stored: StoredGroup | None = None
        self._topology: Topology | None = None
        # Not stored: computed again when the topics or the topology change.
        self._configured: ConfiguredTopology | None = None
        self._topics_version: int | None = None
        self._creation_failure = ""
        # Not stored: a member that wants to shut the application down repeats its request.
        self._shutdown_by: str | None = None
        # Not stored: a different number makes members ask again.
        self._endpoint_epoch = 0

    @property
    def _settings(self) -> StreamsGroupSettings:
        return self._current_settings()

    @property
    def exists(self) -> bool:
        """Return whether the group is stored."""
        return self._stored is not None

    @property
    def _session_timeout_ms(self) -> int:
        return self._settings.session_timeout_ms

    @property
    def state(self) -> StreamsGroupState:
        if self.is_empty:
            return StreamsGroupState.EMPTY
        if not self._target.is_ready:
            return StreamsGroupState.NOT_READY
        if self.epoch > self._target.epoch:
            return StreamsGroupState.ASSIGNING
        for member_id, current in self._roster.currents.items():
            if current.epoch != self.epoch or self._state_of(member_id) is not MemberState.STABLE:
                return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    @property
    def missing_topics(self) -> tuple[InternalTopic, ...]:
        """Return the internal topics to create, known after a heartbeat."""
        return self._configured.missing if self._configured is not None else ()

    def heartbeat(
        self, request: StreamsHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], StreamsHeartbeatReply]:
        """Handle a heartbeat: join, renew, confirm or leave."""
        request.check()
        if request.member_epoch == LEAVE_EPOCH:
            changes = self.remove(request.member_id, request.instance_id, now_ms)
            return changes, self._leave_reply(request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            changes = self._leave_static(request.member_id, request.instance_id, now_ms)
            return changes, self._leave_reply(request)

        member_id, changes = self._update_member(request, now_ms)
        changes += self._update_target(self._configure(topics), now_ms)
        before = self._roster.currents[member_id]
        after = reconcile(
            self._joined(member_id) if request.member_epoch == JOIN_EPOCH else before,
            self._target[member_id],
            self._target.epoch,
            request.owned,
            partial(self._roster.available_to, member_id),
        )
        changes += self._reconciled(member_id, after, now_ms)
        if after.assigned != before.assigned and self._roster.profiles[member_id].endpoint is not None:
            self._endpoint_epoch += 1
        if self.history.is_running and self.state is StreamsGroupState.STABLE:
            self.history.end(self.epoch, len(self._roster), now_ms)
        if request.shutdown_application:
            self._shutdown_by = member_id
        changes += self._group_changes()
        return changes, self._reply(member_id, request, before, topics)

    def creation_failed(self, reason: str) -> None:
        """Report to members why internal topics could not be created, until the topics change."""
        self._creation_failure = reason

    def subscribes(self, topic: str) -> bool:
        """Return whether members read this topic."""
        if self.is_empty or self._topology is None:
            return False
        return any(topic in each.inputs for each in self._topology.subtopologies)

    def describe(self) -> StreamsGroupDescription:
        """Describe the group and its members."""
        return StreamsGroupDescription(
            group=self.id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self._target.epoch,
            topology=self._topology,
            members=tuple(
                self._roster.describe(member_id, self._target[member_id])
                for member_id in self._roster.profiles
            ),
        )

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        match parts[2:]:
            case ():
                self._stored = decode_group(value) if value is not None else None
            case (str(),):
                self._topology = decode_topology(value) if value is not None else None
            case (str(kind), str(member_id)):
                self._replay_member(kind, member_id, value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Resume after replay: start a full session for every member."""
        if self._stored is not None:
            self.epoch = self._stored.epoch
            self._target.epoch = self._stored.target_epoch
            self._target.digest = self._stored.digest
            self._target.is_ready = self._stored.is_ready
        self._endpoint_epoch = (now_ms // 1000) & _MAX_INT32
        self._resume(now_ms)
        return []

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        if self._stored is not None:
            yield records.group_change(self.id, self._stored)
            if self._topology is not None:
                yield records.group_change(self.id, self._topology, TOPOLOGY)
            yield from self._roster.snapshot()
            yield from self._target.snapshot()

    def _update_member(self, request: StreamsHeartbeatRequest, now_ms: int) -> tuple[str, list[Change]]:
        """Find or add the member of a request; update its profile and the topology."""
        member_id = request.member_id
        if request.member_epoch == JOIN_EPOCH:
            predecessor = self._roster.predecessor(member_id, request.instance_id)
            if predecessor is None and len(self._roster) >= self._max_members():
                raise GroupMaxSizeReached(
                    f"too many members in group {self.id!r}: the limit is {self._max_members()}"
                )
            self._check_topology(request, predecessor)
        else:
            member_id = predecessor = self._roster.identify(member_id, request.instance_id)
            self._roster.check_epoch(member_id, request.member_epoch, request.owned)
        before = self._roster.profiles[predecessor] if predecessor is not None else None
        profile = updated_profile(before, request)

        changes = self._update_topology(request.topology)
        cause = RebalanceCause.TOPOLOGY_CHANGED if changes else None
        changes += self._return_static(predecessor, member_id)
        if profile != before:
            changes.append(self._roster.put(member_id, profile))
            if before is None:
                cause = RebalanceCause.MEMBER_JOINED
            elif _assigned_by(profile) != _assigned_by(before):
                cause = cause or RebalanceCause.MEMBER_REJOINED
            if (before.endpoint if before is not None else None) != profile.endpoint:
                self._endpoint_epoch += 1
        if cause is not None:
            self._begin_epoch(cause, [member_id], now_ms)
        return member_id, changes

    def _check_topology(self, request: StreamsHeartbeatRequest, predecessor: str | None) -> None:
        """Raise InvalidRequest if another topology of the same epoch is in use."""
        topology, current = request.topology, self._topology
        if topology is None or current is None or topology.epoch != current.epoch or topology == current:
            return
        if any(member_id != predecessor for member_id in self._roster.profiles):
            raise InvalidRequest(
                f"group {self.id!r} has members with another topology of epoch {current.epoch}: "
                "stop them first, or use a higher topology epoch"
            )

    def _update_topology(self, topology: Topology | None) -> list[Change]:
        """Take a topology that is new; members with an older epoch lose their tasks."""
        current = self._topology
        if topology is None or topology == current:
            return []
        if current is not None and topology.epoch < current.epoch and self._roster:
            return []  # the member is stale
        self._topology = topology
        self._configured = None
        return [records.group_change(self.id, topology, TOPOLOGY)]

    def _configure(self, topics: TopicsView) -> ConfiguredTopology:
        """Return the topology on the current topics."""
        assert self._topology is not None
        if self._configured is None or self._topics_version != topics.version:
            self._configured = configure(self._topology, topics)
            self._topics_version = topics.version
            self._creation_failure = ""
        return self._configured

    def _update_target(self, configured: ConfiguredTopology, now_ms: int) -> list[Change]:
        """Compute a new target assignment if the group, its topology or its topics have changed."""
        standbys = self._settings.num_standby_replicas
        if self.epoch == self._target.epoch and configured.digest(standbys) != self._target.digest:
            self._begin_epoch(RebalanceCause.TOPICS_CHANGED, [], now_ms)
        if self.epoch == self._target.epoch:
            return []
        current = {
            member_id: profile.process_id
            for member_id, profile in self._roster.profiles.items()
            if not self._is_stale(profile)
        }
        stale = [member_id for member_id in self._roster.profiles if member_id not in current]
        changes = self._target.compute(self.epoch, current, stale, configured, standbys)
        return changes + self._trim_away()

    def _joined(self, member_id: str) -> Current:
        """Return the assignment of a member that joins: it owns nothing, so nothing is to be revoked."""
        current = self._roster.currents[member_id]
        return msgspec.structs.replace(
            current, assigned=common(current.assigned, self._target[member_id]), revoking=Tasks()
        )

    def _remove(self, member_ids: list[str], cause: RebalanceCause, now_ms: int) -> list[Change]:
        self._endpoint_epoch += sum(
            self._roster.profiles[member_id].endpoint is not None for member_id in member_ids
        )
        changes = super()._remove(member_ids, cause, now_ms)
        if self.is_empty:
            self._shutdown_by = None
        return changes

    def _removal(self) -> list[Change]:
        return [records.group_removal(self.id, TOPOLOGY), records.group_removal(self.id)]

    def _group_changes(self) -> list[Change]:
        """Return the record of the group if it has changed."""
        stored = StoredGroup(
            epoch=self.epoch,
            target_epoch=self._target.epoch,
            digest=self._target.digest,
            is_ready=self._target.is_ready,
        )
        if stored == self._stored:
            return []
        self._stored = stored
        return [records.group_change(self.id, stored)]

    def _is_stale(self, profile: Profile) -> bool:
        return self._topology is not None and profile.topology_epoch != self._topology.epoch

    def _state_of(self, member_id: str) -> MemberState:
        return state_of(self._roster.currents[member_id], self._target[member_id])

    def _leave_reply(self, request: StreamsHeartbeatRequest) -> StreamsHeartbeatReply:
        return StreamsHeartbeatReply(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            endpoint_epoch=self._endpoint_epoch,
        )

    def _reply(
        self, member_id: str, request: StreamsHeartbeatRequest, before: Current, topics: TopicsView
    ) -> StreamsHeartbeatReply:
        current = self._roster.currents[member_id]
        # Repeat the assignment to a member that reports another one: the reply may have been lost.
        sends_tasks = (
            request.member_epoch == JOIN_EPOCH
            or request.member_epoch != before.epoch
            or before.assigned != current.assigned
            or (request.owned is not None and request.owned != current.assigned)
        )
        settings = self._settings
        is_waiting = self._state_of(member_id) is not MemberState.STABLE or (
            bool(self.missing_topics) and not self._creation_failure
        )
        interval_ms = settings.heartbeat_interval_ms
        return StreamsHeartbeatReply(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=(
                min(settings.reconciling_interval_ms, interval_ms) if is_waiting else interval_ms
            ),
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            task_offset_interval_ms=settings.task_offset_interval_ms,
            statuses=tuple(self._statuses(member_id)),
            tasks=current.assigned if sends_tasks else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=self._endpoints(topics) if request.endpoint_epoch != self._endpoint_epoch else None,
        )

    def _statuses(self, member_id: str) -> Iterator[Status]:
        profile = self._roster.profiles[member_id]
        if self._topology is not None and self._is_stale(profile):
            yield Status(
                StatusCode.STALE_TOPOLOGY,
                f"topology epoch {profile.topology_epoch} of the member is behind "
                f"epoch {self._topology.epoch} of the group",
            )
        if self._configured is not None and (problem := self._configured.problem) is not None:
            failure = f"; {self._creation_failure}" if self._creation_failure else ""
            yield Status(problem.code, problem.detail + failure)
        if self._shutdown_by is not None:
            yield Status(
                StatusCode.SHUTDOWN_APPLICATION, f"member {self._shutdown_by!r} requested the shutdown"
            )

    def _endpoints(self, topics: TopicsView) -> tuple[EndpointPartitions, ...]:
        """Return the source partitions of the tasks of each member with an endpoint."""
        assert self._topology is not None
        inputs = {each.id: each.inputs for each in self._topology.subtopologies}

        def partitions(tasks: TaskIds) -> Mapping[str, tuple[int, ...]]:
            found: dict[str, tuple[int, ...]] = {}
            for subtopology, indexes in tasks.items():
                for name in inputs.get(subtopology, ()):
                    if (topic := topics.get(name)) is not None:
                        found[name] = tuple(sorted(each for each in indexes if each < topic.partitions))
            return {name: found[name] for name in sorted(found)}

        # The members of a process have the same endpoint, and clients expect it once.
        by_endpoint: dict[Endpoint, Tasks] = {}
        for member_id, profile in self._roster.profiles.items():
            if (endpoint := profile.endpoint) is not None:
                assigned = self._roster.currents[member_id].assigned
                by_endpoint[endpoint] = union(by_endpoint.get(endpoint, Tasks()), assigned)
        return tuple(
            EndpointPartitions(
                endpoint=endpoint, active=partitions(tasks.active), standby=partitions(tasks.standby)
            )
            for endpoint, tasks in by_endpoint.items()
        )


def _assigned_by(profile: Profile) -> tuple[object, ...]:
    """Return the part of a profile that determines assignments."""
    return profile.topology_epoch, profile.process_id, profile.rack_id, profile.client_tags
