"""The topics of the cluster as this broker serves them: lookups, and every change.

A change is a command to the controller; the committed image then says which partitions this broker has and
which of them it leads. Differences are applied one topic after another: partitions are opened, led, followed,
configured and deleted as the image says now, so a broker that missed ten changes behaves like one that saw
each. A change that has begun is completed even if its client disconnects.

During start-up, partitions can be found as they become ready; differences wait until all are.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import uuid4

from alpacamq.cluster.broker_config import ALL_BROKERS, TopicDefaults, topic_defaults, usable
from alpacamq.cluster.commands import (
    AddPartitions,
    AllocateProducerIds,
    ConfigureBroker,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
)
from alpacamq.cluster.image import ClusterImage, Delta
from alpacamq.cluster.partition_state import PartitionId, PartitionState, min_isr
from alpacamq.cluster.partition_state import Replicas as ReplicaIds
from alpacamq.cluster.topics import BY_DEFAULT, MIN_ISR, configured_min_isr, described_min_isr
from alpacamq.model.errors import (
    AlpacaError,
    InvalidUpdateVersion,
    LeaderNotAvailable,
    NotLeader,
    PartitionNotReady,
    StorageFailed,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.ids import BrokerId, TopicId, TopicName
from alpacamq.model.topics import SETTINGS, Topic, TopicConfig, is_topic_name, topic_config
from alpacamq.telemetry.logs import get_logger

from .metadata.metadata import Metadata
from .partition.leader import Partition
from .partition.loading import Loading, RecoveryProgress
from .partition.replicas import Replicas
from .slices import in_slices

log = get_logger(__name__)
T = TypeVar("T")
P = ParamSpec("P")

ID_BYTES = 16
# Topics that get new defaults between two turns of the event loop.
CONFIGURED_AT_ONCE = 50
# Settings that are kept besides those of two for each topic.
SPARE_CONFIGS = 100
# Deleted topics that are removed together: what listeners examine for one, they examine once for all.
DELETED_AT_ONCE = 50
# When to try again to open partitions that could not be opened.
REOPEN_SECONDS = 10.0
NO_CONTACT = "the controller does not answer this broker, and may have elected another leader"
STOPPING = "the broker is stopping, and not all partitions have been recovered"


def _uninterrupted(
    change: Callable[Concatenate["Topics", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Topics", P], Coroutine[Any, Any, T]]:
    """Let a change complete when the task that waits for it is cancelled."""

    @wraps(change)
    async def shielded(self: "Topics", /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.ensure_future(change(self, *args, **kwargs))
        self._in_progress.add(task)
        task.add_done_callback(self._in_progress.discard)
        return await asyncio.shield(task)

    return shielded


class TopicListener(Protocol):
    """Receives what changes on this broker, in order."""

    async def topic_deleted(self, topic: str) -> None: ...
    def topic_grown(self, topic: str) -> None: ...


class Topics:
    """All topics, and the partitions of this broker, by the keys that requests carry."""

    def __init__(
        self,
        metadata: Metadata,
        replicas: Replicas,
        *,
        node_id: BrokerId,
        file_defaults: Mapping[str, str],
        power_lost: bool = False,
        is_registered: Callable[[], bool] = lambda: True,
        has_contact: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_registered` returns whether the image names this process as the broker with this id.

        `has_contact` returns whether the controller counts on this broker; `contact_changed` follows changes.
        """
        self._metadata = metadata
        self._replicas = replicas
        self._node_id = node_id
        self._is_registered = is_registered
        self._has_contact = has_contact
        self._file_defaults = file_defaults
        # Replaced by another object when they change.
        self.defaults = topic_defaults(metadata.image, node_id, file_defaults)
        # Of topics asked for, with what they were computed from.
        self._configs: dict[TopicName, tuple[Topic, TopicDefaults, TopicConfig]] = {}
        # Of all topics without settings of their own.
        self._plain_config: tuple[TopicDefaults, TopicConfig] | None = None
        self._report_unusable()
        # Whether state may refer to records lost in a power cut.
        self.power_lost = power_lost
        self.find = replicas.led
        self._loading: Loading | None = None
        self._loaded = asyncio.Event()
        # Differences that are not applied yet.
        self._changed: dict[TopicId, None] = {}
        # Of topics that were asked for: building an id from its bytes takes longer than a request should.
        self._names_by_id: dict[bytes, str] = {}
        self._deleted: dict[TopicId, Topic] = {}
        self._defaults_changed = False
        self._applying: asyncio.Task[None] | None = None
        self._current: set[TopicId] = set()
        self._failures: dict[TopicId, AlpacaError] = {}
        self._waiting: dict[TopicId, list[asyncio.Future[None]]] = {}
        self._to_reopen: list[TopicId] = []
        self._reopening: asyncio.TimerHandle | None = None
        self._in_progress: set[asyncio.Future[Any]] = set()
        self._listeners: list[TopicListener] = []
        self._leadership_listeners: dict[str, Callable[[], None]] = {}
        metadata.subscribe(self._image_changed)

    def subscribe(self, listener: TopicListener) -> None:
        """Notify a listener of every change from now on."""
        self._listeners.append(listener)

    def on_leadership(self, topic: str, changed: Callable[[], None]) -> None:
        """Call `changed` whenever other partitions of a topic are led here, or in other epochs.

        At once: what depends on leading must end before the next event is handled.
        """
        self._leadership_listeners[topic] = changed

    @property
    def node_id(self) -> BrokerId:
        return self._node_id

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    # Lookups.

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition that this broker leads; else raise the reason that `absence` returns."""
        # Partitions are found by ids as well, which are never ASCII, as names always are.
        if not name.isascii():
            raise UnknownTopic(f"no topic is named {name!r}")
        if (found := self.find(name.encode(), index)) is None:
            raise self.absence(name.encode(), index)
        return found

    def followed(self, key: bytes, index: int) -> Partition | None:
        """Return a partition that another broker leads and this one follows; None for others.

        It can be read up to its own high watermark, which is never ahead of the leader's.
        """
        if (topic := self._topic(key)) is None:
            return None
        state = self.image.partition(PartitionId(topic.id, index))
        if state is None or state.leader is None or state.leader == self._node_id:
            return None
        return self._replicas.of_topic(topic.id).get(index)

    def replica(self, key: bytes, index: int) -> Partition | None:
        """Return the replica of this broker, whether it leads or follows; None if it has none."""
        return self.find(key, index) or self.followed(key, index)

    @property
    def is_recovering(self) -> bool:
        """Whether partitions are still being opened; no topic changes meanwhile."""
        return self._loading is not None

    def exists(self, key: bytes, index: int) -> bool:
        """Return whether the cluster has partition `index` of the topic whose name or 16-byte id is `key`."""
        topic = self._topic(key)
        return topic is not None and 0 <= index < topic.partitions

    def absence(self, key: bytes, index: int) -> AlpacaError:
        """Return the error for a partition that `find` does not return.

        That it is not found does not mean that it does not exist: only the image says that.
        """
        if (topic := self._topic(key)) is None:
            name = key.decode(errors="replace")
            # A random id is not a valid name; a name of the same length is.
            if len(key) == ID_BYTES and not is_topic_name(name):
                return UnknownTopicId(f"no topic has the id {key.hex()}")
            return UnknownTopic(f"no topic is named {name!r}")
        if not 0 <= index < topic.partitions:
            return UnknownTopic(
                f"topic {topic.name!r} has {topic.partitions} partitions, no partition {index}"
            )
        state = self.image.partition(PartitionId(topic.id, index))
        text = f"partition {index} of topic {topic.name!r}"
        if state is not None and state.leader is None:
            return LeaderNotAvailable(f"{text} has no leader: none of its replicas can lead it")
        if state is not None and state.leader != self._node_id:
            reason = f"{text} is led by broker {state.leader}"
            return NotLeader(reason, state.leader, state.leader_epoch)
        if not self._has_contact():
            return LeaderNotAvailable(f"{text}: {NO_CONTACT}")
        return PartitionNotReady(f"{text} is being {'recovered' if self._loading else 'opened'}")

    def find_replicated(self, key: bytes, index: int) -> Partition | None:
        """Return a partition whose followers fetch from this broker, by the topic's id."""
        if (found := self.find(key, index)) is not None:
            return found
        partition = self._replicas.of_topic(TopicId(bytes=key)).get(index) if len(key) == ID_BYTES else None
        return partition if partition is not None and partition.is_suspended else None

    def partitions_of(self, name: str) -> Sequence[Partition]:
        """Return a topic's partitions in order; empty unless this broker leads all of them."""
        led = self._replicas.led_of(name.encode())
        topic = self.image.topics.get(TopicName(name))
        if topic is None or len(led) < topic.partitions:
            return ()
        return [led[index] for index in range(topic.partitions)]

    def led_of(self, name: str) -> Mapping[int, Partition]:
        """Return the partitions of a topic that this broker leads, by index."""
        return self._replicas.led_of(name.encode())

    def every_partition_of(self, name: str) -> Sequence[Partition]:
        """Return a topic's partitions in order; raise why this broker does not lead one of them."""
        if found := self.partitions_of(name):
            return found
        led = self._replicas.led_of(name.encode())
        missing = (index for index in range(self.image.topic(name).partitions) if index not in led)
        raise self.absence(name.encode(), next(missing, 0))

    def places_of(self, name: str) -> list[PartitionId]:
        """Return the ids of a topic's partitions in order, wherever they are led. Raises UnknownTopic."""
        topic = self.image.topic(name)
        return [PartitionId(topic.id, index) for index in range(topic.partitions)]

    def place(self, name: str, index: int) -> PartitionId:
        """Return the id of a partition, wherever it is led. Raises UnknownTopic."""
        if not self.exists(name.encode(), index):
            raise self.absence(name.encode(), index)
        return PartitionId(self.image.topic(name).id, index)

    def ready_partitions_of(self, name: str) -> Mapping[int, Partition]:
        """Return the partitions of a topic that this broker leads, by index."""
        return dict(self._replicas.led_of(name.encode()))

    def replicas_of(self, name: str) -> Sequence[Partition]:
        """Return the partitions of a topic that this broker has, led or followed."""
        topic = self.image.topics.get(TopicName(name))
        return () if topic is None else list(self._replicas.of_topic(topic.id).values())

    def all_partitions(self) -> Iterator[Partition]:
        """Yield every open partition of this broker."""
        return iter(self._replicas)

    def config_of(self, topic: Topic) -> TopicConfig:
        """Return the settings of a topic, with the defaults of this broker."""
        known = self._configs.get(topic.name)
        if known is None or known[0] is not topic or known[1] is not self.defaults:
            known = topic, self.defaults, self._new_config(topic)
            self._configs[topic.name] = known
        return known[2]

    def _new_config(self, topic: Topic) -> TopicConfig:
        if len(self._configs) > 2 * len(self.image.topics) + SPARE_CONFIGS:
            # Of deleted topics, and of those that were only validated.
            exist = self.image.topics
            self._configs = {name: known for name, known in self._configs.items() if name in exist}
        if topic.overrides:
            return topic_config(topic.overrides, self.defaults.merged)
        if self._plain_config is None or self._plain_config[0] is not self.defaults:
            self._plain_config = self.defaults, topic_config({}, self.defaults.merged)
        return self._plain_config[1]

    def settings_of(self, topic: Topic, replication_factor: int | None = None) -> dict[str, str]:
        """Return the settings of a topic as text; one that was only validated has no replicas yet."""
        config = self.config_of(topic)
        found = {
            name: setting.text(getattr(config, name.replace(".", "_"))) for name, setting in SETTINGS.items()
        }
        if replication_factor is None:
            states = self.image.partitions_of(topic.id)
            replication_factor = states[0].replication_factor if states else 1
        found[MIN_ISR] = str(described_min_isr(self.image, topic, replication_factor))
        return found

    def name_by_id(self, key: bytes) -> str | None:
        """Return the name of the topic with a 16-byte id; None if there is none."""
        if (name := self._names_by_id.get(key)) is None:
            topic = self.image.topic_by_id(TopicId(bytes=key))
            if topic is not None:
                name = self._names_by_id[key] = topic.name
        return name

    def _topic(self, key: bytes) -> Topic | None:
        topic = self.image.topic_by_id(TopicId(bytes=key)) if len(key) == ID_BYTES else None
        return topic or self.image.topics.get(TopicName(key.decode(errors="replace")))

    # Start.

    def load(self, progress: RecoveryProgress) -> None:
        """Open every partition of this broker. Blocking."""
        loading = self._begin_loading(progress, self._admit_recovered)
        loading.run(self._mine())
        self._loading = None
        self._loaded.set()

    async def load_gradually(self, progress: RecoveryProgress) -> bool:
        """Open every partition in threads. Ready ones can be found at once; differences wait until all are.

        Returns false if `stop_loading` was called first.
        """
        loop = asyncio.get_running_loop()

        def ready(topic: Topic, partitions: list[Partition]) -> None:
            loop.call_soon_threadsafe(self._admit_recovered, topic, partitions)

        loading = self._begin_loading(progress, ready)
        # Loading has its own threads: it may take long, and open partitions need the shared ones.
        is_complete = await loop.run_in_executor(None, loading.run, self._mine())
        await asyncio.sleep(0)  # the last partitions it handed over are admitted
        self._loaded.set()
        if is_complete:
            self._loading = None
            self._apply_soon()
        else:
            self._fail_waiting(PartitionNotReady(STOPPING))
        return is_complete

    def stop_loading(self) -> None:
        """Make `load_gradually` return soon. Partitions not yet opened stay unavailable."""
        if self._loading is not None:
            self._loading.stop()

    def power_loss_settled(self) -> None:
        """Forget the power loss: no state refers to lost records any more."""
        self.power_lost = False
        for partition in self.all_partitions():
            partition.cut_offset = None

    def _mine(self) -> list[tuple[Topic, Sequence[int]]]:
        return [(topic, list(self._wanted(topic))) for topic in self.image.topics.values()]

    def _wanted(self, topic: Topic) -> dict[int, PartitionState]:
        """Return the partitions of a topic of which this broker has a replica."""
        states = self.image.partitions_of(topic.id)
        return {index: state for index, state in enumerate(states) if self._node_id in state.replicas}

    def _begin_loading(
        self, progress: RecoveryProgress, ready: Callable[[Topic, list[Partition]], None]
    ) -> Loading:
        progress.expect(sum(len(indexes) for _, indexes in self._mine()))
        configs = {topic.id: self.config_of(topic) for topic in self.image.topics.values()}
        self._loading = self._replicas.loading(progress, configs, ready)
        return self._loading

    def _admit_recovered(self, topic: Topic, partitions: list[Partition]) -> None:
        self._replicas.admit(partitions)
        self._assign_roles(topic, partitions)
        if len(self._replicas.of_topic(topic.id)) >= len(self._wanted(topic)):
            self._notify_applied(topic.id, None)

    # Changes.

    @_uninterrupted
    async def create(
        self,
        name: str,
        *,
        partitions: int = BY_DEFAULT,
        replication_factor: int = BY_DEFAULT,
        assignments: Sequence[ReplicaIds] = (),
        overrides: Mapping[str, str] | None = None,
        may_collide: bool = False,
        dry_run: bool = False,
    ) -> Topic:
        """Create a topic; it is usable when this returns.

        `may_collide` is for names that are not the user's choice, as that of a dead-letter topic.
        """
        command = CreateTopic(
            name=name,
            topic_id=uuid4(),
            partitions=partitions,
            replication_factor=replication_factor,
            assignments=tuple(assignments),
            overrides=dict(overrides or {}),
            may_collide=may_collide,
            dry_run=dry_run,
        )
        await self._begin_change()
        topic = await self._metadata.ask(command)
        if not dry_run:
            await self._applied_to(topic.id)
            log.info("topic_created", topic=topic.name, partitions=topic.partitions)
        return topic

    @_uninterrupted
    async def get_or_create(self, name: str) -> Topic:
        """Return the topic of this name, created with the broker's defaults if it does not exist.

        Concurrent callers all get the topic that the first of them created.
        """
        await self._begin_change()
        topic = await self._metadata.ask(CreateTopic(name=name, topic_id=uuid4(), if_absent=True))
        await self._applied_to(topic.id)
        return topic

    @_uninterrupted
    async def create_internal(
        self, name: TopicName, *, partitions: int, overrides: Mapping[str, str]
    ) -> None:
        """Create an internal topic; its partitions on this broker are open when this returns."""
        await self._opened(await self.ensure_internal(name, partitions=partitions, overrides=overrides))

    async def ensure_internal(
        self, name: TopicName, *, partitions: int, overrides: Mapping[str, str]
    ) -> Topic:
        """Return an internal topic, which no client may create, write to or delete; create it if needed."""
        if (topic := self.image.topics.get(name)) is None:
            command = CreateTopic(
                name=name,
                topic_id=uuid4(),
                partitions=partitions,
                overrides=dict(overrides),
                if_absent=True,
                is_internal=True,
            )
            topic = await self._metadata.ask(command)
        return topic

    async def wait_until_applied(self, index: int) -> None:
        """Return once this broker has applied the metadata up to an index of their log."""
        await self._metadata.wait_until_applied(index)

    async def learn(self, names: Iterable[str]) -> None:
        """Catch up with the cluster if a topic is unknown: it may have been created through another node.

        Raises NotController, RequestTimedOut.
        """
        if self._metadata.may_be_behind and any(name not in self.image.topics for name in names):
            await self._metadata.catch_up()

    async def catch_up(self) -> None:
        """Return once the image has everything that was decided before this call.

        Only then does the image say that something does not exist. By a command that has to be committed:
        a controller that was replaced and does not know it cannot answer that.
        """
        await self._metadata.ask(AllocateProducerIds(count=1))

    @_uninterrupted
    async def delete(self, name: str) -> Topic:
        """Delete a topic and its files."""
        await self._begin_change()
        topic = await self._metadata.ask(DeleteTopic(name=name, topic_id=self.image.topic(name).id))
        await self._applied_to(topic.id)
        log.info("topic_deleted", topic=topic.name)
        return topic

    @_uninterrupted
    async def grow(
        self,
        name: str,
        partitions: int,
        *,
        assignments: Sequence[ReplicaIds] = (),
        dry_run: bool = False,
    ) -> Topic:
        """Add partitions so that there are `partitions` in total."""
        command = AddPartitions(
            name=name, partitions=partitions, assignments=tuple(assignments), dry_run=dry_run
        )
        await self._begin_change()
        topic = await self._metadata.ask(command)
        if not dry_run:
            await self._applied_to(topic.id)
            log.info("partitions_added", topic=topic.name, partitions=topic.partitions)
        return topic

    @_uninterrupted
    async def configure(
        self, name: str, change: Callable[[Topic], Mapping[str, str]], *, dry_run: bool = False
    ) -> Topic:
        """Replace a topic's settings by those that `change` returns for it."""
        await self._begin_change()
        while True:
            before = self.image.topic(name)
            command = ConfigureTopic(
                name=name, overrides=change(before), expected=before.overrides, dry_run=dry_run
            )
            try:
                topic = await self._metadata.ask(command)
                break
            except InvalidUpdateVersion:
                # Another client was faster; its change is on its way to this image.
                await asyncio.sleep(0.01)
        if not dry_run:
            await self._applied_to(topic.id)
            log.info("topic_configured", topic=topic.name, settings=dict(topic.overrides))
        return topic

    @_uninterrupted
    async def configure_broker(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, dry_run: bool = False
    ) -> None:
        """Replace the settings changed at run time, of this broker or of all, by those `change` returns.

        When this returns, every topic without an override uses them.
        """
        await self._begin_change()
        while True:
            before = self.image.broker_overrides(name)
            command = ConfigureBroker(
                name=name, overrides=change(before), expected=dict(before), dry_run=dry_run
            )
            try:
                await self._metadata.ask(command)
                break
            except InvalidUpdateVersion:
                await asyncio.sleep(0.01)
        if not dry_run:
            if self._applying is not None:
                await asyncio.wait({self._applying})
            log.info("broker_configured", broker=name or "all", settings=dict(command.overrides or {}))

    async def _begin_change(self) -> None:
        """Wait until all partitions are open: an interrupted start must not leave a change half applied."""
        if self._loading is not None:
            await self._loaded.wait()
            if self._loading is not None:
                raise PartitionNotReady(STOPPING)

    async def finish(self) -> None:
        """Return once no change is in progress."""
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        while self._in_progress or self._applying is not None:
            waiting: set[asyncio.Future[Any]] = set(self._in_progress)
            if self._applying is not None:
                waiting.add(self._applying)
            await asyncio.wait(waiting)

    def _report_unusable(self) -> None:
        for name in (str(self._node_id), ALL_BROKERS):
            overrides = self.image.broker_overrides(name)
            for setting in sorted(overrides.keys() - usable(overrides).keys()):
                log.warning("broker_setting_ignored", broker=name or "all", setting=setting)

    # Differences of the image.

    def _image_changed(self, delta: Delta) -> None:
        """Note what is to be applied. Deleted partitions are hidden at once."""
        for topic in delta.deleted.values():
            self._names_by_id.pop(topic.id.bytes, None)
            self._deleted[topic.id] = topic
            for partition in list(self._replicas.of_topic(topic.id).values()):
                self._replicas.set_not_led(partition)
                partition.retire(UnknownTopic(f"topic {topic.name!r} has been deleted"))
            self._notify_leadership(topic.name)
        for name in delta.topics:
            self._changed[self.image.topics[name].id] = None
        for topic_id, _ in delta.partitions:
            self._changed[topic_id] = None
        if self._node_id in delta.brokers and not self._is_registered():
            self._changed.update(dict.fromkeys(topic.id for topic in self.image.topics.values()))
        if delta.broker_configs:
            self._defaults_changed = True
        self._apply_soon()

    def _apply_soon(self) -> None:
        is_due = self._changed or self._deleted or self._defaults_changed
        is_loaded = self._loaded.is_set() and self._loading is None
        if is_due and is_loaded and self._applying is None:
            self._applying = asyncio.ensure_future(self._apply())

    async def _apply(self) -> None:
        """Apply differences until there are none."""
        try:
            while self._changed or self._deleted or self._defaults_changed:
                if self._deleted:
                    await self._apply_deletions()
                    continue
                if self._defaults_changed:
                    self._defaults_changed = False
                    await self._apply_defaults()
                    continue
                topic_id = next(iter(self._changed))
                del self._changed[topic_id]
                self._current = {topic_id}
                self._note_applied(topic_id, await self._apply_topic(topic_id))
        except Exception:
            log.exception("metadata_not_applied")
            for topic_id in self._current:
                self._reopen_later(topic_id)
            self._fail_waiting(StorageFailed("a change of the metadata could not be applied; see the log"))
        finally:
            self._applying = None
            self._current = set()

    async def _apply_deletions(self) -> None:
        """Delete what this broker has of some deleted topics."""
        topics = [self._deleted.pop(topic_id) for topic_id in [*islice(self._deleted, DELETED_AT_ONCE)]]
        self._current = {topic.id for topic in topics}
        async with asyncio.TaskGroup() as removals:
            for topic in topics:
                removals.create_task(self._remove(topic))
        for topic in topics:
            self._note_applied(topic.id, None)

    def _note_applied(self, topic_id: TopicId, failure: AlpacaError | None) -> None:
        """Remember the outcome of applying a topic, and notify those that wait for it."""
        self._current.discard(topic_id)
        self._failures.pop(topic_id, None)
        if failure is not None:
            self._failures[topic_id] = failure
        if topic_id not in self._changed:
            self._notify_applied(topic_id, failure)

    async def _apply_topic(self, topic_id: TopicId) -> AlpacaError | None:
        """Open, lead, follow, configure and delete the partitions of a topic; return the first failure."""
        if (topic := self.image.topic_by_id(topic_id)) is None:
            return None
        wanted = self._wanted(topic)
        there = self._replicas.of_topic(topic_id)
        failure: AlpacaError | None = None
        for index in [index for index in there if index not in wanted]:
            await self._delete(topic_id, index)
        if missing := [index for index in wanted if index not in there]:
            try:
                self._replicas.admit(await self._replicas.open(topic, missing, self.config_of(topic)))
            except AlpacaError as error:
                log.error("partitions_not_opened", topic=topic.name, reason=str(error))
                self._reopen_later(topic_id)
                failure = error
        await self._settle(topic_id)
        # The image may have changed meanwhile.
        if (topic := self.image.topic_by_id(topic_id)) is None:
            return None
        partitions = list(self._replicas.of_topic(topic_id).values())
        config = self.config_of(topic)
        for partition in partitions:
            if partition.config != config:
                partition.configure(config)
        self._assign_roles(topic, partitions)
        if missing and len(missing) < topic.partitions:
            for listener in self._listeners:
                listener.topic_grown(topic.name)
        return failure

    async def _settle(self, topic_id: TopicId) -> None:
        """Let truncations end before another leader, maybe this broker, continues these logs."""
        for partition in list(self._replicas.of_topic(topic_id).values()):
            if partition.following is not None:
                state = self.image.partition(PartitionId(topic_id, partition.identity.partition))
                await partition.settled(state)

    def _assign_roles(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        """Lead the partitions that the image says this broker leads, and follow the leaders of the others."""
        states = self.image.partitions_of(topic.id)
        configured = configured_min_isr(self.image, topic)
        before = self._led_epochs(topic.id)
        # Another process may have registered with this id while this one was paused.
        is_registered, has_contact = self._is_registered(), self._has_contact()
        for partition in partitions:
            index = partition.identity.partition
            state = states[index] if index < len(states) else None
            if state is None:
                self._replicas.set_not_led(partition)
                partition.stop(NotLeader(f"{partition.identity} is not on this broker"))
            elif state.leader != self._node_id:
                self._replicas.set_not_led(partition)
                partition.follow(state)
            elif is_registered and has_contact:
                partition.lead(state, min_isr(configured, state.replication_factor))
                self._replicas.set_led(partition)
            elif is_registered and (partition.is_leading or partition.is_suspended):
                self._replicas.set_not_led(partition)
                partition.suspend(_without_contact(str(partition.identity)))
            elif is_registered:
                self._replicas.set_not_led(partition)
                partition.stop(_without_contact(str(partition.identity)))
            else:
                self._replicas.set_not_led(partition)
                partition.stop(NotLeader(f"another process is registered as broker {self._node_id}"))
        if self._led_epochs(topic.id) != before:
            self._notify_leadership(topic.name)

    def contact_changed(self) -> None:
        """Stop leading at once when the controller does not answer; lead again when it does."""
        if self._has_contact():
            for topic in self.image.topics.values():
                if any(state.leader == self._node_id for state in self.image.partitions_of(topic.id)):
                    self._changed[topic.id] = None
            self._apply_soon()
            return
        topics: dict[str, None] = {}
        for partition in self._replicas:
            if partition.is_leading:
                self._replicas.set_not_led(partition)
                partition.suspend(_without_contact(str(partition.identity)))
                topics[partition.identity.topic] = None
        for name in topics:
            self._notify_leadership(name)

    def _led_epochs(self, topic_id: TopicId) -> dict[int, int]:
        led = self._replicas.led_of(topic_id.bytes)
        return {index: partition.leader_epoch for index, partition in led.items()}

    def _notify_leadership(self, topic: str) -> None:
        if (changed := self._leadership_listeners.get(topic)) is not None:
            changed()

    async def _apply_defaults(self) -> None:
        self.defaults = topic_defaults(self.image, self._node_id, self._file_defaults)
        without_overrides = topic_config({}, self.defaults.merged)
        async for some in in_slices(list(self.image.topics.values()), CONFIGURED_AT_ONCE):
            for topic in some:
                config = self.config_of(topic) if topic.overrides else without_overrides
                partitions = list(self._replicas.of_topic(topic.id).values())
                for partition in partitions:
                    partition.configure(config)
                # min.insync.replicas may have changed.
                self._assign_roles(topic, [each for each in partitions if each.is_leading])

    async def _remove(self, topic: Topic) -> None:
        """Delete what this broker has of a deleted topic."""
        for index in list(self._replicas.of_topic(topic.id)):
            await self._delete(topic.id, index)
        # Before a topic of that name can be used: groups would start at the old one's offsets.
        for listener in self._listeners:
            await listener.topic_deleted(topic.name)

    async def _delete(self, topic_id: TopicId, index: int) -> None:
        if (partition := self._replicas.remove(topic_id, index)) is not None:
            partition.retire(NotLeader(f"{partition.identity} is not on this broker any more"))
            self._notify_leadership(partition.identity.topic)
            await self._replicas.delete(partition)

    def _reopen_later(self, topic_id: TopicId) -> None:
        self._to_reopen.append(topic_id)
        if self._reopening is None:
            self._reopening = asyncio.get_running_loop().call_later(REOPEN_SECONDS, self._reopen)

    def _reopen(self) -> None:
        self._reopening = None
        self._changed.update(dict.fromkeys(self._to_reopen))
        self._to_reopen.clear()
        self._apply_soon()

    # Waiting for differences to be applied.

    async def _applied_to(self, topic_id: TopicId) -> None:
        """Return once the differences of a topic are applied here. Raises what prevents it."""
        if topic_id in self._changed or topic_id in self._deleted or topic_id in self._current:
            await self._next_application(topic_id)
        elif (failure := self._failures.get(topic_id)) is not None:
            raise failure.with_traceback(None)

    async def _opened(self, topic: Topic) -> None:
        """Return once every replica that this broker has of a topic is open. Raises what prevents it."""
        while len(self._replicas.of_topic(topic.id)) < len(self._wanted(topic)):
            await self._next_application(topic.id)

    async def _next_application(self, topic_id: TopicId) -> None:
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic_id, []).append(applied)
        await applied

    def _notify_applied(self, topic_id: TopicId, failure: AlpacaError | None) -> None:
        for waiter in self._waiting.pop(topic_id, ()):
            if waiter.done():
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure.with_traceback(None))

    def _fail_waiting(self, failure: AlpacaError) -> None:
        for topic_id in list(self._waiting):
            self._notify_applied(topic_id, failure)


def _without_contact(partition: str) -> NotLeader:
    return NotLeader(f"{partition}: {NO_CONTACT}")
