"""The console's files over HTTP: found, typed, tagged, guarded, and nothing beside them."""

import re
from pathlib import Path

import httpx
import pytest

import alpacamq.api.console
from alpacamq.api.console.app import read_files

STATIC = Path(alpacamq.api.console.__file__).parent / "static"


def test_every_file_of_the_package_is_served(http: httpx.Client) -> None:
    names = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert names == read_files().keys()
    for name in names:
        assert http.get(f"/console/{name}").raise_for_status().content == (STATIC / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("", "text/html; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("pages/topics.js", "text/javascript; charset=utf-8"),
        ("base.css", "text/css; charset=utf-8"),
        ("alpaca.svg", "image/svg+xml"),
    ],
)
def test_a_file_has_its_type_and_may_do_nothing_else(
    http: httpx.Client, name: str, content_type: str
) -> None:
    answer = http.get(f"/console/{name}").raise_for_status()
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_a_file_that_the_browser_has_is_not_sent_again(http: httpx.Client) -> None:
    first = http.get("/console/app.js")
    again = http.get("/console/app.js", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get("/console/app.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/console/../door.py",
        "/console/%2e%2e/door.py",
        "/console/..%2fdoor.py",
        "/console/pages/../../door.py",
        "/console//etc/passwd",
        "/console/pages",
        "/console/pages/",
        "/console/app.js%00",
        "/console/files.py",
    ],
)
def test_nothing_is_served_but_the_files_of_the_console(http: httpx.Client, path: str) -> None:
    # As bytes, so that no client tidies the path before it is sent.
    answer = http.send(httpx.Request("GET", http.base_url.copy_with(raw_path=path.encode())))
    assert answer.status_code == 404


def test_files_cannot_be_changed(http: httpx.Client) -> None:
    answer = http.put("/console/app.js", content=b"x")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert http.head("/console/app.js").headers["content-length"] == str(
        len(http.get("/console/app.js").content)
    )


def test_a_browser_is_led_to_the_console_and_a_program_is_not(http: httpx.Client) -> None:
    led = http.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (led.status_code, led.headers["location"]) == (302, "/console/")
    assert http.get("/console").headers["location"] == "/console/"
    assert http.get("/").status_code == 404


def test_pages_need_nothing_from_elsewhere() -> None:
    """No address of another host, no script or style inside of markup, no markup made of text."""
    for name, file in read_files().items():
        text = file.content.decode()
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name
        if name.endswith(".html"):
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text), name
