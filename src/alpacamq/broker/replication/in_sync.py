"""Changes of in-sync sets: collects the proposals of all leaders of this broker for the controller.

Many partitions change together when a broker stops or returns, so their proposals travel together, one
command at a time.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from alpacamq.broker.metadata.metadata import Metadata
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.slices import in_slices
from alpacamq.cluster.brokers import NO_EPOCH
from alpacamq.cluster.commands import AlterPartitions, Failure, IsrMember, IsrProposal, PartitionResult
from alpacamq.cluster.partition_state import PartitionState, min_isr
from alpacamq.cluster.topics import configured_min_isr
from alpacamq.model.errors import AlpacaError, IneligibleReplica, StaleBrokerEpoch
from alpacamq.model.ids import BrokerId, TopicId
from alpacamq.replication.leader import RETRY_MS, CommittedState, PartitionLeader, ProposeIsr
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

MAX_PROPOSALS: Final = 1000
# After this long the outcome of a command counts as unknown.
COMMAND_SECONDS: Final = 5.0
# A refusal that does not change is logged once in this time for each partition.
LOG_AGAIN_MS: Final = 10_000
# Partitions that are looked at between two turns of the event loop.
TICKED_AT_ONCE: Final = 200

_Sent = tuple[Partition, PartitionLeader, ProposeIsr]


class IsrProposals:
    """Sends proposals, and reports what became of them."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        node_id: BrokerId,
        broker_epoch: Callable[[], int],
        now_ms: Callable[[], int],
        replica_lag_ms: int,
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._tick_seconds = replica_lag_ms / 2000
        self._led: dict[Partition, None] = {}
        self._proposing: dict[Partition, None] = {}
        self._wake = asyncio.Event()
        self._is_tick_due = asyncio.Event()
        self._in_doubt: dict[Partition, None] = {}
        self._has_doubt = asyncio.Event()
        # The last refusal of each partition that was logged, and when.
        self._refused: dict[Partition, tuple[str, int]] = {}

    @property
    def led(self) -> Iterable[Partition]:
        """The partitions with other replicas that this broker leads."""
        return self._led

    def add(self, partition: Partition) -> None:
        self._led[partition] = None

    def remove(self, partition: Partition) -> None:
        self._led.pop(partition, None)
        self._proposing.pop(partition, None)
        self._in_doubt.pop(partition, None)
        self._refused.pop(partition, None)

    def has_proposal(self, partition: Partition) -> None:
        self._proposing[partition] = None
        self._wake.set()

    def look_now(self) -> None:
        """Look for followers that may join: the registered brokers have changed."""
        self._is_tick_due.set()

    async def run(self) -> None:
        """Send proposals, and look for followers that fell behind or caught up, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick_all())
            tasks.create_task(self._retry())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while sent := self._take():
                    await self._send(sent)

    async def _tick_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._tick_seconds):
                    await self._is_tick_due.wait()
            except TimeoutError:
                pass
            self._is_tick_due.clear()
            async for some in in_slices(list(self._led), TICKED_AT_ONCE):
                for partition in some:
                    partition.tick(self._now_ms())

    async def _retry(self) -> None:
        """Repeat proposals whose outcome is unknown, and those that were rejected."""
        while True:
            await self._has_doubt.wait()
            await asyncio.sleep(RETRY_MS / 1000)
            self._has_doubt.clear()
            due, self._in_doubt = self._in_doubt, {}
            for partition in due:
                partition.tick(self._now_ms())

    def _take(self) -> list[_Sent]:
        sent: list[_Sent] = []
        while self._proposing and len(sent) < MAX_PROPOSALS:
            partition = next(iter(self._proposing))
            del self._proposing[partition]
            if (taken := partition.take_proposal()) is not None:
                sent.append((partition, *taken))
        return sent

    async def _send(self, sent: list[_Sent]) -> None:
        results: Iterable[PartitionResult | None]
        try:
            results = await self._ask(sent)
        except AlpacaError as error:
            log.warning("in_sync_sets_not_changed", partitions=len(sent), reason=str(error))
            results = [None] * len(sent)
        for (partition, core, proposal), result in zip(sent, results, strict=True):
            self._ended(partition, core, proposal, result)

    async def _ask(self, sent: list[_Sent]) -> Iterable[PartitionResult]:
        epoch = self._broker_epoch()
        if epoch == NO_EPOCH:
            raise StaleBrokerEpoch("this broker is not registered")
        proposals = tuple(
            IsrProposal(
                partition.topic_id,
                partition.identity.partition,
                proposal.leader_epoch,
                proposal.partition_epoch,
                tuple(IsrMember(*member) for member in proposal.isr),
            )
            for partition, _, proposal in sent
        )
        command = AlterPartitions(broker_id=self._node_id, broker_epoch=epoch, proposals=proposals)
        reply = await self._metadata.ask(command, COMMAND_SECONDS)
        return reply.results

    def _ended(
        self,
        partition: Partition,
        core: PartitionLeader,
        proposal: ProposeIsr,
        result: PartitionResult | None,
    ) -> None:
        request_id, now_ms = proposal.request_id, self._now_ms()
        if result is not None and result.state is not None and result.failure is None:
            state = self._committed(partition.topic_id, result.state)
            log.info(
                "in_sync_set_changed", partition=str(partition.identity), in_sync=sorted(result.state.isr)
            )
            self._refused.pop(partition, None)
            partition.proposal_ended(core, lambda each: each.altered(request_id, state, now_ms))
            return
        failure = None if result is None else result.failure
        if is_rejection(failure):
            report = partial(PartitionLeader.alter_rejected, request_id=request_id, now_ms=now_ms)
            is_led = partition.proposal_ended(core, report)
        else:
            is_led = partition.proposal_ended(core, lambda each: each.alter_unknown(request_id, now_ms))
        if failure is not None and partition in self._led:
            self._report(partition, failure, now_ms)
        if is_led:
            self._in_doubt[partition] = None
            self._has_doubt.set()

    def _report(self, partition: Partition, failure: Failure, now_ms: int) -> None:
        """Log a refusal when it is new, and then from time to time: it is repeated several times a second."""
        reason, logged_ms = self._refused.get(partition, ("", 0))
        if reason != failure.reason or now_ms - logged_ms >= LOG_AGAIN_MS:
            self._refused[partition] = failure.reason, now_ms
            log.warning(
                "in_sync_set_not_changed",
                partition=str(partition.identity),
                error=failure.error,
                reason=failure.reason,
            )

    def _committed(self, topic_id: TopicId, state: PartitionState) -> CommittedState:
        image = self._metadata.image
        topic = image.topic_by_id(topic_id)
        configured = None if topic is None else configured_min_isr(image, topic)
        return CommittedState(
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            replicas=[BrokerId(broker) for broker in state.replicas],
            isr=[BrokerId(broker) for broker in state.isr],
            min_isr=min_isr(configured, state.replication_factor),
        )


def is_rejection(failure: Failure | None) -> bool:
    """Return whether a failure proves that the partition epoch was current and the proposal refused."""
    return failure is not None and failure.error == IneligibleReplica.__name__
