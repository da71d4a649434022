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
from alpacamq.coordinator.consumer.group import MemberDeadlines
from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT,
    TopicsView,
)
from alpacamq.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstanceId,
)
from alpacamq.model.state_machine import Change

from . import records
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
from .records import Current, Profile, StoredGroup
from .topology import ConfiguredTopology, configure

_MAX_INT32 = 2**31 - 1


class StreamsRoster:
    """The members of one streams group, by id."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.profiles: dict[str, Profile] = {}
        self.currents: dict[str, Current] = {}
        self._by_instance: dict[str, str] = {}
        self._owners = TaskOwners()

    def __len__(self) -> int:
        return len(self.profiles)

    def replay(self, kind: str, member_id: str, value: bytes | None) -> None:
        """Apply a stored record; call `index` after the last one."""
        if kind == records.MEMBER:
            if value is None:
                self.profiles.pop(member_id, None)
            else:
                self.profiles[member_id] = records.profile_decoder.decode(value)
        elif kind == records.CURRENT:
            if value is None:
                self.currents.pop(member_id, None)
            else:
                self.currents[member_id] = records.current_decoder.decode(value)

    def index(self) -> None:
        """Rebuild the indexes by instance id and by task."""
        self._by_instance = {
            profile.instance_id: member_id
            for member_id, profile in self.profiles.items()
            if profile.instance_id is not None
        }
        self._owners = TaskOwners()
        for member_id, current in self.currents.items():
            self._owners.replace(member_id, None, current)

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for member_id, profile in self.profiles.items():
            yield records.profile_change(self._group, member_id, profile)
            yield records.current_change(self._group, member_id, self.currents[member_id])

    def identify(self, member_id: str, instance_id: str | None) -> str:
        """Return the id of a member; raise UnknownMember, or FencedInstanceId if it was replaced."""
        if instance_id is not None:
            if (owner := self._by_instance.get(instance_id)) is None:
                raise UnknownMember(f"no member has the group instance id {instance_id!r}")
            if member_id and owner != member_id:
                raise FencedInstanceId(f"{instance_id!r} is now member {owner!r}, not {member_id!r}")
            return owner
        if member_id not in self.profiles:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        return member_id

    def predecessor(self, member_id: str, instance_id: str | None) -> str | None:
        """Return the id of the member that a join continues; None if the member is new."""
        if instance_id is not None and (owner := self._by_instance.get(instance_id)) is not None:
            if owner != member_id and not self.is_away(owner):
                raise UnreleasedInstanceId(f"{instance_id!r} is in use by member {owner!r}")
            return owner
        if member_id not in self.profiles:
            return None
        if self.profiles[member_id].instance_id != instance_id:
            raise FencedInstanceId(f"member {member_id!r} has another group instance id than {instance_id!r}")
        return member_id

    def check_epoch(self, member_id: str, request: StreamsHeartbeatRequest) -> None:
        """Raise FencedMemberEpoch if the epoch of the request is wrong."""
        current = self.currents[member_id]
        if request.member_epoch == current.epoch:
            return
        # The reply with the newer epoch may have been lost. That is harmless if the member owns nothing that
        # was assigned to others since.
        if (
            request.member_epoch == current.previous_epoch < current.epoch
            and request.owned is not None
            and not minus(request.owned, union(current.assigned, current.revoking))
        ):
            return
        raise FencedMemberEpoch(
            f"member {member_id!r} is at epoch {current.epoch}, not {request.member_epoch}: "
            "it must give up its tasks and rejoin"
        )

    def is_away(self, member_id: str) -> bool:
        """Return whether this static member has left and may come back."""
        return self.currents[member_id].epoch == STATIC_LEAVE_EPOCH

    def available_to(self, member_id: str, wanted: Tasks) -> Tasks:
        """Return the wanted tasks that are free for a member."""
        return self._owners.available_to(member_id, wanted, self._process_of)

    def revocation_ends_ms(self, member_id: str, now_ms: int) -> int | None:
        """Return when a revocation that starts now times out; None if there is none."""
        if not self.currents[member_id].revoking:
            return None
        return now_ms + self.profiles[member_id].rebalance_timeout_ms

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

    def put(self, member_id: str, profile: Profile) -> Change:
        """Add a member, or update its profile."""
        self.profiles[member_id] = profile
        self.currents.setdefault(member_id, Current())
        if profile.instance_id is not None:
            self._by_instance[profile.instance_id] = member_id
        return records.profile_change(self._group, member_id, profile)

    def put_current(self, member_id: str, current: Current) -> Change:
        """Set the current assignment of a member."""
        self._owners.replace(member_id, self.currents[member_id], current)
        self.currents[member_id] = current
        return records.current_change(self._group, member_id, current)

    def remove(self, member_id: str) -> list[Change]:
        """Remove a member and its assignment."""
        self._owners.replace(member_id, self.currents.pop(member_id), None)
        profile = self.profiles.pop(member_id)
        if profile.instance_id is not None:
            del self._by_instance[profile.instance_id]
        return [
            records.removal(self._group, records.CURRENT, member_id),
            records.removal(self._group, records.MEMBER, member_id),
        ]

    def replace(self, member_id: str, successor_id: str) -> list[Change]:
        """Give the profile and assignment of a static member to its new process."""
        profile, current = self.profiles[member_id], self.currents[member_id]
        changes = self.remove(member_id)
        changes.append(self.put(successor_id, profile))
        changes.append(self.put_current(successor_id, Current(assigned=current.assigned)))
        return changes

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


class StreamsGroup:
    """One group. Methods return the changes to store; a method that raises has changed nothing."""

    def __init__(self, group: str, settings: Callable[[], StreamsGroupSettings], max_members: int) -> None:
        """Use the current settings: those of a group can be changed."""
        self.id = group
        self._current_settings = settings
        self._max_members = max_members
        self._roster = StreamsRoster(group)
        self._target = TargetTasks(group)
        self._deadlines = MemberDeadlines()
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
        self.epoch = 0

    @property
    def _settings(self) -> StreamsGroupSettings:
        return self._current_settings()

    @property
    def exists(self) -> bool:
        """Return whether the group is stored."""
        return self._stored is not None

    @property
    def is_empty(self) -> bool:
        return not self._roster

    @property
    def member_count(self) -> int:
        return len(self._roster)

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

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`."""
        return self._deadlines.next_ms

    def heartbeat(
        self, request: StreamsHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], StreamsHeartbeatReply]:
        """Handle a heartbeat: join, renew, confirm or leave."""
        request.check()
        if request.member_epoch == LEAVE_EPOCH:
            changes = self.remove(request.member_id, request.instance_id, now_ms)
            return changes, self._leave_reply(request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return self._leave_static(request, now_ms), self._leave_reply(request)

        member_id, changes = self._update_member(request)
        configured = self._configure(topics)
        changes += self._update_target(configured)
        before = self._roster.currents[member_id]
        after = reconcile(
            self._joined(member_id) if request.member_epoch == JOIN_EPOCH else before,
            self._target[member_id],
            self._target.epoch,
            request.owned,
            partial(self._roster.available_to, member_id),
        )
        if after != before:
            changes.append(self._roster.put_current(member_id, after))
            self._deadlines.watch_revocation(member_id, self._roster.revocation_ends_ms(member_id, now_ms))
            if after.assigned != before.assigned and self._roster.profiles[member_id].endpoint is not None:
                self._endpoint_epoch += 1
        self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
        if request.shutdown_application:
            self._shutdown_by = member_id
        changes += self._group_changes()
        return changes, self._reply(member_id, request, before, topics)

    def remove(self, member_id: str, instance_id: str | None, _now_ms: int) -> list[Change]:
        """Remove a member; a static one may be given by its instance id alone."""
        return self._remove([self._roster.identify(member_id, instance_id)])

    def tick(self, now_ms: int) -> list[Change]:
        """Remove members whose session has ended, or whose revocation has timed out."""
        sessions, revocations = self._deadlines.take_due(now_ms)
        due = sessions | revocations
        return self._remove(sorted(due)) if due else []

    def creation_failed(self, reason: str) -> None:
        """Report to members why internal topics could not be created, until the topics change."""
        self._creation_failure = reason

    def validate_commit(self, member_id: str, member_epoch: int) -> None:
        """Raise unless this member may commit. Clients without an epoch may commit to an empty group."""
        if self.is_empty and member_epoch < 0:
            return
        if (current := self._roster.currents.get(member_id)) is None:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        if member_epoch != current.epoch:
            raise StaleMemberEpoch(f"member {member_id!r} is at epoch {current.epoch}, not {member_epoch}")

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

    def delete(self) -> list[Change]:
        """Delete the group; raise NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._roster)} members")
        return records.group_removal(self.id)

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        match parts[2:]:
            case ():
                self._stored = records.group_decoder.decode(value) if value is not None else None
            case (records.TOPOLOGY,):
                self._topology = records.topology_decoder.decode(value) if value is not None else None
            case (records.TARGET, str(member_id)):
                self._target.replay(member_id, value)
            case (str(kind), str(member_id)):
                self._roster.replay(kind, member_id, value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Resume after replay: start a full session for every member."""
        if self._stored is not None:
            self.epoch = self._stored.epoch
            self._target.epoch = self._stored.target_epoch
            self._target.digest = self._stored.digest
            self._target.is_ready = self._stored.is_ready
        self._endpoint_epoch = (now_ms // 1000) & _MAX_INT32
        self._roster.index()
        for member_id in self._roster.currents:
            self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
            self._deadlines.watch_revocation(member_id, self._roster.revocation_ends_ms(member_id, now_ms))
        return []

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        if self._stored is not None:
            yield records.group_change(self.id, self._stored)
            if self._topology is not None:
                yield records.topology_change(self.id, self._topology)
            yield from self._roster.snapshot()
            yield from self._target.snapshot()

    def _update_member(self, request: StreamsHeartbeatRequest) -> tuple[str, list[Change]]:
        """Find or add the member of a request; update its profile and the topology."""
        member_id = request.member_id
        if request.member_epoch == JOIN_EPOCH:
            predecessor = self._roster.predecessor(member_id, request.instance_id)
            if predecessor is None and len(self._roster) >= self._max_members:
                raise GroupMaxSizeReached(
                    f"too many members in group {self.id!r}: the limit is {self._max_members}"
                )
            self._check_topology(request, predecessor)
        else:
            member_id = predecessor = self._roster.identify(member_id, request.instance_id)
            self._roster.check_epoch(member_id, request)
        before = self._roster.profiles[predecessor] if predecessor is not None else None
        profile = updated_profile(before, request)

        changes = self._update_topology(request.topology)
        if predecessor is not None and self._roster.is_away(predecessor):
            changes += self._roster.replace(predecessor, member_id)
            changes += self._target.move(predecessor, member_id)
            self._deadlines.remove(predecessor)
        if profile != before:
            changes.append(self._roster.put(member_id, profile))
            if before is None or _assigned_by(profile) != _assigned_by(before):
                self.epoch += 1
            if (before.endpoint if before is not None else None) != profile.endpoint:
                self._endpoint_epoch += 1
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
        self.epoch += 1
        return [records.topology_change(self.id, topology)]

    def _configure(self, topics: TopicsView) -> ConfiguredTopology:
        """Return the topology on the current topics."""
        assert self._topology is not None
        if self._configured is None or self._topics_version != topics.version:
            self._configured = configure(self._topology, topics)
            self._topics_version = topics.version
            self._creation_failure = ""
        return self._configured

    def _update_target(self, configured: ConfiguredTopology) -> list[Change]:
        """Compute a new target assignment if the group, its topology or its topics have changed."""
        standbys = self._settings.num_standby_replicas
        if self.epoch == self._target.epoch and configured.digest(standbys) != self._target.digest:
            self.epoch += 1
        if self.epoch == self._target.epoch:
            return []
        current = {
            member_id: profile.process_id
            for member_id, profile in self._roster.profiles.items()
            if not self._is_stale(profile)
        }
        stale = [member_id for member_id in self._roster.profiles if member_id not in current]
        changes = self._target.compute(self.epoch, current, stale, configured, standbys)
        for member_id, held in self._roster.currents.items():
            # A static member that is away owns nothing: do not keep tasks that are not in its target.
            if self._roster.is_away(member_id):
                kept = common(held.assigned, self._target[member_id])
                if kept != held.assigned:
                    changes.append(self._roster.put_current(member_id, _away(kept)))
        return changes

    def _joined(self, member_id: str) -> Current:
        """Return the assignment of a member that joins: it owns nothing, so nothing is to be revoked."""
        current = self._roster.currents[member_id]
        return msgspec.structs.replace(
            current, assigned=common(current.assigned, self._target[member_id]), revoking=Tasks()
        )

    def _leave_static(self, request: StreamsHeartbeatRequest, now_ms: int) -> list[Change]:
        """Mark a static member as away; it keeps its tasks until its session ends."""
        member_id = self._roster.identify(request.member_id, request.instance_id)
        assigned = self._roster.currents[member_id].assigned
        self._deadlines.remove(member_id)
        self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
        return [self._roster.put_current(member_id, _away(assigned))]

    def _remove(self, member_ids: list[str]) -> list[Change]:
        changes: list[Change] = []
        for member_id in member_ids:
            if self._roster.profiles[member_id].endpoint is not None:
                self._endpoint_epoch += 1
            changes += self._roster.remove(member_id)
            changes += self._target.drop(member_id)
            self._deadlines.remove(member_id)
        if self.is_empty:
            self._shutdown_by = None
        self.epoch += 1
        return changes + self._group_changes()

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


def _away(kept: Tasks) -> Current:
    return Current(epoch=STATIC_LEAVE_EPOCH, assigned=kept)


def _assigned_by(profile: Profile) -> tuple[object, ...]:
    """Return the part of a profile that determines assignments."""
    return profile.topology_epoch, profile.process_id, profile.rack_id, profile.client_tags
