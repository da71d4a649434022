"""Serves one call: checks the rights of its client, and runs the method until its deadline."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import h2.exceptions
from grpclib.metadata import decode_timeout

from alpacamq.api.http import throttling
from alpacamq.api.http.login import AUTHORIZATION
from alpacamq.api.http.messages import OpenConnection, Request
from alpacamq.broker.access import ANONYMOUS_CALLER, Caller
from alpacamq.model.errors import AlpacaError
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.principals import Principal
from alpacamq.telemetry.logs import get_logger

from .call import Call
from .errors import Expired, InternalError, InvalidField, ShuttingDown, Unimplemented
from .server import Server
from .services import TRANSCODED_METHODS
from .stream import Encoding, Stream


class Right(NamedTuple):
    """An operation on a resource that a call names; `resource` says which."""

    operation: Operation
    kind: ResourceType
    resource: str

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", " ")
        return f"{self.operation.name} {kind} {self.resource}".strip()


_O, _TOPIC, _GROUP = Operation, ResourceType.TOPIC, ResourceType.GROUP
_RECEIVE = (Right(_O.READ, _GROUP, "of the queue"), Right(_O.READ, _TOPIC, "of the queue"))
_REJECT = Right(_O.WRITE, _TOPIC, "for dead letters, to reject")
_WRITE = (
    Right(_O.WRITE, _TOPIC, "in the request"),
    Right(_O.CREATE, _TOPIC, "if it does not exist, or the same on the cluster"),
    Right(_O.WRITE, ResourceType.TRANSACTIONAL_ID, "of a transaction"),
)

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "alpacamq.v1.Cluster/Endpoints": (),
    "alpacamq.v1.Producer/Produce": _WRITE,
    "alpacamq.v1.Producer/Send": _WRITE,
    "alpacamq.v1.Log/Read": (Right(_O.READ, _TOPIC, "in the request"),),
    "alpacamq.v1.Log/Subscribe": (
        Right(_O.READ, _GROUP, "in the request"),
        Right(_O.READ, _TOPIC, "of each subscription and assignment"),
    ),
    "alpacamq.v1.Queue/Work": (*_RECEIVE, _REJECT),
    "alpacamq.v1.Queue/Receive": _RECEIVE,
    "alpacamq.v1.Queue/Settle": (*_RECEIVE, _REJECT),
    "grpc.health.v1.Health/Check": (),
    "grpc.health.v1.Health/Watch": (),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": (),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (),
}
# Methods that clients may call without authentication.
OPEN = frozenset({"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"})


def rights_page() -> str:
    """Return the table of rights in Markdown."""
    lines = ["| method | rights |", "|---|---|"]
    for method, rights in RIGHTS.items():
        words = [str(right) for right in rights]
        if method in OPEN:
            words.append("none, also without authentication")
        lines.append(f"| `{method}` | {'; '.join(words) or 'none'} |")
    return "\n".join(lines) + "\n"


log = get_logger(__name__)

# Stands for all methods that do not exist, in metrics.
UNKNOWN_METHOD = "unknown"
_CONTENT_TYPE = "application/grpc"
# Eight digits and a unit, by the protocol.
_MAX_TIMEOUT_LENGTH = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """What all calls of a connection have in common."""

    connection: OpenConnection
    peer: str
    # The name of the listener, and whether it requires authentication.
    listener: str
    authentication: bool | None
    has_tls: bool
    # Of the client's certificate, and when that expires.
    principal: Principal | None
    principal_expires_ms: int | None

    def request(self, path: str, fields: dict[str, str]) -> Request:
        """Return a call as a request, for what gRPC and HTTP share."""
        request = Request("POST", path, "", fields, b"", self.peer)
        request.connection = self.connection
        request.has_tls = self.has_tls
        request.principal = self.principal
        request.principal_expires_ms = self.principal_expires_ms
        request.authentication = self.authentication
        return request


class Served(NamedTuple):
    """A call that has ended: its method, for metrics, and how it ended."""

    method: str
    error: AlpacaError | None
    tenant: str | None


async def serve_call(
    server: Server, client: ClientConnection, stream: Stream, headers: list[tuple[str, str]]
) -> Served:
    """Serve one call. Never raises: an error is the status of the call."""
    fields: dict[str, str] = {}
    for name, value in headers:
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    path = fields.get(":path", "")
    method = path[1:] if path in server.handlers else UNKNOWN_METHOD
    error: AlpacaError | None = None
    tenant: str | None = None
    try:
        if fields.get(":method") != "POST":
            stream.refuse(405)
        elif not fields.get("content-type", "").startswith(_CONTENT_TYPE):
            stream.refuse(415)
        else:
            call = await _begin(server, client, stream, path, fields)
            tenant = call.tenant
            await _run(call, server.handlers[path].func)
    except AlpacaError as raised:
        error = raised
    except asyncio.CancelledError:
        if not stream.is_closed:
            # By the listener, which ends; if the call has failed, that is its status.
            error = ShuttingDown("the broker is shutting down")
    except h2.exceptions.ProtocolError as raised:
        # A response to a stream that was closed meanwhile.
        log.debug("response_not_sent", peer=client.peer, method=method, reason=str(raised))
    except Exception:
        log.exception("call_failed", peer=client.peer, method=method)
        error = InternalError("internal error; see the log of the broker")
    return Served(method, stream.failure or error, tenant)


async def _begin(
    server: Server, client: ClientConnection, stream: Stream, path: str, fields: dict[str, str]
) -> "Call[Any, Any]":
    """Return a call whose client is known and may call. Raises why it may not."""
    if path not in server.handlers:
        raise Unimplemented(f"unknown method {path[:200]!r}")
    encoding = fields.get("grpc-encoding", Encoding.IDENTITY.value)
    try:
        stream.encoding = Encoding(encoding)
    except ValueError:
        raise Unimplemented(f"messages compressed with {encoding[:50]!r} are not supported") from None
    deadline = None
    if (timeout := fields.get("grpc-timeout")) is not None:
        try:
            deadline = asyncio.get_running_loop().time() + decode_timeout(timeout[:_MAX_TIMEOUT_LENGTH])
        except ValueError:
            raise InvalidField("grpc-timeout", f"{timeout[:20]!r} is not a timeout") from None
    # The console's cookie is for its pages.
    fields.pop("cookie", None)
    request = client.request(path, fields)
    caller = await _authenticated(server, request)
    call: Call[Any, Any] = Call(
        server.backend,
        stream,
        path[1:],
        request,
        caller,
        server.handlers[path].request_type,
        deadline,
        client.listener,
    )
    if call.method not in OPEN:
        if server.access.requires_login(client.authentication):
            server.login.check_authenticated(caller)
        if call.tenant is not None:
            server.access.check_active(caller)
        if server.quotas.is_active:
            throttling.check_connection(server.quotas, request, caller)
            call.check_quota()
    if server.audit is not None:
        user_agent, request_id = fields.get("user-agent", ""), fields.get("x-request-id", "")
        server.audit.enter("grpc", call.method, user_agent, request_id, caller)
    return call


async def _authenticated(server: Server, request: Request) -> Caller:
    access = server.access
    if not (
        access.requires_login(request.authentication)
        or access.is_enforced
        or request.principal is not None
        or AUTHORIZATION in request.headers
    ):
        return ANONYMOUS_CALLER
    return server.login.known(request) or await server.login.authenticate(request)


async def _run(call: "Call[Any, Any]", method: Any) -> None:
    """Run a method until its deadline."""
    work = method(call)
    if not call.method.startswith(TRANSCODED_METHODS):  # those are charged for as requests of HTTP
        work = call.timed(work)
    if call.deadline is None:
        await work
        return
    try:
        async with asyncio.timeout_at(call.deadline) as timeout:
            await work
    except TimeoutError:
        if not timeout.expired():
            raise
        raise Expired("the deadline of the call has passed") from None
