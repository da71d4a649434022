"""Accepted host names, and the refusal of others."""

import pytest

from alpacamq.api.http.hosts import HostCheck, Hosts
from alpacamq.api.http.messages import Request, Response

OURS = Hosts(["broker.example", "*.queues.example", "Name."])


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("127.0.0.1", id="an address"),
        pytest.param("10.1.2.3:8080", id="an address and a port"),
        pytest.param("[::1]", id="an IPv6 address"),
        pytest.param("[2001:db8::1]:8080", id="an IPv6 address and a port"),
        pytest.param("localhost:8080", id="localhost"),
        pytest.param("LocalHost.", id="localhost, written otherwise"),
        pytest.param("sqs.localhost:9324", id="below localhost"),
        pytest.param("broker.example", id="a name of ours"),
        pytest.param("BROKER.example.:80", id="a name of ours, written otherwise"),
        pytest.param("a.b.queues.example", id="a name below ours"),
        pytest.param("name", id="a name that was given with a dot"),
    ],
)
def test_our_names_are_accepted(host: str) -> None:
    assert OURS.accept(host)


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("evil.test", id="another name"),
        pytest.param("evil.test:8080", id="another name and a port"),
        pytest.param("broker.example.evil.test", id="ours at the start"),
        pytest.param("evilbroker.example", id="ours at the end"),
        pytest.param("queues.example", id="above a name of ours"),
        pytest.param("127.0.0.1.evil.test", id="an address at the start"),
        pytest.param("notlocalhost", id="nearly localhost"),
        pytest.param("[evil.test]", id="a name in brackets"),
        pytest.param("2130706433", id="an address as one number"),
        pytest.param("127.0.0.1:80:80", id="two ports"),
        pytest.param("*", id="the wildcard itself"),
    ],
)
def test_other_names_are_not(host: str) -> None:
    assert not OURS.accept(host)
    assert Hosts(["*"]).accept(host)


def test_a_misdirected_request_names_the_setting_to_change() -> None:
    app = HostCheck(lambda _: Response(200), OURS, "http.hosts")

    def ask(host: str | None) -> Response:
        answer = app(Request("GET", "/", "", {} if host is None else {"host": host}, b"", "peer"))
        assert isinstance(answer, Response)
        return answer

    for _ in range(2):
        assert ask("broker.example:99").status == 200
        refused = ask("evil.test:99")
        assert refused.status == 421
        assert b"'evil.test:99' is not a name of this broker" in refused.body
        assert b"http.hosts" in refused.body
        assert ask(None).status == 200
