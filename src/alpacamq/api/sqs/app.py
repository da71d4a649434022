"""The SQS API: detects the protocol of a request, checks its signature and performs its action."""

from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from itertools import count
from time import monotonic
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from alpacamq.api.http import throttling
from alpacamq.api.http.hosts import foreign_page
from alpacamq.api.http.login import host_of
from alpacamq.api.http.messages import Request, Response
from alpacamq.broker.access import ANONYMOUS_CALLER
from alpacamq.broker.access import Caller as Identity
from alpacamq.broker.broker import Broker
from alpacamq.broker.later import Later
from alpacamq.broker.quotas import ClientLimits
from alpacamq.model.errors import AlpacaError
from alpacamq.model.names import localized
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.logs import get_logger

from . import requests as r
from . import rights
from .administration import Administration, MoveTasks, Tags
from .directory import QueueDirectory, SqsSettings
from .errors import (
    ACCESS_DENIED,
    INCOMPLETE_SIGNATURE,
    INTERNAL_FAILURE,
    MISDIRECTED,
    MISSING_TOKEN,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    Fault,
    fault_of,
)
from .protocols import JsonProtocol, QueryJsonProtocol, QueryProtocol, accepts_json
from .queue_attributes import Permissions, QueueAttributes
from .receiving import Receiving
from .results import (
    Action,
    Answer,
    Caller,
    ReceiveMessageResult,
    SendMessageBatchResult,
    SettleBatchResult,
)
from .sending import Sending
from .settling import Settling
from .signature import Signatures

log = get_logger(__name__)

AUTHENTICATION_FAULTS = (INCOMPLETE_SIGNATURE, MISSING_TOKEN, UNKNOWN_KEY, WRONG_SIGNATURE)
# The name under which requests are counted whose action is unknown or whose sender is refused.
UNREADABLE = "(unreadable)"
# Whose queues are kept in memory.
MAX_TENANTS = 1000
# Actions whose bytes count: those of the request, or those of the response.
QUOTAS: Mapping[str, QuotaKey] = {
    "SendMessage": QuotaKey.PRODUCE,
    "SendMessageBatch": QuotaKey.PRODUCE,
    "ReceiveMessage": QuotaKey.FETCH,
}


def table_of_actions(
    broker: Broker, settings: SqsSettings, tenant: str | None = None
) -> Mapping[str, Action]:
    """Return all actions by name, for the queues of a tenant or of none."""
    directory = QueueDirectory(broker.topics, broker.queues, settings, tenant)
    queues = Administration(broker, directory)
    attributes = QueueAttributes(broker, directory)
    sending = Sending(broker, directory)
    receiving = Receiving(broker, directory)
    settling = Settling(broker.queues, directory)
    moving = MoveTasks(broker, directory)
    tags = Tags(directory, attributes)
    permissions = Permissions(directory, attributes)
    actions = (
        Action("CreateQueue", r.CreateQueue, queues.create),
        Action("GetQueueUrl", r.GetQueueUrl, queues.get_url),
        Action("ListQueues", r.ListQueues, queues.list),
        Action("ListDeadLetterSourceQueues", r.ListDeadLetterSourceQueues, queues.list_sources),
        Action("DeleteQueue", r.DeleteQueue, queues.delete),
        Action("PurgeQueue", r.PurgeQueue, queues.purge),
        Action("GetQueueAttributes", r.GetQueueAttributes, attributes.get),
        Action("SetQueueAttributes", r.SetQueueAttributes, attributes.set),
        Action("SendMessage", r.SendMessage, sending.send),
        Action("SendMessageBatch", r.SendMessageBatch, sending.send_batch),
        Action("ReceiveMessage", r.ReceiveMessage, receiving.receive),
        Action("DeleteMessage", r.DeleteMessage, settling.delete),
        Action("DeleteMessageBatch", r.DeleteMessageBatch, settling.delete_batch),
        Action("ChangeMessageVisibility", r.ChangeMessageVisibility, settling.change_visibility),
        Action(
            "ChangeMessageVisibilityBatch", r.ChangeMessageVisibilityBatch, settling.change_visibility_batch
        ),
        Action("StartMessageMoveTask", r.StartMessageMoveTask, moving.start),
        Action("CancelMessageMoveTask", r.CancelMessageMoveTask, moving.cancel),
        Action("ListMessageMoveTasks", r.ListMessageMoveTasks, moving.list),
        Action("TagQueue", r.TagQueue, tags.tag),
        Action("UntagQueue", r.UntagQueue, tags.untag),
        Action("ListQueueTags", r.ListQueueTags, tags.list),
        Action("AddPermission", r.AddPermission, permissions.add),
        Action("RemovePermission", r.RemovePermission, permissions.remove),
    )
    return {action.name: action for action in actions}


