"""The broker: wires one data directory, its topics, the coordinators and background work together.

APIs receive this object and nothing below it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from alpacamq.broker.partition.housekeeping import DiskWatch
from alpacamq.cluster.decisions import ControllerSettings
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.cluster.topics import TopicLimits
from alpacamq.consensus.messages import (
    RaftSettings,
)
from alpacamq.coordinator.transactions.coordinator import TransactionSettings
from alpacamq.log.data_directory import PARTITIONS, PROBE, DataDirectory, LastStop
from alpacamq.log.disk import SystemDisk
from alpacamq.log.index_files import IndexCache
from alpacamq.log.partition_log import MAX_SHARED_FLUSHES, close_logs
from alpacamq.log.storage import FileHandles, Storage
from alpacamq.model.errors import AlpacaError, InvalidConfig, StorageFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.topics import DAY_MS
from alpacamq.queues.messages import QueueId, built_in_group
from alpacamq.telemetry.event_loop import EventLoopWatch
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import Metrics

from .access import Access, SecuritySettings
from .audit import Audit, AuditSettings
from .batch_appends import BatchAppends
from .clock import CautiousClock, ClusterClock, RetentionClock, SteadyClock, SystemClock
from .delay.service import Delays, DelaySettings
from .delay.split import DelayedBatches
from .dlq.writer import MoveTargets
from .groups import CoordinatorSettings, Groups
from .member import Member, MemberSettings
from .metadata.metadata import Metadata
from .metadata.opening import open_store
from .metadata.quorum import Quorum
from .metadata.registration import Registration, RegistrationSettings
from .metadata.store import IDENTITY as METADATA_IDENTITY
from .partition.group_commit import GroupCommit
from .partition.housekeeping import Housekeeping
from .partition.leader import Partition, WriteBatcher
from .partition.loading import RecoveryProgress
from .partition.replicas import Replicas
from .producer_ids import ProducerIds
from .publishing import Publisher
from .queue.fifo import FifoPublisher
from .queue.host import QueueHost, QueueSettings
from .queue.service import Queues
from .quotas import Quotas
from .registry import Registry
from .remote.appends import RemoteAppends
from .remote.fifo import FifoQueues
from .remote.history import RemoteHistory
from .remote.progress import ProducerSequences
from .remote.reads import RemoteReads
from .remote.routing import LeaderCalls, OtherBrokers
from .remote.shards import ShardCalls
from .remote.status import ClusterStatus
from .remote.traces import RemoteTraces
from .remote.transactional_appends import TransactionalAppends
from .remote.views import PartitionViews
from .replication.service import Replication, ReplicationSettings
from .sampling import GroupLags, LaneRates, Sampler
from .schemas.checks import SchemaChecks
from .sessions import Sessions
from .statemachine.host import Now
from .statemachine.topic import HostResources
from .tenant_usage import TenantUsage
from .tls import Certificates
from .topics import Topics
from .tracing.delay import DelayTraces
from .tracing.queue import QueueTraces
from .tracing.tracing import Tracing, TracingSettings
from .transactions import Transactions

log = get_logger(__name__)

__all__ = ["Broker", "BrokerSettings"]

FLUSH_THREADS = 4
WORK_THREADS = 8
# Steps of the clock up to this size are followed at once: in general, and where old data is deleted.
MAX_STEP_MS = 366 * DAY_MS
MAX_RETENTION_STEP_MS = 600_000
TIME_RECORD_SECONDS = 600
# How long clients wait for the settlement of a power loss. A damaged state machine must not block them for
# ever.
SETTLE_SECONDS = 30.0
SETTLE_RETRY_SECONDS = 5.0
# A segment's next batches and index, or so.
PROBE_BYTES = 64 << 10


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the broker itself; APIs have their own."""

    node_id: BrokerId
    data_directory: Path
    auto_create_topics: bool = True
    limits: TopicLimits = TopicLimits()
    topic_defaults: Mapping[str, str] = {}
    open_files: int = 1024
    index_cache_bytes: int = 8 << 20
    checkpoint_bytes: int = 8 << 20
    retention_check_ms: int = 30_000
    clock_hold_ms: int = 3_600_000
    unpacked_limit_bytes: int = 64 << 20
    coordination: CoordinatorSettings = CoordinatorSettings()
    transactions: TransactionSettings = TransactionSettings()
    queues: QueueSettings = QueueSettings()
    delays: DelaySettings = DelaySettings()
    tracing: TracingSettings | None = TracingSettings()  # None: disabled
    registration: RegistrationSettings = RegistrationSettings()
    controller: ControllerSettings = ControllerSettings()
    replication: ReplicationSettings = ReplicationSettings()
    security: SecuritySettings = SecuritySettings()
    audit: AuditSettings | None = None  # None: disabled
    member: MemberSettings | None = None  # None: a cluster of this node only
    # Time to rescue directories before they are deleted, should the metadata have been repaired wrongly.
    stray_retention_ms: int = 600_000


