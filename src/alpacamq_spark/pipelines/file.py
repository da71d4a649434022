"""Reads the file of a pipeline, TOML or YAML, with errors that name the key and suggest the nearest one."""

import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from alpacamq.client.errors import NotFound

from .definition import KINDS, Definition, Kind, Part
from .errors import InvalidPipeline

SUFFIXES = (".toml", ".yaml", ".yml")
MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 100_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KINDS = {str(kind.__struct_config__.tag): kind for kind in KINDS}


def read_definition(path: Path) -> Kind:
    """Read a file. Raises InvalidPipeline, or NotFound if it does not exist."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidPipeline(f"{path} is larger than {MAX_FILE_BYTES} bytes, too large for a pipeline")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = [str(each) for each in path.parent.glob("*") if each.suffix in SUFFIXES]
        raise NotFound("pipeline file", str(path), near) from None
    except UnicodeDecodeError:
        raise InvalidPipeline(f"{path} is not text in UTF-8") from None
    try:
        return define(_parse(path, text))
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{path}: {error}") from None


def define(data: object) -> Kind:
    """Build a definition from plain data. Raises InvalidPipeline."""
    if not isinstance(data, Mapping):
        raise InvalidPipeline("a pipeline must be a table with the key kind")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        given = "the key kind is missing" if kind is None else f"kind = {kind!r} is unknown"
        raise InvalidPipeline(f"{given}; it is one of {', '.join(_KINDS)}{_hint(str(kind), _KINDS)}")
    _check_keys(data, _KINDS[kind], "")
    try:
        # Structs are selected by their tag, so the kinds are given as a union.
        definition: Kind = msgspec.convert(data, Kind)
    except msgspec.ValidationError as error:
        raise InvalidPipeline(_rephrase(str(error))) from None
    if definition.name is not None and not _NAME.fullmatch(definition.name):
        raise InvalidPipeline(
            f"name = {definition.name!r}: a name may contain only letters, digits, '.', '_' and '-'"
        )
    for place, part in _parts(definition, ""):
        part.check(place)
    definition.check()
    return definition


def name_of(path: Path, definition: Definition) -> str:
    """Return the pipeline's name: its key `name`, or the name of its file."""
    if definition.name is not None:
        return definition.name
    if not _NAME.fullmatch(path.stem):
        raise InvalidPipeline(f"{path}: the file's name is not a valid pipeline name; set name = …")
    return path.stem


