"""Attributes of queues, including redrive policies, and the permissions in their policy.

The holder of the access key may do everything; policies are stored and returned, and grant or deny nothing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, GroupIdNotFound
from alpacamq.model.names import local_topic
from alpacamq.model.topics import Topic

from . import attributes as known
from .attributes import DEFAULTS, FIFO_DEFAULTS, IN_SETTINGS, StoredAttributes, check
from .directory import Queue, QueueDirectory
from .errors import INVALID_ATTRIBUTE_NAME, INVALID_ATTRIBUTE_VALUE, OVER_LIMIT, Fault, invalid_value, missing
from .requests import AddPermission, GetQueueAttributes, RemovePermission, SetQueueAttributes
from .results import NOTHING, Answer, Caller, GetQueueAttributesResult

ALL = "All"
COUNTS = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    }
)
READABLE = frozenset({ALL, "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", *COUNTS, *known.RULES})


def with_attributes(
    overrides: Mapping[str, str],
    stored: StoredAttributes,
    attributes: Mapping[str, str],
    *,
    name: str,
    is_fifo: bool,
    directory: QueueDirectory,
) -> dict[str, str]:
    """Return the settings of the topic `name` with these attributes, which are validated already."""
    changed: dict[str, str | None] = {**overrides, **known.topic_settings(attributes)}
    others = dict(stored.attributes)
    for attribute, text in attributes.items():
        if attribute == "RedrivePolicy":
            changed.update(redrive_settings(text, name, directory, is_fifo=is_fifo))
        elif attribute not in IN_SETTINGS:
            if attribute == "RedriveAllowPolicy":
                check_allow_policy(text)
            others[attribute] = text
    # Empty text removes an attribute, and the type of a queue is in its name.
    others = {attribute: text for attribute, text in others.items() if text and attribute != "FifoQueue"}
    known.check_together(others)
    changed["sqs.attributes"] = msgspec.structs.replace(stored, attributes=others).text
    return {setting: text for setting, text in changed.items() if text is not None}


async def described(queue: Queue, directory: QueueDirectory) -> dict[str, str]:
    """Return all attributes of a queue except message counts."""
    found = {
        "QueueArn": directory.arn(queue.name),
        "CreatedTimestamp": str(queue.stored.created),
        "LastModifiedTimestamp": str(queue.stored.modified),
        **known.from_settings(queue.config),
        **DEFAULTS,
    }
    if queue.is_fifo:
        found |= {"FifoQueue": "true", **FIFO_DEFAULTS}
    found |= queue.attributes
    if (policy := await redrive_policy(queue, directory)) is not None:
        found["RedrivePolicy"] = policy
    return found


class AttributeChange(NamedTuple):
    """Validated attributes to set, and the new tags if they change."""

    attributes: Mapping[str, str]
    tags: Mapping[str, str] | None = None


class QueueAttributes:
    """Reads and changes the attributes of queues."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._broker = broker
        self._directory = directory

    async def get(self, request: GetQueueAttributes, _caller: Caller) -> GetQueueAttributesResult:
        queue = self._directory.by_url(request.queue_url)
        wanted = frozenset(request.attribute_names or ())
        if unknown := wanted - READABLE:
            raise Fault(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:100]}.")
        found = await described(queue, self._directory) if wanted else {}
        if ALL in wanted or wanted & COUNTS:
            found |= await self._stats(queue)
        if ALL not in wanted:
            found = {name: text for name, text in found.items() if name in wanted}
        return GetQueueAttributesResult(attributes=found)

    async def set(self, request: SetQueueAttributes, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        attributes = known.normalized(request.attributes)
        known.check(attributes, is_fifo=queue.is_fifo)
        if attributes.get("FifoQueue", "true") != "true":
            raise Fault(
                INVALID_ATTRIBUTE_VALUE,
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
            )
        await self.change(queue, lambda _: AttributeChange(attributes))
        return NOTHING

    async def change(self, queue: Queue, compute: Callable[[StoredAttributes], AttributeChange]) -> None:
        """Apply `compute` to the stored attributes of a queue; safe against concurrent changes."""

        def changed(topic: Topic) -> Mapping[str, str]:
            stored = StoredAttributes.of(self._broker.topics.config_of(topic))
            wanted = compute(stored)
            stored = msgspec.structs.replace(
                stored,
                modified=self._broker.clock.now_ms() // 1000,
                tags=stored.tags if wanted.tags is None else dict(wanted.tags),
            )
            return with_attributes(
                topic.overrides,
                stored,
                wanted.attributes,
                name=topic.name,
                is_fifo=queue.is_fifo,
                directory=self._directory,
            )

        await self._broker.topics.configure(queue.name, changed)

    async def _stats(self, queue: Queue) -> dict[str, str]:
        try:
            partitions = (await self._broker.queues.describe(queue.id)).partitions
            visible = sum(partition.ready for partition in partitions)
            held = sum(part.in_flight + part.backoff + part.dead_lettering for part in partitions)
        except GroupIdNotFound:
            # Never received from: all messages are visible.
            places = [PartitionId(queue.topic.id, index) for index in range(queue.topic.partitions)]
            found = await self._broker.reads.bounds(places)
            visible, held = sum(each.messages for each in found if not isinstance(each, AlpacaError)), 0
        delayed = (await self._broker.delays.stats(queue.name)).pending
        return {
            "ApproximateNumberOfMessages": str(visible),
            "ApproximateNumberOfMessagesNotVisible": str(held),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }


MAX_RECEIVE_COUNT = 1000
MAX_SOURCE_ARNS = 10


class RedrivePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The attribute RedrivePolicy; some tools write numbers as text."""

    dead_letter_target_arn: str
    max_receive_count: int | str


class RedriveAllowPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The attribute RedriveAllowPolicy."""

    redrive_permission: str
    source_queue_arns: list[str] = []


def redrive_settings(
    text: str, name: str, directory: QueueDirectory, *, is_fifo: bool
) -> Mapping[str, str | None]:
    """Return the settings of the topic `name` for a RedrivePolicy; empty text removes it."""
    if not text:
        return {"queue.max.deliveries": "0", "queue.dead.letter.topic": None}
    try:
        policy = msgspec.json.decode(text, type=RedrivePolicy)
        count = int(policy.max_receive_count)
    except (msgspec.DecodeError, ValueError) as error:
        raise _refused(text, f"Not a redrive policy: {error}") from None
    if not 1 <= count <= MAX_RECEIVE_COUNT:
        raise _refused(
            text,
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to {MAX_RECEIVE_COUNT} "
            "both inclusive.",
        )
    target = directory.find(directory.name_in(policy.dead_letter_target_arn, "deadLetterTargetArn"))
    if target is None:
        raise _refused(text, "Dead letter target does not exist.")
    if target.is_fifo != is_fifo:
        raise _refused(text, "Dead-letter queue must be same type of queue as the source.")
    if not _allows(target, directory.arn(name)):
        raise _refused(text, "The dead-letter queue's RedriveAllowPolicy does not allow this queue.")
    return {"queue.max.deliveries": str(count), "queue.dead.letter.topic": local_topic(target.name)}


async def redrive_policy(queue: Queue, directory: QueueDirectory) -> str | None:
    """Return the RedrivePolicy that the settings of a queue amount to."""
    if (target := await directory.redrive_target(queue)) is None:
        return None
    policy = RedrivePolicy(
        dead_letter_target_arn=directory.arn(target.topic), max_receive_count=target.max_deliveries
    )
    return msgspec.json.encode(policy).decode()


def check_allow_policy(text: str) -> None:
    """Refuse an invalid RedriveAllowPolicy; empty text removes it."""
    if text:
        try:
            _parsed(text)
        except (msgspec.DecodeError, ValueError) as error:
            raise invalid_value(text[:200], "RedriveAllowPolicy", str(error)) from None


def _parsed(text: str) -> RedriveAllowPolicy:
    policy = msgspec.json.decode(text, type=RedriveAllowPolicy)
    if policy.redrive_permission not in ("allowAll", "denyAll", "byQueue"):
        raise ValueError("redrivePermission must be allowAll, denyAll or byQueue.")
    if (policy.redrive_permission == "byQueue") != bool(policy.source_queue_arns):
        raise ValueError("sourceQueueArns goes with the permission byQueue.")
    if len(policy.source_queue_arns) > MAX_SOURCE_ARNS:
        raise ValueError(f"sourceQueueArns has at most {MAX_SOURCE_ARNS} elements.")
    return policy


def _allows(target: Queue, source_arn: str) -> bool:
    if not (text := target.attributes.get("RedriveAllowPolicy", "")):
        return True
    policy = _parsed(text)
    return policy.redrive_permission == "allowAll" or source_arn in policy.source_queue_arns


def _refused(text: str, reason: str) -> Fault:
    return invalid_value(text[:200], "RedrivePolicy", reason)


MAX_ACTIONS = 7
MAX_STATEMENTS = 20
POLICY_VERSION = "2008-10-17"
# Actions that can be granted to other accounts.
ACTIONS = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)

