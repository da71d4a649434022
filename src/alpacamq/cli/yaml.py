"""YAML output of plain data: block style, with double quotes wherever a bare word is ambiguous."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# Words that some YAML parsers do not read as text.
_TAKEN = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
# Printable in JSON, but not in YAML.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def yaml(data: Plain) -> str:
    """Format one document, without a final newline."""
    return "\n".join(_lines(data))


def _lines(data: Plain) -> Iterator[str]:
    match data:
        case str():
            yield _text(data)
        case Mapping() if data:
            for key, value in data.items():
                yield from _under(f"{_text(key)}:", value)
        case Sequence() if data:
            for value in data:
                first, *rest = _lines(value)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)
        case _:
            # Numbers, true, false, null and empty collections are written as in JSON.
            yield json.dumps(data)


def _under(key: str, value: Plain) -> Iterator[str]:
    lines = list(_lines(value))
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence) or not value:
        yield f"{key} {lines[0]}"
    else:
        yield key
        yield from (f"  {line}" for line in lines)


def _text(text: str) -> str:
    if _BARE.fullmatch(text) and text.lower() not in _TAKEN:
        return text
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
