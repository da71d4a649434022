"""Every error of ours has an answer at the Kafka API."""

from collections.abc import Iterator

import pytest

import alpacamq.api.kafka.requests
import alpacamq.broker.broker  # noqa: F401 - imports whatever a request can meet
from alpacamq.api.kafka.errors import CODES
from alpacamq.api.kafka.requests import HANDLERS, SASL, SHARING
from alpacamq.model.errors import AlpacaError
from alpacamq.protocol.apis import APIS, ApiKey

# Raised before any API is open, so that no client can meet them.
BEFORE_LISTENERS = {"CannotListen", "ConfigError"}


def errors(base: type[AlpacaError]) -> Iterator[type[AlpacaError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from errors(kind)


# Other tests may have imported clients and other APIs, whose errors this API never meets.
ELSEWHERE = (
    "alpacamq.registry.",
    "alpacamq.api.grpc.",
    "alpacamq.api.registry.",
    "alpacamq.cli.",
    "alpacamq.client.",
    "alpacamq.api.rest.",
    "alpacamq.api.sqs.",
    "alpacamq_spark.",
)
ERRORS: list[type[AlpacaError]] = sorted(
    {kind for kind in errors(AlpacaError) if not kind.__module__.startswith(ELSEWHERE)},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_an_answer(error: type[AlpacaError]) -> None:
    assert error in CODES or error.__name__ in BEFORE_LISTENERS


def test_every_advertised_request_has_a_handler() -> None:
    assert set(APIS) == {*HANDLERS, *SHARING, *SASL, ApiKey.PRODUCE, ApiKey.FETCH}
