"""The description of the API is true: whatever is sent, the answer is one that it names."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NOT_SET
from schemathesis.specs.openapi.checks import negative_data_rejection

from alpacamq.api.rest.openapi import document
from alpacamq.api.rest.table import ROUTES
from tests.brokers import Broker

KNOWN = "known"
BROKER = """
[topics]
max_partitions = 200
default_partitions = 1
"""
# 413, 416 and 422 are for what is well-formed: too large, outside of the log, or senseless.
ACCEPTED = ["2xx", "403", "404", "409", "413", "416", "422", "429"]

schema = schemathesis.openapi.from_dict(
    document(ROUTES),
    config=SchemathesisConfig.from_dict(
        {
            "checks": {
                "positive_data_acceptance": {"expected-statuses": ACCEPTED},
                "negative_data_rejection": {"expected-statuses": ["4xx"]},
            }
        }
    ),
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own: what is sent here may delete what other tests made."""
    broker = Broker(tmp_path_factory.mktemp("openapi") / "data", config=BROKER)
    try:
        yield f"http://{broker.start().http_address}"
        assert "Traceback" not in broker.errors.text()
    finally:
        broker.end()


def checked(case: Any, url: str) -> None:
    """Send a case, hardly waiting where the API would wait for messages."""
    if any(parameter.name == "wait_ms" for parameter in case.operation.query):
        waits = case.query.get("wait_ms", 1)
        if isinstance(waits, int) and 0 <= waits <= 30_000:
            case.query["wait_ms"] = 1
    case.body = whole(case.body)
    leaves_out_body = case.body is NOT_SET and bool(case.operation.body)
    # A body that may be left out is left out among the cases that should be refused, too.
    case.call_and_validate(base_url=url, excluded_checks=[negative_data_rejection] if leaves_out_body else [])


def whole(body: Any) -> Any:
    """JSON in which 1.0 is written as 1: to a schema they are the same, to us only one is a whole number."""
    if isinstance(body, float) and body.is_integer():
        return int(body)
    if isinstance(body, list):
        return [whole(each) for each in body]
    return {name: whole(each) for name, each in body.items()} if isinstance(body, dict) else body


def examples(count: int) -> Any:
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@schema.parametrize()  # type: ignore[untyped-decorator]
@examples(3)  # type: ignore[untyped-decorator]
def test_any_request_is_answered_as_described(case: Any, url: str) -> None:
    checked(case, url)


@pytest.mark.heavy
@schema.parametrize()  # type: ignore[untyped-decorator]
@examples(60)  # type: ignore[untyped-decorator]
def test_any_of_many_requests_is_answered_as_described(case: Any, url: str) -> None:
    known(case, url)
    checked(case, url)


def known(case: Any, url: str) -> None:
    """Make most cases about a topic and a group that are there, so that they get past their names."""
    if not case.meta.generation.mode.is_positive:
        return
    httpx.post(f"{url}/topics", json={"name": KNOWN, "partitions": 2})
    for names in (case.path_parameters, case.query, case.body):
        if isinstance(names, dict):
            for name in ("topic", "group"):
                if name in names:
                    names[name] = KNOWN


def test_every_route_is_described(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    described = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [
        operation["operationId"] for methods in served["paths"].values() for operation in methods.values()
    ]
    assert len(set(names)) == len(names)
