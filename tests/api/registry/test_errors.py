"""Every error of ours has a code of the schema registry."""

from collections.abc import Iterator

import pytest

import alpacamq.api.registry.app
import alpacamq.broker.broker  # noqa: F401 - imports whatever a request can meet
from alpacamq.api.registry.errors import CODES
from alpacamq.model.errors import AlpacaError

# Raised before any API is open, so that no client can meet them.
BEFORE_LISTENERS = {"CannotListen", "ConfigError"}
PACKAGES = tuple(f"alpacamq.{name}." for name in ("model", "broker", "queues", "registry", "api.registry"))


def errors(base: type[AlpacaError]) -> Iterator[type[AlpacaError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from errors(kind)


OURS = [
    kind
    for kind in sorted(errors(AlpacaError), key=lambda kind: kind.__name__)
    if kind.__module__.startswith(PACKAGES)
]


@pytest.mark.parametrize("error", OURS)
def test_every_error_has_a_code(error: type[AlpacaError]) -> None:
    assert error in CODES or error.__name__ in BEFORE_LISTENERS


def test_codes_begin_with_the_status() -> None:
    for status, error_code in CODES.values():
        assert status >= 400
        assert str(error_code).startswith(str(int(status)))
