"""The controller: registers brokers, watches their sessions, and decides every change of the metadata.

Runs on the node that leads the metadata log. It decides against everything proposed so far, committed or
not; its node writes the changes in order, and discards the controller when it stops being leader. Times are
monotonic. `tick` is due at `next_deadline_ms`, and once at the beginning.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from alpacamq.model.errors import (
    AlpacaError,
    DuplicateBroker,
    FeatureUpdateFailed,
    InvalidReplication,
    InvalidRequest,
    StaleBrokerEpoch,
)
from alpacamq.model.ids import BrokerId

from .access import AccessControl
from .brokers import NO_EPOCH, BrokerRegistration, FeatureRange
from .cluster_time import ClusterTime
from .commands import (
    AddMember,
    AddPartitions,
    AllocateProducerIds,
    AlterPartitions,
    AlterQuotas,
    AlterTenant,
    AlterUsers,
    Command,
    ConfigureBroker,
    ConfigureTopic,
    CreateAcls,
    CreateApiKey,
    CreateDelegationToken,
    CreateTenant,
    CreateTopic,
    DeleteAcls,
    DeleteApiKey,
    DeleteTenant,
    DeleteTopic,
    Done,
    DrainBroker,
    DrainReply,
    ElectLeaders,
    EnableSessions,
    EndSession,
    ExpireDelegationToken,
    Failure,
    Heartbeat,
    HeartbeatReply,
    PartitionResult,
    PartitionResults,
    ProducerIdBlock,
    Reassign,
    RegisterBroker,
    RemoveMember,
    RenewDelegationToken,
    RotateApiKey,
    UnregisterBroker,
    UpdateFeatures,
)
from .decisions import ControllerSettings, Decision, Pending
from .image import (
    CURRENT_LEVEL,
    VERSION_FEATURE,
    ClusterImage,
    broker_change,
    broker_epochs_change,
    broker_removal,
    feature_change,
    producer_ids_change,
    time_change,
    unsupported_feature,
)
from .partition_control import PartitionControl
from .sessions import Session, Sessions
from .tenants import TenantControl
from .topic_control import TopicControl

R = TypeVar("R")

MAX_PRODUCER_IDS = 1_000_000
ATOMIC = (
    CreateTopic,
    DeleteTopic,
    AddPartitions,
    ConfigureTopic,
    ConfigureBroker,
    AlterQuotas,
    AlterUsers,
    CreateAcls,
    DeleteAcls,
    DeleteTenant,
)


class Controller:
    """Decides commands and what follows from the passage of time.

    The caller sets `last_index` to the index of the last entry it has appended, before each call: a broker is
    unfenced once it has applied what was there when it registered. `time` is the cluster time as the node
    knows it when it becomes controller.
    """

    def __init__(
        self,
        image: ClusterImage,
        settings: ControllerSettings,
        now_ms: int,
        *,
        time: ClusterTime | None = None,
        last_index: int = 0,
    ) -> None:
        self.last_index = last_index
        self._settings = settings
        self._pending = Pending(image.copy())
        self._sessions = Sessions(settings.dead_ms)
        self._partitions = PartitionControl(self._pending, self._sessions, settings)
        self._topics = TopicControl(self._pending, self._partitions, settings)
        self._access = AccessControl(self._pending)
        self._tenants = TenantControl(self._pending)
        self._started_ms = now_ms
        self._time = time or ClusterTime(0, now_ms)
        self._time.lead(self._time.at(now_ms), image.time_ms, now_ms)
        self._is_new = True
        self._rebalance_ms = now_ms + settings.rebalance_ms
        self._drain_ms = now_ms
        self._record_time_ms = now_ms + settings.record_time_ms
        self._token_check_ms = now_ms
        # Brokers that were alive get a whole session: the last controller may have heard them just now.
        for broker in image.brokers.values():
            if broker.is_running:
                self._sessions.extend(broker.id, now_ms)
            else:
                self._sessions.of(broker.id).registered_index = last_index

    @property
    def image(self) -> ClusterImage:
        """The image with everything proposed so far. Not to be changed."""
        return self._pending.image

    def cluster_time_ms(self, now_ms: int) -> int:
        return self._time.at(now_ms)

    def session(self, broker_id: int) -> Session:
        """Return what is known about a broker beyond the image."""
        return self._sessions.of(broker_id)

    def decide(self, command: Command[R], now_ms: int) -> Decision[R]:
        """Decide a command. Raises AlpacaError, and then nothing has changed."""
        try:
            reply: R = _HANDLERS[type(command)](self, command, now_ms)
        except AlpacaError:
            changes = self._pending.take()
            assert not changes, f"{type(command).__name__} changed something, then failed"
            raise
        return Decision(changes=self._pending.take(), reply=reply, is_atomic=isinstance(command, ATOMIC))

    # Time and failures

    @property
    def next_deadline_ms(self) -> int:
        """When to call `tick`."""
        due = [self._record_time_ms]
        if self._is_new:
            due.append(self._started_ms)
        if self._sessions.next_end_ms is not None:
            due.append(self._sessions.next_end_ms)
        if self.image.not_preferred:
            due.append(self._rebalance_ms)
        if self._draining():
            due.append(self._drain_ms)
        return min(due)

    def end_session(self, broker_id: BrokerId) -> None:
        """End the session of the last process of the controller's own node, which registers again now."""
        self._sessions.end(broker_id)

    def keep_session(self, broker_id: BrokerId, now_ms: int) -> None:
        """Extend the session of the broker in the controller's own process: it runs if this does."""
        if self._sessions.of(broker_id).ends_ms is not None:
            self._sessions.extend(broker_id, now_ms)

    def was_paused(self, now_ms: int) -> None:
        """Note that this process did not run for a while, in which it could hear no broker."""
        self._sessions.give_grace(now_ms)

    def tick(self, now_ms: int) -> Decision[None]:
        """Fence brokers whose sessions have ended, move leaders back, drain, remove expired tokens.

        Elect at the first call.
        """
        if self._is_new:
            # The last controller may have stopped between fencing or unfencing a broker and the elections.
            self._is_new = False
            for broker in list(self.image.brokers.values()):
                if broker.is_fenced:
                    self._partitions.fenced(broker.id)
            self._partitions.elect(self.image.leaderless)
        for broker_id in self._sessions.ended(now_ms):
            self._end_session(broker_id)
        if now_ms >= self._rebalance_ms:
            self._rebalance_ms = now_ms + self._settings.rebalance_ms
            self._partitions.rebalance(self._settings.rebalanced_at_once)
        if now_ms >= self._drain_ms:
            self._drain_ms = now_ms + self._settings.drain_ms
            for broker in self._draining():
                self._partitions.drain(broker.id, self._settings.drained_at_once)
        if now_ms >= self._token_check_ms:
            self._token_check_ms = now_ms + self._settings.token_check_ms
            self._access.remove_expired_tokens(self.cluster_time_ms(now_ms))
            self._access.remove_ended_sessions(self.cluster_time_ms(now_ms))
        if now_ms >= self._record_time_ms:
            self._record_time_ms = now_ms + self._settings.record_time_ms
            self._pending.put(time_change(self.cluster_time_ms(now_ms)))
        return Decision(changes=self._pending.take(), reply=None)

    def connection_lost(self, broker_id: BrokerId, *, is_refused: bool) -> Decision[None]:
        """Fence a broker at once whose host refuses connections: its process has ended.

        A connection that is only lost says nothing; the session decides.
        """
        if is_refused:
            self._end_session(broker_id)
        return Decision(changes=self._pending.take(), reply=None)

    def _end_session(self, broker_id: BrokerId) -> None:
        self._sessions.end(broker_id)
        broker = self.image.brokers.get(broker_id)
        if broker is not None and broker.is_running:
            self._partitions.fenced(broker_id)
            self._pending.put(
                broker_change(msgspec.structs.replace(broker, is_fenced=True, is_shutting_down=False))
            )

    def _draining(self) -> list[BrokerRegistration]:
        return [
            broker
            for broker in self.image.brokers.values()
            if broker.is_leaving and self.image.replicas_on(broker.id)
        ]

    # Brokers

    def _register(self, command: RegisterBroker, now_ms: int) -> BrokerRegistration:
        former = self.image.brokers.get(command.id)
        if former is not None and former.incarnation_id == command.incarnation_id:
            return former
        if former is not None and self._may_still_run(former, command, now_ms):
            raise DuplicateBroker(
                f"broker {command.id} is running already; wait until its session ends, or choose another id"
            )
        self._check_features(command)
        is_data_lost = former is not None and self._has_lost_data(former, command)
        session = self._sessions.begin(command.id, now_ms)
        session.registered_index = self.last_index
        session.damaged = frozenset(command.damaged)
        session.has_lost_data = is_data_lost
        leads_on = former is not None and self._may_lead_on(former, command)
        if not leads_on:
            self._partitions.fenced(command.id, is_data_lost=is_data_lost)
            self._partitions.damaged(command.id, command.damaged)
        epoch = self.image.next_broker_epoch
        broker = BrokerRegistration(
            id=command.id,
            incarnation_id=command.incarnation_id,
            directory_id=command.directory_id,
            epoch=epoch,
            active_epoch=NO_EPOCH if former is None else former.active_epoch,
            rack=command.rack,
            roles=command.roles,
            endpoints=command.endpoints,
            features=dict(command.features),
            is_fenced=not leads_on,
            is_draining=former is not None and former.is_draining,
            keeps_replicas=former is not None and former.keeps_replicas,
            software_version=command.software_version,
        )
        if VERSION_FEATURE not in self.image.features:
            known = command.features.get(VERSION_FEATURE, FeatureRange(1, 1))
            self._pending.put(feature_change(VERSION_FEATURE, min(CURRENT_LEVEL, known.max_level)))
        # Its record comes last: without it, it registers again, and is found to have lost data again.
        time = time_change(self.cluster_time_ms(now_ms))
        self._pending.put(time, broker_epochs_change(epoch + 1), broker_change(broker))
        return broker

    def _may_still_run(self, former: BrokerRegistration, command: RegisterBroker, now_ms: int) -> bool:
        """Return whether the process that registered before may still be running beside the new one."""
        return self._sessions.is_alive(former.id, now_ms) and not is_successor(former, command)

    def _has_lost_data(self, former: BrokerRegistration, command: RegisterBroker) -> bool:
        """Return whether a broker lacks records that the metadata takes it to have.

        The only broker has the metadata in the same directory: what a backup restores, it restores together.
        """
        is_only = set(self.image.brokers) == {command.id} and command.directory_id == former.directory_id
        return has_lost_data(former, command) and not is_only

    def _may_lead_on(self, former: BrokerRegistration, command: RegisterBroker) -> bool:
        """Return whether a broker that was restarted leads its partitions as if it had not stopped.

        It has every record, and no other broker could have led meanwhile. Otherwise all its partitions would
        get a new leader epoch at every start. After a crash they do: readers may have seen what is lost.
        """
        return (
            command.stopped_cleanly
            and former.is_running
            and set(self.image.brokers) == {command.id}
            and not self._has_lost_data(former, command)
        )

    def _check_features(self, command: RegisterBroker) -> None:
        if (unsupported := unsupported_feature(self.image.features, command.features)) is not None:
            raise InvalidRequest(unsupported)

    def _heartbeat(self, command: Heartbeat, now_ms: int) -> HeartbeatReply:
        broker = self.image.broker(command.broker_id)
        if broker.epoch != command.broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {broker.id} is registered with epoch {broker.epoch}, not {command.broker_epoch}"
            )
        session = self._sessions.extend(broker.id, now_ms)
        session.applied_index = command.applied_index
        session.clock_ahead_ms = command.clock_ms - self.cluster_time_ms(now_ms) if command.clock_ms else None
        clocks = self._sessions.clocks_ahead_ms()
        if len(clocks) > 1:  # a single broker keeps the time that it started with
            self._time.follow_clocks(clocks, now_ms)
        was_heard, session.is_heard = session.is_heard, True
        damaged = frozenset(command.damaged)
        repaired, newly_damaged = session.damaged - damaged, damaged - session.damaged
        session.damaged = damaged
        self._partitions.damaged(broker.id, newly_damaged)
        session.is_disk_failing = command.is_disk_failing
        if session.is_disk_failing:
            self._partitions.hand_over(broker.id)
        is_caught_up = session.applied_index >= session.registered_index
        may_shut_down = command.wants_shutdown and self._shut_down(broker, session, now_ms)
        if may_shut_down:
            self._end_session(broker.id)
        if broker.is_shutting_down and not command.wants_shutdown:
            broker = msgspec.structs.replace(broker, is_shutting_down=False)
            self._pending.put(broker_change(broker))
        if broker.is_fenced and is_caught_up and not command.wants_shutdown:
            broker = msgspec.structs.replace(broker, is_fenced=False, active_epoch=broker.epoch)
            self._pending.put(broker_change(broker))
            self._partitions.started(broker.id)
        elif broker.is_running:
            if broker.active_epoch != broker.epoch:
                self._pending.put(broker_change(msgspec.structs.replace(broker, active_epoch=broker.epoch)))
            if repaired or not was_heard:
                self._partitions.started(broker.id)
        return HeartbeatReply(
            is_fenced=self.image.broker(broker.id).is_fenced,
            may_shut_down=may_shut_down,
            is_caught_up=is_caught_up,
            cluster_time_ms=self.cluster_time_ms(now_ms),
        )

    def _shut_down(self, broker: BrokerRegistration, session: Session, now_ms: int) -> bool:
        """Move leaders off a broker; return whether it may stop: the others know their new leaders."""
        if broker.is_fenced:
            return True
        if not broker.is_shutting_down:
            self._partitions.hand_over(broker.id)
            self._pending.put(broker_change(msgspec.structs.replace(broker, is_shutting_down=True)))
            session.shutdown_index = None
            return False
        if session.shutdown_index is None:
            # The reply to the first request came after its changes were committed, so they are below this.
            session.shutdown_index = self.last_index
            session.shutdown_ends_ms = now_ms + self._settings.shutdown_ms
        self._partitions.hand_over(broker.id)
        others = (each.id for each in self.image.brokers.values() if each.is_running and each.id != broker.id)
        return self._sessions.have_applied(others, session.shutdown_index) or (
            now_ms >= session.shutdown_ends_ms
        )

    def _unregister(self, command: UnregisterBroker, now_ms: int) -> Done:
        broker = self.image.broker(command.broker_id)
        if broker.is_running or self._sessions.is_alive(broker.id, now_ms):
            raise InvalidRequest(f"broker {broker.id} is running; stop it first")
        if (partition := self._partitions.needs(broker.id)) is not None:
            topic = self._partitions.topic_of(partition)
            raise InvalidRequest(
                f"broker {broker.id} has the only complete replica of partition {partition.partition} of "
                f"topic {topic.name}"
            )
        # It could come back with any directory: nothing it holds counts any more.
        self._partitions.fenced(broker.id, is_data_lost=True)
        self._pending.put(broker_removal(broker.id))
        self._sessions.forget(broker.id)
        return Done()

    def _drain(self, command: DrainBroker, now_ms: int) -> DrainReply:
        broker = self.image.broker(command.broker_id)
        wanted = msgspec.structs.replace(
            broker,
            is_draining=command.is_draining,
            keeps_replicas=command.is_draining and command.keeps_replicas,
        )
        if wanted.is_draining and not self._has_other_brokers(broker):
            raise InvalidReplication(f"no other broker can take over from broker {broker.id}")
        if wanted.is_leaving and not broker.is_leaving:
            self._partitions.check_can_drain(broker.id)
        if wanted != broker:
            self._pending.put(broker_change(wanted))
            if broker.is_leaving:
                self._partitions.stop_draining(broker.id)
            if wanted.is_draining:
                self._partitions.move_leaders(broker.id)
            if wanted.is_leaving:
                self._drain_ms = now_ms + self._settings.drain_ms
                self._partitions.drain(broker.id, self._settings.drained_at_once)
        return DrainReply(
            replicas=len(self.image.replicas_on(broker.id)), leaders=self.image.led_by(broker.id)
        )

    def _has_other_brokers(self, broker: BrokerRegistration) -> bool:
        return any(each.is_staying and each.id != broker.id for each in self.image.brokers.values())

    # Partitions and counters

    def _alter_partitions(self, command: AlterPartitions, _now_ms: int) -> PartitionResults:
        broker = self.image.broker(command.broker_id)
        if broker.epoch != command.broker_epoch:
            raise StaleBrokerEpoch(
                f"broker {broker.id} is registered with epoch {broker.epoch}, not {command.broker_epoch}"
            )
        results = []
        for proposal in command.proposals:
            try:
                state = self._partitions.propose_isr(broker.id, proposal)
                results.append(PartitionResult(proposal.topic_id, proposal.index, state))
            except AlpacaError as error:
                failure = Failure.of(error)
                results.append(PartitionResult(proposal.topic_id, proposal.index, failure=failure))
        return PartitionResults(tuple(results))

    def _allocate_producer_ids(self, command: AllocateProducerIds, _now_ms: int) -> ProducerIdBlock:
        if not 0 < command.count <= MAX_PRODUCER_IDS:
            raise InvalidRequest(f"between 1 and {MAX_PRODUCER_IDS} producer ids, not {command.count}")
        first = self.image.next_producer_id
        self._pending.put(producer_ids_change(first + command.count))
        return ProducerIdBlock(first, command.count)

    def _update_features(self, command: UpdateFeatures, _now_ms: int) -> Done:
        for name, level in command.levels.items():
            current = self.image.features.get(name, 0)
            if level < current:
                raise FeatureUpdateFailed(f"{name} is at level {current} and cannot go back to {level}")
            for broker in self.image.brokers.values():
                supported = broker.features.get(name)
                if supported is None or level not in supported:
                    raise FeatureUpdateFailed(f"broker {broker.id} does not support {name} level {level}")
        if not command.dry_run:
            self._pending.put(*(feature_change(name, level) for name, level in command.levels.items()))
        return Done()


