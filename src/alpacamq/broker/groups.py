"""Hosts the group coordinators and connects them with topics and queues."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

import msgspec

from alpacamq.cluster.topics import BY_DEFAULT
from alpacamq.coordinator.consumer.messages import ConsumerGroupSettings, TopicSummary
from alpacamq.coordinator.groups import GroupCoordinator, GroupStats, OffsetsDropped, TopicDeleted
from alpacamq.coordinator.messages import (
    CompleteTransactionRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    GroupIdsRequest,
    GroupRequest,
    GroupSettings,
    ListedGroup,
    ListRequest,
)
from alpacamq.coordinator.offsets import OffsetLimit, with_topic_ids
from alpacamq.coordinator.share.messages import MemberExpired
from alpacamq.coordinator.streams.messages import CreateInternalTopics, InternalTopicsFailed
from alpacamq.model.errors import AlpacaError, GroupNotAuthorized, TopicExists
from alpacamq.model.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.names import split_id
from alpacamq.model.state_machine import Outcome, Request
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from alpacamq.queues.messages import QueueId
from alpacamq.telemetry.logs import get_logger

from .partition.leader import Partition
from .queue.service import Queues
from .statemachine.host import StateMachineHost
from .statemachine.topic import HostResources, StateMachineTopic
from .topics import Topics

log = get_logger(__name__)

MAX_OFFSET = 2**63 - 1
# Offsets of a deleted topic that are dropped, or examined, before the event loop gets its turn.
DROPPED_AT_ONCE = 200
EXAMINED_AT_ONCE = 2000
LISTED_AT_ONCE = 500

R = TypeVar("R")


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and timeouts of groups."""

    groups: GroupSettings = GroupSettings()
    consumer_groups: ConsumerGroupSettings = ConsumerGroupSettings()


