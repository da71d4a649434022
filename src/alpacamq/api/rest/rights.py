"""The rights that each request of the HTTP API needs, as Kafka names them.

One table for all routes: `check` applies it before the handler runs, and so before anything is looked up.
Lists show only what their client may see; handlers leave out the rest with `Call.sees`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET

from alpacamq.broker.access import Access, Caller, describe
from alpacamq.model.errors import ClusterNotAuthorized, TopicNotAuthorized
from alpacamq.security.acls import CLUSTER_NAME, Operation, ResourceType

from .route import AnyRoute, Call

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

# The names of the resources that a request is about.
Names = Callable[[Call[Any, Any]], Iterable[str]]


class Right(NamedTuple):
    """An operation on the resources that a request names; `resource` says which, for readers."""

    operation: Operation
    kind: ResourceType
    resource: str
    names: Names
    # An operation on the cluster includes it.
    or_on_cluster: bool = False
    # A right to the cluster that a tenant's client can have to its tenant.
    or_on_tenant: bool = False

    def check(self, access: Access, call: Call[Any, Any]) -> None:
        caller = call.caller
        if self.or_on_tenant:
            access.check_whole(caller, self.operation)
            return
        for name in self.names(call):
            if not self.or_on_cluster:
                access.check(caller, self.operation, self.kind, name)
            elif not access.may_or_on_cluster(caller, self.operation, self.kind, name):
                raise access.denial(caller, self.operation, self.kind, name)

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", " ")
        resource = kind if self.kind is CLUSTER else f"{kind} {self.resource}"
        either = f", or {self.operation.name} cluster" if self.or_on_cluster else ""
        return f"{self.operation.name} {resource}{either}"


def _given(value: object) -> Iterator[str]:
    """Yield a name, or the names of a list; nothing if they are not given."""
    if isinstance(value, str):
        yield value
    elif value is not UNSET and value is not None:
        assert isinstance(value, list)
        for each in value:
            yield each if isinstance(each, str) else each.topic


def _parameter(name: str) -> Names:
    return lambda call: _given(getattr(call.parameters, name))


def _body(name: str) -> Names:
    return lambda call: _given(getattr(call.body, name))


def _on_topic(operation: Operation) -> Right:
    return Right(operation, TOPIC, "in the path", _parameter("topic"))


def _on_group(operation: Operation) -> Right:
    return Right(operation, GROUP, "in the path", _parameter("group"))


def _on_cluster(operation: Operation) -> Right:
    return Right(operation, CLUSTER, "", lambda _call: (CLUSTER_NAME,))


def _on_whole(operation: Operation) -> Right:
    """Return a right to the cluster; for a client of a tenant, to the tenant."""
    return Right(operation, CLUSTER, "", lambda _call: (CLUSTER_NAME,), or_on_tenant=True)


def _new_topic(call: Call[Any, Any]) -> Iterator[str]:
    """Yield the topic of a message if publishing it would create the topic."""
    topics = call.backend.broker.topics.image.topics
    for name in _given(getattr(call.parameters, "topic", UNSET)):
        if name not in topics:
            yield name
    for name in _given(getattr(call.body, "topic", UNSET)):
        if name not in topics:
            yield name


_O = Operation
_CREATE_IF_NEW = Right(_O.CREATE, TOPIC, "if it does not exist", _new_topic, or_on_cluster=True)
_READ_GROUP, _DESCRIBE_GROUP = _on_group(_O.READ), _on_group(_O.DESCRIBE)
_READ_TOPIC, _DESCRIBE_TOPIC = _on_topic(_O.READ), _on_topic(_O.DESCRIBE)
_DESCRIBE_CLUSTER, _ALTER_CLUSTER = _on_cluster(_O.DESCRIBE), _on_cluster(_O.ALTER)
_DESCRIBE_TENANT, _ALTER_TENANT = _on_whole(_O.DESCRIBE), _on_whole(_O.ALTER)
_WRITE_ID = Right(_O.WRITE, TRANSACTIONAL_ID, "in the body", _body("transactional_id"))
_WRITE_BODY_TOPIC = Right(_O.WRITE, TOPIC, "in the body", _body("topic"))
_READ_BODY_TOPICS = Right(_O.READ, TOPIC, "of each offset", _body("offsets"))

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "GET /topics": (),
    "POST /topics": (Right(_O.CREATE, TOPIC, "in the body", _body("name"), or_on_cluster=True),),
    "GET /topics/{topic}": (_DESCRIBE_TOPIC,),
    "DELETE /topics/{topic}": (_on_topic(_O.DELETE),),
    "GET /topics/{topic}/partitions": (_DESCRIBE_TOPIC,),
    "PATCH /topics/{topic}/settings": (_on_topic(_O.ALTER_CONFIGS),),
    "POST /admin/topics/{topic}/partitions": (_on_topic(_O.ALTER),),
    "POST /admin/topics/{topic}/compact": (_on_topic(_O.ALTER),),
    "POST /topics/{topic}/messages": (_on_topic(_O.WRITE), _CREATE_IF_NEW),
    "GET /topics/{topic}/messages": (_READ_TOPIC,),
    "GET /topics/{topic}/partitions/{partition}/messages": (_READ_TOPIC,),
    "GET /topics/{topic}/messages/find": (_READ_TOPIC,),
    "GET /topics/{topic}/delayed": (_DESCRIBE_TOPIC,),
    "GET /topics/{topic}/delayed/{id}": (_READ_TOPIC,),
    "DELETE /topics/{topic}/delayed/{partition}/{offset}": (_on_topic(_O.DELETE),),
    "GET /delay/topics": (),
    "GET /delay/stats": (_DESCRIBE_CLUSTER,),
    "GET /groups": (),
    "GET /groups/{group}": (_DESCRIBE_GROUP,),
    "GET /groups/{group}/rebalances": (_DESCRIBE_GROUP,),
    "DELETE /groups/{group}": (_on_group(_O.DELETE),),
    "POST /groups/{group}/join": (
        _READ_GROUP,
        Right(_O.DESCRIBE, TOPIC, "of each subscription", _body("topics")),
    ),
    "POST /groups/{group}/heartbeat": (_READ_GROUP,),
    "POST /groups/{group}/leave": (_READ_GROUP,),
    "GET /groups/{group}/poll": (_READ_GROUP, Right(_O.READ, TOPIC, "in the query", _parameter("topic"))),
    "POST /groups/{group}/poll": (_READ_GROUP, Right(_O.READ, TOPIC, "in the query", _parameter("topic"))),
    "POST /messages/ack": (),
    "POST /messages/nack": (),
    "POST /messages/reject": (),
    "POST /messages/visibility": (),
    "GET /groups/{group}/offsets": (_DESCRIBE_GROUP,),
    "POST /groups/{group}/offsets": (
        _READ_GROUP,
        _READ_BODY_TOPICS,
        Right(_O.READ, TOPIC, "of each reset", _body("reset")),
    ),
    "GET /groups/{group}/queues/{topic}": (_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    "PUT /groups/{group}/queues/{topic}": (_on_group(_O.ALTER_CONFIGS), _DESCRIBE_TOPIC),
    "DELETE /groups/{group}/queues/{topic}": (_on_group(_O.DELETE), _DESCRIBE_TOPIC),
    "POST /groups/{group}/queues/{topic}/reset": (_READ_GROUP, _READ_TOPIC),
    "POST /groups/{group}/queues/{topic}/purge": (_READ_GROUP, _READ_TOPIC),
    "GET /groups/{group}/queues/{topic}/messages": (_DESCRIBE_GROUP, _READ_TOPIC),
    "GET /reliability/stats": (),
    "GET /priority/stats": (),
    "POST /topics/{topic}/dead-letters/redrive": (
        _READ_TOPIC,
        Right(_O.WRITE, TOPIC, "in the body", _body("target")),
    ),
    "GET /redrives": (),
    "GET /redrives/{id}": (),
    "DELETE /redrives/{id}": (),
    "POST /producers/init": (_WRITE_ID,),
    "POST /producers/{id}/heartbeat": (),
    "POST /transactions/begin": (_WRITE_ID,),
    "POST /transactions/publish": (_WRITE_ID, _WRITE_BODY_TOPIC, _CREATE_IF_NEW),
    "POST /transactions/add-partition": (_WRITE_ID, _WRITE_BODY_TOPIC),
    "POST /transactions/offsets": (
        _WRITE_ID,
        Right(_O.READ, GROUP, "in the body", _body("group")),
        _READ_BODY_TOPICS,
    ),
    "POST /transactions/commit": (_WRITE_ID,),
    "POST /transactions/abort": (_WRITE_ID,),
    "GET /transactions": (),
    "GET /transactions/stats": (_DESCRIBE_CLUSTER,),
    "GET /traces": (),
    "GET /traces/search": (),
    "GET /traces/stats": (_DESCRIBE_CLUSTER,),
    "GET /traces/{trace_id}": (),
    "GET /stats/topics": (),
    "GET /stats/groups": (),
    "GET /history": (),
    "GET /pipelines": (_DESCRIBE_CLUSTER,),
    "GET /healthz": (),
    "GET /readyz": (),
    "GET /livez": (),
    "GET /version": (),
    "GET /stats": (_DESCRIBE_CLUSTER,),
    "GET /cluster": (_DESCRIBE_CLUSTER,),
    "GET /metrics": (_DESCRIBE_TENANT,),
    "GET /cluster/status": (_DESCRIBE_CLUSTER,),
    "GET /cluster/partitions": (_DESCRIBE_CLUSTER,),
    "POST /cluster/nodes/{node}/drain": (_ALTER_CLUSTER,),
    "DELETE /cluster/nodes/{node}/drain": (_ALTER_CLUSTER,),
    "DELETE /cluster/nodes/{node}": (_ALTER_CLUSTER,),
    "POST /cluster/reassignments": (_ALTER_CLUSTER,),
    "PUT /cluster/throttle": (_ALTER_CLUSTER,),
    "POST /cluster/elections": (_ALTER_CLUSTER,),
    "POST /cluster/upgrade": (_ALTER_CLUSTER,),
    "GET /users": (_DESCRIBE_CLUSTER,),
    "POST /users": (_ALTER_CLUSTER,),
    "PUT /users/{user}/password": (_ALTER_CLUSTER,),
    "DELETE /users/{user}": (_ALTER_CLUSTER,),
    "GET /acls": (_DESCRIBE_TENANT,),
    "POST /acls": (_ALTER_TENANT,),
    "DELETE /acls/{id}": (_ALTER_TENANT,),
    "GET /quotas": (_on_cluster(_O.DESCRIBE_CONFIGS),),
    "PATCH /quotas": (_on_cluster(_O.ALTER_CONFIGS),),
    "GET /keys": (),
    "POST /keys": (),
    "POST /keys/{id}/rotate": (),
    "DELETE /keys/{id}": (),
    "GET /admin/tenants": (_DESCRIBE_CLUSTER,),
    "POST /admin/tenants": (_ALTER_CLUSTER,),
    "GET /admin/tenants/{tenant}": (_DESCRIBE_CLUSTER,),
    "PATCH /admin/tenants/{tenant}": (_ALTER_CLUSTER,),
    "DELETE /admin/tenants/{tenant}": (_ALTER_CLUSTER,),
    "POST /admin/tenants/{tenant}/suspend": (_ALTER_CLUSTER,),
    "POST /admin/tenants/{tenant}/disable": (_ALTER_CLUSTER,),
    "POST /admin/tenants/{tenant}/activate": (_ALTER_CLUSTER,),
    "GET /admin/tenants/{tenant}/topics": (_DESCRIBE_CLUSTER,),
    "GET /admin/tenants/{tenant}/usage": (_DESCRIBE_CLUSTER,),
    "GET /admin/tenants/{tenant}/stats": (_DESCRIBE_CLUSTER,),
    "PUT /admin/tenants/{tenant}/principals/{principal}": (_ALTER_CLUSTER,),
    "DELETE /admin/tenants/{tenant}/principals/{principal}": (_ALTER_CLUSTER,),
    "GET /session": (),
    "POST /session": (),
    "DELETE /session": (),
    "GET /openapi.json": (),
}
# For a route that is missing in the table.
UNLISTED = (_ALTER_CLUSTER,)
# Rights that handlers check, because what they are about is not in the request.
IN_HANDLERS: Mapping[str, str] = {
    "GET /topics": "shows topics with DESCRIBE",
    "GET /delay/topics": "shows topics with DESCRIBE",
    "GET /groups": "shows groups with DESCRIBE",
    "GET /groups/{group}/poll": "READ of every topic that is read as a member",
    "POST /groups/{group}/poll": "READ group and READ topic of each receipt",
    "POST /messages/ack": "READ group and READ topic of each receipt",
    "POST /messages/nack": "READ group and READ topic of each receipt",
    "POST /messages/reject": "READ group and READ topic of each receipt, WRITE its dead-letter topic",
    "POST /messages/visibility": "READ group and READ topic of each receipt",
    "GET /groups/{group}/offsets": "shows offsets of topics with DESCRIBE",
    "GET /reliability/stats": "shows queues with DESCRIBE of group and topic",
    "GET /priority/stats": "shows queues with DESCRIBE of group and topic",
    "POST /topics/{topic}/dead-letters/redrive": "without a target: ALTER cluster",
    "GET /redrives": "shows redrives of topics with READ",
    "GET /redrives/{id}": "READ of the dead-letter topic",
    "DELETE /redrives/{id}": "READ of the dead-letter topic",
    "POST /producers/init": "without a transactional id: WRITE of any topic, or IDEMPOTENT_WRITE cluster",
    "POST /producers/{id}/heartbeat": "DESCRIBE of its transactional id",
    "GET /transactions": "shows transactional ids with DESCRIBE",
    "GET /traces": "shows traces of topics with READ",
    "GET /traces/search": "shows traces of topics with READ",
    "GET /traces/{trace_id}": "READ of its topic",
    "GET /stats/topics": "shows topics with DESCRIBE",
    "GET /stats/groups": "shows groups with DESCRIBE",
    "GET /history": "DESCRIBE of the topic or group; of a measure or the whole broker: DESCRIBE cluster",
    "GET /healthz": "details with DESCRIBE cluster",
    "GET /readyz": "details with DESCRIBE cluster",
    "GET /acls": "a tenant's client, with DESCRIBE cluster in its rules: the rules of the tenant",
    "POST /acls": "a tenant's client, with ALTER cluster in its rules: a rule of the tenant",
    "DELETE /acls/{id}": "a tenant's client, with ALTER cluster in its rules: a rule of the tenant",
    "GET /metrics": "a tenant's client, with DESCRIBE cluster in its rules: the metrics of the tenant",
    "GET /keys": "shows own keys; with DESCRIBE cluster those of all",
    "POST /keys": "for oneself; for others, and with a limited key, or a key or token that ends earlier, "
    "ALTER cluster",
    "POST /keys/{id}/rotate": "own keys; of others, and with a key that is limited or ends, or a token, "
    "ALTER cluster",
    "DELETE /keys/{id}": "own keys; those of others, and others with a limited key, ALTER cluster",
}
LOG_IN = "POST /session"
# Served to clients that have not authenticated: what load balancers and supervisors need, and the login.
OPEN = frozenset({"GET /livez", "GET /readyz", "GET /session", LOG_IN, "DELETE /session"})


def key_of(route: AnyRoute) -> str:
    """Return the key of a route in the tables."""
    return f"{route.method} {route.path}"


def check(access: Access, rights: Iterable[Right], call: Call[Any, Any]) -> None:
    """Raise the error of the first right that the client does not have."""
    for right in rights:
        right.check(access, call)


def check_producer(access: Access, caller: Caller) -> None:
    """Raise ClusterNotAuthorized unless a client may write anything at all."""
    may_write = access.may_any(caller, Operation.WRITE, TOPIC)
    if not may_write and not access.may_cluster(caller, Operation.IDEMPOTENT_WRITE):
        raise ClusterNotAuthorized(f"IDEMPOTENT_WRITE is not allowed on {describe(CLUSTER, '')}")


def check_trace(access: Access, caller: Caller, topics: Iterable[str]) -> None:
    """Raise TopicNotAuthorized unless a client may read every topic of a trace."""
    for topic in topics:
        if not access.may_topic(caller, Operation.READ, topic):
            raise TopicNotAuthorized("READ is not allowed on a topic of this trace")


def rights_page() -> str:
    """Return the table of rights in Markdown."""
    lines = ["| request | rights |", "|---|---|"]
    for key, rights in RIGHTS.items():
        words = [str(right) for right in rights]
        if key in IN_HANDLERS:
            words.append(IN_HANDLERS[key])
        if key in OPEN:
            words.append("none, also without authentication")
        lines.append(f"| `{key}` | {'; '.join(words) or 'none'} |")
    return "\n".join(lines) + "\n"
