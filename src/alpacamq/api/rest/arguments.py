"""What a request brings, read into the types its route names; what is wrong is said with its place."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from alpacamq.api.http.messages import Request

from .errors import InvalidInput, UnsupportedMediaType
from .route import AnyRoute, Nothing

# As msgspec writes them: what is wrong, and where. Of keys: "... - at `key` in `$.settings`".
_PLACED = re.compile(r"^(.*?) - at (?:`key` in )?`\$([^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(.*)`$")
# curl's own choice where nobody says what the body is; it is JSON all the same, or refused.
_CURL_DEFAULT = "application/x-www-form-urlencoded"


class Arguments:
    """Reads the parameters and the body for one route."""

    __slots__ = ("_body", "_decode", "_in_path", "_parameters")

    def __init__(self, route: AnyRoute) -> None:
        self._parameters = route.parameters
        self._in_path = route.path_names
        self._body = route.body
        self._decode = msgspec.json.Decoder(route.body).decode

    def parameters(self, in_path: dict[str, str], request: Request) -> Any:
        """The parameters, of the path and of the query."""
        values = in_path
        if request.query_string:
            for name, given in request.query.items():
                if name in self._in_path:
                    raise InvalidInput(f"{name} is part of the path and cannot be in the query", name)
                if len(given) > 1:
                    raise InvalidInput(f"{name} is given {len(given)} times", name)
                values[name] = given[0]
        if not values and self._parameters is Nothing:
            return _NOTHING
        try:
            return msgspec.convert(values, self._parameters, strict=False)
        except msgspec.ValidationError as error:
            raise _explained(error, self._parameters, is_body=False) from None

    def body(self, request: Request) -> Any:
        """The body; where there is none, an empty object."""
        if self._body is Nothing:
            return _NOTHING
        _check_media_type(request.headers)
        try:
            return self._decode(request.body or b"{}")
        except msgspec.ValidationError as error:
            raise _explained(error, self._body, is_body=True) from None
        except msgspec.DecodeError as error:
            raise InvalidInput(f"the body is not JSON: {error}") from None
        except UnicodeDecodeError:
            raise InvalidInput("the body is not UTF-8") from None
        except RecursionError:
            raise InvalidInput("the body is nested too deeply") from None


_NOTHING = Nothing()


def _check_media_type(headers: Mapping[str, str]) -> None:
    if (given := headers.get("content-type")) is None:
        return
    media_type = given.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and media_type != _CURL_DEFAULT:
        raise UnsupportedMediaType(f"the body is taken as application/json, not as {media_type}")


def _explained(error: msgspec.ValidationError, expected: Any, *, is_body: bool) -> InvalidInput:
    """The error with the place it is at and, for a misspelt name, the nearest there is."""
    text, steps = str(error), []
    if (placed := _PLACED.match(text)) is not None:
        text = placed[1]
        for name, index in _STEP.findall(placed[2]):
            if index == "...":  # some key of a mapping; which one is not known
                break
            steps.append(name or index)
    if (unknown := _UNKNOWN_FIELD.match(text)) is not None:
        steps.append(unknown[1])
        near = get_close_matches(unknown[1], sorted(_field_names(expected)), n=1)
        text = f"there is no {unknown[1]!r} here" + (f"; did you mean {near[0]!r}?" if near else "")
    elif (missing := _MISSING_FIELD.match(text)) is not None:
        steps.append(missing[1])
        text = "is missing"
    else:
        text = text[:1].lower() + text[1:].replace("`", "")
    if is_body:
        field = "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)
    else:
        field = steps[0] if steps else ""
    return InvalidInput(f"{field or 'the body'}: {text}", field)


def _field_names(expected: Any) -> set[str]:
    """The names of all fields of a type and of the types within it."""
    names: set[str] = set()
    found = [msgspec.inspect.type_info(expected)]
    while found:
        kind = found.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            names.update(field.encode_name for field in kind.fields)
            found += [field.type for field in kind.fields]
        elif isinstance(kind, msgspec.inspect.UnionType):
            found += kind.types
        elif isinstance(kind, msgspec.inspect.ListType):
            found.append(kind.item_type)
        elif isinstance(kind, msgspec.inspect.Metadata):
            found.append(kind.type)
    return names
