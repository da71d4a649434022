"""Serves the console's files, and passes every other request to the HTTP API."""

from collections.abc import Awaitable, Mapping
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

import msgspec

from alpacamq.api.http.messages import App, Request, Response, problem

INDEX = "index.html"
_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class ConsoleFile(msgspec.Struct, frozen=True, kw_only=True):
    """One served file."""

    content: bytes
    content_type: str
    tag: str


def read_files() -> Mapping[str, ConsoleFile]:
    """Read all files of the console, by path below `/console/`."""
    return dict(_below(Path(__file__).with_name("static"), ""))


def _below(directory: Path, prefix: str) -> list[tuple[str, ConsoleFile]]:
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


PREFIX = "/console/"
_TO_CONSOLE = Response(HTTPStatus.FOUND, headers=(("Location", PREFIX), ("Vary", "Accept")))
# Pages may run our scripts, send requests to this broker, and nothing else. Message contents are only used as
# text; should that fail, the browser still refuses to run them as script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    # For browsers that do not know frame-ancestors.
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    # Revalidated on every use, with 304 while unchanged: a page never
    # consists of files of two versions.
    ("Cache-Control", "no-cache"),
)


class ConsoleApp:
    """An App of the HTTP listener: the console in front of the HTTP API."""

    def __init__(self, api: App) -> None:
        self._api = api
        self._files = read_files()

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        path = request.path
        if path.startswith(PREFIX):
            return self._file(request, path[len(PREFIX) :] or INDEX)
        if path == PREFIX[:-1] or (path == "/" and _is_browser(request)):
            return _TO_CONSOLE
        return self._api(request)

    def _file(self, request: Request, name: str) -> Response:
        if request.method not in {"GET", "HEAD"}:
            return problem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "files of the console are read-only",
                (("Allow", "GET, HEAD"),),
            )
        if (file := self._files.get(name)) is None:
            return problem(HTTPStatus.NOT_FOUND, "unknown file of the console")
        headers = (*_HEADERS, ("ETag", file.tag))
        if _has_already(request, file):
            return Response(HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(HTTPStatus.OK, file.content, file.content_type, headers)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _has_already(request: Request, file: ConsoleFile) -> bool:
    known = request.headers.get("if-none-match", "")
    return known.strip() == "*" or file.tag in (tag.strip().removeprefix("W/") for tag in known.split(","))
