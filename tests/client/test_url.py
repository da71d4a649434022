"""URLs of clusters."""

import pytest

from alpacamq.client.login import BearerToken, Login
from alpacamq.client.url import InvalidUrl, authorization, parse_url


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        pytest.param("alpaca://localhost", ["localhost:9095"], id="default port"),
        pytest.param("alpaca://localhost/", ["localhost:9095"], id="trailing slash"),
        pytest.param("alpaca://a:1,b,[::1]:3", ["a:1", "b:9095", "[::1]:3"], id="several nodes"),
        pytest.param("alpaca://u:p@a:1,b:2", ["a:1", "b:2"], id="with a user"),
    ],
)
def test_a_url_names_the_nodes(url: str, addresses: list[str]) -> None:
    target = parse_url(url)
    assert [str(each) for each in target.addresses] == addresses
    assert target.tls is None


def test_a_user_and_a_password_are_decoded() -> None:
    assert parse_url("alpaca://ann%40shop:s%3Acret@host").credentials == Login(
        user="ann@shop",
        password="s:cret",  # noqa: S106
    )


def test_tls_takes_files() -> None:
    tls = parse_url("alpacas://host", ca="ca.pem", certificate="me.pem", key="me.key").tls
    assert tls is not None
    assert (tls.ca, tls.certificate, tls.key) == ("ca.pem", "me.pem", "me.key")


def test_an_api_key_is_sent_as_bearer_and_logs_in_by_plain() -> None:
    credentials = parse_url("alpaca://host", token="amq_abc_secret").credentials  # noqa: S106
    assert isinstance(credentials, Login)
    assert credentials.mechanism == "PLAIN"
    assert authorization(credentials) == "Bearer amq_abc_secret"


def test_a_token_may_come_from_a_function_whenever_it_is_needed() -> None:
    tokens = iter(["first", "second"])
    credentials = parse_url("alpaca://host", token=lambda: next(tokens)).credentials
    assert isinstance(credentials, BearerToken)
    assert [authorization(credentials), authorization(credentials)] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("localhost:9095", {}, "is not the URL of a cluster"),
        ("kafka://localhost", {}, "is not the URL of a cluster"),
        ("alpaca://", {}, "no address"),
        ("alpaca://host/path", {}, "has a path"),
        ("alpaca://host?x=1", {}, "has a path or a query"),
        ("alpaca://host:0", {}, "port"),
        ("alpaca://:p@host", {}, "has no user"),
        ("alpaca://host", {"ca": "ca.pem"}, "need a URL with TLS"),
        ("alpacas://host", {"key": "k.pem"}, "set certificate"),
        ("alpaca://u:p@host", {"token": "t"}, "exclude each other"),
        ("alpaca://host", {"token": ""}, "token is empty"),
    ],
)
def test_an_invalid_url_says_why(url: str, options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidUrl, match=reason):
        parse_url(url, **options)


def test_errors_do_not_show_passwords() -> None:
    with pytest.raises(InvalidUrl) as error:
        parse_url("alpaca://ann:secret@host/path")
    assert "secret" not in str(error.value)