_LABEL = re.compile(r"[a-zA-Z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")

Policy = dict[str, Any]


class Permissions:
    """Changes the policies of queues."""

    def __init__(self, directory: QueueDirectory, attributes: QueueAttributes) -> None:
        self._directory = directory
        self._attributes = attributes

    async def add(self, request: AddPermission, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        _check(request)
        arn = self._directory.arn(queue.name)

        def added(stored: StoredAttributes) -> AttributeChange:
            changed = {"Policy": _with_statement(_policy(stored), request, arn)}
            check(changed, is_fifo=queue.is_fifo)
            return AttributeChange(changed)

        await self._attributes.change(queue, added)
        return NOTHING

    async def remove(self, request: RemovePermission, _caller: Caller) -> Answer:
        def removed(stored: StoredAttributes) -> AttributeChange:
            return AttributeChange({"Policy": _without_statement(_policy(stored), request.label)})

        await self._attributes.change(self._directory.by_url(request.queue_url), removed)
        return NOTHING


def _with_statement(policy: Policy | None, request: AddPermission, arn: str) -> str:
    policy = policy or {"Version": POLICY_VERSION, "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    statements = policy["Statement"]
    if any(statement.get("Sid") == request.label for statement in statements):
        raise invalid_value(request.label, "Label", "Already exists.")
    if len(statements) >= MAX_STATEMENTS:
        raise Fault(OVER_LIMIT, f"{MAX_STATEMENTS} is the maximum number of statements in a policy.")
    statements.append(
        {
            "Sid": request.label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{each}:root" for each in request.account_ids])},
            "Action": _one_or_all([f"SQS:{action}" for action in request.actions]),
            "Resource": arn,
        }
    )
    return msgspec.json.encode(policy).decode()


def _without_statement(policy: Policy | None, label: str) -> str:
    policy = policy or {"Statement": []}
    statements = [each for each in policy["Statement"] if each.get("Sid") != label]
    if len(statements) == len(policy["Statement"]):
        raise invalid_value(label[:100], "Label", "can't find label.")
    return msgspec.json.encode(policy | {"Statement": statements}).decode() if statements else ""


def _check(request: AddPermission) -> None:
    if not _LABEL.fullmatch(request.label):
        raise invalid_value(
            request.label[:100], "Label", "Can only include alphanumeric characters, hyphens, or underscores."
        )
    if not request.account_ids:
        raise missing("AWSAccountIds")
    if not request.actions:
        raise missing("Actions")
    for account_id in request.account_ids:
        if not _ACCOUNT.fullmatch(account_id):
            raise invalid_value(account_id[:100], "PrincipalId", "Unable to verify.")
    for action in request.actions:
        if action not in ACTIONS:
            raise invalid_value(
                action[:100], "ActionName", "Only the queue owner is allowed to invoke this action."
            )
    if len(request.actions) > MAX_ACTIONS:
        raise Fault(
            OVER_LIMIT, f"{len(request.actions)} Actions were found, maximum allowed is {MAX_ACTIONS}."
        )


def _policy(stored: StoredAttributes) -> Policy | None:
    """Return the queue's policy, without parts of the wrong shape."""
    if not (text := stored.attributes.get("Policy", "")):
        return None
    policy: Policy = msgspec.json.decode(text)
    statements = policy.get("Statement", [])
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list):
        statements = []
    return policy | {"Statement": [each for each in statements if isinstance(each, dict)]}


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
