"""Checks of rights that handlers share, and authorized operations as the bit sets of responses."""

from collections.abc import Iterable

from alpacamq.broker.access import Access, Caller
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import AlpacaError, TopicNotAuthorized, UnknownTopic, UnknownTopicId
from alpacamq.protocol.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from alpacamq.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType

from .call import Backend, Call


def topic_refusal(
    access: Access, caller: Caller, operation: Operation, key: bytes, topics: Topics, *, by_id: bool
) -> AlpacaError | None:
    """Return the error of a topic that a request names by its name or 16-byte id; None if it is allowed.

    By name, the error is the same whether the topic exists or not. By id, it is that of an unknown id, unless
    the client may know that the topic exists.

    Partitions are found by either: an id in place of a name, or a name of 16 bytes in place of an id, is
    refused here, because the rules for what it says are not those for what it would find.
    """
    if not by_id:
        name = key.decode(errors="replace")
        if not access.may_topic(caller, operation, name):
            return not_allowed(operation, name)
        return None if key.isascii() else UnknownTopic(f"no topic is named {name!r}")
    name_of_id = topics.name_by_id(key)
    if name_of_id is not None:
        if access.may_topic(caller, operation, name_of_id):
            return None
        if access.sees_topic(caller, Operation.DESCRIBE, name_of_id):
            return not_allowed(operation, name_of_id)
    return UnknownTopicId(f"no topic has the id {key.hex()}")


# Topics of one client; beyond, all are decided again.
MAX_ALLOWED_TOPICS = 1000


class AllowedTopics:
    """The topics that one client was allowed to use, by the names or ids in its requests.

    They are forgotten when rights change, or when the client authenticates as another one. Refusals are not
    kept.
    """

    __slots__ = ("_access", "_operation", "_topics", "by_id", "caller", "epoch", "keys")

    def __init__(self, access: Access, topics: Topics, operation: Operation) -> None:
        self._access = access
        self._topics = topics
        self._operation = operation
        # Names or ids. Another decision about them is not needed as long as the next three are the same:
        # whose rights, by which state of them, and how requests name topics.
        self.keys: set[bytes] = set()
        self.caller: Caller | None = None
        self.epoch = -1
        self.by_id = False

    def refusal(self, caller: Caller, key: bytes, *, by_id: bool) -> AlpacaError | None:
        """Return the error of a topic that the client must not use; see `topic_refusal`."""
        access, keys = self._access, self.keys
        if caller is not self.caller or access.epoch != self.epoch or by_id is not self.by_id:
            keys.clear()
            self.caller, self.epoch, self.by_id = caller, access.epoch, by_id
        elif key in keys:
            return None
        refusal = topic_refusal(access, caller, self._operation, key, self._topics, by_id=by_id)
        if refusal is None and access.may_keep(self._operation):
            if len(keys) >= MAX_ALLOWED_TOPICS:
                keys.clear()
            keys.add(key)
        return refusal


def not_allowed(operation: Operation, topic: str) -> AlpacaError:
    return TopicNotAuthorized(f"{operation.name} is not allowed on topic {topic!r}")


def may_create(access: Access, caller: Caller, topic: str) -> bool:
    """Return whether a client may create a topic: it needs the right to it, or to the cluster."""
    return access.may_or_on_cluster(caller, Operation.CREATE, ResourceType.TOPIC, topic)


async def check_described(backend: Backend, call: Call, topics: Iterable[str]) -> None:
    """Raise TopicNotAuthorized if the client may not know of one of the topics that it subscribes to."""
    access = backend.broker.access
    for topic in topics:
        await call.pause()
        access.check_topic(call.caller, Operation.DESCRIBE, topic)


async def check_group_topics(backend: Backend, call: Call, topics: Iterable[str]) -> None:
    """Raise TopicNotAuthorized if a group uses a topic that the client may not know of, without naming it."""
    access = backend.broker.access
    for topic in topics:
        await call.pause()
        if not access.may_topic(call.caller, Operation.DESCRIBE, topic):
            raise TopicNotAuthorized("the group uses topics on which DESCRIBE is not allowed")


def topic_operations(backend: Backend, call: Call, topic: str, *, asked: bool = True) -> int:
    """Return the operations that the client may perform on a topic, if it asked for them."""
    return _operations(backend, call, ResourceType.TOPIC, topic) if asked else OPERATIONS_NOT_ASKED_FOR


def group_operations(backend: Backend, call: Call, group: str, *, asked: bool) -> int:
    """Return the operations that the client may perform on a group, if it asked for them."""
    return _operations(backend, call, ResourceType.GROUP, group) if asked else OPERATIONS_NOT_ASKED_FOR


def cluster_operations(backend: Backend, call: Call, *, asked: bool) -> int:
    """Return the operations that the client may perform on the cluster, if it asked for them.

    None if it may not describe the cluster, as in Kafka.
    """
    if not asked:
        return OPERATIONS_NOT_ASKED_FOR
    if not backend.broker.access.sees_cluster(call.caller, Operation.DESCRIBE):
        return 0
    return _operations(backend, call, ResourceType.CLUSTER, CLUSTER_NAME)


def _operations(backend: Backend, call: Call, kind: ResourceType, name: str) -> int:
    return backend.broker.access.operations(call.caller, kind, name, OPERATIONS[kind])
