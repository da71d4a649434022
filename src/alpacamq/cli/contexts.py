"""Contexts: named brokers and the current one, stored in a TOML file of the user.

The file is replaced atomically, so that concurrent readers see the old or the new version.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .parsing import UsageError

FILE_VARIABLE = "ALPACACTL_CONFIG"
_MAX_FILE_BYTES = 1 << 20
_ESCAPED = frozenset({'"', "\\", "\x7f", *map(chr, range(32))})
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_KEYS = ("http", "broker", "user", "password_file", "mechanism", "tls", "ca", "cert", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Addresses of one broker, and the user of commands; None if unknown."""

    http: str | None = None
    broker: str | None = None
    user: str | None = None
    # The file that holds its password.
    password_file: str | None = None
    mechanism: str | None = None
    # "true" if the broker uses TLS; files of certificates.
    tls: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """All contexts by name, and the name of the current one."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def with_context(self, name: str, context: Context) -> "Contexts":
        """Add or replace a context; the first one becomes the current one."""
        return replace(self, current=self.current or name, by_name={**self.by_name, name: context})

    def without(self, name: str) -> "Contexts":
        left = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts(current=None if self.current == name else self.current, by_name=left)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid context name {name!r}: use at most 64 letters, digits, '.', '_' and '-'")


def file_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the contexts file."""
    if chosen := environ.get(FILE_VARIABLE):
        return Path(chosen)
    base = environ.get("XDG_CONFIG_HOME") or ""
    # The XDG specification says to ignore relative paths. Not Path.expanduser, which
    # fails for users without a home directory; they have no contexts.
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
    directory = Path(base) if base.startswith("/") else Path(home) / ".config"
    return directory / "alpacamq" / "alpacactl.toml"


def read(path: Path) -> Contexts:
    """Read the file; no contexts if it does not exist."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UsageError(f"cannot read the contexts file {path}: {error.strerror}") from None
    import tomllib

    try:
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(f"larger than {_MAX_FILE_BYTES} bytes")
        return _contexts(tomllib.loads(content.decode()))
    except ValueError as error:
        raise UsageError(f"invalid contexts file {path}: {error}; fix or remove it") from None


def write(path: Path, contexts: Contexts) -> None:
    """Replace the file atomically."""
    lines = [] if contexts.current is None else [f'current = "{contexts.current}"', ""]
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f'[contexts."{name}"]')
        values = {key: getattr(context, key) for key in _KEYS}
        lines += [f"{key} = {_quoted(value)}" for key, value in values.items() if value is not None]
        lines.append("")
    # Replace the target of a symbolic link, not the link; it may be on another file system.
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(draft).unlink()
        raise


def _quoted(text: str) -> str:
    """Return a string of TOML."""
    escaped = (f"\\u{ord(each):04x}" if each in _ESCAPED else each for each in text)
    return f'"{"".join(escaped)}"'


def _contexts(document: Mapping[str, object]) -> Contexts:
    if unknown := document.keys() - {"current", "contexts"}:
        raise ValueError(f"unknown key {min(unknown)}; valid are current and [contexts.NAME]")
    current = document.get("current")
    tables = document.get("contexts", {})
    if not isinstance(current, str | None):
        raise ValueError("current must be the name of a context")
    if not isinstance(tables, dict):
        raise ValueError("contexts must be a table")
    found = {name: _context(name, table) for name, table in tables.items()}
    return Contexts(current=current, by_name=found)


def _context(name: str, table: object) -> Context:
    if not _NAME.fullmatch(name):
        raise ValueError(f"invalid context name {name!r}")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"[contexts.{name}] must have texts, such as HOST:PORT for http and broker")
    if unknown := table.keys() - set(_KEYS):
        raise ValueError(f"[contexts.{name}] has an unknown key {min(unknown)}; valid are {', '.join(_KEYS)}")
    return Context(**table)
