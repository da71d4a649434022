"""Committed and pending offsets against a model that numbers all commits."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alpacamq.coordinator.messages import (
    CommitRequest,
    CompleteTransactionRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    TxnCommitRequest,
)
from alpacamq.model.errors import InvalidTransactionState, UnstableOffsetCommit
from alpacamq.model.ids import TopicName, TopicPartition

from .group_host import GroupHost

GROUPS = st.sampled_from(["billing", "a/b"])
PARTITIONS = st.integers(0, 2)
OFFSETS = st.integers(0, 1_000)
PRODUCERS = st.integers(7, 9)


def offset_of(partition: int, offset: int) -> tuple[OffsetToCommit, ...]:
    return (OffsetToCommit(topic="orders", partition=partition, offset=offset, metadata=f"at {offset}"),)


class OffsetsModel(RuleBasedStateMachine):
    """Each commit has a number; a transaction's end never replaces a commit with a higher one."""

    @initialize()
    def start(self) -> None:
        self.host = GroupHost()
        self.made = 0
        self.committed: dict[tuple[str, int], tuple[int, int]] = {}
        self.pending: dict[tuple[int, str, int], tuple[int, int]] = {}
        # The number of each producer's current transaction.
        self.numbers = {7: 1, 8: 1, 9: 1}

    @rule(group=GROUPS, partition=PARTITIONS, offset=OFFSETS)
    def commit(self, group: str, partition: int, offset: int) -> None:
        self.host.send(CommitRequest(group=group, offsets=offset_of(partition, offset)))
        self.made += 1
        self.committed[group, partition] = (self.made, offset)

    @rule(producer=PRODUCERS, group=GROUPS, partition=PARTITIONS, offset=OFFSETS)
    def commit_in_transaction(self, producer: int, group: str, partition: int, offset: int) -> None:
        self.host.send(self.in_transaction(producer, self.numbers[producer], group, partition, offset))
        self.made += 1
        self.pending[producer, group, partition] = (self.made, offset)

    @rule(producer=PRODUCERS, committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        number = self.numbers[producer]
        self.host.send(
            CompleteTransactionRequest(
                producer_id=producer, producer_epoch=0, committed=committed, number=number
            )
        )
        self.numbers[producer] += 1
        for held in [each for each in self.pending if each[0] == producer]:
            commit = self.pending.pop(held)
            if committed:
                self.committed[held[1:]] = max(self.committed.get(held[1:], commit), commit)

    @rule(producer=PRODUCERS, committed=st.booleans(), age=st.integers(1, 3))
    def end_an_earlier_transaction_again(self, producer: int, committed: bool, age: int) -> None:
        """Repeat a marker, whose sender did not get the reply: nothing changes."""
        number = max(self.numbers[producer] - age, 0)
        self.host.send(
            CompleteTransactionRequest(
                producer_id=producer, producer_epoch=0, committed=committed, number=number
            )
        )

    @rule(producer=PRODUCERS, group=GROUPS, partition=PARTITIONS, offset=OFFSETS)
    def commit_in_an_ended_transaction(self, producer: int, group: str, partition: int, offset: int) -> None:
        """Send a request that was confirmed before the transaction ended: it is refused."""
        number = self.numbers[producer] - 1
        self.host.ask(
            CompleteTransactionRequest(producer_id=producer, producer_epoch=0, committed=True, number=number)
        )
        answer = self.host.ask(self.in_transaction(producer, number, group, partition, offset))
        assert isinstance(answer, InvalidTransactionState)

    def in_transaction(
        self, producer: int, number: int, group: str, partition: int, offset: int
    ) -> TxnCommitRequest:
        return TxnCommitRequest(
            producer_id=producer,
            producer_epoch=0,
            group=group,
            offsets=offset_of(partition, offset),
            number=number,
        )

    @rule(group=GROUPS, partition=PARTITIONS)
    def delete_offset(self, group: str, partition: int) -> None:
        partitions = (TopicPartition(TopicName("orders"), partition),)
        self.host.send(DeleteOffsetsRequest(group=group, partitions=partitions))
        self.forget(group, partition)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        self.host.send(DeleteGroupRequest(group=group))
        for partition in range(3):
            self.forget(group, partition)

    @rule()
    def recreate_topic(self) -> None:
        """Do not tell the coordinator."""
        self.host.any_topic.recreate("orders")
        self.committed.clear()
        self.pending.clear()

    @rule()
    def restart(self) -> None:
        self.host.check_log()
        self.host.restart()

    @rule()
    def trim(self) -> None:
        self.host.trim_offsets()
        self.host.check_log()

    def forget(self, group: str, partition: int) -> None:
        self.committed.pop((group, partition), None)
        for held in [each for each in self.pending if each[1:] == (group, partition)]:
            del self.pending[held]

    @invariant()
    def every_group_reads_what_was_committed(self) -> None:
        for group in ("billing", "a/b"):
            answer = self.host.ask(FetchOffsetsRequest(group=group))
            assert isinstance(answer, FetchOffsetsReply)
            current = [each for each in answer.offsets if each.topic_id == self.host.topic_id("orders")]
            assert {each.partition: (each.offset, each.metadata) for each in current} == {
                partition: (offset, f"at {offset}")
                for (of, partition), (_, offset) in self.committed.items()
                if of == group
            }

    @invariant()
    def offsets_of_open_transactions_are_unstable(self) -> None:
        partitions = tuple(TopicPartition(TopicName("orders"), number) for number in range(3))
        for group in ("billing", "a/b"):
            request = FetchOffsetsRequest(group=group, partitions=partitions, require_stable=True)
            answer = self.host.ask(request)
            assert isinstance(answer, FetchOffsetsReply)
            unstable = {each.partition for each in answer.offsets if each.error is not None}
            assert all(isinstance(each.error, UnstableOffsetCommit | None) for each in answer.offsets)
            assert unstable == {
                partition
                for (_, of, partition), commit in self.pending.items()
                if of == group and commit > self.committed.get((group, partition), (0, 0))
            }


OffsetsModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOffsets = OffsetsModel.TestCase
