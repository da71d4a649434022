"""OffsetCommit without a task: commits that a coordinator on this broker can take at once.

Such commits overlap, as produced batches do: the coordinator handles them in order, and responses keep their
order. All others, and those of clients with rights, quotas or a tenant to consider, go to
`handlers.committed_offsets`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpacamq.broker.broker import Broker
from alpacamq.broker.tracing.commits import record_commits
from alpacamq.broker.tracing.partition import Origin
from alpacamq.coordinator.messages import CommitRequest, OffsetToCommit, PartitionResults
from alpacamq.model.errors import AlpacaError, StaleMemberEpoch
from alpacamq.model.ids import TopicId, TopicName
from alpacamq.protocol.commit_codec import (
    TOPIC_IDS_FROM,
    CommitCall,
    decode_offset_commit,
    encode_offset_commit_response,
)
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.framing import RequestHeader
from alpacamq.telemetry.tracing import ClientApi

from .errors import code_of

if TYPE_CHECKING:
    from .connection import Answer, Connection

MEMBER_EPOCHS_FROM = 9


class _Commit:
    """A commit whose reply is pending; the host of the coordinator passes the reply on."""

    __slots__ = ("_answer", "_broker", "_call", "_header", "_is_answered", "_offsets")

    def __init__(
        self,
        broker: Broker,
        answer: "Answer",
        header: RequestHeader,
        call: CommitCall,
        offsets: Sequence[OffsetToCommit],
    ) -> None:
        self._broker = broker
        self._answer = answer
        self._header = header
        self._call = call
        self._offsets = offsets
        self._is_answered = False

    def done(self) -> bool:
        """Return whether the response is sent. It keeps its place even if the client has gone."""
        return self._is_answered

    def set_result(self, reply: PartitionResults | AlpacaError) -> None:
        """Send the response."""
        self._is_answered = True
        _, version, correlation_id, client_id, _ = self._header
        codes: Sequence[ErrorCode]
        if isinstance(reply, AlpacaError):
            codes = [code_of_commit(reply, version)] * len(self._offsets)
        else:
            origin = Origin(ClientApi.KAFKA, client_id or "", self._call.group)
            record_commits(self._broker.topics, self._offsets, reply, origin)
            codes = codes_of(reply)
        for code in codes:
            if code:
                self._answer.refused(code)
        frame = encode_offset_commit_response(version, correlation_id, self._call.topics, codes)
        self._answer.fill((frame,))


class OffsetCommits:
    """Handles OffsetCommit requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> bool:
        """Commit the offsets of a small request; return False if that takes more than this."""
        if (meter := connection.meter) is not None and meter.is_time_due:
            return False
        if self._broker.access.limits(connection.caller):
            return False
        version = header.api_version
        call = decode_offset_commit(version, frame, header.body_at)
        group, generation, member_id, instance_id, _ = call
        offsets = self._to_commit(call, is_by_id=version >= TOPIC_IDS_FROM)
        if not offsets or (host := self._broker.groups.loaded_host(group)) is None:
            return False
        asked = CommitRequest(
            group=group,
            offsets=offsets,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
        )
        host.submit_to(_Commit(self._broker, connection.reserve(), header, call, offsets), asked)
        return True

    def _to_commit(self, call: CommitCall, *, is_by_id: bool) -> tuple[OffsetToCommit, ...]:
        """Return the offsets of a request; nothing if a partition does not exist."""
        image = self._broker.topics.image
        offsets: list[OffsetToCommit] = []
        for key, partitions in call.topics:
            if is_by_id:
                topic = image.topic_by_id(TopicId(bytes=key))
            else:
                topic = image.topics.get(TopicName(key.decode()))
            if topic is None:
                return ()
            name, topic_id, count = topic.name, topic.id, topic.partitions
            for index, offset, leader_epoch, metadata in partitions:
                if not 0 <= index < count:
                    return ()
                offsets.append(
                    OffsetToCommit(
                        topic=name,
                        partition=index,
                        offset=offset,
                        leader_epoch=leader_epoch,
                        metadata=metadata,
                        topic_id=topic_id,
                    )
                )
        return tuple(offsets)


def code_of_commit(error: AlpacaError, version: int) -> ErrorCode:
    """Return the error of all partitions of an OffsetCommit."""
    if isinstance(error, StaleMemberEpoch) and version < MEMBER_EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION  # these versions do not know the error
    return code_of(error)


def codes_of(results: PartitionResults) -> list[ErrorCode]:
    """Return the results of partitions, in order."""
    return [ErrorCode.NONE if each.error is None else code_of(each.error) for each in results.partitions]
