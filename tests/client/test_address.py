"""Addresses of brokers as users write them."""

import pytest

from alpacamq.client.connect import parse_address
from alpacamq.model.address import Address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("localhost:9093", Address("localhost", 9093), id="host and port"),
        pytest.param("localhost", Address("localhost", 9092), id="the usual port"),
        pytest.param("[::1]:9093", Address("::1", 9093), id="IPv6"),
        pytest.param("[::1]", Address("::1", 9092), id="IPv6 with the usual port"),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "no host", id="nothing"),
        pytest.param(":9092", "no host", id="a port only"),
        pytest.param("host:http", "not a port", id="a port that is no number"),
        pytest.param("host:0", "must be from 1 to 65535", id="a port without a listener"),
        pytest.param("host:65536", "not a port", id="a port too large"),
        pytest.param("::1:9092", "brackets", id="IPv6 without brackets"),
    ],
)
def test_invalid_addresses(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(text)