def has_lost_data(former: BrokerRegistration, command: RegisterBroker) -> bool:
    """Return whether a broker came back without records it had: with a new directory or a restored backup.

    An epoch in which it never was unfenced does not count: it may have stopped before it stored it.
    """
    return command.directory_id != former.directory_id or command.last_epoch < former.active_epoch


def is_successor(former: BrokerRegistration, command: RegisterBroker) -> bool:
    """Return whether a process has taken the place of one that has ended: it has its data and its addresses.

    One that seems to have lost data may be an earlier process, whose request comes late.
    """
    return (
        not has_lost_data(former, command)
        and bool(command.endpoints)
        and command.endpoints == former.endpoints
    )


_HANDLERS: Mapping[type, Callable[[Controller, Any, int], Any]] = {
    CreateTopic: lambda self, command, _: self._topics.create(command),
    DeleteTopic: lambda self, command, _: self._topics.delete(command),
    AddPartitions: lambda self, command, _: self._topics.add_partitions(command),
    ConfigureTopic: lambda self, command, _: self._topics.configure(command),
    ConfigureBroker: lambda self, command, _: self._topics.configure_broker(command),
    AllocateProducerIds: Controller._allocate_producer_ids,
    RegisterBroker: Controller._register,
    Heartbeat: Controller._heartbeat,
    UnregisterBroker: Controller._unregister,
    AlterPartitions: Controller._alter_partitions,
    ElectLeaders: lambda self, command, _: self._partitions.elect_leaders(command),
    Reassign: lambda self, command, _: self._partitions.reassign(command),
    DrainBroker: Controller._drain,
    UpdateFeatures: Controller._update_features,
    AlterQuotas: lambda self, command, _: self._access.alter_quotas(command),
    AlterUsers: lambda self, command, _: self._access.alter_users(command),
    CreateAcls: lambda self, command, _: self._access.create_acls(command),
    DeleteAcls: lambda self, command, _: self._access.delete_acls(command),
    CreateApiKey: lambda self, command, _: self._access.create_api_key(command),
    RotateApiKey: lambda self, command, _: self._access.rotate_api_key(command),
    DeleteApiKey: lambda self, command, _: self._access.delete_api_key(command),
    CreateTenant: lambda self, command, _: self._tenants.create(command),
    AlterTenant: lambda self, command, _: self._tenants.alter(command),
    DeleteTenant: lambda self, command, _: self._tenants.delete(command),
    AddMember: lambda self, command, _: self._tenants.add_member(command),
    RemoveMember: lambda self, command, _: self._tenants.remove_member(command),
    CreateDelegationToken: lambda self, command, now_ms: self._access.create_delegation_token(
        command, self.cluster_time_ms(now_ms)
    ),
    RenewDelegationToken: lambda self, command, now_ms: self._access.renew_delegation_token(
        command, self.cluster_time_ms(now_ms)
    ),
    ExpireDelegationToken: lambda self, command, now_ms: self._access.expire_delegation_token(
        command, self.cluster_time_ms(now_ms)
    ),
    EnableSessions: lambda self, command, _: self._access.enable_sessions(command),
    EndSession: lambda self, command, now_ms: self._access.end_session(command, self.cluster_time_ms(now_ms)),
}
