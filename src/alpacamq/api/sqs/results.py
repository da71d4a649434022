"""Results of the SQS actions: one type per action, the same for both protocols.

Fields have the names of the API in JSON; None and empty values are left out.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.access import Caller as Identity

from .requests import ActionRequest, AttributeValue


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """Base of all results and their parts; itself the result of actions without one."""


NOTHING = Answer()


class QueueUrlResult(Answer, frozen=True, kw_only=True):
    """Result of CreateQueue and GetQueueUrl."""

    queue_url: str


class ListQueuesResult(Answer, frozen=True, kw_only=True):
    queue_urls: list[str] = []
    next_token: str | None = None


class ListDeadLetterSourceQueuesResult(Answer, frozen=True, kw_only=True):
    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class GetQueueAttributesResult(Answer, frozen=True, kw_only=True):
    attributes: dict[str, str] = {}


class SendMessageResult(Answer, frozen=True, kw_only=True):
    message_id: str
    md5_of_body: str = msgspec.field(name="MD5OfMessageBody")
    md5_of_attributes: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)
    md5_of_system_attributes: str | None = msgspec.field(name="MD5OfMessageSystemAttributes", default=None)
    sequence_number: str | None = None


class SendEntryResult(SendMessageResult, frozen=True, kw_only=True):
    id: str


class Failure(Answer, frozen=True, kw_only=True):
    """A refused entry of a batch."""

    id: str
    sender_fault: bool
    code: str
    message: str


class SendMessageBatchResult(Answer, frozen=True, kw_only=True):
    successful: list[SendEntryResult] = []
    failed: list[Failure] = []


class Done(Answer, frozen=True, kw_only=True):
    """A successful entry of a batch without a result."""

    id: str


class SettleBatchResult(Answer, frozen=True, kw_only=True):
    """Result of DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    successful: list[Done] = []
    failed: list[Failure] = []


class ReceivedMessage(Answer, frozen=True, kw_only=True):
    message_id: str
    receipt_handle: str
    body: str
    md5_of_body: str = msgspec.field(name="MD5OfBody")
    attributes: dict[str, str] = {}
    message_attributes: dict[str, AttributeValue] = {}
    md5_of_attributes: str | None = msgspec.field(name="MD5OfMessageAttributes", default=None)


class ReceiveMessageResult(Answer, frozen=True, kw_only=True):
    messages: list[ReceivedMessage] = []


class StartMessageMoveTaskResult(Answer, frozen=True, kw_only=True):
    task_handle: str


class CancelMessageMoveTaskResult(Answer, frozen=True, kw_only=True):
    moved: int = msgspec.field(name="ApproximateNumberOfMessagesMoved")


class MoveTask(Answer, frozen=True, kw_only=True):
    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    moved: int = msgspec.field(name="ApproximateNumberOfMessagesMoved")
    to_move: int = msgspec.field(name="ApproximateNumberOfMessagesToMove")
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksResult(Answer, frozen=True, kw_only=True):
    results: list[MoveTask] = []


class ListQueueTagsResult(Answer, frozen=True, kw_only=True):
    tags: dict[str, str] = {}


class Caller(msgspec.Struct, frozen=True):
    """The origin of a request."""

    base_url: str  # base of queue URLs
    peer: str = ""
    traceparent: bytes | None = None  # of the whole request
    trace_header: str = ""  # of AWS X-Ray; for messages without one of their own
    identity: Identity = ANONYMOUS_CALLER


class Action(msgspec.Struct, frozen=True):
    """An action. `perform` takes a value of type `request_type`."""

    name: str
    request_type: type[ActionRequest]
    perform: Callable[[Any, Caller], Awaitable[Answer]]
