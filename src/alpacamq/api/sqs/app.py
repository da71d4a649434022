"""The SQS API: detects the protocol of a request, checks its signature and performs its action."""

from collections.abc import Awaitable, Mapping
from itertools import count
from time import monotonic
from uuid import uuid4

from alpacamq.api.http.hosts import foreign_page
from alpacamq.api.http.messages import Request, Response
from alpacamq.broker.access import Caller as Identity
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger

from . import requests as r
from . import rights
from .administration import Administration, MoveTasks, Tags
from .directory import QueueDirectory, SqsSettings
from .errors import ACCESS_DENIED, INTERNAL_FAILURE, MISDIRECTED, Fault, fault_of
from .protocols import JsonProtocol, QueryJsonProtocol, QueryProtocol, accepts_json
from .queue_attributes import Permissions, QueueAttributes
from .receiving import Receiving
from .results import Action, Caller
from .sending import Sending
from .settling import Settling
from .signature import Signatures

log = get_logger(__name__)

# The name under which requests are counted whose action is unknown or whose sender is refused.
UNREADABLE = "(unreadable)"


def table_of_actions(broker: Broker, settings: SqsSettings) -> Mapping[str, Action]:
    """Return all actions by name."""
    directory = QueueDirectory(broker.topics, broker.queues, settings)
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
        actions = table_of_actions(broker, settings)
        self._json = JsonProtocol(actions)
        self._query = QueryProtocol(actions)
        self._query_json = QueryJsonProtocol(actions)
        self._access = broker.access
        self._signatures = Signatures(settings, broker.clock, broker.access)
        # Request ids look like those of AWS: a random prefix and a counter.
        self._id_start = str(uuid4())[:24]
        self._requests = count()
        self._stats = None if broker.metrics is None else broker.metrics.listeners["sqs"]

    def __call__(self, request: Request) -> Awaitable[Response]:
        return self._serve(request, self._protocol_of(request))

    def refuse_host(self, request: Request, detail: str) -> Response:
        """Return the response to a request with a foreign Host header."""
        return self._protocol_of(request).refusal(Fault(MISDIRECTED, detail), self._next_id())

    def _protocol_of(self, request: Request) -> JsonProtocol | QueryProtocol:
        if "x-amz-target" in request.headers:
            return self._json
        return self._query_json if accepts_json(request) else self._query

    def _next_id(self) -> str:
        return f"{self._id_start}{next(self._requests):012x}"

    async def _serve(self, request: Request, protocol: JsonProtocol | QueryProtocol) -> Response:
        request_id = self._next_id()
        began_at = monotonic()
        action: Action | None = None
        try:
            # Signatures may be disabled, and browsers send forms and links of other sites without asking.
            if (page := foreign_page(request)) is not None:
                raise Fault(ACCESS_DENIED, f"{page} may not use this broker")
            identity = self._signatures.check(request)
            action, parameters = protocol.read(request)
            rights.check(self._access, identity, action.name, parameters)
            result = await action.perform(parameters, _caller(request, identity))
        except Fault as fault:
            refused = fault
        except AlpacaError as error:
            refused = fault_of(error)
        except Exception:  # an unexpected error fails one request, in the format of the client
            log.exception("sqs_request_failed", request_id=request_id)
            refused = Fault(INTERNAL_FAILURE, "The request failed inside the broker.")
        else:
            self._count(action, began_at, None)
            return protocol.answer(action, result, request_id)
        self._count(action, began_at, refused)
        return protocol.refusal(refused, request_id)

    def _count(self, action: Action | None, began_at: float, refused: Fault | None) -> None:
        if self._stats is None:
            return
        stats = self._stats.of(UNREADABLE if action is None else action.name)
        stats.seconds.observe(monotonic() - began_at)
        if refused is not None:
            stats.refused(refused.kind.code)


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
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{request.host}"
