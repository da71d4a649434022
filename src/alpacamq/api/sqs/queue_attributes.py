"""GetQueueAttributes and SetQueueAttributes: what a queue is, as settings of its topic and as figures."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.model.errors import GroupIdNotFound
from alpacamq.model.topics import Topic

from . import attributes as known
from . import redrive_policy
from .actions import Caller
from .attributes import DEFAULTS, FIFO_DEFAULTS, IN_SETTINGS, Kept
from .directory import Queue, QueueDirectory
from .errors import INVALID_ATTRIBUTE_NAME, INVALID_ATTRIBUTE_VALUE, Fault
from .requests import GetQueueAttributes, SetQueueAttributes
from .results import NOTHING, Answer, GetQueueAttributesResult

ALL = "All"
FIGURES = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    }
)
READABLE = frozenset({ALL, "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", *FIGURES, *known.RULES})


def with_attributes(
    overrides: Mapping[str, str],
    kept: Kept,
    attributes: Mapping[str, str],
    *,
    name: str,
    is_fifo: bool,
    directory: QueueDirectory,
) -> dict[str, str]:
    """The settings of the topic `name` once these attributes, checked already, are among them."""
    changed: dict[str, str | None] = {**overrides, **known.topic_settings(attributes)}
    others = dict(kept.attributes)
    for attribute, text in attributes.items():
        if attribute == "RedrivePolicy":
            changed.update(redrive_policy.topic_settings(text, name, directory, is_fifo=is_fifo))
        elif attribute not in IN_SETTINGS:
            if attribute == "RedriveAllowPolicy":
                redrive_policy.check_allow_policy(text)
            others[attribute] = text
    # Empty text takes an attribute away, and the type of a queue is in its name.
    others = {attribute: text for attribute, text in others.items() if text and attribute != "FifoQueue"}
    known.check_together(others)
    changed["sqs.attributes"] = msgspec.structs.replace(kept, attributes=others).text
    return {setting: text for setting, text in changed.items() if text is not None}


def described(queue: Queue, directory: QueueDirectory) -> dict[str, str]:
    """Every attribute of a queue that is not a figure."""
    found = {
        "QueueArn": directory.arn(queue.name),
        "CreatedTimestamp": str(queue.kept.created),
        "LastModifiedTimestamp": str(queue.kept.modified),
        **known.from_settings(queue.config),
        **DEFAULTS,
    }
    if queue.is_fifo:
        found |= {"FifoQueue": "true", **FIFO_DEFAULTS}
    found |= queue.attributes
    if (policy := redrive_policy.text_of(queue, directory)) is not None:
        found["RedrivePolicy"] = policy
    return found


class Wanted(NamedTuple):
    """Attributes to be set, checked already, and where given exactly the tags to have."""

    attributes: Mapping[str, str]
    tags: Mapping[str, str] | None = None


class QueueAttributes:
    """Reads and changes what queues are."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._broker = broker
        self._directory = directory

    async def get(self, asked: GetQueueAttributes, _caller: Caller) -> GetQueueAttributesResult:
        queue = self._directory.by_url(asked.queue_url)
        wanted = frozenset(asked.attribute_names or ())
        if unknown := wanted - READABLE:
            raise Fault(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)[:100]}.")
        found = described(queue, self._directory) if wanted else {}
        if ALL in wanted or wanted & FIGURES:
            found |= await self._figures(queue)
        if ALL not in wanted:
            found = {name: text for name, text in found.items() if name in wanted}
        return GetQueueAttributesResult(attributes=found)

    async def set(self, asked: SetQueueAttributes, _caller: Caller) -> Answer:
        queue = self._directory.by_url(asked.queue_url)
        known.check(asked.attributes, is_fifo=queue.is_fifo)
        if asked.attributes.get("FifoQueue", "true") != "true":
            raise Fault(
                INVALID_ATTRIBUTE_VALUE,
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
            )
        await self.change(queue, lambda _: Wanted(asked.attributes))
        return NOTHING

    async def change(self, queue: Queue, wish: Callable[[Kept], Wanted]) -> None:
        """Give a queue what `wish` makes of what it has; others may change the same queue meanwhile."""

        def changed(topic: Topic) -> Mapping[str, str]:
            kept = Kept.of(self._broker.topics.config_of(topic))
            wanted = wish(kept)
            kept = msgspec.structs.replace(
                kept,
                modified=self._broker.clock.now_ms() // 1000,
                tags=kept.tags if wanted.tags is None else dict(wanted.tags),
            )
            return with_attributes(
                topic.overrides,
                kept,
                wanted.attributes,
                name=topic.name,
                is_fifo=queue.is_fifo,
                directory=self._directory,
            )

        await self._broker.topics.configure(queue.name, changed)

    async def _figures(self, queue: Queue) -> dict[str, str]:
        try:
            partitions = (await self._broker.queues.describe(queue.id)).partitions
            visible = sum(partition.ready for partition in partitions)
            held = sum(part.in_flight + part.resting + part.dead_lettering for part in partitions)
        except GroupIdNotFound:
            # Nobody has received from it yet: all there is is visible.
            logs = [partition.log for partition in self._broker.topics.partitions_of(queue.name)]
            visible, held = sum(log.end_offset - log.start_offset for log in logs), 0
        delayed = (await self._broker.delays.figures(queue.name)).pending
        return {
            "ApproximateNumberOfMessages": str(visible),
            "ApproximateNumberOfMessagesNotVisible": str(held),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
