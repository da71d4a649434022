"""Partitions of any broker, for readers that need their bounds at once: the queue engines.

A partition that is led here is itself. One that another broker leads is a `RemotePartition`: its bounds are
those that its leader named last, and its records are read from a replica of this broker that has them, or
from the leader. While someone waits for records, one long poll per leader keeps the bounds up to date.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.link import Peers
from alpacamq.broker.topics import Topics
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, PartitionNotReady
from alpacamq.model.ids import BrokerId, TopicId, TopicName, TopicPartition
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import Topic
from alpacamq.telemetry.logs import get_logger

from .read_values import Bounds, FetchedBatches
from .reads import RemoteReads, bounds_of, covers, waiting_for_records

log = get_logger(__name__)

# How long a call waits at the leader for a change.
WATCH_MS: Final = 10_000
CALL_MS: Final = 5000
# How long a receive waits for the bounds of partitions that other brokers lead.
ASK_MS: Final = 1000
# A leader that does not answer is not asked again for so long: others do not wait for it every time.
SILENT_SECONDS: Final = 2.0
MAX_WATCHED: Final = 10_000
# Between two polls of one leader, so that many small appends are one change.
PAUSE_SECONDS: Final = 0.002
RETRY_SECONDS: Final = 0.1

Wake = Callable[[int], None]


class WatchedBounds(msgspec.Struct, frozen=True):
    """The bounds that differ from the known ones, by position; None where this broker does not lead."""

    changed: dict[int, Bounds | None]


class WatchBounds(Request[WatchedBounds], frozen=True, kw_only=True, tag="watch-bounds"):
    """Asks for the bounds of partitions once one of them is not as known, or when the time is up.

    `known` has the first offset, the last stable offset and the high watermark of each; -1 if not known.
    """

    places: tuple[PartitionId, ...]
    known: tuple[tuple[int, int, int], ...]
    wait_ms: int


VALUES: tuple[type[msgspec.Struct], ...] = (WatchBounds,)


class RemotePartition:
    """A partition that another broker leads."""

    def __init__(self, topics: Topics, reads: RemoteReads, topic: Topic, index: int) -> None:
        self.identity = TopicPartition(topic.name, index)
        self.place = PartitionId(topic.id, index)
        self.skipped_batches = 0
        self._topics = topics
        self._reads = reads
        self._bounds: Bounds | None = None
        self.watchers: dict[object, Wake] = {}
        # Until when its leader is not asked, because it did not know the partition.
        self.rests_until = 0.0

    def __repr__(self) -> str:
        return f"RemotePartition({self.identity})"

    @property
    def replica(self) -> Partition | None:
        """The replica of this broker, if it has one."""
        return self._topics.followed(self.place.topic_id.bytes, self.place.partition)

    @property
    def known(self) -> tuple[int, int, int]:
        """The first offset, the last stable offset and the high watermark that its leader named last."""
        bounds = self._bounds
        if bounds is None:
            return -1, -1, -1
        return bounds.start_offset, bounds.last_stable_offset, bounds.high_watermark

    @property
    def is_known(self) -> bool:
        """Whether its leader has named its bounds."""
        return self._bounds is not None

    @property
    def start_offset(self) -> int:
        return self._known_bounds().start_offset

    @property
    def last_stable_offset(self) -> int:
        return self._known_bounds().last_stable_offset

    @property
    def high_watermark(self) -> int:
        return self._known_bounds().high_watermark

    def _known_bounds(self) -> Bounds:
        """Return the newest bounds; those of a replica are never ahead of the leader's."""
        bounds, replica = self._bounds, self.replica
        if replica is not None and (bounds is None or replica.high_watermark > bounds.high_watermark):
            return bounds_of(replica)
        if bounds is None:
            raise PartitionNotReady(f"the bounds of {self.identity} are not known")
        return bounds

    def replica_with(self, offset: int) -> Partition | None:
        """Return a replica of this broker that has a committed record."""
        replica = self.replica
        return replica if replica is not None and covers(replica, offset, committed=True) else None

    @property
    def replica_count(self) -> int:
        state = self._topics.image.partition(self.place)
        return 0 if state is None else len(state.replicas)

    async def read(self, offset: int, max_bytes: int, *, committed: bool = True) -> FetchedBatches:
        """Read whole batches from the one with `offset` on, at the leader."""
        found = await self._reads.read_batches(
            self.place, offset, max_bytes, committed=committed, may_follow=False
        )
        self.learn(found.bounds)
        return found

    def learn(self, bounds: Bounds) -> bool:
        """Take bounds of the leader or a replica; return whether there is more to read, or less, than known.

        What was committed stays committed, although a new leader may not know it yet; unless it does not
        have it, after an unclean election.
        """
        known = self._bounds
        if known is not None:
            is_lost = bounds.leader_epoch > known.leader_epoch and bounds.end_offset < known.high_watermark
            if not is_lost and bounds.high_watermark < known.high_watermark:
                return False
        self._bounds = bounds
        return known is None or (
            bounds.high_watermark > known.high_watermark
            or bounds.last_stable_offset > known.last_stable_offset
            or bounds.start_offset > known.start_offset
        )

    def watch(self, key: object, wake: Wake) -> None:
        """Call `wake` whenever there is more to read, the log start moves or another broker leads."""
        self.watchers[key] = wake

    def unwatch(self, key: object) -> None:
        self.watchers.pop(key, None)

    def wake(self) -> None:
        for wake in list(self.watchers.values()):
            wake(1)


