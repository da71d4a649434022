"""Where a queue sends what was received too often, and which queues may send theirs to it."""

from collections.abc import Mapping

import msgspec

from .directory import Queue, QueueDirectory
from .errors import Fault, invalid_value

MAX_RECEIVE_COUNT = 1000
MAX_SOURCE_ARNS = 10


class RedrivePolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The attribute RedrivePolicy; numbers are taken as text too, which some tools write."""

    dead_letter_target_arn: str
    max_receive_count: int | str


class RedriveAllowPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The attribute RedriveAllowPolicy."""

    redrive_permission: str
    source_queue_arns: list[str] = []


def topic_settings(
    text: str, name: str, directory: QueueDirectory, *, is_fifo: bool
) -> Mapping[str, str | None]:
    """The settings of the topic `name` that a RedrivePolicy stands for; empty text is none."""
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
    if target.name == name:
        raise _refused(text, "A queue cannot be its own dead-letter queue.")
    if target.is_fifo != is_fifo:
        raise _refused(text, "Dead-letter queue must be same type of queue as the source.")
    if not _allows(target, directory.arn(name)):
        raise _refused(text, "The dead-letter queue's RedriveAllowPolicy does not allow this queue.")
    return {"queue.max.deliveries": str(count), "queue.dead.letter.topic": target.name}


def text_of(queue: Queue, directory: QueueDirectory) -> str | None:
    """The RedrivePolicy that a topic's settings stand for."""
    if (target := queue.dead_letter_topic) is None:
        return None
    policy = RedrivePolicy(
        dead_letter_target_arn=directory.arn(target), max_receive_count=queue.config.queue_max_deliveries
    )
    return msgspec.json.encode(policy).decode()


def check_allow_policy(text: str) -> None:
    """Refuse a RedriveAllowPolicy that SQS does not take; empty text is none."""
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
