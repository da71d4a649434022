"""Contexts: brokers under names, and which of them is the current one, in a file of the user's own.

The file is TOML. It is replaced as a whole, so that whoever reads it meanwhile sees the old or the
new one, never half of it.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .parsing import WrongUsage

FILE_VARIABLE = "ALPACACTL_CONFIG"
_MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_KEYS = ("http", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where one broker is; what is not known is None."""

    http: str | None = None
    broker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Every context by name, and the name of the one that counts where none is named."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def with_context(self, name: str, context: Context) -> "Contexts":
        """The first one there is becomes the current one."""
        return replace(self, current=self.current or name, by_name={**self.by_name, name: context})

    def without(self, name: str) -> "Contexts":
        left = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts(current=None if self.current == name else self.current, by_name=left)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WrongUsage(
            f"{name!r} cannot name a context: letters, digits, '.', '_' and '-', at most 64 of them"
        )


def file_of(environ: Mapping[str, str]) -> Path:
    """Where contexts are kept."""
    if chosen := environ.get(FILE_VARIABLE):
        return Path(chosen)
    base = environ.get("XDG_CONFIG_HOME") or ""
    # As the XDG specification has it: a relative path is as good as none. Not Path.expanduser, which
    # fails for users without a home; they have no contexts.
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
    directory = Path(base) if base.startswith("/") else Path(home) / ".config"
    return directory / "alpacamq" / "alpacactl.toml"


def read(path: Path) -> Contexts:
    """What the file says; no contexts where there is no file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise WrongUsage(f"the contexts in {path} cannot be read: {error.strerror}") from None
    import tomllib

    try:
        if len(content) > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
        return _contexts(tomllib.loads(content.decode()))
    except ValueError as error:
        raise WrongUsage(
            f"the contexts in {path} make no sense: {error}; repair or remove the file"
        ) from None


def write(path: Path, contexts: Contexts) -> None:
    """Replace the file."""
    lines = [] if contexts.current is None else [f'current = "{contexts.current}"', ""]
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f'[contexts."{name}"]')
        pairs = zip(_KEYS, (context.http, context.broker), strict=True)
        lines += [f'{key} = "{value}"' for key, value in pairs if value is not None]
        lines.append("")
    # Behind a link stands the file that was meant, maybe on another file system.
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


def _contexts(document: Mapping[str, object]) -> Contexts:
    if unknown := document.keys() - {"current", "contexts"}:
        raise ValueError(f"there is no {min(unknown)}, only current and [contexts.NAME]")
    current = document.get("current")
    tables = document.get("contexts", {})
    if not isinstance(current, str | None):
        raise ValueError("current has to be the name of a context")
    if not isinstance(tables, dict):
        raise ValueError("contexts has to be a table")
    found = {name: _context(name, table) for name, table in tables.items()}
    return Contexts(current=current, by_name=found)


def _context(name: str, table: object) -> Context:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a context")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"[contexts.{name}] has to have addresses, HOST:PORT, under http and broker")
    if unknown := table.keys() - set(_KEYS):
        raise ValueError(f"[contexts.{name}] knows http and broker, not {min(unknown)}")
    return Context(http=table.get("http"), broker=table.get("broker"))