def _parse(path: Path, text: str) -> object:
    if path.suffix == ".toml":
        try:
            return _Plain().of(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidPipeline(f"not TOML: {error}") from None
    if path.suffix in SUFFIXES:
        try:
            import yaml
        except ModuleNotFoundError:
            raise InvalidPipeline(
                "YAML needs the package pyyaml: `pip install pyyaml`; or write it in TOML"
            ) from None
        try:
            return _Plain().of(yaml.safe_load(text))
        except (yaml.YAMLError, RecursionError) as error:
            raise InvalidPipeline(f"not YAML: {' '.join(str(error).split())}") from None
    raise InvalidPipeline(f"a pipeline file must end in {', '.join(SUFFIXES)}")


class _Plain:
    """Converts times to text, as they can also be written; and keys, as YAML reads `0:` as a number.

    Counts values: a short YAML file can expand to a huge one.
    """

    def __init__(self) -> None:
        self._values_left = MAX_VALUES

    def of(self, value: Any) -> Any:
        self._values_left -= 1
        if self._values_left < 0:
            raise InvalidPipeline(f"more than {MAX_VALUES} values, too many for a pipeline")
        match value:
            case Mapping():
                return {str(key): self.of(each) for key, each in value.items()}
            case list():
                return [self.of(each) for each in value]
            case datetime():
                return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
            case date():
                return f"{value.isoformat()}T00:00:00+00:00"
            case _:
                return value


def _check_keys(data: Mapping[str, object], struct: type[msgspec.Struct], place: str) -> None:
    """Reject unknown keys and choices of a table, suggesting the nearest known one."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    tag_field = struct.__struct_config__.tag_field
    for key, value in data.items():
        if key == tag_field:
            continue
        here = f"{place}{key}"
        if key not in fields:
            hint = _hint(key, fields) or f"; keys are {', '.join(fields)}"
            raise InvalidPipeline(f"unknown key {here}{hint}")
        choices = _choices(fields[key])
        if choices and isinstance(value, str) and value not in choices:
            raise InvalidPipeline(
                f"{here} = {value!r} is not one of {', '.join(choices)}{_hint(value, choices)}"
            )
        for inner, where, parts in _tables(value, fields[key], here):
            struct_of = _chosen(inner, parts, where)
            if struct_of is not None:
                _check_keys(inner, struct_of, f"{where}.")
        if typing.get_origin(fields[key]) is Mapping and isinstance(value, Mapping):
            # One by one, because msgspec does not say under which name it found an error.
            for name, each in value.items():
                try:
                    msgspec.convert(each, typing.get_args(fields[key])[1])
                except msgspec.ValidationError as error:
                    raise InvalidPipeline(_rephrase(str(error), f"{here}.{name}")) from None


def _choices(kind: Any) -> tuple[str, ...]:
    """Return the words that a value may be; none if it may be any text."""
    kinds = [kind, *typing.get_args(kind)]
    return tuple(
        word for each in kinds if typing.get_origin(each) is Literal for word in typing.get_args(each)
    )


def _tables(
    value: object, kind: Any, place: str
) -> Iterator[tuple[Mapping[str, object], str, list[type[Part]]]]:
    """Yield the tables inside a value, and the structs that each may be."""
    parts = [each for each in _leaves(kind) if isinstance(each, type) and issubclass(each, Part)]
    if not parts:
        return
    if isinstance(value, list):
        for index, each in enumerate(value, 1):
            if isinstance(each, Mapping):
                yield each, f"{place}[{index}]", parts
    elif isinstance(value, Mapping):
        if typing.get_origin(kind) is Mapping:
            for key, each in value.items():
                if isinstance(each, Mapping):
                    yield each, f"{place}.{key}", parts
        else:
            yield value, place, parts


def _leaves(kind: Any) -> Iterator[Any]:
    arguments = typing.get_args(kind)
    if not arguments:
        yield kind
    for each in arguments:
        yield from _leaves(each)


def _chosen(data: Mapping[str, object], parts: list[type[Part]], place: str) -> type[Part] | None:
    tagged = {str(part.__struct_config__.tag): part for part in parts if part.__struct_config__.tag}
    if not tagged:
        return parts[0]
    word = data.get("do")
    if not isinstance(word, str) or word not in tagged:
        given = "lacks the key do" if word is None else f"has do = {word!r}"
        raise InvalidPipeline(f"{place} {given}; a step does one of {', '.join(tagged)}")
    return tagged[word]


def _parts(value: object, place: str) -> Iterator[tuple[str, Part]]:
    """Yield every table of a definition with its path."""
    if isinstance(value, msgspec.Struct):
        if isinstance(value, Part):
            yield place, value
        for field in msgspec.structs.fields(value):
            yield from _parts(getattr(value, field.name), f"{place}.{field.encode_name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _parts(each, f"{place}.{key}")
    elif isinstance(value, tuple):
        for index, each in enumerate(value, 1):
            yield from _parts(each, f"{place}[{index}]")


def _hint(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# msgspec's words for types, and those of pipeline files.
_WORDS = {
    "object": "a table",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def _rephrase(text: str, inside: str = "") -> str:
    """Rewrite msgspec's message with the path in front, which begins at the table `inside`."""
    message, _, path = text.partition(" - at `$")
    # Indexes in messages count from one.
    place = re.sub(r"\[(\d+)\]", lambda found: f"[{int(found[1]) + 1}]", path.rstrip("`").lstrip("."))
    place = ".".join(each for each in (inside, place) if each)
    message = message.replace("Object missing required field", "lacks the key").replace("`", "")
    for theirs, ours in _WORDS.items():
        message = re.sub(rf"(Expected |got |\| )\b{theirs}\b", rf"\1{ours}", message)
    return f"{place}: {message}" if place else message.replace("lacks", "the pipeline lacks", 1)