class SubscribableTopics:
    """The topics that consumer groups can subscribe to: all but the internal ones."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def version(self) -> int:
        return self._topics.image.version

    def names(self) -> Iterable[str]:
        return [name for name in self._topics.image.topics if name not in INTERNAL_TOPICS]

    def get(self, name: str) -> TopicSummary | None:
        topic = self._topics.image.topics.get(TopicName(name))
        return None if topic is None else TopicSummary(topic.id, topic.partitions)


class Groups:
    """All groups, on any broker; hosts the coordinators of those that this broker coordinates."""

    def __init__(self, resources: HostResources, settings: CoordinatorSettings, queues: Queues) -> None:
        self._topics = resources.topics
        self._settings = settings
        self._queues = queues
        self._subscribable = SubscribableTopics(resources.topics)
        self._topics_at_start = dict(resources.topics.image.topics)
        self._machines: StateMachineTopic[GroupCoordinator] = StateMachineTopic(
            OFFSETS_TOPIC,
            resources,
            self._coordinator,
            perform=self._perform,
            check=self._trim_offsets,
            requests=GroupCoordinator.HANDLERS,
            answer=self._answer,
        )
        self._tasks: asyncio.TaskGroup | None = None
        # Deleted topics whose offsets are to be dropped, and who drops them.
        self._deleted_topics: set[str] = set()
        self._dropping_offsets = asyncio.Lock()
        self._creating_topics: set[str] = set()  # streams groups whose internal topics are being created

    async def run(self) -> None:
        """Run the coordinators until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._machines.run())
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    async def ask(self, request: GroupRequest[R]) -> R:
        """Return the reply of a group's coordinator, on any broker, or raise it if it is an error.

        Offsets are those of the topics that exist now, and not of deleted ones with the same names.
        """
        return self._current(request, await self._machines.ask(with_topic_ids(request, self._topic_id)))

    async def ask_here(self, request: GroupRequest[R]) -> R:
        """Ask a coordinator on this broker, for clients that find the coordinators of their groups.

        Raises NotCoordinator if another broker coordinates the group.
        """
        return self._current(request, await self._machines.ask_here(with_topic_ids(request, self._topic_id)))

    def loaded_host(self, group: str) -> StateMachineHost[GroupCoordinator] | None:
        """Return the host of a group's coordinator; None unless it is on this broker, and loaded."""
        return self._machines.loaded_host(group)

    def _current(self, request: GroupRequest[R], reply: R) -> R:
        """Return a reply without the offsets of deleted topics."""
        if isinstance(request, FetchOffsetsRequest) and request.partitions is None:
            assert isinstance(reply, FetchOffsetsReply)
            current = tuple(each for each in reply.offsets if each.topic_id == self._topic_id(each.topic))
            return cast("R", FetchOffsetsReply(offsets=current))
        return reply

    async def group_ids(self) -> list[str]:
        """Return the ids of all groups, except in partitions that cannot be loaded.

        Raises CoordinatorUnavailable, naming the brokers that do not answer.
        """
        replies = await self._machines.ask_all(GroupIdsRequest())
        return [name for reply in replies for name in reply.groups]

    async def names_in_use(self, applied: int) -> set[str]:
        """Return the ids of all groups, and of those that only have settings.

        As of a time when all coordinators have applied the metadata up to an index. Raises
        CoordinatorUnavailable, naming the brokers that do not answer.
        """
        requests = [GroupIdsRequest(configured=each, applied=applied) for each in (False, True)]
        return {
            name
            for request in requests
            for reply in await self._machines.ask_all(request)
            for name in reply.groups
        }

    async def _answer(self, host: StateMachineHost[GroupCoordinator], request: Request[R]) -> R:
        if isinstance(request, GroupIdsRequest) and request.applied:
            await self._topics.wait_until_applied(request.applied)
        return await host.ask(request)

    async def group_ids_here(self) -> list[str]:
        """Return the ids of the groups on this broker, except in partitions that cannot be loaded."""
        hosts = [host for host in await self._machines.all() if host.failure is None]
        return [name for host in hosts for name in (await host.loaded()).group_ids()]

    async def configured(self) -> list[str]:
        """Return the ids of the groups with settings of their own, which need not exist."""
        replies = await self._machines.ask_all(GroupIdsRequest(configured=True))
        return [name for reply in replies for name in reply.groups]

    async def list_groups(self, names: Iterable[str]) -> list[ListedGroup]:
        """List the groups of these names that exist, on any broker, a few at a time to let others run."""
        await self._machines.ensure_exists()
        by_partition: dict[int, list[str]] = {}
        for name in names:
            by_partition.setdefault(self._machines.index_of(name), []).append(name)
        listed: list[ListedGroup] = []
        for index, of_machine in sorted(by_partition.items()):
            for at in range(0, len(of_machine), LISTED_AT_ONCE):
                request = ListRequest(groups=tuple(of_machine[at : at + LISTED_AT_ONCE]))
                listed += (await self._machines.ask_at(index, request)).groups
                await asyncio.sleep(0)
        return listed

    async def stats(self) -> AsyncIterator[Iterator[GroupStats]]:
        """Yield the groups that are loaded, a few at a time; to be read before the next await."""
        for machine in self._machines.machines:
            names = machine.group_ids()
            for at in range(0, len(names), LISTED_AT_ONCE):
                yield machine.stats(names[at : at + LISTED_AT_ONCE])
                await asyncio.sleep(0)

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return self._machines.failures()

    def is_here(self, group: str) -> bool:
        """Return whether this broker coordinates a group, or would if it existed."""
        return self._machines.exists and self._machines.is_here(self._machines.index_of(group))

    async def coordinator_of(self, group: str) -> BrokerId:
        """Return the broker that coordinates a group. Raises CoordinatorUnavailable."""
        return await self._machines.broker_of(group)

    async def offsets_partition(self, group: str) -> TopicPartition:
        """Return the partition that stores a group's offsets."""
        await self._machines.ensure_exists()
        return TopicPartition(OFFSETS_TOPIC, self._machines.index_of(group))

    async def complete_transaction(self, partition: int, request: CompleteTransactionRequest) -> None:
        """Apply or drop the offsets of a transaction; returns once that is on disk."""
        await self._machines.all()
        host = self._machines.host_at(partition)
        await host.ask(request)
        await host.partition.flush_to(host.partition.log.end_offset)

    async def topic_deleted(self, topic: str) -> None:
        """Drop every group's offsets of a deleted topic; returns once that is on disk.

        This saves space. Offsets that are left behind have the id of the deleted topic and are not used.
        Topics that are deleted while the groups are examined for others wait, and are dropped together.
        """
        self._deleted_topics.add(topic)
        async with self._dropping_offsets:
            if topic not in self._deleted_topics:
                return  # dropped with another
            topics, self._deleted_topics = self._deleted_topics, set()
            try:
                await self._drop_topics(topics)
            except BaseException:
                self._deleted_topics |= topics
                raise

    async def _drop_topics(self, topics: AbstractSet[str]) -> None:
        for host in self._machines.started:
            if (machine := host.machine) is None:
                for topic in topics:
                    host.post(TopicDeleted(topic=topic, current_id=self._topic_id(topic)))
            else:
                await self._drop_offsets(host, machine, topics)
        await self._machines.flush()

    async def settled(self) -> None:
        """Return once every coordinator is loaded, and its corrections after a power loss are on disk."""
        await self._machines.settled()

    def release_member(self, departure: MemberExpired) -> None:
        """Release the messages that a departed share consumer holds."""
        if self._tasks is not None and departure.topics:
            self._tasks.create_task(self._release(departure))

    async def _release(self, departure: MemberExpired) -> None:
        for topic in departure.topics:
            queue, partitions = QueueId(departure.group, topic), departure.partitions.get(topic)
            try:
                await self._queues.release_consumer(queue, departure.member_id, partitions)
            except AlpacaError as error:
                # Its leases expire.
                log.info("share_member_not_released", group=departure.group, topic=topic, reason=str(error))

    async def _drop_offsets(
        self, host: StateMachineHost[GroupCoordinator], machine: GroupCoordinator, topics: AbstractSet[str]
    ) -> None:
        """Drop the offsets of topics a few at a time: there may be a million of them."""
        examined = 0
        for group, count in machine.groups_with_offsets():
            for topic, partitions in machine.partitions_in(group, topics).items():
                for at in range(0, len(partitions), DROPPED_AT_ONCE):
                    # If the machine fails meanwhile, the next one is loaded without the deleted topic.
                    some = partitions[at : at + DROPPED_AT_ONCE]
                    host.post(OffsetsDropped(group=group, partitions=some, current_id=self._topic_id(topic)))
                    await asyncio.sleep(0)
            examined += 1 + count
            if examined >= EXAMINED_AT_ONCE:
                examined = 0
                await asyncio.sleep(0)
        await host.handled()

    def _coordinator(self, _partition: Partition) -> GroupCoordinator:
        settings = self._settings
        return GroupCoordinator(
            settings.groups,
            settings.consumer_groups,
            self._subscribable,
            lambda: str(uuid4()),
            self._member_limit,
            self._check_new_group,
        )

    def _member_limit(self, group: str) -> int | None:
        """Return how many members the tenant of a group allows it; None without a limit."""
        tenant = self._topics.image.tenants.get(split_id(group)[0] or "")
        return None if tenant is None else tenant.limits.group_members

    def _check_new_group(self, group: str) -> None:
        """Raise GroupNotAuthorized for a group of a tenant that is deleted or not active.

        Checked before by the API, perhaps on another broker, but a tenant may change while a request waits.
        """
        tenant_id, _ = split_id(group)
        if tenant_id is None:
            return
        tenant = self._topics.image.tenants.get(tenant_id)
        if tenant is None or not tenant.is_active:
            raise GroupNotAuthorized("the tenant is deleted" if tenant is None else tenant.refusal)

    def _perform(self, host: StateMachineHost[GroupCoordinator], effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, CreateInternalTopics):
                # Members repeat their heartbeats until the topics exist.
                if effect.group not in self._creating_topics:
                    self._creating_topics.add(effect.group)
                    host.spawn(
                        self._create_topics(host, effect),
                        partial(self._creating_topics.discard, effect.group),
                    )
                continue
            assert isinstance(effect, MemberExpired)
            self.release_member(effect)

    async def _create_topics(
        self, host: StateMachineHost[GroupCoordinator], wanted: CreateInternalTopics
    ) -> None:
        """Create the internal topics of a streams group; report failures to its members."""
        failures = []
        for topic in wanted.topics:
            try:
                await self._topics.create(
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=topic.replication_factor or BY_DEFAULT,
                    overrides=dict(topic.configs),
                    may_collide=True,
                )
            except TopicExists:
                continue  # another application or an administrator was faster
            except AlpacaError as error:
                failures.append(f"cannot create topic {topic.name!r}: {error}")
            else:
                log.info("internal_topic_created", group=wanted.group, topic=topic.name)
        if failures:
            log.info("internal_topics_not_created", group=wanted.group, reasons=failures[:10])
            host.post(InternalTopicsFailed(group=wanted.group, reason="; ".join(failures[:3])))

    def _trim_offsets(self, _partition: Partition, machine: GroupCoordinator) -> Outcome:
        return machine.trim_offsets(self._offset_limit)

    def _offset_limit(self, partition: TopicPartition, topic_id: TopicId) -> OffsetLimit | None:
        """Return the limit of the offsets of a topic; None if it was deleted."""
        topic = self._topics.image.topics.get(partition.topic)
        if topic_id == NO_TOPIC_ID:
            # The offset is of an earlier run, and so is its topic.
            former = self._topics_at_start.get(partition.topic, topic)
            topic_id = NO_TOPIC_ID if former is None else former.id
        if topic is None or topic.id != topic_id or partition.partition >= topic.partitions:
            return None
        found = self._topics.find(topic_id.bytes, partition.partition)
        cut_offset = None if found is None else found.cut_offset
        return OffsetLimit(topic_id, MAX_OFFSET if cut_offset is None else cut_offset)

    def _topic_id(self, name: str) -> TopicId:
        topic = self._topics.image.topics.get(TopicName(name))
        return NO_TOPIC_ID if topic is None else topic.id
