"""A share consumer that speaks one request at a time, and counts its epochs itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from alpacamq.model.headers import LANE
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from alpacamq.protocol.messages.share import (
    AcknowledgementBatch,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    SharePartition,
    ShareTopic,
)
from tests.stored import split

from .wire import Wire

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
GROUP = 32


@dataclass(frozen=True)
class Got:
    """What a fetch brought of one partition."""

    error: int = 0
    acknowledge_error: int = 0
    ranges: Sequence[tuple[int, int, int]] = ()  # first and last offset, delivery count
    records: Sequence[Record] = ()  # all that was sent
    sent_bytes: int = 0

    @property
    def offsets(self) -> list[int]:
        return [offset for first, last, _ in self.ranges for offset in range(first, last + 1)]

    @property
    def values(self) -> list[bytes]:
        """The values of the acquired records, as a client takes them out of what was sent."""
        acquired = set(self.offsets)
        return [record.value or b"" for record in self.records if record.offset in acquired]


@dataclass
class Member:
    """One member of a share group on one topic."""

    wire: Wire
    topic: str
    group: str
    id: str = "member"
    version: int | None = None
    topic_id: UUID = field(init=False)
    epoch: int = 0

    def __post_init__(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)])
        self.topic_id = self.wire.ask(request).topics[0].topic_id

    def join(self) -> "Member":
        reply = self.heartbeat(0, [self.topic])
        assert reply.error_code == 0, reply.error_message
        return self

    def heartbeat(self, epoch: int, topics: Sequence[str] | None = None) -> Any:
        return self.wire.ask(
            ShareGroupHeartbeatRequest(
                group_id=self.group, member_id=self.id, member_epoch=epoch, subscribed_topic_names=topics
            )
        )

    def fetch(self, *partitions: int, **options: Any) -> dict[int, Got]:
        """What each partition gave; those named are added to the session."""
        response = self.ask_fetch(*partitions, **options)
        assert response.error_code == 0, response.error_message
        return {part.partition_index: _got(part) for topic in response.responses for part in topic.partitions}

    def ask_fetch(self, *partitions: int, **options: Any) -> Any:
        self.send_fetch(*partitions, **options)
        return self.receive_fetch()

    def send_fetch(
        self,
        *partitions: int,
        acknowledge: dict[int, list[AcknowledgementBatch]] | None = None,
        forget: Sequence[int] = (),
        epoch: int | None = None,
        topic_id: UUID | None = None,
        **options: Any,
    ) -> None:
        topic_id = topic_id or self.topic_id
        wanted = [
            SharePartition(partition_index=index, acknowledgement_batches=(acknowledge or {}).get(index, []))
            for index in dict.fromkeys([*partitions, *(acknowledge or ())])
        ]
        settings = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        }
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[ShareTopic(topic_id=topic_id, partitions=wanted)] if wanted else [],
            forgotten_topics_data=(
                [ForgottenShareTopic(topic_id=topic_id, partitions=forget)] if forget else []
            ),
            **{**settings, **options},
        )
        self.wire.send(request, self.version)

    def receive_fetch(self) -> Any:
        response = self.wire.receive(ShareFetchRequest, self.version)
        if not response.error_code:
            self.epoch += 1
        return response

    def acknowledge(self, batches: dict[int, list[AcknowledgementBatch]], epoch: int | None = None) -> Any:
        """The response, or the error of each partition if there is no other."""
        response = self.wire.ask(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.id,
                share_session_epoch=self.epoch if epoch is None else epoch,
                topics=[
                    ShareTopic(
                        topic_id=self.topic_id,
                        partitions=[
                            SharePartition(partition_index=index, acknowledgement_batches=of_partition)
                            for index, of_partition in batches.items()
                        ],
                    )
                ],
            ),
            self.version,
        )
        if response.error_code:
            return response
        self.epoch += 1
        return {
            part.partition_index: part.error_code for topic in response.responses for part in topic.partitions
        }


def batch(first: int, last: int | None = None, *types: int) -> AcknowledgementBatch:
    """An acknowledgement of these offsets; accepting unless told otherwise."""
    return AcknowledgementBatch(
        first_offset=first, last_offset=first if last is None else last, acknowledge_types=types or (ACCEPT,)
    )


def publish(wire: Wire, topic: str, *values: bytes, partition: int = 0, lane: str = "") -> None:
    """Append the values as one batch."""
    headers = (Header(LANE, lane.encode()),) if lane else ()
    records = [Record(number, 1_750_000_000_000, None, value, headers) for number, value in enumerate(values)]
    data = PartitionProduceData(index=partition, records=write_batch(records))
    topic_data = TopicProduceData(name=topic, partition_data=[data])
    response = wire.ask(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic_data]), 9)
    assert response.responses[0].partition_responses[0].error_code == 0


def configure(wire: Wire, group: str, **settings: str) -> None:
    """Give a group settings, under their names with underscores and without share."""
    configs = [
        IncrementallyAlterableConfig(name=f"share.{name.replace('_', '.')}", config_operation=0, value=value)
        for name, value in settings.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    (result,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert result.error_code == 0, result.error_message


def _got(part: Any) -> Got:
    data = bytes(part.records)
    batches = list(split(data, Path("response")))
    assert sum(len(each.data) for each in batches) == len(data), "only whole batches are sent"
    return Got(
        error=part.error_code,
        acknowledge_error=part.acknowledge_error_code,
        ranges=[(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records],
        records=[record for each in batches for record in each.records()],
        sent_bytes=len(data),
    )
