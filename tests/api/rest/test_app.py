"""What the API itself sees to: every request that a route was found for is counted, however it ended."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest import app as app
from alpacamq.api.rest.app import RestApi
from alpacamq.api.rest.route import Call, Nothing, Route
from alpacamq.telemetry.metrics import Metrics
from tests.broker.open_brokers import running

if TYPE_CHECKING:
    from collections.abc import Awaitable


def _fail(_call: Call[Nothing, Nothing]) -> None:
    raise ZeroDivisionError


async def _fail_later(_call: Call[Nothing, Nothing]) -> None:
    raise ZeroDivisionError


class Unsendable(msgspec.Struct):
    """An answer that cannot be written as JSON."""

    what: Any


def _unsendable(_call: Call[Nothing, Nothing]) -> Unsendable:
    return Unsendable(what=object())


@pytest.mark.parametrize("handler", [_fail, _fail_later, _unsendable])
async def test_a_request_that_fails_by_a_bug_is_counted_as_500(
    handler: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    route = Route(
        method="GET", path="/buggy", summary="", handler=handler, parameters=Nothing, body=Nothing, answers=()
    )
    monkeypatch.setattr(app, "ROUTES", (route,))
    metrics = Metrics()
    async with running(tmp_path, metrics=metrics) as broker:
        rest = RestApi(broker, {})

        async def ask() -> None:
            answer: Response | Awaitable[Response] = rest(
                Request("GET", "/buggy", "", {}, b"", "127.0.0.1:1")
            )
            assert not isinstance(answer, Response)
            await answer

        with pytest.raises((ZeroDivisionError, TypeError)):
            await ask()
    assert metrics.listeners["http"].of("GET /buggy").seconds.count == 1
    assert [(each.path, each.status, count) for each, count in rest._backend.traffic] == [("/buggy", 500, 1)]
