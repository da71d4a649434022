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
from alpacamq.model.ids import TopicName
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.framing import RequestHeader, response_frame
from alpacamq.protocol.messages import committed_offsets as wire
from alpacamq.protocol.schema import decode, encode
from alpacamq.telemetry.tracing import ClientApi

from .errors import code_of

if TYPE_CHECKING:
    from .connection import Answer, Connection

MEMBER_EPOCHS_FROM = 9
_TOPIC_IDS_FROM = 10
_API = APIS[ApiKey.OFFSET_COMMIT]


class _Commit:
    """A commit whose reply is pending."""

    __slots__ = ("_answer", "_broker", "_header", "_offsets", "_request")

    def __init__(
        self,
        broker: Broker,
        answer: "Answer",
        header: RequestHeader,
        request: wire.OffsetCommitRequest,
        offsets: Sequence[OffsetToCommit],
    ) -> None:
        self._broker = broker
        self._answer = answer
        self._header = header
        self._request = request
        self._offsets = offsets

    def replied(self, reply: PartitionResults | AlpacaError) -> None:
        """Send the response."""
        if isinstance(reply, AlpacaError):
            codes = [code_of_commit(reply, self._header.api_version)] * len(self._offsets)
        else:
            origin = Origin(ClientApi.KAFKA, self._header.client_id or "", self._request.group_id)
            record_commits(self._broker.topics, self._offsets, reply, origin)
            codes = codes_of(reply)
        for code in codes:
            if code:
                self._answer.refused(code)
        code_at = iter(codes)
        topics = [
            wire.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    wire.OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=next(code_at)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in self._request.topics
        ]
        version = self._header.api_version
        body = encode(wire.OffsetCommitResponse(topics=topics), version)
        self._answer.fill((response_frame(_API, version, self._header.correlation_id, body),))


class OffsetCommits:
    """Handles OffsetCommit requests of all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, connection: "Connection", header: RequestHeader, frame: memoryview) -> bool:
        """Commit the offsets of a small request; return False if that takes more than this."""
        access = self._broker.access
        if (meter := connection.meter) is not None and meter.is_time_due:
            return False
        if access.limits(connection.caller):
            return False
        request = decode(wire.OffsetCommitRequest, header.api_version, frame, header.body_at)
        offsets = self._to_commit(request, header.api_version)
        groups = self._broker.groups
        if not offsets or (host := groups.loaded_host(request.group_id)) is None:
            return False
        asked = CommitRequest(
            group=request.group_id,
            offsets=offsets,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
        )
        commit = _Commit(self._broker, connection.reserve(), header, request, offsets)
        host.submit_for(asked, commit.replied)
        return True

    def _to_commit(self, request: wire.OffsetCommitRequest, version: int) -> tuple[OffsetToCommit, ...]:
        """Return the offsets of a request; nothing if a partition does not exist."""
        image = self._broker.topics.image
        offsets: list[OffsetToCommit] = []
        for named in request.topics:
            if version < _TOPIC_IDS_FROM:
                topic = image.topics.get(TopicName(named.name))
            else:
                topic = image.topic_by_id(named.topic_id)
            if topic is None:
                return ()
            for each in named.partitions:
                if not 0 <= each.partition_index < topic.partitions:
                    return ()
                offsets.append(
                    OffsetToCommit(
                        topic=topic.name,
                        partition=each.partition_index,
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.committed_metadata or "",
                        topic_id=topic.id,
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
