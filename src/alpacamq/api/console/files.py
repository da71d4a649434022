"""The console's files: a fixed table, read once, each with its type and its tag.

A path that is not in the table is not there, so nothing that a client sends ever names a file on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

INDEX = "index.html"
_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleFile:
    """One file as it is served."""

    content: bytes
    content_type: str
    tag: str


def read_files() -> Mapping[str, ConsoleFile]:
    """Every file of the console by its path below `/console/`."""
    return dict(_below(files(__package__) / "static", ""))


def _below(directory: Traversable, prefix: str) -> list[tuple[str, ConsoleFile]]:
    found: list[tuple[str, ConsoleFile]] = []
    for each in directory.iterdir():
        name = prefix + each.name
        if each.is_dir():
            found += _below(each, f"{name}/")
        elif (content_type := _TYPES.get(name.rpartition(".")[2])) is not None:
            content = each.read_bytes()
            tag = f'"{sha256(content).hexdigest()[:20]}"'
            found.append((name, ConsoleFile(content=content, content_type=content_type, tag=tag)))
    return found
