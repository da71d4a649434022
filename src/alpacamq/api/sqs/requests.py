"""Parameters of the SQS actions: one type per action, the same for both protocols.

Fields have the names of the API in JSON. A field without a default is required.
"""

import msgspec


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Base of all requests and their parts."""


class AttributeValue(ActionRequest, frozen=True, kw_only=True, omit_defaults=True):
    """A message attribute: a type, and a value in the field that goes with it."""

    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class CreateQueue(ActionRequest, frozen=True, kw_only=True):
    queue_name: str
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(ActionRequest, frozen=True, kw_only=True):
    queue_name: str


class ListQueues(ActionRequest, frozen=True, kw_only=True):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class OfQueue(ActionRequest, frozen=True, kw_only=True):
    """Base of requests for one queue."""

    queue_url: str


class DeleteQueue(OfQueue, frozen=True, kw_only=True):
    pass


class PurgeQueue(OfQueue, frozen=True, kw_only=True):
    pass


class GetQueueAttributes(OfQueue, frozen=True, kw_only=True):
    attribute_names: list[str] | None = None


class SetQueueAttributes(OfQueue, frozen=True, kw_only=True):
    attributes: dict[str, str]


class Outgoing(ActionRequest, frozen=True, kw_only=True):
    """Base of a message to send, alone or in a batch."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(Outgoing, frozen=True, kw_only=True):
    queue_url: str


class SendEntry(Outgoing, frozen=True, kw_only=True):
    id: str


class SendMessageBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[SendEntry]


class ReceiveMessage(OfQueue, frozen=True, kw_only=True):
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(OfQueue, frozen=True, kw_only=True):
    receipt_handle: str


class DeleteEntry(ActionRequest, frozen=True, kw_only=True):
    id: str
    receipt_handle: str


class DeleteMessageBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[DeleteEntry]


class ChangeMessageVisibility(OfQueue, frozen=True, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(ActionRequest, frozen=True, kw_only=True):
    id: str
    receipt_handle: str
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[VisibilityEntry]


class ListDeadLetterSourceQueues(OfQueue, frozen=True, kw_only=True):
    next_token: str | None = None
    max_results: int | None = None


class StartMessageMoveTask(ActionRequest, frozen=True, kw_only=True):
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(ActionRequest, frozen=True, kw_only=True):
    task_handle: str


class ListMessageMoveTasks(ActionRequest, frozen=True, kw_only=True):
    source_arn: str
    max_results: int | None = None


class TagQueue(OfQueue, frozen=True, kw_only=True):
    tags: dict[str, str]


class UntagQueue(OfQueue, frozen=True, kw_only=True):
    tag_keys: list[str]


class ListQueueTags(OfQueue, frozen=True, kw_only=True):
    pass


class AddPermission(OfQueue, frozen=True, kw_only=True):
    label: str
    account_ids: list[str] = msgspec.field(name="AWSAccountIds")
    actions: list[str]


class RemovePermission(OfQueue, frozen=True, kw_only=True):
    label: str