class StartStep(NamedTuple):
    """What a broker that starts is doing, and the health check that it fails meanwhile."""

    check: str
    doing: str
    detail: str


class Broker:
    """Owns all state between the APIs and the disk."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        metrics: Metrics | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self.settings = settings
        system_clock = clock or SystemClock()
        # The function itself: quotas call it for every request.
        self._monotonic = time.monotonic if clock is None else clock.monotonic
        self.clock = CautiousClock(
            system_clock, max_step_ms=MAX_STEP_MS, hold_ms=settings.clock_hold_ms, purpose="broker"
        )
        # Deletion is irreversible, so even a jump of hours does harm.
        self._retention_clock = RetentionClock(
            system_clock,
            max_step_ms=MAX_RETENTION_STEP_MS,
            hold_ms=settings.clock_hold_ms,
            purpose="retention",
        )
        self._disk = disk or SystemDisk()
        # fsync has its own threads: a long compaction must not delay an acknowledgement.
        self._flush_threads = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        self.work_threads = ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="work")
        # None if the node collects no metrics.
        self.metrics = metrics
        # None if the node has none.
        self.certificates = certificates
        self._flushes = GroupCommit(
            self._flush_threads,
            None if metrics is None else metrics.flushes,
            disk=self._disk,
            root=settings.data_directory / PARTITIONS,
            slots=FLUSH_THREADS,
        )
        self._staged = WriteBatcher()
        self.recovery = RecoveryProgress(self.clock)
        self.event_loop = EventLoopWatch()
        # None for a cluster of this node only.
        self.member: Member | None = None
        self._is_built = False
        # Directories of no partition, found at the start.
        self._strays: Sequence[str] = ()
        self._is_recovered = asyncio.Event()
        self._is_settled = asyncio.Event()

    def open(self) -> None:
        """Lock the data directory and recover everything in it. Blocking."""
        self.begin()
        self.topics.load(self.recovery)
        self._end_recovery()

    async def recover(self) -> None:
        """Recover all partitions after `begin`. Partitions are served as they become ready."""
        if await self.topics.load_gradually(self.recovery):
            self._end_recovery()

    def begin(self) -> None:
        """Lock the data directory and read the list of topics, as a cluster of this node only.

        Blocking; `recover` follows.
        """
        self.open_directory()
        self._open_metadata()
        voters = [voter.id for voter in self.metadata.quorum.voters]
        if voters != [self.settings.node_id]:
            raise InvalidConfig(
                f"{self.settings.data_directory} belongs to a cluster of several nodes"
                + (f" ({', '.join(map(str, voters))})" if voters else "")
                + "; name them with cluster.nodes or cluster.dns"
            )
        try:
            self.metadata.quorum.elect_alone()
            self.registration.register_alone()
        except StorageFailed as error:
            # A full disk must not prevent a start: what is stored can be read.
            log.warning("metadata_not_writable", reason=str(error))
            self.metadata.failed(error)
            self.metadata.apply_stored(self.metadata.quorum.restart().entries)
        self._build()

    def open_directory(self) -> None:
        """Lock the data directory. Blocking."""
        settings = self.settings
        self._directory = DataDirectory(settings.data_directory, self._disk, settings.node_id)
        self._directory.open(founds_cluster=settings.member is None)
        self._storage = Storage(
            disk=self._disk,
            clock=self._retention_clock,
            handles=FileHandles(self._disk, settings.open_files),
            indexes=IndexCache(settings.index_cache_bytes),
            checkpoint_bytes=settings.checkpoint_bytes,
            has_every_write=self._directory.last_stop is not LastStop.POWER_LOST,
        )
        if settings.member is not None:
            self.member = Member(settings.member, settings.node_id, self._directory, self.certificates)

    async def join(self) -> None:
        """Join or found the cluster, take part in its metadata log, and register. `recover` follows.

        The cluster listener serves the handlers of `member`, and `member.run` runs. Retries until it is done.
        """
        assert self.member is not None, "a node without other nodes begins with `begin`"
        loop = asyncio.get_running_loop()
        await self.member.bootstrap.run()
        await loop.run_in_executor(None, self._open_metadata)
        self.member.attach(self.metadata)
        self.metadata.start()
        await self._register()
        self._build()  # here: the image changes on the event loop

    async def _register(self) -> None:
        """Register at the controller. Raises CorruptState if this version does not know the metadata."""
        watching = asyncio.ensure_future(self.metadata.watch())
        registering = asyncio.ensure_future(self.registration.register())
        try:
            await asyncio.wait({watching, registering}, return_when=asyncio.FIRST_COMPLETED)
            await (watching if watching.done() else registering)
        finally:
            watching.cancel()
            registering.cancel()

    def start_step(self) -> StartStep:
        """Return what a broker that does not serve yet waits for."""
        if self.member is None or self._is_recovering():
            return StartStep("recovery", "recovering", str(self.recovery))
        if problems := self.member.bootstrap.problems:
            return StartStep("cluster", "waiting for its cluster", "; ".join(each.text for each in problems))
        if not self._is_built:
            return StartStep("cluster", "joining its cluster", self.member.join_step())
        return StartStep("cluster", "fenced", "until the controller knows that it has recovered")

    def _is_recovering(self) -> bool:
        return self._is_built and not self._is_recovered.is_set()

    @property
    def clock_ahead_ms(self) -> int:
        """How far the clock of this machine is ahead of cluster time; 0 without other brokers."""
        return self.registration.clock_ahead_ms

    @property
    def cluster_id(self) -> str:
        return self._directory.cluster_id

    def _build(self) -> None:
        """Build everything on top of the metadata. Blocking."""
        settings, metadata = self.settings, self.metadata
        # The clock of timestamps, due times and expiry: other brokers may have to deliver a message, or end a
        # lease, and what clients send must not be refused by the one broker whose machine has a wrong clock.
        self.time: Clock = self.clock
        if self.member is not None:
            self.time = ClusterClock(metadata.cluster_time_ms, self.clock)
        self.audit: Audit | None = None
        if settings.audit is not None:
            self.audit = Audit(
                settings.audit, node_id=settings.node_id, clock=self.clock, executor=self.work_threads
            )
        self.access = Access(metadata, settings.security, self.time, self.audit)
        self.sessions = Sessions(
            self.access,
            metadata,
            self.time,
            cluster_secret=b"" if self.member is None else self.member.secret,
        )
        self.quotas = Quotas(metadata, self._monotonic, self.audit)
        self.tracing = self._open_tracing()
        self._resume_clocks(metadata.image.time_ms)
        self.replication = Replication(
            settings.replication,
            metadata,
            node_id=settings.node_id,
            broker_epoch=lambda: self.registration.epoch,
            flushes=self._flushes,
            executor=self.work_threads,
            clock=self.clock,
            is_damage_known=self.registration.is_damage_known,
        )
        self.registration.damage_known = self.replication.damage_known
        peers = None if self.member is None else self.member.peers
        if peers is not None:
            self.replication.connect(peers)
        self.replicas = Replicas(
            self._directory.partitions,
            self._storage,
            self._flushes,
            self.work_threads,
            replication=self.replication,
            tracing=self.tracing,
            power_lost=self._directory.is_power_loss_open,
        )
        self.topics = Topics(
            metadata,
            self.replicas,
            node_id=settings.node_id,
            file_defaults=settings.topic_defaults,
            power_lost=self._directory.is_power_loss_open,
            is_registered=self.registration.is_current,
            has_contact=self.registration.has_contact,
        )
        self.registration.contact_changed = self.topics.contact_changed
        leaders = LeaderCalls(self.topics, settings.node_id, peers)
        self.reads = RemoteReads(
            leaders,
            self.work_threads,
            unpacked_limit_bytes=settings.unpacked_limit_bytes,
            compact=lambda partition: self.housekeeping.compact(partition),
        )
        others = OtherBrokers(self.topics, settings.node_id, peers)
        self.traces = RemoteTraces(self.tracing, others)
        delay_traces = queue_traces = None
        if self.tracing is not None:
            delay_traces, queue_traces = DelayTraces(self.tracing), QueueTraces(self.tracing, self.topics)
        self.producer_ids = ProducerIds(metadata)
        shards = None
        if peers is not None:
            stats = None if self.metrics is None else self.metrics.forwarded
            shards = ShardCalls(peers, metadata, settings.node_id, stats)
        steady_clock: Now = SteadyClock(self.clock) if self.member is None else self.time
        resources = HostResources(
            topics=self.topics,
            snapshots=self._directory.snapshots,
            disk=self._disk,
            clock=steady_clock,
            executor=self.work_threads,
            shards=shards,
        )
        self.registry = Registry(resources)
        self.schema_checks = SchemaChecks(self.registry, settings.unpacked_limit_bytes)
        self.appends = RemoteAppends(self.topics, self.producer_ids, peers)
        progress = ProducerSequences(leaders)
        self.delays = Delays(
            # Delayed messages are due by the wall clock, or by that of the cluster.
            msgspec.structs.replace(resources, clock=self.time),
            self.producer_ids,
            self.appends,
            progress,
            settings.delays,
            clock=self.time,
            is_member=self.member is not None,
            unpacked_limit_bytes=settings.unpacked_limit_bytes,
            traces=delay_traces,
        )
        self.delayed_batches = DelayedBatches(
            self.delays, self.time, self.work_threads, settings.unpacked_limit_bytes
        )
        views = PartitionViews(self.topics, self.reads, settings.node_id, peers)
        self.queues = Queues(
            QueueHost(
                resources,
                self.producer_ids,
                settings.queues,
                views,
                MoveTargets(self.appends, progress, self.reads),
                clock=self.time,
                retention_clock=self._retention_clock,
                unpacked_limit_bytes=settings.unpacked_limit_bytes,
                traces=queue_traces,
            ),
            self.topics,
            self.reads,
            self.schema_checks,
            peers,
        )
        metadata.subscribe(lambda _: views.leaders_changed())
        self.groups = Groups(resources, settings.coordination, self.queues)
        self.transactions = Transactions(
            resources,
            self.producer_ids,
            settings.transactions,
            self.groups,
            self.time,
            peers=peers,
            flush_elsewhere=self.reads.flush,
        )
        self.tenant_usage = TenantUsage(self.topics, self.groups, self.queues, self.reads)
        self.access.check_new_group = self.tenant_usage.check_group
        transactional = TransactionalAppends(self.topics, self.transactions, self._staged, peers)
        self.publisher = Publisher(
            self.topics,
            self.appends,
            transactional,
            self.delays,
            self._staged,
            self.schema_checks,
            clock=self.time,
            executor=self.work_threads,
            auto_create_topics=settings.auto_create_topics,
            check_storage=self.tenant_usage.check_storage,
        )
        self.batch_appends = BatchAppends(
            self.topics,
            self.appends,
            self.transactions,
            self.delayed_batches,
            self._staged,
            self.schema_checks,
            clock=self.time,
            executor=self.work_threads,
            unpacked_limit_bytes=settings.unpacked_limit_bytes,
            check_storage=self.tenant_usage.check_storage,
        )
        if self.audit is not None:
            self.audit.write_topic(self.topics, self.publisher)
        fifo = FifoPublisher(self.topics, self.publisher, self.delays, self.reads, clock=self.time)
        self.fifo = FifoQueues(self.topics, fifo, leaders)
        self.housekeeping = Housekeeping(
            self.topics.all_partitions,
            self.work_threads,
            self._retention_clock,
            settings.retention_check_ms,
            self.delays.is_worth_compacting,
        )
        self.disk_watch = DiskWatch(
            self.topics.all_partitions,
            self.work_threads,
            lambda: self.can_write(),
            self.registration.beat_now,
        )
        self.replication.on_storage_change = self.disk_watch.look
        self.lags = GroupLags(self.topics, self.groups, self.reads)
        self.lane_rates = LaneRates()
        self.sampler = Sampler(self.topics, self.queues, self.lags, self.clock)
        self.history = RemoteHistory(self.sampler.history, others)
        self.cluster_status = ClusterStatus(
            metadata, self.replication, peers, settings.node_id, settings.controller.replication_factor
        )
        if self.member is not None and shards is not None:
            for served in (
                self.reads,
                self.traces,
                self.history,
                shards,
                self.appends,
                progress,
                transactional,
                self.transactions.markers,
                self.queues,
                self.fifo,
                self.cluster_status,
            ):
                self.member.serve(served.handlers)
        self.topics.subscribe(self)
        self._is_built = True

    async def run(self) -> None:
        """Run the coordinators and background tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.event_loop.run())
            self.metadata.start()
            tasks.create_task(self.metadata.watch())
            tasks.create_task(self.access.run())
            tasks.create_task(self.registration.run())
            tasks.create_task(self.replication.run())
            tasks.create_task(self.disk_watch.run())
            if self._directory.is_power_loss_open:
                await self._is_recovered.wait()  # groups need the end offset of every partition
            tasks.create_task(self.groups.run())
            tasks.create_task(self.transactions.run())
            tasks.create_task(self.registry.run())
            tasks.create_task(self.schema_checks.run())
            # These would take a partition that is not loaded yet for a deleted one.
            await self._is_recovered.wait()
            tasks.create_task(self.queues.run())
            tasks.create_task(self.delays.run())
            tasks.create_task(self.housekeeping.run())
            tasks.create_task(self.sampler.run())
            tasks.create_task(self.tenant_usage.run())
            if self.audit is not None:
                tasks.create_task(self.audit.run())
            if self.member is not None:
                tasks.create_task(self._delete_strays())
            if self._directory.is_power_loss_open:
                tasks.create_task(self._settle_power_loss())

    async def _delete_strays(self) -> None:
        """Delete partitions that the cluster deleted or moved while this node was down."""
        await asyncio.sleep(self.settings.stray_retention_ms / 1000)
        await self.replicas.delete_strays(self._strays, self.topics.image, self.settings.node_id)

    async def _settle_power_loss(self) -> None:
        """Wait until no offset, queue or transaction refers to lost records, and record that."""
        while True:
            try:
                await self.groups.settled()
                await self.transactions.settled()
                await self.queues.settled()
                await asyncio.get_running_loop().run_in_executor(
                    self.work_threads, self._directory.power_loss_settled
                )
                break
            except (AlpacaError, OSError) as error:
                log.warning("power_loss_not_settled", reason=str(error))
                await asyncio.sleep(SETTLE_RETRY_SECONDS)
        self.topics.power_loss_settled()
        log.info("power_loss_settled")
        self._is_settled.set()

    @property
    def is_power_loss_open(self) -> bool:
        """Whether offsets, queues or transactions may refer to records lost in a power cut."""
        return self._directory.is_power_loss_open

    async def wait_until_settled(self) -> None:
        """After a power loss, return once no state refers to lost records, or if that takes too long.

        Records written earlier would reuse offsets of lost ones, and after another crash the two could not be
        told apart.
        """
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._is_settled.wait()
        except TimeoutError:
            log.warning("power_loss_not_settled", waited_seconds=SETTLE_SECONDS)

    async def leave(self) -> None:
        """Hand leadership over to other brokers, if there are any, before the APIs are closed."""
        if self.member is not None and not self.metadata.has_failed:
            await self.registration.leave()
            if self.metadata.is_controller:
                with suppress(AlpacaError):  # there is no other voter
                    self.metadata.quorum.transfer_leadership()

    async def close(self) -> None:
        """Flush all logs, mark them clean and unlock the data directory. Close the APIs first."""
        loop = asyncio.get_running_loop()
        if self.audit is not None:
            await self.audit.close()
        await self.topics.finish()
        await self.metadata.stop()
        await self.topics.finish()  # differences that came last
        # Housekeeping may still run in a thread, on files that are about to be closed.
        await loop.run_in_executor(None, self.work_threads.shutdown)
        partitions = list(self.topics.all_partitions())
        for partition in partitions:
            await self._flushes.quiesce(partition)
        logs = [self._store.log, *(partition.log for partition in partitions)]
        # In parallel: while one slice is synced, others are written or wait for the file system.
        closings = [
            loop.run_in_executor(
                self._flush_threads,
                close_logs,
                self._disk,
                self._directory.partitions,
                logs[first : first + MAX_SHARED_FLUSHES],
            )
            for first in range(0, len(logs), MAX_SHARED_FLUSHES)
        ]
        failures = [error for errors in await asyncio.gather(*closings) for error in errors]
        for error in failures:
            log.error("close_failed", reason=str(error))
        is_certain = not any(each.in_doubt for each in logs)
        if not failures and is_certain and self._is_recovered.is_set():
            await loop.run_in_executor(None, self._directory.stopped)
        if self.tracing is not None:
            await loop.run_in_executor(None, self.tracing.close)
        self.access.close()
        self._directory.close()
        self._flush_threads.shutdown()

    def stage(self, partition: Partition) -> None:
        """Register a partition with appends waiting for `commit`."""
        self._staged.stage(partition)

    def commit(self) -> None:
        """Write everything staged since the last commit, before the acknowledgements are sent."""
        self._staged.commit()

    async def purge_queue(self, queue: QueueId) -> None:
        """Mark all current messages of a queue as done. A FIFO queue forgets their deduplication ids."""
        ends = await self.queues.purge(queue)
        if queue.group == built_in_group(queue.topic):
            await self.fifo.forget(queue.topic, ends)

    async def reset_queue(self, queue: QueueId, offsets: Mapping[int, int]) -> None:
        """Restart a queue at these offsets. A reset to the end of a partition is a purge of it."""
        ends = await self.queues.reset(queue, offsets)
        if queue.group == built_in_group(queue.topic):
            await self.fifo.forget(queue.topic, ends)

    async def topic_deleted(self, topic: str) -> None:
        """Forget a deleted topic everywhere."""
        self.publisher.topic_deleted(topic)
        self.schema_checks.topic_deleted(topic)
        self.delays.topic_deleted()
        try:
            await asyncio.gather(self.groups.topic_deleted(topic), self.queues.topic_deleted(topic))
        except AlpacaError as error:
            log.warning("deletion_not_flushed", topic=topic, reason=str(error))
        if self.tracing is not None:
            self.tracing.topic_deleted(topic)

    def topic_grown(self, topic: str) -> None:
        """Let queues use partitions that were added to a topic."""
        self.queues.topic_grown(topic)

    def _open_tracing(self) -> Tracing | None:
        settings = self.settings.tracing
        if settings is None:
            return None
        tracing = Tracing(settings, self._directory.path / "traces", self.work_threads)
        tracing.open()
        return tracing

    def _open_metadata(self) -> None:
        """Open the metadata log of this node. Blocking."""
        settings, directory, member = self.settings, self._directory, self.member
        self._store, recovered = open_store(
            directory, self._storage, settings.node_id, is_alone=member is None
        )
        self.metadata = Metadata(
            self._store,
            recovered,
            node_id=settings.node_id,
            clock=self._retention_clock,
            executor=self._flush_threads,
            settings=msgspec.structs.replace(
                settings.controller,
                limits=settings.limits,
                topic_defaults=settings.topic_defaults,
                record_time_ms=TIME_RECORD_SECONDS * 1000,
            ),
            resume_clocks=self._resume_clocks,
        )
        quorum = Quorum(
            self._store,
            recovered,
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            settings=RaftSettings() if member is None else member.raft_settings,
            clock=self._retention_clock,
            executor=self._flush_threads,
            listener=self.metadata,
            outgoing=None if member is None else member.network,
            contacts=() if member is None else member.contacts,
        )
        if member is None:
            self.metadata.connect(quorum)
        else:
            self.metadata.connect(quorum, member.network.forward, member.ended_nodes)
        self.registration = Registration(
            self.metadata,
            node_id=settings.node_id,
            directory_id=directory.directory_id,
            epoch_file=directory.metadata / "broker-epoch",
            settings=settings.registration,
            disk=self._disk,
            clock=self._retention_clock,
            wall_clock=None if member is None else self.clock,
            damaged=self._damaged,
            is_disk_failing=self._is_disk_failing,
            stopped_cleanly=directory.last_stop is LastStop.CLEAN,
        )

    def _damaged(self) -> tuple[PartitionId, ...]:
        """Return the replicas that may lack records; none before they are open."""
        return self.replicas.damaged() if self._is_built else ()

    def _is_disk_failing(self) -> bool:
        """Return whether the disk is full or fails, so that others should lead."""
        return self._is_built and self.disk_watch.failure is not None

    def can_write(self) -> bool:
        """Return whether a small write succeeds. Blocking, but short."""
        probe = self.settings.data_directory / PROBE
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        except OSError:
            return False
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
        return True

    def _resume_clocks(self, time_ms: int) -> None:
        """Continue from the last recorded time, if the machine's clock is far ahead of it."""
        self.clock.resume(time_ms)
        self._retention_clock.resume(time_ms)

    def _end_recovery(self) -> None:
        if self.tracing is not None:
            self.tracing.restore((each.identity, each.traces) for each in self.topics.all_partitions())
        self._report_recovery()
        self._is_recovered.set()
        self.registration.ready()

    def _report_recovery(self) -> None:
        scanned = cut = 0
        known = set()
        logs = [(METADATA_IDENTITY, self._store.log)]
        logs += [(partition.identity, partition.log) for partition in self.topics.all_partitions()]
        for identity, opened in logs:
            recovered = opened.recovered
            known.add(opened.directory.name)
            scanned += recovered.scanned_bytes
            cut += recovered.cut_bytes
            for note in recovered.notes:
                log.warning("recovery", partition=str(identity), note=note)
        self._strays = sorted(set(self._directory.partition_names()) - known)
        # Alone, it may be the metadata that is wrong.
        fate = (
            "it is left alone"
            if self.member is None
            else "it is deleted later if the cluster's metadata does not place it here"
        )
        for name in self._strays:
            log.warning("stray_partition_directory", name=name, hint=f"no topic owns it; {fate}")
        log.info(
            "recovered",
            partitions=len(known),
            scanned_bytes=scanned,
            cut_bytes=cut,
            last_stop=self._directory.last_stop.value,
        )
