"""HOST:PORT, as users write it."""

import pytest

from alpacamq.model.address import Address, client_host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("127.0.0.1:9092", Address("127.0.0.1", 9092), id="IPv4"),
        pytest.param("broker-1.example.com:9092", Address("broker-1.example.com", 9092), id="host name"),
        pytest.param("[::1]:9092", Address("::1", 9092), id="IPv6 in brackets"),
        pytest.param("localhost:0", Address("localhost", 0), id="port 0 is any free port"),
        pytest.param(" localhost:65535 ", Address("localhost", 65535), id="blanks around are dropped"),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "has no port", id="empty"),
        pytest.param("localhost", "has no port", id="host only"),
        pytest.param("[::1]", "has no port", id="bracketed host only"),
        pytest.param("[::1", "has no port", id="bracket left open"),
        pytest.param("localhost:", "is not a port", id="empty port"),
        pytest.param("localhost:http", "is not a port", id="word for a port"),
        pytest.param("localhost:65536", "is not a port", id="port too large"),
        pytest.param("localhost:-1", "is not a port", id="negative port"),
        pytest.param("localhost:٣", "is not a port", id="digits of another script"),
        pytest.param(":9092", "has no host", id="port only"),
        pytest.param("[]:9092", "has no host", id="empty brackets"),
        pytest.param("::1:9092", "is ambiguous", id="IPv6 without brackets"),
        pytest.param("a host:9092", "is not a host name", id="blank inside"),
        pytest.param("kafka://host:9092", "is ambiguous", id="a URL"),
        pytest.param("a\x9bhost:9092", "is not a host name", id="a control character"),
        pytest.param('a"host:9092', "is not a host name", id="a quotation mark"),
        pytest.param("host/path:9092", "is not a host name", id="a path"),
    ],
)
def test_invalid_input_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Address.parse(text)


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:0", "localhost:1"])
def test_an_address_prints_as_it_is_written(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("::ffff:a00:1", "::ffff:a00:1"),
    ],
)
def test_an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address(host: str, expected: str) -> None:
    assert client_host(host) == expected
