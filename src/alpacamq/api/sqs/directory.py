"""Queues by what requests call them: name, URL or ARN. A queue is a topic, whoever made it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from alpacamq.broker.topics import Topics
from alpacamq.model.ids import TopicName
from alpacamq.model.topics import Topic, TopicConfig
from alpacamq.queues.messages import BUILT_IN_GROUP, QueueId

from . import attributes
from .attributes import FIFO_SUFFIX, Kept
from .errors import INVALID_ADDRESS, QUEUE_DOES_NOT_EXIST, Fault, invalid_value, missing


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who the API says it is, and whose signatures it accepts."""

    region: str = "us-east-1"
    account_id: str = "000000000000"
    # Both empty: signatures are not checked.
    access_key_id: str = ""
    secret_access_key: str = ""


_SERVICE = "sqs"


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A topic as SQS sees it."""

    topic: Topic
    config: TopicConfig
    kept: Kept
    id: QueueId
    is_fifo: bool
    max_message_bytes: int

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def attributes(self) -> Mapping[str, str]:
        """Those that are not topic settings."""
        return self.kept.attributes

    @property
    def dead_letter_topic(self) -> str | None:
        """Where messages go that were received too often; None if they do not go anywhere."""
        if not self.config.queue_max_deliveries or self.name.endswith(".dlq"):
            return None
        return self.config.queue_dead_letter_topic or f"{self.name}.dlq"


class QueueDirectory:
    """Every queue of the broker."""

    def __init__(self, topics: Topics, settings: SqsSettings) -> None:
        self._topics = topics
        self.account_id = settings.account_id
        self._arn_prefix = f"arn:aws:{_SERVICE}:{settings.region}:{settings.account_id}:"
        # Reading a topic's settings costs more than the rest of a request: kept while the topic is as it was.
        self._known: dict[str, Queue] = {}

    def find(self, name: str) -> Queue | None:
        """The queue of this name, if there is one."""
        topic = self._topics.image.topics.get(TopicName(name))
        if topic is None or topic.is_internal:
            self._known.pop(name, None)
            return None
        if (queue := self._known.get(name)) is None or queue.topic is not topic:
            self._forget_deleted()
            queue = self._known[name] = self._as_queue(topic)
        return queue

    def by_name(self, name: str) -> Queue:
        if (queue := self.find(name)) is None:
            raise Fault(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")
        return queue

    def by_url(self, url: str) -> Queue:
        """The queue a URL means: its last part is the name, whatever host and account it was asked under."""
        if not url:
            raise missing("QueueUrl")
        name = url.rpartition("/")[2]
        if (queue := self.find(name)) is not None:
            return queue
        if not name or url.endswith(f"://{name}"):
            raise Fault(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
        raise Fault(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")

    def all(self) -> list[Queue]:
        """By name."""
        names = sorted(self._topics.image.topics)
        return [queue for name in names if (queue := self.find(name)) is not None]

    def url(self, base_url: str, name: str) -> str:
        return f"{base_url}/{self.account_id}/{name}"

    def arn(self, name: str) -> str:
        return self._arn_prefix + name

    def name_in(self, arn: str, parameter: str) -> str:
        """The queue name in an ARN of ours."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[0] != "arn" or parts[2] != _SERVICE or not parts[5]:
            raise invalid_value(arn[:200], parameter, "The ARN is not that of a queue.")
        return parts[5]

    def _forget_deleted(self) -> None:
        """Keep no more of queues that are gone, and never asked for again, than of those that are there."""
        topics = self._topics.image.topics
        if len(self._known) > 2 * len(topics):
            self._known = {name: queue for name, queue in self._known.items() if name in topics}

    def _as_queue(self, topic: Topic) -> Queue:
        config = self._topics.config_of(topic)
        return Queue(
            topic=topic,
            config=config,
            kept=Kept.of(config),
            id=QueueId(BUILT_IN_GROUP, topic.name),
            # Without order by key it would be one in name only.
            is_fifo=topic.name.endswith(FIFO_SUFFIX) and config.queue_ordering == "key",
            max_message_bytes=attributes.max_message_bytes(config),
        )
