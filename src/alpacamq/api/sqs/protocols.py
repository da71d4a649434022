"""The protocols of AWS: how an action, its parameters and its result are written.

JSON 1.0 has the action in a header, parameters and result as JSON objects. The query protocol has
parameters as form fields and the result as XML. Lists and maps are flattened into numbered fields, each kind
under a name of its own: `MessageAttribute.1.Name=color&MessageAttribute.1.Value.DataType=String`.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from alpacamq.api.http.messages import Request, Response

from .errors import INVALID_ACTION, MALFORMED, NO_ACTION, Fault, missing, without_forbidden
from .requests import ActionRequest
from .results import NOTHING, Action, Answer

_JSON = "application/x-amz-json-1.0"
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
        return Response(200, body, _JSON, (("x-amzn-RequestId", request_id),))

    def refusal(self, fault: Fault, request_id: str) -> Response:
        kind = fault.kind
        side = "Sender" if kind.is_senders else "Receiver"
        # SDKs that supported the query protocol first look for the older codes.
        headers = (("x-amzn-RequestId", request_id), ("x-amzn-query-error", f"{kind.code};{side}"))
        body = _encode({"__type": kind.type, "message": fault.message})
        return Response(kind.status, body, _JSON, headers)


def unfit(error: msgspec.ValidationError) -> Fault:
    """Return the SQS error for missing or mistyped parameters."""
    if found := _MISSING_FIELD.search(str(error)):
        return missing(found[1])
    return Fault(MALFORMED, str(error))


_XML = "text/xml"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"

# More than ten entries with ten attributes of three fields each need.
MAX_FIELDS = 1000
MAX_DEPTH = 6

# List fields of the API, and the names of their elements here. Entries are named after their action.
LISTS = {
    "AttributeNames": "AttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "TagKeys": "TagKey",
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
# The same for maps, with the names of their keys; values are always named `Value`.
MAPS = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "MessageSystemAttributes": ("MessageSystemAttribute", "Name"),
    "Tags": ("Tag", "Key"),
    "tags": ("Tag", "Key"),
}
_FIELDS_OF_LISTS = {element: field for field, element in LISTS.items()}
_FIELDS_OF_MAPS = {
    element: (key, [field for field, known in MAPS.items() if known[0] == element])
    for element, key in MAPS.values()
}

# What an empty field stands for: SDKs write an empty list or map so, under the name of the parameter or of
# its elements.
_EMPTY: dict[str, dict[str, Any]] = {
    "Entries": {"Entries": []},
    **{name: {field: []} for field, element in LISTS.items() for name in (field, element)},
    **{
        name: {field: {} for field in fields}
        for element, (_, fields) in _FIELDS_OF_MAPS.items()
        for name in (element, *fields)
    },
}
del _EMPTY["QueueUrl"]

# XML parsers read a bare carriage return as a line feed, which would break the digest of the body.
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xd;"})

Tree = dict[str, Any]  # of str or Tree


class QueryProtocol:
    """Reads requests and writes responses of older SDKs."""

    def __init__(self, actions: Mapping[str, Action]) -> None:
        self._actions = actions

    def read(self, request: Request) -> tuple[Action, ActionRequest]:
        """Return the action of a request, and its parameters."""
        fields = _fields(request)
        if not isinstance(name := fields.get("Action"), str):
            raise Fault(NO_ACTION, "The request must contain the parameter Action.")
        if (action := self._actions.get(name)) is None:
            raise Fault(INVALID_ACTION, f"The action {name[:100]} is not valid for this endpoint.")
        parameters = _unflattened(fields, f"{name}RequestEntry")
        if request.path != "/" and not parameters.get("QueueUrl"):
            # Older clients post to the queue's URL and do not repeat it.
            parameters["QueueUrl"] = request.path
        try:
            return action, msgspec.convert(parameters, action.request_type, strict=False)
        except msgspec.ValidationError as error:
            raise unfit(error) from None

    def answer(self, action: Action, result: Answer, request_id: str) -> Response:
        name = action.name
        body = [f'<?xml version="1.0"?><{name}Response xmlns="{NAMESPACE}">']
        if result is not NOTHING:
            body += f"<{name}Result>", *_elements(result, f"{name}ResultEntry"), f"</{name}Result>"
        body.append(
            f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{name}Response>"
        )
        return _response(200, body, request_id)

    def refusal(self, fault: Fault, request_id: str) -> Response:
        kind = fault.kind
        if kind is NO_ACTION:
            return _response(kind.status, ["<UnknownOperationException/>"], request_id)
        body = [
            f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error>',
            f"<Type>{'Sender' if kind.is_senders else 'Receiver'}</Type><Code>{kind.code}</Code>",
            f"<Message>{_text(fault.message)}</Message><Detail/></Error>",
            f"<RequestId>{request_id}</RequestId></ErrorResponse>",
        ]
        return _response(kind.status, body, request_id)


class QueryJsonProtocol(QueryProtocol):
    """Reads requests of the query protocol, and writes responses as JSON in the structure of the XML.

    Lists of pairs take the place of maps, and null that of missing values.
    """

    def answer(self, action: Action, result: Answer, request_id: str) -> Response:
        content: dict[str, object] = {"ResponseMetadata": {"RequestId": request_id}}
        if result is not NOTHING:
            content[f"{action.name}Result"] = _plain(result)
        return self._json(200, {f"{action.name}Response": content}, request_id)

    def refusal(self, fault: Fault, request_id: str) -> Response:
        kind = fault.kind
        if kind is NO_ACTION:
            return super().refusal(fault, request_id)
        error = {
            "Code": kind.code,
            "Message": fault.message,
            "Type": "Sender" if kind.is_senders else "Receiver",
            "Detail": None,
        }
        return self._json(kind.status, {"Error": error, "RequestId": request_id}, request_id)

    def _json(self, status: int, content: object, request_id: str) -> Response:
        return Response(status, _encode(content), "application/json", (("x-amzn-RequestId", request_id),))


def accepts_json(request: Request) -> bool:
    """Return whether a client of the query protocol asks for JSON before it asks for anything else."""
    if not (accepted := request.headers.get("accept")):
        return False
    return accepted.partition(",")[0].partition(";")[0].strip().lower() == "application/json"


# Lists that have another name in JSON responses of the query protocol.
_QUERY_JSON_LISTS = {"QueueUrls": "queueUrls", "Messages": "messages"}


def _plain(value: object) -> object:
    """Convert a result for a JSON response of the query protocol."""
    if isinstance(value, msgspec.Struct):
        plain: dict[str, object] = {}
        for attribute, field in _layout(type(value)):
            content = getattr(value, attribute)
            if isinstance(content, dict):
                key = MAPS[field][1]
                content = [{key: name, "Value": _plain(each)} for name, each in content.items()]
            elif isinstance(content, list):
                content = [_plain(each) for each in content]
            else:
                content = _plain(content)
            plain[_QUERY_JSON_LISTS.get(field, field)] = None if content == [] else content
        return plain
    return value


def _response(status: int, body: list[str], request_id: str) -> Response:
    return Response(status, "".join(body).encode(), _XML, (("x-amzn-RequestId", request_id),))


def _fields(request: Request) -> Tree:
    """Return the form fields of query and body as a tree, split at the dots of their names."""
    try:
        text = request.body.decode()
        pairs = [
            *parse_qsl(
                request.query_string, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
            ),
            *parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS),
        ]
    except ValueError as error:
        raise Fault(MALFORMED, f"The parameters cannot be read: {error}") from None
    root: Tree = {}
    for name, value in pairs:
        *way, last = name.split(".")
        if len(way) >= MAX_DEPTH:
            raise Fault(MALFORMED, f"The parameter {name[:100]!r} has too many parts.")
        branch = root
        for part in way:
            # Not `branch` at once: compiled, that can be nothing but a dictionary.
            inner: object = branch.setdefault(part, {})
            if not isinstance(inner, dict):
                raise Fault(MALFORMED, f"The parameter {name[:100]!r} is both a value and a structure.")
            branch = inner
        if isinstance(branch.get(last), dict):
            raise Fault(MALFORMED, f"The parameter {name[:100]!r} is both a value and a structure.")
        branch[last] = value
    return root


def _unflattened(tree: Tree, entry: str) -> dict[str, Any]:
    """Convert a tree of form fields to the structure of the JSON protocol."""
    plain: dict[str, Any] = {}
    for name, value in tree.items():
        if value == "" and (name in _EMPTY or name == entry):
            plain.update(_EMPTY.get(name, {"Entries": []}))
        elif name == entry:
            plain["Entries"] = [_item(each, entry) for each in _numbered(name, value)]
        elif (field := _FIELDS_OF_LISTS.get(name)) is not None and name != "QueueUrl":
            plain[field] = (
                [value] if isinstance(value, str) else [_item(each, entry) for each in _numbered(name, value)]
            )
        elif (known := _FIELDS_OF_MAPS.get(name)) is not None:
            pairs = dict(_pair(name, each, known[0], entry) for each in _numbered(name, value))
            for field in known[1]:
                plain[field] = pairs
        else:
            plain[name] = _item(value, entry)
    return plain


def _item(value: str | Tree, entry: str) -> str | dict[str, Any]:
    return value if isinstance(value, str) else _unflattened(value, entry)


def _numbered(name: str, value: str | Tree) -> Iterator[str | Tree]:
    if isinstance(value, str) or not all(number.isdecimal() and len(number) < 6 for number in value):
        raise Fault(MALFORMED, f"The elements of {name} must be numbered.")
    for number in sorted(value, key=int):
        yield value[number]


def _pair(name: str, value: str | Tree, key: str, entry: str) -> tuple[str, str | dict[str, Any]]:
    if isinstance(value, str) or not isinstance(value.get(key), str):
        raise missing(f"{name}.n.{key}")
    if "Value" not in value:
        raise missing(f"{name}.n.Value")
    return value[key], _item(value["Value"], entry)


@cache
def _layout(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))


def _elements(value: msgspec.Struct, entry: str) -> Iterator[str]:
    """Yield the fields of a result as XML elements, without None and empty values."""
    for attribute, field in _layout(type(value)):
        content = getattr(value, attribute)
        if content is None or content == [] or content == {}:
            continue
        if isinstance(content, list):
            name = entry if field == "Successful" else LISTS[field]
            for item in content:
                yield from _element(name, item, entry)
        elif isinstance(content, dict):
            name, key = MAPS[field]
            for each, item in content.items():
                yield f"<{name}><{key}>{_text(each)}</{key}>"
                yield from _element("Value", item, entry)
                yield f"</{name}>"
        else:
            yield from _element(field, content, entry)


def _element(name: str, content: object, entry: str) -> Iterator[str]:
    if isinstance(content, msgspec.Struct):
        yield f"<{name}>"
        yield from _elements(content, entry)
        yield f"</{name}>"
    elif isinstance(content, bytes):
        yield f"<{name}>{b64encode(content).decode()}</{name}>"
    elif isinstance(content, bool):
        yield f"<{name}>{str(content).lower()}</{name}>"
    else:
        yield f"<{name}>{_text(str(content))}</{name}>"


def _text(text: str) -> str:
    # Invalid characters in quoted text must not make the whole response unreadable.
    return without_forbidden(text).translate(_ENTITIES)
