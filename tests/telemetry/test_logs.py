"""Format and destination of log lines."""

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from alpacamq.telemetry import Format, Level, configure, get_logger
from alpacamq.telemetry.logs import capture_logs

log = get_logger("alpacamq.tests")


@pytest.fixture(autouse=True)
def _restored_configuration() -> Iterator[None]:
    handlers = logging.getLogger().handlers
    with capture_logs():  # which restores the destination
        yield
    logging.getLogger().handlers = handlers


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    attempts = 0

    def write(self, text: str) -> int:
        self.attempts += 1
        raise OSError("no room")


def one_event(stream: io.StringIO) -> dict[str, Any]:
    (line,) = stream.getvalue().splitlines()
    event: dict[str, Any] = json.loads(line)
    return event


def test_a_json_line_contains_time_level_logger_event_and_fields() -> None:
    stream = io.StringIO()
    configure(Level.INFO, Format.JSON, stream)
    log.info("segment_rolled", partition="orders-0", size_bytes=5)
    event = one_event(stream)
    assert datetime.fromisoformat(event.pop("timestamp")).utcoffset() is not None
    assert event == {
        "level": "info",
        "logger": "alpacamq.tests",
        "event": "segment_rolled",
        "partition": "orders-0",
        "size_bytes": 5,
    }


def test_a_text_line_contains_the_same() -> None:
    stream = io.StringIO()
    configure(Level.INFO, Format.TEXT, stream)
    log.warning("disk_full", path=Path("/data"), free_bytes=0)
    assert (
        stream.getvalue().partition(" ")[2] == "warning disk_full path=/data free_bytes=0 (alpacamq.tests)\n"
    )


@pytest.mark.parametrize(
    ("stream", "is_json"),
    [pytest.param(Terminal(), False, id="terminal"), pytest.param(io.StringIO(), True, id="file or pipe")],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(stream: io.StringIO, is_json: bool) -> None:
    configure(Level.INFO, Format.AUTO, stream)
    log.info("event")
    assert stream.getvalue().startswith("{") is is_json


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    configure(Level.WARNING, Format.JSON, stream)
    log.info("quiet")
    log.warning("heard")
    assert one_event(stream)["event"] == "heard"


def test_a_logger_made_before_follows_the_configuration_made_after() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure(Level.INFO, Format.JSON, first)
    log.info("one")
    configure(Level.INFO, Format.JSON, second)
    log.info("two")
    assert (one_event(first)["event"], one_event(second)["event"]) == ("one", "two")


def test_text_from_clients_can_neither_forge_a_line_nor_control_the_terminal() -> None:
    stream = io.StringIO()
    configure(Level.INFO, Format.TEXT, stream)
    log.info("connection_closed", reason="bad\n2030-01-01 error forged", client="\x1b[2J", who="a b=c")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert "who='a b=c'" in line


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"\xff", id="bytes"),
        pytest.param("\udcff", id="a path that is not UTF-8"),
        pytest.param(2**70, id="a large number"),
        pytest.param({("a", 1): 2}, id="a table with odd keys"),
        pytest.param([{1, 2}], id="a set inside a list"),
        pytest.param(ValueError("x"), id="an error"),
    ],
)
@pytest.mark.parametrize("form", [Format.TEXT, Format.JSON])
def test_any_value_can_be_logged(form: Format, value: object) -> None:
    stream = io.StringIO()
    configure(Level.INFO, form, stream)
    log.info("event", value=value)
    assert stream.getvalue().encode().count(b"\n") == 1


@pytest.mark.parametrize("form", [Format.TEXT, Format.JSON])
def test_an_exception_is_logged_with_its_traceback(form: Format) -> None:
    stream = io.StringIO()
    configure(Level.INFO, form, stream)
    try:
        raise LookupError("gone")
    except LookupError:
        log.exception("connection_crashed")
    assert "connection_crashed" in stream.getvalue()
    assert "LookupError: gone" in stream.getvalue()


def test_a_log_that_cannot_be_written_does_not_stop_the_caller() -> None:
    stream = Broken()
    configure(Level.INFO, Format.TEXT, stream)
    log.info("event")
    assert stream.attempts == 1


def test_warnings_of_libraries_are_logged_in_the_same_format() -> None:
    stream = io.StringIO()
    configure(Level.DEBUG, Format.JSON, stream)
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").error("task %s failed", 3)
    event = one_event(stream)
    assert (event["logger"], event["level"], event["message"]) == ("asyncio", "error", "task 3 failed")
