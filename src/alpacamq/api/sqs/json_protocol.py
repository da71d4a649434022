"""AWS JSON 1.0: the action in a header, its parameters and its result as JSON objects."""

import re
from collections.abc import Mapping

import msgspec

from alpacamq.api.http.messages import Request, Response

from .errors import INVALID_ACTION, MALFORMED, Fault, missing
from .requests import Asked
from .results import NOTHING, Action, Answer

CONTENT_TYPE = "application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."

_MISSING_FIELD = re.compile(r"missing required field `(\w+)`")
_encode = msgspec.json.Encoder().encode


class JsonProtocol:
    """Reads requests of SDKs that speak JSON and writes what they expect."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = actions
        self._decoders = {name: msgspec.json.Decoder(action.asks) for name, action in actions.items()}

    def read(self, request: Request) -> tuple[Action, Asked]:
        """The action a request names, and what it asks it with."""
        name = request.headers["x-amz-target"].removeprefix(TARGET_PREFIX)
        if (action := self._actions.get(name)) is None or request.method != "POST":
            raise Fault(INVALID_ACTION, f"There is no action {name[:100]!r} for {request.method}.")
        try:
            return action, self._decoders[name].decode(request.body or b"{}")
        except msgspec.ValidationError as error:
            raise unfit(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Fault(MALFORMED, f"The body is not JSON: {error}") from None

    def answer(self, _action: Action, result: Answer, request_id: str) -> Response:
        # Actions without a result have no body at all.
        body = b"" if result is NOTHING else _encode(result)
        return Response(200, body, CONTENT_TYPE, (("x-amzn-RequestId", request_id),))

    def refusal(self, fault: Fault, request_id: str) -> Response:
        kind = fault.kind
        side = "Sender" if kind.is_senders else "Receiver"
        # SDKs that knew the query protocol first look for their errors under the older codes.
        headers = (("x-amzn-RequestId", request_id), ("x-amzn-query-error", f"{kind.code};{side}"))
        body = _encode({"__type": kind.type, "message": fault.message})
        return Response(kind.status, body, CONTENT_TYPE, headers)


def unfit(error: msgspec.ValidationError) -> Fault:
    """What SQS says of parameters that are missing or of the wrong type."""
    if found := _MISSING_FIELD.search(str(error)):
        return missing(found[1])
    return Fault(MALFORMED, str(error))
