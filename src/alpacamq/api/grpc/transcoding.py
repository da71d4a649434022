"""Serves methods that have a route of the HTTP API, which their `google.api.http` option names.

A message becomes path, query and JSON body of a request, which the HTTP API answers in this process, with
the client's credentials. So rights, tenants, quotas, audit and limits are those of HTTP. The translation:

- A field with presence is left out if it is not set; any other field of a request is always sent.
- Fields have the same names in JSON, or their `json_name` where the option is used. Those of the schema
  registry have camel case, as Confluent's.
- Enumerations are text: `TRANSACTION_STATE_PREPARE_COMMIT` is `prepare-commit`. Bytes are Base64.
- `unset` names settings, or fields of its message, whose value is null. A few fields are null if they are not
  set, because their routes do not let them be left out.
- Numbers in lists that are null in a response are NaN.
- A response that is a list or a number is the field that `response_body` names.
- The first binding is used whose path fields are all set.
"""

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from math import nan
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from google.api.annotations_pb2 import http
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status as RpcStatus
from grpclib.const import Cardinality, Handler

from alpacamq.api.http.messages import App, Request, Response
from alpacamq.api.registry.app import MOUNT, MountedRegistry, RegistryApi
from alpacamq.api.rest.errors import problem_type

from .call import Backend, Call
from .errors import CODES, InvalidField, to_status

# Metadata that the HTTP API uses.
_HEADERS = ("traceparent", "user-agent", "x-request-id")
_VALUE = "google.protobuf.Value"
_STATUS = "google.rpc.Status"
_HEADER = "alpacamq.v1.Header"
_KINDS = {problem_type(kind): kind for kind in CODES}
# Null if they are not set.
NULLABLE = frozenset(
    ("alpacamq.v1.WantedReplicas.replicas", "alpacamq.v1.ReassignmentThrottle.bytes_per_second")
)


