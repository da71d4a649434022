"""The route table of the HTTP API, also as a page of the guide and as an OpenAPI document."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from alpacamq.api.http.messages import PROBLEM_JSON, Response
from alpacamq.model.errors import AlpacaError
from alpacamq.model.version import VERSION

from .errors import CODES, ConflictingInput, CrossOrigin, InvalidInput, Problem, UnsupportedMediaType
from .handlers import (
    acls,
    cluster,
    delayed,
    groups,
    health,
    keys,
    offsets,
    polling,
    publishing,
    queues,
    quotas,
    reading,
    sessions,
    stats,
    tenants,
    topics,
    traces,
    transactions,
    users,
)
from .message_json import NEW_MESSAGE_RULES, NewMessage
from .route import AnyRoute, Call, Nothing, Route

_WORD = re.compile(r"[a-z]+")
_REFERENCE = "#/components/schemas/{name}"
# Rules on combinations of fields, which types cannot express.
_RULES: Mapping[type, Mapping[str, object]] = {NewMessage: NEW_MESSAGE_RULES}
# Statuses that any request may return, from the API or the HTTP stack.
_ALWAYS = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.REQUEST_URI_TOO_LONG,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
}


def document(routes: Iterable[AnyRoute]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    routes = list(routes)
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "AlpacaMQ HTTP API",
            "version": VERSION,
            "description": (
                "Topics, messages, groups, queues and transactions as JSON. Timestamps are in milliseconds "
                "since 1970; in requests they may be RFC 3339 text. Errors are problem documents (RFC 9457)."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        # Either, or neither where the broker does not require authentication.
        "security": [{}, {"password": []}, {"key": []}],
        "components": {
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "key": {"type": "http", "scheme": "bearer", "description": "An API key, amq_…"},
            },
            "schemas": schemas.components,
            "responses": {"Problem": _problem("What went wrong", schemas)},
        },
    }


class _Schemas:
    """JSON schemas of the types that routes use."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        types: list[Any] = [Problem]
        for route in routes:
            types += [*_body_types(route), *route.answers]
        found, self.components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
        self._schemas = dict(zip(map(_key, types), found, strict=True))
        for kind, rules in _RULES.items():
            self.components[kind.__name__].update(rules)

    def of(self, kinds: Iterable[Any]) -> dict[str, Any]:
        """Return the schema of a type, or of several alternatives."""
        schemas = [self._schemas[_key(kind)] for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _operation(route: AnyRoute, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *_WORD.findall(route.path)]),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if types := _body_types(route):
        operation["requestBody"] = {
            "required": any(_has_required(kind) for kind in types),
            "content": {"application/json": {"schema": schemas.of(types)}},
        }
    return operation


def _parameters(route: AnyRoute) -> list[dict[str, Any]]:
    # Without components: each schema is used in one place only.
    _, components = msgspec.json.schema_components([route.parameters], ref_template=_REFERENCE)
    described = components[route.parameters.__name__]
    in_path = route.path_names
    parameters = []
    for name, property_schema in described["properties"].items():
        parameter = {"name": name, "in": "path" if name in in_path else "query"}
        property_schema = _inlined(property_schema, components)
        if (description := property_schema.pop("description", None)) is not None:
            parameter["description"] = description
        parameter["required"] = name in described["required"]
        parameter["schema"] = property_schema
        parameters.append(parameter)
    return parameters


def _inlined(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with references to enumerations replaced by their values."""
    for part in schema.get("anyOf", schema.get("allOf", [schema])):
        if (reference := part.pop("$ref", None)) is not None:
            found = components[reference.rpartition("/")[2]]
            part.update({"type": "string", "enum": found["enum"]})
    return schema


def _responses(route: AnyRoute, schemas: _Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.answers:
        media_type = route.content_type.partition(";")[0]
        success["content"] = {media_type: {"schema": schemas.of(route.answers)}}
    statuses = {CODES[error] for error in _possible_errors(route)} | _ALWAYS
    return {
        str(int(route.status)): success,
        **{
            str(int(status)): {"$ref": "#/components/responses/Problem"}
            for status in sorted(statuses)
            if status != route.status
        },
    }


def _possible_errors(route: AnyRoute) -> set[type[AlpacaError]]:
    errors = {*route.errors, InvalidInput, ConflictingInput, CrossOrigin}
    if route.body is not Nothing:
        errors.add(UnsupportedMediaType)
    return errors


def _problem(description: str, schemas: _Schemas) -> dict[str, Any]:
    return {"description": description, "content": {PROBLEM_JSON: {"schema": schemas.of([Problem])}}}


def _body_types(route: AnyRoute) -> tuple[Any, ...]:
    if route.body is Nothing:
        return ()
    return route.body_shapes or (route.body,)


def _has_required(kind: Any) -> bool:
    return kind in _RULES or any(field.required for field in msgspec.structs.fields(kind))


def _key(kind: Any) -> str:
    return repr(kind)


def openapi(_call: Call[Nothing, Nothing]) -> Response:
    return Response(200, encoded_document())


@cache
def encoded_document() -> bytes:
    """Return the OpenAPI document, generated on first use."""
    return msgspec.json.encode(document(ROUTES))


ROUTES: tuple[AnyRoute, ...] = (
    *topics.ROUTES,
    *publishing.ROUTES,
    *reading.ROUTES,
    *delayed.ROUTES,
    *groups.ROUTES,
    *polling.ROUTES,
    *offsets.ROUTES,
    *queues.ROUTES,
    *transactions.ROUTES,
    *traces.ROUTES,
    *stats.ROUTES,
    *health.ROUTES,
    *cluster.ROUTES,
    *users.ROUTES,
    *acls.ROUTES,
    *quotas.ROUTES,
    *keys.ROUTES,
    *tenants.ROUTES,
    *sessions.ROUTES,
    Route(
        method="GET",
        path="/openapi.json",
        summary="This description",
        handler=openapi,
        parameters=Nothing,
        body=Nothing,
        answers=(dict[str, Any],),
    ),
)


def routes_page() -> str:
    """Return all routes with their parameters as a Markdown table."""
    rows = [f"| `{route.method} {route.path}` | {route.summary} | {_taken(route)} |" for route in ROUTES]
    return "| request | effect | parameters |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _taken(route: AnyRoute) -> str:
    query = _fields(route.parameters, without=route.path_names)
    parts = []
    if query:
        parts.append(f"query: {_listed(query)}")
    if route.body is not Nothing:
        shapes = route.body_shapes or (route.body,)
        parts.append(f"body: {' or '.join(_listed(_fields(shape)) for shape in shapes)}")
    return "; ".join(parts)


def _fields(kind: Any, without: Sequence[str] = ()) -> list[str]:
    """Return the fields of a struct; required ones first, in bold."""
    fields = sorted(
        (field for field in msgspec.structs.fields(kind) if field.encode_name not in without),
        key=lambda field: not field.required,
    )
    return [f"**{field.encode_name}**" if field.required else field.encode_name for field in fields]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
