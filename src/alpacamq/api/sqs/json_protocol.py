"""AWS JSON 1.0: the action in a header, its parameters and its result as JSON objects."""

import re
from collections.abc import Mapping

import msgspec

from alpacamq.api.http.messages import Request, Response

from .errors import INVALID_ACTION, MALFORMED, Fault, missing
from .requests import ActionRequest
from .results import NOTHING, Action, Answer

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."

_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")
_encode = msgspec.json.Encoder().encode


class JsonProtocol:
    """Reads requests and writes responses in AWS JSON 1.0."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = actions
        self._decoders = {name: msgspec.json.Decoder(action.request_type) for name, action in actions.items()}

    def read(self, request: Request) -> tuple[Action, ActionRequest]:
        """Return the action of a request, and its parameters."""
        name = request.headers["x-amz-target"].removeprefix(TARGET_PREFIX)
        if (action := self._actions.get(name)) is None or request.method != "POST":
            raise Fault(INVALID_ACTION, f"Unknown action {name[:100]!r} for {request.method}.")
        try:
            return action, self._decoders[name].decode(request.body or b"{}")
        except msgspec.ValidationError as error:
            raise unfit(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Fault(MALFORMED, f"The body is not JSON: {error}") from None

    def answer(self, _action: Action, result: Answer, request_id: str) -> Response:
        # Actions without a result have no body.
        body = b"" if result is NOTHING else _encode(result)
        return Response(200, body, CONTENT_TYPE, (("x-amzn-RequestId", request_id),))

    def refusal(self, fault: Fault, request_id: str) -> Response:
        kind = fault.kind
        side = "Sender" if kind.is_senders else "Receiver"
        # SDKs that supported the query protocol first look for the older codes.
        headers = (("x-amzn-RequestId", request_id), ("x-amzn-query-error", f"{kind.code};{side}"))
        body = _encode({"__type": kind.type, "message": fault.message})
        return Response(kind.status, body, CONTENT_TYPE, headers)


def unfit(error: msgspec.ValidationError) -> Fault:
    """Return the SQS error for missing or mistyped parameters."""
    if found := _MISSING_FIELD.search(str(error)):
        return missing(found[1])
    return Fault(MALFORMED, str(error))