AnyPartition = Partition | RemotePartition


def is_only_copy(partition: AnyPartition) -> bool:
    """Return whether damaged records are lost: no other replica has them."""
    if isinstance(partition, RemotePartition):
        return partition.replica_count <= 1
    return len(partition.replicas) <= 1


class _Poll:
    """A call to a leader, and the partitions that it names."""

    __slots__ = ("task", "views")

    def __init__(self, views: Collection[RemotePartition]) -> None:
        self.views = frozenset(views)
        self.task: asyncio.Task[None] | None = None


class PartitionViews:
    """The partitions of any broker. `run` owns the long polls."""

    def __init__(self, topics: Topics, reads: RemoteReads, node_id: BrokerId, peers: Peers | None) -> None:
        """`peers` is None for a cluster of this broker only: then all partitions are led here."""
        self._topics = topics
        self._reads = reads
        self._node_id = node_id
        self._peers = peers
        self._views: dict[PartitionId, RemotePartition] = {}
        # Of topics that were asked for, until leaders change.
        self._by_topic: dict[str, list[RemotePartition]] = {}
        self._watched: dict[RemotePartition, None] = {}
        self._polls: dict[BrokerId, _Poll] = {}
        self._changed = asyncio.Event()
        # Set while a partition has no leader to ask.
        self._looking_again: asyncio.TimerHandle | None = None
        self._refreshes: dict[TopicId, asyncio.Task[bool]] = {}
        # Until when leaders are not asked that did not answer.
        self._silent: dict[BrokerId, float] = {}

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {WatchBounds: self._on_watch}

    def find(self, topic: str, index: int) -> AnyPartition | None:
        """Return a partition; None if it does not exist, or is led here and not open yet."""
        led = self._topics.find(topic.encode(), index)
        if led is not None or self._peers is None:
            return led
        return self._remote(topic, index)

    def get(self, topic: str, index: int) -> AnyPartition:
        """Return a partition. Raises UnknownTopic or PartitionNotReady."""
        if (found := self.find(topic, index)) is None:
            raise self._topics.absence(topic.encode(), index)
        return found

    def remote(self, topic: str) -> list[RemotePartition]:
        """Return the partitions of a topic that other brokers lead."""
        image = self._topics.image
        if self._peers is None:
            return []
        if (views := self._by_topic.get(topic)) is None:
            found = image.topics.get(TopicName(topic))
            each = (self._remote(topic, index) for index in range(0 if found is None else found.partitions))
            views = self._by_topic[topic] = [view for view in each if view is not None]
        return views

    def _remote(self, topic: str, index: int) -> RemotePartition | None:
        image = self._topics.image
        found = image.topics.get(TopicName(topic))
        if found is None or (state := image.partition(PartitionId(found.id, index))) is None:
            return None
        if state.leader == self._node_id:
            return None
        place = PartitionId(found.id, index)
        if (view := self._views.get(place)) is None:
            view = self._views[place] = RemotePartition(self._topics, self._reads, found, index)
        return view

    def forget(self, topic: str) -> None:
        """Drop what is known of a deleted topic."""
        for place in [place for place, view in self._views.items() if view.identity.topic == topic]:
            self._watched.pop(self._views.pop(place), None)
        self._by_topic.pop(topic, None)

    # Bounds on request.

    async def learn(self, topic: str) -> None:
        """Ask for bounds that are not known; return when they are, or after a short time."""
        if any(not view.is_known for view in self.remote(topic)):
            await self.refresh(topic)

    async def freshen(self, topic: str) -> bool:
        """Ask for bounds that are not kept up to date by a long poll; return whether all are exact now."""
        views = self.remote(topic)
        if not views:
            return True
        polled = {view for poll in self._polls.values() for view in poll.views}
        if polled.issuperset(views):
            return False
        await self.refresh(topic)
        return True

    async def refresh(self, topic: str) -> bool:
        """Ask the leaders for the bounds of all partitions; return whether there is more to read."""
        views = self.remote(topic)
        if not views:
            return False
        topic_id = views[0].place.topic_id
        if (running := self._refreshes.get(topic_id)) is not None:
            # It may have begun before the records arrived that this caller looks for.
            await asyncio.wait({running})
        if (running := self._refreshes.get(topic_id)) is None:
            running = self._refreshes[topic_id] = asyncio.ensure_future(self._ask_leaders(views))
            running.add_done_callback(lambda _: self._refreshes.pop(topic_id, None))
        return await asyncio.shield(running)

    async def _ask_leaders(self, views: Sequence[RemotePartition]) -> bool:
        now = asyncio.get_running_loop().time()
        by_leader: dict[BrokerId, list[RemotePartition]] = {}
        for view in views:
            leader = self._leader_of(view)
            if leader not in (None, self._node_id) and self._silent.get(leader, 0) <= now:
                by_leader.setdefault(leader, []).append(view)
        return any(await asyncio.gather(*(self._try_to_ask(*each) for each in by_leader.items())))

    async def _try_to_ask(self, leader: BrokerId, views: Sequence[RemotePartition]) -> bool:
        """Ask one leader now; false if it does not answer."""
        try:
            advanced = await self._ask(leader, views, 0, ASK_MS)
        except AlpacaError as error:
            log.info("bounds_not_known", leader=leader, reason=str(error))
            self._silent[leader] = asyncio.get_running_loop().time() + SILENT_SECONDS
            return False
        self._silent.pop(leader, None)
        return advanced

    async def _ask(
        self, leader: BrokerId, views: Sequence[RemotePartition], wait_ms: int, timeout_ms: int
    ) -> bool:
        """Ask one leader, and wake those who wait; return whether there is more to read."""
        assert self._peers is not None
        request = WatchBounds(
            places=tuple(view.place for view in views),
            known=tuple(view.known for view in views),
            wait_ms=wait_ms,
        )
        reply = await self._peers.call(leader, request, timeout_ms)
        advanced = False
        for at, bounds in reply.changed.items():
            view = views[at]
            if bounds is None:
                view.rests_until = asyncio.get_running_loop().time() + RETRY_SECONDS
            elif view.learn(bounds):
                advanced = True
                view.wake()
        return advanced

    def _leader_of(self, view: RemotePartition) -> BrokerId | None:
        state = self._topics.image.partition(view.place)
        return None if state is None or state.leader is None else BrokerId(state.leader)

    # Waiting.

    def watch(self, view: RemotePartition, key: object, wake: Wake) -> None:
        """Call `wake` whenever there is more to read, or this broker leads the partition; until `unwatch`."""
        view.watch(key, wake)
        if view not in self._watched:
            self._watched[view] = None
            self._changed.set()

    def unwatch(self, view: RemotePartition, key: object) -> None:
        view.unwatch(key)
        if not view.watchers:
            self._watched.pop(view, None)

    def leaders_changed(self) -> None:
        """Look for the leaders of partitions again, because the image has changed."""
        self._by_topic.clear()
        if self._watched:
            self._changed.set()

    async def run(self) -> None:
        """Poll leaders while someone waits, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._changed.wait()
                await asyncio.sleep(PAUSE_SECONDS)
                self._changed.clear()
                groups = self._by_leader()
                for leader, poll in list(self._polls.items()):
                    if not poll.views.issuperset(groups.get(leader, ())) and poll.task is not None:
                        poll.task.cancel()
                        del self._polls[leader]
                for leader, views in groups.items():
                    if leader not in self._polls:
                        poll = self._polls[leader] = _Poll(views)
                        poll.task = tasks.create_task(self._poll(leader, poll, views))

    async def _poll(self, leader: BrokerId, poll: _Poll, views: Sequence[RemotePartition]) -> None:
        try:
            await self._ask(leader, views, WATCH_MS, WATCH_MS + CALL_MS)
        except AlpacaError as error:
            log.debug("partitions_not_watched", leader=leader, reason=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            if self._polls.get(leader) is poll:
                del self._polls[leader]
            self._changed.set()

    def _by_leader(self) -> dict[BrokerId, list[RemotePartition]]:
        """Return the watched partitions by the leaders to ask. Those of this broker wake their watchers."""
        loop = asyncio.get_running_loop()
        groups: dict[BrokerId, list[RemotePartition]] = {}
        is_incomplete = False
        for view in list(self._watched):
            leader = self._leader_of(view)
            if leader is None or view.rests_until > loop.time():
                is_incomplete = True
            elif leader != self._node_id:
                group = groups.setdefault(leader, [])
                if len(group) < MAX_WATCHED:
                    group.append(view)
            elif self._topics.find(view.place.topic_id.bytes, view.place.partition) is not None:
                view.wake()
            else:
                is_incomplete = True
        if is_incomplete and self._looking_again is None:
            self._looking_again = loop.call_later(RETRY_SECONDS, self._look_again)
        return groups

    def _look_again(self) -> None:
        self._looking_again = None
        self._changed.set()

    async def _on_watch(self, request: WatchBounds, _peer: Peer) -> WatchedBounds:
        """Answer as soon as a partition is not as the caller knows it."""
        found = [self._topics.find(place.topic_id.bytes, place.partition) for place in request.places]
        loop = asyncio.get_running_loop()
        until = loop.time() + min(request.wait_ms, WATCH_MS) / 1000
        with waiting_for_records(each for each in found if each is not None) as waiter:
            while True:
                changed = self._differences(request, found)
                if changed or loop.time() >= until:
                    return WatchedBounds(changed)
                await waiter.wait(until - loop.time())

    def _differences(
        self, request: WatchBounds, found: Iterable[Partition | None]
    ) -> dict[int, Bounds | None]:
        changed: dict[int, Bounds | None] = {}
        for at, (partition, known) in enumerate(zip(found, request.known, strict=True)):
            if partition is None or not partition.is_leading:
                changed[at] = None
            elif (
                partition.high_watermark > known[2]
                or partition.last_stable_offset > known[1]
                or partition.start_offset > known[0]
            ):
                changed[at] = bounds_of(partition)
        return changed