class Binding(NamedTuple):
    """A route of the HTTP API. `body` is the field that is the body, `*` for all that are not in the path."""

    method: str
    path: str
    body: str

    @property
    def path_names(self) -> tuple[str, ...]:
        """The fields in the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


def bindings(method: MethodDescriptor) -> list[Binding]:
    """Return the routes of a method; none if it is not transcoded."""
    options = method.GetOptions()
    if not options.HasExtension(http):
        return []
    rule = options.Extensions[http]
    return [
        Binding(each.WhichOneof("pattern").upper(), getattr(each, each.WhichOneof("pattern")), each.body)
        for each in (rule, *rule.additional_bindings)
    ]


@cache
def json_name(field: FieldDescriptor, *, camel: bool) -> str:
    """Return the name of a field in JSON."""
    given: str = field.json_name
    if camel:
        return given
    head, *rest = field.name.split("_")
    is_default = given == head + "".join(part.capitalize() for part in rest)
    return field.name if is_default else given


@cache
def enum_texts(enum: EnumDescriptor) -> Mapping[int, str]:
    """Return the values of an enumeration in JSON by number, without the unspecified one."""
    prefix = "".join(f"_{each}" if each.isupper() else each.upper() for each in enum.name)[1:] + "_"
    return {
        value.number: value.name.removeprefix(prefix).lower().replace("_", "-")
        for value in enum.values
        if value.number
    }


def is_list(kind: Descriptor | None) -> bool:
    """Return whether the values of a map are lists in JSON: messages with one repeated field."""
    return kind is not None and len(kind.fields) == 1 and kind.fields[0].is_repeated


def is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


# Requests.


def to_json(message: Any, *, camel: bool) -> dict[str, Any]:
    """Return the fields of a request as a JSON object."""
    values = {
        json_name(field, camel=camel): _json_value(field, getattr(message, field.name), camel=camel)
        for field in _sent_fields(message)
    }
    for field in message.DESCRIPTOR.fields:
        if field.full_name in NULLABLE:
            values.setdefault(field.name)
    if "unset" in message.DESCRIPTOR.fields_by_name:
        nulls = dict.fromkeys(values.pop("unset", ()))
        if "settings" in message.DESCRIPTOR.fields_by_name:
            values["settings"] = {**values.get("settings", {}), **nulls}
        else:
            values |= nulls
    return values


def _sent_fields(message: Any) -> Iterator[FieldDescriptor]:
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            is_sent = bool(getattr(message, field.name))
        elif field.has_presence:
            is_sent = message.HasField(field.name)
        else:
            is_sent = field.enum_type is None or bool(getattr(message, field.name))
        if is_sent:
            yield field


def _json_value(field: FieldDescriptor, value: Any, *, camel: bool) -> Any:
    if is_map(field):
        kind = field.message_type.fields_by_name["value"]
        return {key: _json_item(kind, each, camel=camel) for key, each in value.items()}
    if field.is_repeated:
        return [_json_item(field, each, camel=camel) for each in value]
    return _json_item(field, value, camel=camel)


def _json_item(field: FieldDescriptor, value: Any, *, camel: bool) -> Any:
    if field.enum_type is not None:
        return enum_texts(field.enum_type).get(value, str(value))
    if field.message_type is not None:
        found = to_json(value, camel=camel)
        if field.containing_type.GetOptions().map_entry and is_list(field.message_type):
            return next(iter(found.values()), [])
        return found
    return b64encode(value).decode() if isinstance(value, bytes) else value


def _query_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return [_query_text(each) for each in value] if isinstance(value, list) else str(value)


# Responses.


def fill(message: Any, data: Mapping[str, Any], *, camel: bool) -> None:
    """Set the fields of a message from a JSON object; null is a field that is not set."""
    for field in message.DESCRIPTOR.fields:
        if (value := data.get(json_name(field, camel=camel))) is not None:
            _fill_field(message, field, value, camel=camel)


def _fill_field(message: Any, field: FieldDescriptor, value: Any, *, camel: bool) -> None:
    target = getattr(message, field.name)
    if is_map(field):
        kind = field.message_type.fields_by_name["value"].message_type
        for key, each in value.items():
            if kind is None:
                target[key] = each
            else:
                _fill_message(target[key], each, camel=camel)
    elif field.is_repeated and field.message_type is not None:
        if field.message_type.full_name == _HEADER:
            _fill_headers(target, value)
            return
        for each in value:
            _fill_message(target.add(), each, camel=camel)
    elif field.is_repeated:
        target.extend(_scalar(field, each) for each in value)
    elif field.message_type is not None:
        target.SetInParent()
        _fill_message(target, value, camel=camel)
    else:
        setattr(message, field.name, _scalar(field, value))


def _fill_message(message: Any, value: Any, *, camel: bool) -> None:
    kind = message.DESCRIPTOR
    if kind.full_name == _VALUE:
        ParseDict(value, message)
    elif kind.full_name == _STATUS:
        message.CopyFrom(_status(value))
    elif isinstance(value, list):
        _fill_field(message, kind.fields[0], value, camel=camel)
    else:
        fill(message, value, camel=camel)


def _fill_headers(headers: Any, value: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> None:
    for name, content in value.items() if isinstance(value, Mapping) else value:
        header = headers.add(key=name)
        if content is not None:
            header.value = content.encode() if isinstance(content, str) else b64decode(content["base64"])


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if value is None:
        return nan
    if field.enum_type is not None:
        return next((number for number, text in enum_texts(field.enum_type).items() if text == value), 0)
    return b64decode(value) if field.type == FieldDescriptor.TYPE_BYTES else value


def _status(problem: Mapping[str, Any]) -> RpcStatus:
    """Return the error of one part of a response, a problem document, as a status."""
    kind = _KINDS[problem["type"]]
    # Some kinds take other arguments than a text.
    return to_status(kind.__new__(kind, problem.get("detail", "")))


# Calls.


class TranscodedMethod:
    """A method and its routes."""

    def __init__(self, method: MethodDescriptor) -> None:
        self.path = f"/{method.containing_service.full_name}/{method.name}"
        self.bindings = bindings(method)
        self._response_body = method.GetOptions().Extensions[http].response_body
        self.request_type: type[Message] = GetMessageClass(method.input_type)
        self.response_type: type[Message] = GetMessageClass(method.output_type)
        # The schema registry's API has another style.
        self._camel = self.bindings[0].path.startswith(f"{MOUNT}/")
        self._shows_values = any("_base64" in name for name in _json_names(method.output_type))

    def to_request(self, message: Any, call: Call[Any, Any]) -> Request:
        """Return the HTTP request of a message."""
        binding = self._binding(message)
        names = binding.path_names
        values = to_json(message, camel=self._camel)
        path = binding.path
        for name in names:
            if (value := str(values.pop(name))) == "":
                raise InvalidField(name, "is missing")
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        body = b""
        if binding.body == "*":
            body, values = msgspec.json.encode(values), {}
        elif binding.body:
            body = msgspec.json.encode(values.pop(binding.body, {}))
        if self._shows_values:
            values["values"] = "base64"
        left = {name: _query_text(value) for name, value in values.items() if name not in self._unused(names)}
        headers = {name: call.metadata[name] for name in _HEADERS if name in call.metadata}
        request = Request(binding.method, path, urlencode(left, doseq=True), headers, body, call.peer)
        given = call.request
        request.connection = given.connection
        request.has_tls = given.has_tls
        request.principal = given.principal
        request.principal_expires_ms = given.principal_expires_ms
        request.authentication = given.authentication
        request.caller = call.caller
        return request

    def _binding(self, message: Any) -> Binding:
        for binding in self.bindings[:-1]:
            if all(getattr(message, name) != "" for name in binding.path_names):
                return binding
        return self.bindings[-1]

    def _unused(self, used: Sequence[str]) -> frozenset[str]:
        """Return the fields that only the paths of other bindings have."""
        return frozenset(name for each in self.bindings for name in each.path_names if name not in used)

    def to_response(self, response: Response) -> Any:
        """Return the message of an HTTP response. Raises the error that it reports."""
        if response.error is not None:
            raise response.error
        message: Any = self.response_type()
        if response.body:
            data = msgspec.json.decode(response.body)
            if self._response_body:
                data = {self._response_body: data}
            fill(message, data, camel=self._camel)
        return message


def _json_names(kind: Descriptor, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names of all fields of a message in JSON, and of those in it."""
    for field in kind.fields:
        yield json_name(field, camel=False)
        inner = field.message_type
        if inner is not None and inner.full_name not in seen:
            yield from _json_names(inner, seen | {kind.full_name})


class TranscodedService:
    """A service all of whose methods are routes of the HTTP API."""

    def __init__(self, service: ServiceDescriptor, backend: Backend) -> None:
        self._methods = [TranscodedMethod(method) for method in service.methods]
        self._backend = backend

    @cached_property
    def _app(self) -> App:
        return MountedRegistry(self._backend.rest, RegistryApi(self._backend.broker))

    def __mapping__(self) -> dict[str, Handler]:
        return {
            each.path: Handler(
                self._handler(each), Cardinality.UNARY_UNARY, each.request_type, each.response_type
            )
            for each in self._methods
        }

    def _handler(self, method: TranscodedMethod) -> Callable[[Call[Any, Any]], Awaitable[None]]:
        async def serve(call: Call[Any, Any]) -> None:
            response = self._app(method.to_request(await call.only_message(), call))
            if not isinstance(response, Response):
                response = await response
            await call.send_message(method.to_response(response))

        return serve


def transcoded(service: ServiceDescriptor) -> Callable[[Backend], TranscodedService]:
    """Return what makes a service of routes."""
    return lambda backend: TranscodedService(service, backend)
