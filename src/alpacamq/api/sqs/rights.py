"""The rights that each action of the SQS API needs, as Kafka names them.

Checked before the queue is looked up: a forbidden queue is refused whether it exists or not.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from alpacamq.broker.access import Access, Caller
from alpacamq.model.names import id_of, topic_of
from alpacamq.queues.messages import BUILT_IN_GROUP
from alpacamq.security.acls import CLUSTER_NAME, Operation, ResourceType

from .directory import name_in_arn, name_in_url
from .requests import ActionRequest

Names = Callable[[Any], Iterator[str]]


class Right(NamedTuple):
    """An operation on the queues that a request names; `resource` says which, for readers."""

    operation: Operation
    kind: ResourceType
    resource: str
    names: Names
    or_on_cluster: bool = False

    def __str__(self) -> str:
        kind = self.kind.name.lower()
        resource = kind if self.kind is ResourceType.CLUSTER else f"{kind} {self.resource}"
        either = f", or {self.operation.name} cluster" if self.or_on_cluster else ""
        return f"{self.operation.name} {resource}{either}"


def _url(request: Any) -> Iterator[str]:
    yield name_in_url(request.queue_url)


def _name(request: Any) -> Iterator[str]:
    yield request.queue_name


def _source(request: Any) -> Iterator[str]:
    yield name_in_arn(request.source_arn, "SourceArn")


def _target(request: Any) -> Iterator[str]:
    if request.destination_arn is not None:
        yield name_in_arn(request.destination_arn, "DestinationArn")


def _cluster_without_target(request: Any) -> Iterator[str]:
    if request.destination_arn is None:
        yield CLUSTER_NAME


def _built_in_group(_request: Any) -> Iterator[str]:
    yield BUILT_IN_GROUP


def _on(operation: Operation) -> Right:
    return Right(operation, ResourceType.TOPIC, "of the queue", _url)


_O = Operation
_DESCRIBE, _CONFIGURE = _on(_O.DESCRIBE), _on(_O.ALTER_CONFIGS)
_RECEIVE = (_on(_O.READ), Right(_O.READ, ResourceType.GROUP, f"`{BUILT_IN_GROUP}`", _built_in_group))
_READ_SOURCE = Right(_O.READ, ResourceType.TOPIC, "of the source", _source)

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "CreateQueue": (Right(_O.CREATE, ResourceType.TOPIC, "of the queue", _name, or_on_cluster=True),),
    "GetQueueUrl": (Right(_O.DESCRIBE, ResourceType.TOPIC, "of the queue", _name),),
    "ListQueues": (),
    "ListDeadLetterSourceQueues": (_DESCRIBE,),
    "DeleteQueue": (_on(_O.DELETE),),
    "PurgeQueue": (*_RECEIVE, _on(_O.DELETE)),
    "GetQueueAttributes": (_DESCRIBE,),
    "SetQueueAttributes": (_CONFIGURE,),
    "SendMessage": (_on(_O.WRITE),),
    "SendMessageBatch": (_on(_O.WRITE),),
    "ReceiveMessage": _RECEIVE,
    "DeleteMessage": _RECEIVE,
    "DeleteMessageBatch": _RECEIVE,
    "ChangeMessageVisibility": _RECEIVE,
    "ChangeMessageVisibilityBatch": _RECEIVE,
    "StartMessageMoveTask": (
        _READ_SOURCE,
        Right(_O.WRITE, ResourceType.TOPIC, "of the destination", _target),
        Right(_O.ALTER, ResourceType.CLUSTER, "", _cluster_without_target),
    ),
    "CancelMessageMoveTask": (),
    "ListMessageMoveTasks": (_READ_SOURCE,),
    "TagQueue": (_CONFIGURE,),
    "UntagQueue": (_CONFIGURE,),
    "ListQueueTags": (_DESCRIBE,),
    "AddPermission": (_CONFIGURE,),
    "RemovePermission": (_CONFIGURE,),
}
# Rights that actions check, because what they are about is not in the request.
IN_ACTIONS: Mapping[str, str] = {
    "ListQueues": "shows queues with DESCRIBE topic",
    "ListDeadLetterSourceQueues": "shows queues with DESCRIBE topic",
    "StartMessageMoveTask": "ALTER cluster only without a destination",
    "CancelMessageMoveTask": "READ topic of the source",
}


def check(access: Access, caller: Caller, action: str, request: ActionRequest) -> None:
    """Raise the error of the first right that the client does not have."""
    if not access.limits(caller):
        return
    tenant = access.tenant_of(caller)
    for right in RIGHTS[action]:
        for name in right.names(request):
            stored = _stored(tenant, right.kind, name)
            if right.kind is ResourceType.CLUSTER:
                # Of a tenant's client: the right to everything inside the tenant.
                access.check_whole(caller, right.operation)
            elif not right.or_on_cluster:
                access.check(caller, right.operation, right.kind, stored)
            elif not access.may_or_on_cluster(caller, right.operation, right.kind, stored):
                raise access.denial(caller, right.operation, right.kind, stored)


def _stored(tenant: str | None, kind: ResourceType, name: str) -> str:
    if tenant is None:
        return name
    return topic_of(tenant, name) if kind is ResourceType.TOPIC else id_of(tenant, name)


def queues(action: str, request: ActionRequest, tenant: str | None) -> Iterator[str]:
    """Yield the stored names of the queues that a request is about."""
    for right in RIGHTS[action]:
        if right.kind is ResourceType.TOPIC:
            for name in right.names(request):
                yield _stored(tenant, right.kind, name)


def rights_page() -> str:
    """Return the table of rights in Markdown."""
    lines = ["| action | rights |", "|---|---|"]
    for action, rights in RIGHTS.items():
        words = [str(right) for right in rights]
        if action in IN_ACTIONS:
            words.append(IN_ACTIONS[action])
        lines.append(f"| `{action}` | {'; '.join(words)} |")
    return "\n".join(lines) + "\n"