class SqsApi:
    """Serves SQS requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker, settings: SqsSettings) -> None:
        self._broker = broker
        self._settings = settings
        # The least recently used are made again.
        self._of_tenants: OrderedDict[str, Mapping[str, Action]] = OrderedDict()
        actions = table_of_actions(broker, settings)
        self._json = JsonProtocol(actions)
        self._query = QueryProtocol(actions)
        self._query_json = QueryJsonProtocol(actions)
        self._access = broker.access
        self._audit = broker.audit
        self._metadata = broker.metadata
        self._quotas = broker.quotas
        self._signatures = Signatures(settings, broker.time, broker.access)
        # Request ids look like those of AWS: a random prefix and a counter.
        self._id_start = str(uuid4())[:24]
        self._requests = count()
        self._stats = None if broker.metrics is None else broker.metrics.listeners["sqs"]

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        serving = _Serving(request, self._protocol_of(request), self._next_id(), monotonic())
        try:
            action, parameters = self._admit(serving)
            if self._metadata.may_be_behind and self._is_queue_unknown(action, parameters, serving.tenant):
                # It may have been created through another node.
                return self._after_catching_up(serving, action, parameters)
            work = self._perform(serving, action, parameters)
        except Exception as error:  # noqa: BLE001 - a bug costs one request
            return self._refused(serving, error)
        if isinstance(work, Later) and serving.limits is None:
            return work.then(partial(self._answered, serving))
        return self._awaited(serving, work)

    def refuse_host(self, request: Request, detail: str) -> Response:
        """Return the response to a request with a foreign Host header."""
        return self._protocol_of(request).refusal(Fault(MISDIRECTED, detail), self._next_id())

    def _protocol_of(self, request: Request) -> JsonProtocol | QueryProtocol:
        if "x-amz-target" in request.headers:
            return self._json
        return self._query_json if accepts_json(request) else self._query

    def _next_id(self) -> str:
        return f"{self._id_start}{next(self._requests):012x}"

    def _admit(self, serving: "_Serving") -> tuple[Action, r.ActionRequest]:
        """Read a request and check who sends it."""
        request = serving.request
        # Signatures may be disabled, and browsers send forms and links of other sites.
        if (page := foreign_page(request)) is not None:
            raise Fault(ACCESS_DENIED, f"{page} may not use this broker")
        identity = serving.identity = self._signatures.check(request)
        tenant = serving.tenant = self._access.tenant_of(identity)
        action, parameters = serving.protocol.read(request)
        serving.action = action
        if tenant is not None:
            self._access.check_active(identity)
            action = serving.action = self._of_tenant(tenant)[action.name]
        if self._audit is not None:
            client = request.headers.get("user-agent", "")
            self._audit.enter("sqs", action.name, client, serving.request_id, identity)
        rights.check(self._access, identity, action.name, parameters)
        return action, parameters

    def _perform(self, serving: "_Serving", action: Action, parameters: r.ActionRequest) -> Awaitable[Answer]:
        """Begin an action within the quotas of its client."""
        request, identity = serving.request, serving.identity
        if self._quotas.is_active and (limits := self._quotas.of_user(identity)) is not None:
            serving.limits = limits
            throttling.check_connection(self._quotas, request, identity)
            throttling.check(limits, QUOTAS.get(action.name))
        work = action.perform(parameters, _caller(request, identity))
        if isinstance(parameters, r.ReceiveMessage) and self._access.limits(identity):
            check = partial(rights.check, self._access, identity, action.name, parameters)
            work = self._access.while_allowed(work, identity, check)
        return work

    async def _after_catching_up(
        self, serving: "_Serving", action: Action, parameters: r.ActionRequest
    ) -> Response:
        try:
            await self._metadata.catch_up()
            work = self._perform(serving, action, parameters)
        except Exception as error:  # noqa: BLE001 - a bug costs one request
            return self._refused(serving, error)
        return await self._awaited(serving, work)

    async def _awaited(self, serving: "_Serving", work: Awaitable[Answer]) -> Response:
        try:
            if serving.limits is None:
                result = await work
            else:
                result, serving.seconds = await throttling.measured(work)
        except Exception as error:  # noqa: BLE001 - a bug costs one request
            return self._refused(serving, error)
        return self._response(serving, result)

    def _answered(self, serving: "_Serving", result: Any) -> Response | Coroutine[Any, Any, Response]:
        """Return the response for what an action has returned; a coroutine does the rest."""
        if isinstance(result, Coroutine):
            return self._awaited(serving, result)
        if isinstance(result, Exception):
            return self._refused(serving, result)
        return self._response(serving, result)

    def _response(self, serving: "_Serving", result: Answer) -> Response:
        action, limits = serving.action, serving.limits
        assert action is not None
        if serving.tenant is not None:
            result = _localized(serving.tenant, result)
        self._count(action, serving.began_at, None)
        response = serving.protocol.answer(action, result, serving.request_id)
        if limits is not None:
            key = QUOTAS.get(action.name)
            size = len(serving.request.body)
            throttling.charge(limits, key, size, len(response.body), serving.seconds)
            if key is not None:
                throttling.charge_messages(limits, key, _messages_in(result))
        return response

    def _refused(self, serving: "_Serving", error: Exception) -> Response:
        """Return the response to a request that has failed, in the format of the client."""
        if isinstance(error, Fault):
            refused = error
            if error.kind in AUTHENTICATION_FAULTS:
                self._access.audit_login("", host_of(serving.request), "signature", str(error))
        elif isinstance(error, AlpacaError):
            refused = fault_of(error)
        else:
            log.error("sqs_request_failed", request_id=serving.request_id, exception=error)
            refused = Fault(INTERNAL_FAILURE, "The request failed inside the broker.")
        self._count(serving.action, serving.began_at, refused)
        if serving.tenant is not None:
            refused = Fault(refused.kind, localized(serving.tenant, str(refused)))
        return serving.protocol.refusal(refused, serving.request_id)

    def _of_tenant(self, tenant: str) -> Mapping[str, Action]:
        if (actions := self._of_tenants.get(tenant)) is None:
            actions = self._of_tenants[tenant] = table_of_actions(self._broker, self._settings, tenant)
            if len(self._of_tenants) > MAX_TENANTS:
                self._of_tenants.popitem(last=False)
        self._of_tenants.move_to_end(tenant)
        return actions

    def _is_queue_unknown(self, action: Action, parameters: r.ActionRequest, tenant: str | None) -> bool:
        known = self._metadata.image.topics
        return any(name not in known for name in rights.queues(action.name, parameters, tenant))

    def _count(self, action: Action | None, began_at: float, refused: Fault | None) -> None:
        if self._stats is None:
            return
        stats = self._stats.of(UNREADABLE if action is None else action.name)
        stats.seconds.observe(monotonic() - began_at)
        if refused is not None:
            stats.refused(refused.kind.code)


class _Serving:
    """A request, and what is known of it so far."""

    __slots__ = (
        "action", "began_at", "identity", "limits", "protocol", "request", "request_id", "seconds", "tenant"
    )  # fmt: skip

    def __init__(
        self, request: Request, protocol: JsonProtocol | QueryProtocol, request_id: str, began_at: float
    ) -> None:
        self.request = request
        self.protocol = protocol
        self.request_id = request_id
        self.began_at = began_at
        self.identity: Identity = ANONYMOUS_CALLER
        self.tenant: str | None = None
        self.action: Action | None = None
        # The quotas of the client, and for how long its request has used the event loop.
        self.limits: ClientLimits | None = None
        self.seconds = 0.0


def _messages_in(result: Answer) -> int:
    """Return how many messages a result reports as sent, or contains."""
    if isinstance(result, SendMessageBatchResult):
        return len(result.successful)
    return len(result.messages) if isinstance(result, ReceiveMessageResult) else 1


def _localized(tenant: str, result: Answer) -> Answer:
    """Return a result with the errors of its entries as a tenant's client names things."""
    if not isinstance(result, SendMessageBatchResult | SettleBatchResult) or not result.failed:
        return result
    failed = [replace(each, message=localized(tenant, each.message)) for each in result.failed]
    return replace(result, failed=failed)


def _caller(request: Request, identity: Identity) -> Caller:
    traceparent = request.headers.get("traceparent")
    return Caller(
        _base_url(request),
        request.peer,
        None if traceparent is None else traceparent.encode(),
        request.headers.get("x-amzn-trace-id", ""),
        identity,
    )


def _base_url(request: Request) -> str:
    """Return the base of queue URLs: the address that the client used."""
    is_secure = request.has_tls or request.headers.get("x-forwarded-proto") == "https"
    scheme = "https" if is_secure else "http"
    return f"{scheme}://{request.host}"
