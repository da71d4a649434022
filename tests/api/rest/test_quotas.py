"""Quotas of HTTP requests, by a clock that stands still."""

from collections.abc import Iterator

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest.app import RestApi
from alpacamq.security.principals import Principal, user
from alpacamq.security.quotas import EntityPart, QuotaEdit, QuotaOp
from tests.secured import ADMIN, SecuredBroker, secured_broker

ANONYMOUS = (EntityPart("user", "ANONYMOUS"),)


@pytest.fixture
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured_broker(tmp_path_factory.mktemp("quotas"), acls=False) as broker:
        broker.broker.quotas.now = lambda: 1.0
        yield broker


def ask(secured: SecuredBroker, method: str, path: str, principal: Principal | None = None) -> Response:
    async def answer() -> Response:
        request = Request(method, path, "", {}, b"", "127.0.0.1:1")
        request.principal = principal
        answered = RestApi(secured.broker, {})(request)
        return answered if isinstance(answered, Response) else await answered

    return secured.call(answer())


class Connection:
    """A connection that requests come on."""

    is_closed = False


def ask_on(secured: SecuredBroker, connection: Connection, path: str = "/topics") -> tuple[int, bool]:
    """Send a request on a connection; return its status, and whether the connection is closed with it."""

    async def answer() -> tuple[int, bool]:
        request = Request("GET", path, "", {}, b"", "127.0.0.1:1")
        request.connection = connection
        answered = RestApi(secured.broker, {})(request)
        response = answered if isinstance(answered, Response) else await answered
        return response.status, request.is_last

    return secured.call(answer())


def limit(secured: SecuredBroker, key: str, value: float) -> None:
    results = secured.call(secured.broker.quotas.alter([QuotaEdit(ANONYMOUS, (QuotaOp(key, value),))]))
    assert results.failures == (None,)


@pytest.mark.parametrize("path", ["/version", "/topics"])
def test_a_client_is_refused_when_its_requests_have_taken_too_long(secured: SecuredBroker, path: str) -> None:
    limit(secured, "request_percentage", 0.0001)
    assert ask(secured, "GET", path).status == 200
    refused = ask(secured, "GET", path)
    assert refused.status == 429
    assert dict(refused.headers)["Retry-After"] == "10"
    # Others are served as always.
    for _ in range(3):
        assert ask(secured, "GET", path, user(ADMIN)).status == 200
    # Not those that tell whether the broker works, nor paths that do not exist.
    assert ask(secured, "GET", "/livez").status == 200
    assert ask(secured, "GET", "/nowhere").status == 404


def test_a_user_has_a_limited_number_of_connections(secured: SecuredBroker) -> None:
    first, second, third = Connection(), Connection(), Connection()
    limit(secured, "connection_count", 2)
    assert [ask_on(secured, each) for each in (first, second, third)] == [
        (200, False),
        (200, False),
        (429, True),
    ]
    assert ask_on(secured, first) == (200, False)
    assert ask_on(secured, third, "/livez") == (200, False)
    secured.broker.quotas.connection_closed(second)
    assert ask_on(secured, third) == (200, False)
    gone = Connection()
    gone.is_closed = True  # while its password was checked
    ask_on(secured, gone)
    assert gone not in secured.broker.quotas._principals
