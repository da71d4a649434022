"""docs/reference/http.md: every request of the HTTP API, from its OpenAPI document and its routes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from alpacamq.api.rest.errors import CODES, problem_of
from alpacamq.api.rest.openapi import document
from alpacamq.api.rest.route import AnyRoute
from alpacamq.api.rest.table import ROUTES
from alpacamq.model.errors import AlpacaError

Schema = Mapping[str, Any]

# As high as numbers go; no limit that anybody would want to read.
_HIGHEST = {(1 << 31) - 1, (1 << 63) - 1}
_PREFACE = """\
# HTTP reference

Every request of the [HTTP API](../guide/http.md), as the broker itself describes it under
`GET /openapi.json`. This page is written by `make docs`.

Bodies and answers are JSON. Times are milliseconds since 1970 unless a field says otherwise; times that
are sent may also be text like `2026-01-31T12:00:00Z`. A field in **bold** must be given, or is always there.

## Errors of every request

What goes wrong is answered with a [Problem](#problem), as `application/problem+json`. Beside the errors
that are named with a request, any request can be answered with

| status | when |
|---|---|
| 400 | a parameter or the body is not as described here; `field` says which |
| 403 | a browser asks for a page of another site |
| 408, 413, 414, 431 | the request came too slowly, or is too large |
| 415 | the body is not JSON |
| 422 | fields that are right by themselves contradict each other |
| 500 | a fault of the broker; its log says more |
| 503 | not now: the broker is starting, stopping, or has too much to do |
"""


def http_reference() -> str:
    """The whole page."""
    described = document(ROUTES)
    parts = [_PREFACE]
    for tag in dict.fromkeys(route.tag for route in ROUTES):
        parts.append(f"## {tag.capitalize()}\n")
        parts += [_request(route, described) for route in ROUTES if route.tag == tag]
    parts.append("## Types\n")
    parts += [_component(name, schema) for name, schema in sorted(described["components"]["schemas"].items())]
    return "\n".join(parts)


def _request(route: AnyRoute, described: Schema) -> str:
    operation = described["paths"][route.path][route.method.lower()]
    lines = [f"### {route.method} {route.path}", "", f"{route.summary}.", ""]
    if operation["parameters"]:
        lines += ["| parameter | in | value | default | meaning |", "|---|---|---|---|---|"]
        lines += [
            _row(each, each["schema"], each["required"], each["in"]) for each in operation["parameters"]
        ]
        lines.append("")
    if "requestBody" in operation:
        body = operation["requestBody"]
        (content,) = body["content"].values()
        optional = "" if body["required"] else ", optional"
        lines.append(f"- Body{optional}: {_value(content['schema'])}")
    lines.append(f"- Answer: {_answer(route, operation)}")
    if route.errors:
        lines.append(f"- Errors: {', '.join(_errors(route.errors))}")
    lines.append("")
    return "\n".join(lines)


def _answer(route: AnyRoute, operation: Schema) -> str:
    content = operation["responses"][str(int(route.status))].get("content")
    if content is None:
        return f"{int(route.status)}, without content"
    ((media_type, answer),) = content.items()
    what = _value(answer["schema"]) if media_type == "application/json" else f"`{media_type}`"
    return f"{int(route.status)}, {what}"


def _errors(errors: Iterable[type[AlpacaError]]) -> Iterator[str]:
    for error in sorted(set(errors), key=lambda error: (CODES[error], error.__name__)):
        yield f"{int(CODES[error])} `{_problem_type(error)}`"


def _problem_type(error: type[AlpacaError]) -> str:
    # Without its constructor: only the name of the class matters.
    return problem_of(error.__new__(error)).type.rpartition(":")[2]


def _component(name: str, schema: Schema) -> str:
    lines = [f"### {name}", ""]
    if text := schema.get("description"):
        lines += [_cell(text), ""]
    if properties := schema.get("properties"):
        required = schema.get("required", [])
        lines += ["| field | value | default | meaning |", "|---|---|---|---|"]
        lines += [
            _row({"name": field, **each}, each, field in required) for field, each in properties.items()
        ]
    else:
        lines.append(f"Value: {_value(schema)}.")
    lines.append("")
    return "\n".join(lines)


def _row(described: Schema, schema: Schema, is_required: bool, place: str | None = None) -> str:
    name = f"**`{described['name']}`**" if is_required else f"`{described['name']}`"
    default = schema.get("default")
    cells = [
        name,
        *([place] if place else []),
        _value(schema),
        "" if default in (None, "", [], {}) else f"`{_json(default)}`",
        _cell(described.get("description", "")),
    ]
    return f"| {' | '.join(cells)} |"


def _value(schema: Schema) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema and "properties" not in schema:
            return " or ".join(dict.fromkeys(_value(each) for each in schema[choice]))
    if "enum" in schema:
        return ", ".join(f"`{_json(each)}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return _list(schema)
        case "object":
            inner = schema.get("additionalProperties")
            return f"object of {_value(inner)}" if isinstance(inner, Mapping) and inner else "object"
        case "integer" | "number" as kind:
            return f"{kind}{_bounds(schema)}"
        case "string":
            return _string(schema)
        case None:
            return "any JSON"
        case kind:
            return str(kind)


def _list(schema: Schema) -> str:
    if "prefixItems" in schema:
        return f"list of {', '.join(_value(each) for each in schema['prefixItems'])}"
    most = f", at most {schema['maxItems']:,}" if "maxItems" in schema else ""
    return f"list of {_value(schema.get('items', {}))}{most}"


def _bounds(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most in _HIGHEST:
        most = None
    if least is not None and most is not None:
        return f" from {least:,} to {most:,}"
    if least is not None:
        return f" from {least:,}"
    return f" up to {most:,}" if most is not None else ""


def _string(schema: Schema) -> str:
    if schema.get("contentEncoding") == "base64":
        return "text in base64"
    if schema.get("format") == "date-time":
        return "time as text"
    examples = ", ".join(f"`{_json(each)}`" for each in schema.get("examples", []))
    return f"text such as {examples}" if examples else "text"


def _json(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return value
        case _:
            return str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
