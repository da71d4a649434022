"""Options of the configuration: names in file, environment and command line, and parsing of values.

Owns the parsing of single values and its error messages. The list of options is in `config`,
as the fields of the sections.
"""

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError, InvalidConfig
from alpacamq.model.topics import SETTINGS, Setting, check_setting

PREFIX = "ALPACAMQ_"

# Marks an option whose value is never printed.
SECRET = {"secret": True}


class ConfigError(AlpacaError):
    """Invalid configuration; names the source, the option and the fault."""


def variable_of(key: str) -> str:
    """Return the environment variable of an option."""
    return PREFIX + key.upper().replace(".", "_")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a suggestion to append to an error message; empty if no name is similar."""
    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _directory(text: str) -> Path:
    if not text:
        raise ValueError("the path is empty")
    return Path(text)


_PARSERS: Mapping[Any, Callable[[str], Any]] = {Address: Address.parse, Path: _directory}


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a section."""

    key: str
    type: Any
    default: Any
    meta: msgspec.Meta
    annotation: Any

    @property
    def doc(self) -> str:
        return self.meta.description or ""

    @property
    def expected(self) -> str:
        """Describe valid values, to follow "must be"."""
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return f"an integer from {self.meta.ge} to {self.meta.le}"
        if isinstance(self.type, type) and issubclass(self.type, Enum):
            return "one of " + ", ".join(member.value for member in self.type)
        if self.type is Path:
            return self.meta.title or "the path of a directory"
        if self.type is str or self.is_list:
            return self.meta.title or "a string"
        return "an address, HOST:PORT"

    @property
    def is_list(self) -> bool:
        """Whether the option takes several values: an array in files, separated by commas elsewhere."""
        return typing.get_origin(self.type) is tuple

    @property
    def default_text(self) -> str:
        """The default as users write it."""
        if self.default is None:
            return ""
        if self.is_list:
            return ",".join(self.default)
        return str(self.default).lower() if self.type is bool else str(self.default)

    def read(self, value: object, place: str) -> Any:
        """Read a value from a file, where values are typed."""
        return self._convert(value, place, strict=True)

    def read_text(self, text: str, place: str) -> Any:
        """Read a value from the environment or the command line, where values are text."""
        return self._convert(text.strip(), place, strict=False)

    def _convert(self, value: object, place: str, *, strict: bool) -> Any:
        if value == "" and self.default is None:
            return None
        reason = ""
        given = value
        if self.is_list and isinstance(value, str):
            value = [part for each in value.split(",") if (part := each.strip())]
        try:
            if (parse := _PARSERS.get(self.type)) is None:
                return msgspec.convert(value, self.annotation, strict=strict)
            if isinstance(value, str):
                return parse(value)
        except msgspec.ValidationError:
            pass  # its message is about Python types; `expected` describes the option for users
        except ValueError as error:
            reason = f": {error}"
        shown = "the given value" if self.meta.extra == SECRET else repr(given)
        raise ConfigError(f"{place} must be {self.expected}, not {shown}{reason}")


class TopicDefault(msgspec.Struct, frozen=True, kw_only=True):
    """Default of a topic setting on this node: an entry of [topics.defaults]."""

    name: str
    setting: Setting

    @property
    def key(self) -> str:
        return f"topics.defaults.{self.name}"

    def read(self, value: object, place: str) -> str:
        """Read a value from a file, which may contain numbers."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"{place} must be a string or a number, not {value!r}")
        return self.read_text(str(value), place)

    def read_text(self, text: str, place: str) -> str:
        try:
            check_setting(self.name, text)
        except InvalidConfig as error:
            raise ConfigError(f"{place}: {error}") from None
        return text.strip()


def options_of(section: str, struct: type[msgspec.Struct]) -> Iterator[Option]:
    """Yield the options of one section, in the order of its fields."""
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if typing.get_origin(hint) is not typing.Annotated:
            continue  # the table of topic defaults has its own options
        inner, meta = typing.get_args(hint)
        if type(None) in typing.get_args(inner):
            inner = next(part for part in typing.get_args(inner) if part is not type(None))
        key = f"{section}.{field.name}"
        yield Option(key=key, type=inner, default=field.default, meta=meta, annotation=hint)


def topic_defaults() -> Iterator[TopicDefault]:
    """Yield every topic setting as an entry of [topics.defaults]."""
    for name, setting in SETTINGS.items():
        yield TopicDefault(name=name, setting=setting)
