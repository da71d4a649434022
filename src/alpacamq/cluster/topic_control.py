"""Decisions about topics and settings, on the pending image."""

from collections.abc import Callable, Mapping

import msgspec

from alpacamq.model.errors import (
    InvalidPartitionCount,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidUpdateVersion,
    PolicyViolation,
    TopicExists,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.topics import SETTINGS, Setting, Topic, check_setting, check_settings

from .broker_config import (
    ALL_BROKERS,
    BROKER_SETTINGS,
    STATIC_SETTINGS,
    TOPIC_NAMES,
    check_is_dynamic,
    check_overrides,
    defaults_in,
    topic_defaults,
)
from .commands import (
    MAX_NEW_REPLICAS,
    AddPartitions,
    ConfigureBroker,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Done,
)
from .decisions import ControllerSettings, Pending
from .image import ClusterImage, broker_config_change, partition_change, topic_change, topic_removal
from .partition_control import PartitionControl, check_replicas
from .partition_state import PartitionId, Replicas, new_partition
from .placement import default_replication_factor, place
from .tenants import check_room, limited_settings
from .topics import (
    BY_DEFAULT,
    MIN_ISR,
    UNCLEAN,
    TopicLimits,
    configured,
    created,
    edited,
    grown,
)

CLEANUP_POLICY = "cleanup.policy"


class TopicControl:
    """Changes the topics of the pending image, and the settings of topics and brokers."""

    def __init__(self, pending: Pending, partitions: PartitionControl, settings: ControllerSettings) -> None:
        self._pending = pending
        self._partitions = partitions
        self._settings = settings

    @property
    def _image(self) -> ClusterImage:
        return self._pending.image

    def create(self, command: CreateTopic) -> Topic:
        image = self._image
        existing = image.topics.get(TopicName(command.name))
        if existing is not None and (command.if_absent or existing.id == command.topic_id):
            return existing
        assignments = command.assignments
        partitions, factor = command.partitions, command.replication_factor
        if assignments:
            partitions, factor = self._check_assignments(command)
        topic = self._new_topic(command, partitions, factor)
        if not assignments:
            if factor == BY_DEFAULT:
                factor = self._default_factor
            self._check_size(topic.partitions, factor)
            assignments = tuple(place(image, topic, topic.partitions, factor))
        if not command.dry_run:
            self._pending.put(topic_change(topic))
            self._put_partitions(topic, 0, assignments)
        return topic

    def _new_topic(self, command: CreateTopic, partitions: int, factor: int) -> Topic:
        if command.is_internal:
            # Its name is reserved, and what it needs does not depend on the limits for users.
            name = TopicName(command.name)
            if name in self._image.topics:
                raise TopicExists(f"topic {name!r} exists already")
            return Topic(
                name=name,
                id=command.topic_id,
                partitions=self._settings.limits.default_partitions if partitions < 1 else partitions,
                overrides=dict(command.overrides),
            )
        brokers = [broker for broker in self._image.brokers.values() if not broker.is_leaving]
        topic = created(
            self._image,
            command.name,
            topic_id=command.topic_id,
            partitions=partitions,
            replication_factor=factor,
            overrides=command.overrides,
            limits=self._limits(factor),
            may_collide=command.may_collide,
            brokers=len(brokers),
        )
        check_room(self._image, topic.name, topic.partitions, is_new=True)
        overrides = limited_settings(
            self._image, topic.name, topic.overrides, before={}, default=self._default
        )
        return msgspec.structs.replace(topic, overrides=overrides)

    @property
    def _default_factor(self) -> int:
        if self._settings.replication_factor != BY_DEFAULT:
            return self._settings.replication_factor
        return default_replication_factor(self._image)

    def _limits(self, factor: int) -> TopicLimits:
        """Return the limits of a cluster in which every broker holds `max_partitions` replicas."""
        factor = self._default_factor if factor == BY_DEFAULT else factor
        limits = self._settings.limits
        brokers = max(1, len(self._image.brokers))
        return msgspec.structs.replace(
            limits, max_partitions=limits.max_partitions * brokers // max(1, factor)
        )

    def _check_assignments(self, command: CreateTopic) -> tuple[int, int]:
        assignments = command.assignments
        if command.replication_factor != BY_DEFAULT:
            raise InvalidRequest("a topic has either a replication factor or assigned replicas")
        if command.partitions not in (BY_DEFAULT, len(assignments)):
            raise InvalidPartitionCount(
                f"{command.partitions} partitions, but replicas are assigned for {len(assignments)}"
            )
        factor = len(assignments[0])
        self._check_size(len(assignments), factor)
        self._check_each(assignments, factor)
        return len(assignments), factor

    def _check_each(self, assignments: tuple[Replicas, ...], factor: int) -> None:
        for replicas in assignments:
            check_replicas(self._image, replicas)
            if len(replicas) != factor:
                raise InvalidReplicaAssignment("all partitions of a topic have the same number of replicas")
            if not any(self._image.broker(replica).is_running for replica in replicas):
                raise InvalidReplicaAssignment(f"none of the brokers {list(replicas)} is running")

    def _check_size(self, partitions: int, factor: int) -> None:
        if partitions * factor > MAX_NEW_REPLICAS:
            raise InvalidPartitionCount(
                f"{partitions} partitions with {factor} replicas each are too many at once: at most "
                f"{MAX_NEW_REPLICAS} replicas; add partitions in steps"
            )

    def _put_partitions(self, topic: Topic, first: int, assignments: tuple[Replicas, ...]) -> None:
        self._pending.put(
            *(
                partition_change(PartitionId(topic.id, index), new_partition(replicas, self._may_be_in_sync))
                for index, replicas in enumerate(assignments, first)
            )
        )

    def _may_be_in_sync(self, broker_id: int) -> bool:
        broker = self._image.broker(BrokerId(broker_id))
        return broker.is_running and not broker.is_shutting_down

    def delete(self, command: DeleteTopic) -> Topic:
        topic = self._image.topic(command.name)
        if command.topic_id not in (None, topic.id):
            raise UnknownTopicId(f"topic {command.name!r} has another id than {command.topic_id}")
        if topic.is_internal:
            raise PolicyViolation(f"topic {command.name!r} is internal and cannot be deleted")
        self._pending.put(topic_removal(topic.name))
        return topic

    def add_partitions(self, command: AddPartitions) -> Topic:
        former = self._image.topic(command.name)
        if former.is_internal:
            # The number of partitions decides which state lives in which.
            raise PolicyViolation(f"topic {command.name!r} is internal and keeps its partitions")
        states = self._image.partitions_of(former.id)
        factor = states[0].replication_factor if states else self._default_factor
        topic = grown(self._image, command.name, command.partitions, self._limits(factor))
        added = topic.partitions - former.partitions
        check_room(self._image, topic.name, added, is_new=False)
        self._check_size(added, factor)
        if assignments := command.assignments:
            if len(assignments) != added:
                raise InvalidReplicaAssignment(
                    f"{added} partitions are added, but replicas are assigned for {len(assignments)}"
                )
            self._check_each(assignments, factor)
        else:
            assignments = tuple(place(self._image, topic, added, factor, states))
        if not command.dry_run:
            self._pending.put(topic_change(topic))
            self._put_partitions(topic, former.partitions, assignments)
        return topic

    def configure(self, command: ConfigureTopic) -> Topic:
        before = self._image.topic(command.name)
        overrides = _changed(
            command,
            before.overrides,
            SETTINGS,
            check_name=lambda name: name in SETTINGS or check_setting(name, ""),
            default=self._default,
        )
        check_settings(overrides)
        if before.is_internal and overrides.get(CLEANUP_POLICY) != before.overrides.get(CLEANUP_POLICY):
            # Retention would delete records of which the state is made.
            raise PolicyViolation(f"topic {command.name!r} is internal and keeps its {CLEANUP_POLICY}")
        limited = limited_settings(
            self._image, command.name, overrides, before=before.overrides, default=self._default
        )
        topic = configured(self._image, command.name, limited)
        if not command.dry_run and topic != before:
            self._pending.put(topic_change(topic))
            if _is_about_replicas(before.overrides, overrides):
                self._partitions.settings_changed([topic])
        return topic

    def _default(self, name: str) -> str:
        defaults = {**self._settings.topic_defaults, **self._of_all_brokers}
        return defaults[name] if name in defaults else SETTINGS[name].text(SETTINGS[name].default)

    @property
    def _of_all_brokers(self) -> Mapping[str, str]:
        return defaults_in(self._image.broker_overrides(ALL_BROKERS))

    def configure_broker(self, command: ConfigureBroker) -> Done:
        name = command.name
        if name != ALL_BROKERS:
            self._image.broker(_broker_id(name))
        before = self._image.broker_overrides(name)
        overrides = _changed(
            command,
            before,
            BROKER_SETTINGS,
            check_name=_check_removable,
            default=lambda name: self._default(TOPIC_NAMES[name]),
        )
        if name != ALL_BROKERS and overrides.get(MIN_ISR, before.get(MIN_ISR)) != before.get(MIN_ISR):
            # The controller would not know which replicas are complete.
            raise InvalidRequest(f"{MIN_ISR} is set for topics and for all brokers, not for a single one")
        node_id = 0 if name == ALL_BROKERS else _broker_id(name)
        check_overrides(
            self._image, name, overrides, topic_defaults(self._image, node_id, self._settings.topic_defaults)
        )
        if not command.dry_run and overrides != before:
            self._pending.put(broker_config_change(name, overrides))
            if _is_about_replicas(before, overrides):
                self._partitions.settings_changed(list(self._image.topics.values()))
        return Done()


def _changed(
    command: ConfigureTopic | ConfigureBroker,
    before: Mapping[str, str],
    settings: Mapping[str, Setting],
    *,
    check_name: Callable[[str], object],
    default: Callable[[str], str],
) -> Mapping[str, str]:
    """Return the overrides after a command."""
    if command.expected is not None and command.expected != before:
        raise InvalidUpdateVersion("the settings have changed meanwhile")
    if (command.overrides is None) == (command.edits is None):
        raise InvalidRequest("settings are either replaced or edited")
    if command.edits is not None:
        return edited(before, command.edits, settings=settings, check_name=check_name, default=default)
    assert command.overrides is not None
    return command.overrides


def _check_removable(name: str) -> None:
    # As in Kafka, removing a setting that can never be set has no effect.
    if name not in STATIC_SETTINGS:
        check_is_dynamic(name)


def _is_about_replicas(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    return any(before.get(name) != after.get(name) for name in (MIN_ISR, UNCLEAN))


def _broker_id(name: str) -> BrokerId:
    try:
        return BrokerId(int(name))
    except ValueError:
        raise InvalidRequest(f"{name!r} is not the id of a broker") from None
