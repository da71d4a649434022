"""Every error of ours has an answer over HTTP."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest

import alpacamq.broker.broker  # noqa: F401 - imports whatever a request can meet
from alpacamq.api.rest.errors import CODES, InvalidInput, MethodNotAllowed, refusal
from alpacamq.api.rest.table import ROUTES
from alpacamq.model.errors import AlpacaError, CoordinatorLoading

# Raised before any API is open, so that no client can meet them.
BEFORE_LISTENERS = {"CannotListen", "ConfigError"}
# Of clients and other APIs, which other tests may have imported.
ELSEWHERE = (
    "alpacamq.registry.",
    "alpacamq.api.grpc.",
    "alpacamq.api.registry.",
    "alpacamq.cli.",
    "alpacamq.client.",
    "alpacamq.api.kafka.",
    "alpacamq.api.sqs.",
    "alpacamq_spark.",
    "alpacamq.protocol.",
)


def errors(base: type[AlpacaError]) -> Iterator[type[AlpacaError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from errors(kind)


ERRORS: list[type[AlpacaError]] = sorted(
    {kind for kind in errors(AlpacaError) if not kind.__module__.startswith(ELSEWHERE)},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_an_answer(error: type[AlpacaError]) -> None:
    assert error in CODES or error.__name__ in BEFORE_LISTENERS


def test_no_error_is_answered_as_a_success() -> None:
    assert all(status >= HTTPStatus.BAD_REQUEST for status in CODES.values())


def test_every_error_that_a_route_names_has_an_answer() -> None:
    assert {error for route in ROUTES for error in route.errors} <= CODES.keys()


def test_temporary_errors_have_retry_after() -> None:
    assert ("Retry-After", "1") in refusal(CoordinatorLoading("soon")).headers
    assert refusal(InvalidInput("never")).headers == ()


def test_allowed_methods_are_returned() -> None:
    assert refusal(MethodNotAllowed("no", "GET, POST")).headers == (("Allow", "GET, POST"),)
