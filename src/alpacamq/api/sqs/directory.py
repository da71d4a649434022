"""Finds queues by name, URL or ARN. A queue is a topic, created over any API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from alpacamq.broker.queue.fifo import FIFO_SUFFIX
from alpacamq.broker.queue.service import Queues
from alpacamq.broker.topics import Topics
from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.ids import TopicName
from alpacamq.model.names import local_topic, split_topic, topic_of
from alpacamq.model.topics import Topic, TopicConfig
from alpacamq.queues.messages import QueueId, built_in_group

from . import attributes
from .attributes import StoredAttributes
from .errors import INVALID_ADDRESS, QUEUE_DOES_NOT_EXIST, Fault, invalid_value, missing


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Region and account in ARNs, and the accepted access key."""

    region: str = "us-east-1"
    account_id: str = "000000000000"
    # Both empty: signatures are not checked.
    access_key_id: str = ""
    secret_access_key: str = ""


_SERVICE = "sqs"


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """A topic as an SQS queue."""

    topic: Topic
    config: TopicConfig
    stored: StoredAttributes
    id: QueueId
    is_fifo: bool
    max_message_bytes: int

    @property
    def name(self) -> str:
        """The stored name of the topic."""
        return self.topic.name

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes that are not topic settings."""
        return self.stored.attributes


class RedriveTarget(NamedTuple):
    """A dead-letter topic, and after how many deliveries messages go there."""

    topic: str
    max_deliveries: int


def name_in_url(url: str) -> str:
    """Return the queue name in a URL, which is its last part."""
    return url.rpartition("/")[2]


def _no_queue(name: str) -> Fault:
    # The text of AWS, and the name, which AWS leaves out.
    return Fault(QUEUE_DOES_NOT_EXIST, f"The specified queue does not exist: {name[:100]!r}.")


def name_in_arn(arn: str, parameter: str) -> str:
    """Return the queue name in an ARN."""
    parts = arn.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != _SERVICE or not parts[5]:
        raise invalid_value(arn[:200], parameter, "The ARN is not an ARN of a queue.")
    return parts[5]


class QueueDirectory:
    """Every queue of a tenant, or of none. URLs and ARNs have the names that queues have in the tenant."""

    def __init__(
        self, topics: Topics, queues: Queues, settings: SqsSettings, tenant: str | None = None
    ) -> None:
        self._tenant = tenant
        self._prefix = "" if tenant is None else topic_of(tenant, "")
        self._topics = topics
        self._queues = queues
        self.account_id = settings.account_id
        self._arn_prefix = f"arn:aws:{_SERVICE}:{settings.region}:{settings.account_id}:"
        # Parsing the settings of a topic costs more than the rest of a request: cached while it is unchanged,
        # and the defaults are.
        self._known: dict[str, Queue] = {}
        self._defaults = topics.defaults

    def stored_name(self, name: str) -> str:
        """Return the name of the topic of a queue."""
        return self._prefix + name

    def find(self, name: str) -> Queue | None:
        """Return the queue of this name, or None."""
        topic = self._topics.image.topics.get(TopicName(self.stored_name(name)))
        if topic is None or topic.is_internal or split_topic(topic.name)[0] != self._tenant:
            self._known.pop(name, None)
            return None
        if self._defaults is not self._topics.defaults:
            self._defaults = self._topics.defaults
            self._known.clear()
        if (queue := self._known.get(name)) is None or queue.topic is not topic:
            self._forget_deleted()
            queue = self._known[name] = self._as_queue(topic)
        return queue

    def by_name(self, name: str) -> Queue:
        if (queue := self.find(name)) is None:
            raise _no_queue(name)
        return queue

    def by_url(self, url: str) -> Queue:
        """Return the queue of a URL. Its last part is the name; host and account are ignored."""
        if not url:
            raise missing("QueueUrl")
        name = name_in_url(url)
        if (queue := self.find(name)) is not None:
            return queue
        if not name or url.endswith(f"://{name}"):
            raise Fault(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
        raise _no_queue(name)

    def all(self) -> list[Queue]:
        """Return all queues by name."""
        prefix = self._prefix
        names = sorted(
            name.removeprefix(prefix) for name in self._topics.image.topics if name.startswith(prefix)
        )
        return [queue for name in names if (queue := self.find(name)) is not None]

    async def redrive_target(self, queue: Queue) -> RedriveTarget | None:
        """Return where messages go that were received too often, None if they do not go anywhere."""
        settings = await self._queues.settings(queue.id)
        if settings.queue_dead_letter_topic == local_topic(queue.name) and settings.queue_max_deliveries:
            return RedriveTarget(queue.name, settings.queue_max_deliveries)  # they stay where they are
        topic = dead_letter_topic(queue.name, settings.queue_dead_letter_topic)
        if topic is None or not settings.queue_max_deliveries:
            return None
        return RedriveTarget(topic, settings.queue_max_deliveries)

    def url(self, base_url: str, name: str) -> str:
        return f"{base_url}/{self.account_id}/{name.removeprefix(self._prefix)}"

    def arn(self, name: str) -> str:
        return self._arn_prefix + name.removeprefix(self._prefix)

    def name_in(self, arn: str, parameter: str) -> str:
        """Return the queue name in an ARN."""
        return name_in_arn(arn, parameter)

    def _forget_deleted(self) -> None:
        """Bound the cached entries of deleted queues."""
        topics = self._topics.image.topics
        if len(self._known) > 2 * len(topics):
            self._known = {
                name: queue for name, queue in self._known.items() if self.stored_name(name) in topics
            }

    def _as_queue(self, topic: Topic) -> Queue:
        config = self._topics.config_of(topic)
        return Queue(
            topic=topic,
            config=config,
            stored=StoredAttributes.of(config),
            id=QueueId(built_in_group(topic.name), topic.name),
            # Without order by key it would be FIFO in name only.
            is_fifo=topic.name.endswith(FIFO_SUFFIX) and config.queue_ordering == "key",
            max_message_bytes=attributes.max_message_bytes(config),
        )
