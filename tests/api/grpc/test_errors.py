"""Every error of ours has a canonical code."""

import pytest
from google.rpc.error_details_pb2 import BadRequest
from grpclib.const import Status

import alpacamq.api.grpc.services  # noqa: F401 - imports whatever a call can meet
from alpacamq.api.grpc.errors import CODES, InvalidField, to_status
from alpacamq.model.errors import AlpacaError, CoordinatorLoading, QuotaExceeded, UnknownTopic
from tests.api.rest.test_errors import BEFORE_LISTENERS, errors

from .client import Refusal

# Of clients and other APIs.
ELSEWHERE = (
    "alpacamq.registry.",
    "alpacamq.api.registry.",
    "alpacamq.cli.",
    "alpacamq.client.",
    "alpacamq.api.kafka.",
    "alpacamq.api.sqs.",
    "alpacamq_spark.",
    "alpacamq.protocol.",
    "tests.",
)
ERRORS = sorted(
    {kind for kind in errors(AlpacaError) if not kind.__module__.startswith(ELSEWHERE)},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_a_code(error: type[AlpacaError]) -> None:
    assert error in CODES or error.__name__ in BEFORE_LISTENERS


def test_no_error_is_a_success() -> None:
    assert Status.OK not in CODES.values()


def told(error: AlpacaError, tenant: str | None = None) -> Refusal:
    status = to_status(error, tenant)
    return Refusal(status.code, status.message, status.details)


def test_errors_have_the_names_of_kafka() -> None:
    assert told(UnknownTopic("no")).reason == "UNKNOWN_TOPIC_OR_PARTITION"


def test_temporary_errors_say_when_to_try_again() -> None:
    assert told(CoordinatorLoading("soon")).retry_ms == 1000
    assert told(QuotaExceeded("later", 2500)).retry_ms == 2500
    assert told(UnknownTopic("never")).retry_ms is None


def test_an_invalid_field_is_named() -> None:
    status = to_status(InvalidField("open.credit", "must be positive"))
    found = BadRequest()
    assert any(detail.Unpack(found) for detail in status.details)
    assert [each.field for each in found.field_violations] == ["open.credit"]


def test_clients_of_a_tenant_get_their_own_names() -> None:
    assert (
        told(UnknownTopic("no topic is named 'acme:orders'"), "acme").message == "no topic is named 'orders'"
    )


def test_long_texts_are_cut() -> None:
    assert len(told(UnknownTopic("x" * 5000)).message) < 1100
