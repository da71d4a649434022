"""Every error of ours has an answer at the SQS API."""

from collections.abc import Iterator

import pytest

import alpacamq.broker.broker  # noqa: F401 - imports whatever a request can meet
from alpacamq.api.sqs import errors as faults
from alpacamq.api.sqs.errors import CODES, Kind
from alpacamq.model.errors import AlpacaError

# Raised before any API is open, so that no client can meet them.
BEFORE_LISTENERS = {"CannotListen", "ConfigError"}


def errors(base: type[AlpacaError]) -> Iterator[type[AlpacaError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from errors(kind)


OURS = [
    kind
    for kind in sorted(errors(AlpacaError), key=lambda kind: kind.__name__)
    if kind.__module__.startswith(("alpacamq.model.", "alpacamq.broker.", "alpacamq.queues."))
]


@pytest.mark.parametrize("error", OURS)
def test_every_error_has_an_answer(error: type[AlpacaError]) -> None:
    assert error in CODES or error.__name__ in BEFORE_LISTENERS


def test_no_two_faults_share_a_name() -> None:
    kinds = [kind for kind in vars(faults).values() if isinstance(kind, Kind)]
    assert len({kind.type for kind in kinds}) == len({kind.code for kind in kinds}) == len(kinds)
