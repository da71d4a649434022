"""Logins of the console: what a cookie opens, what it needs beside it, and when it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.access import Caller, SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.sessions import Sessions
from alpacamq.cluster.commands import AlterTenant, UserEdit
from alpacamq.cluster.image import SESSION_LEVEL, VERSION_FEATURE
from alpacamq.model.ids import BrokerId
from alpacamq.security.principals import user
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from alpacamq.security.sessions import Session, csrf_token, session_of, token_of
from alpacamq.security.tenants import TenantLimits, TenantStatus
from tests.broker.open_brokers import SettableClock

IDLE_MS, LIFETIME_MS = 60_000, 600_000
PEER = "127.0.0.1:1"
BOB = {"user": "bob", "password": "secret"}


class Browser:
    """Keeps the cookie and the token of its page."""

    def __init__(self, rest: RestApi, **headers: str) -> None:
        self._rest = rest
        self.cookie = self.token = ""
        self.attributes: set[str] = set()
        self._headers = headers

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        sent = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.cookie:
            sent["cookie"] = f"theme=dark; {self.cookie}; other=1"
        content = b"" if body is None else json.dumps(body).encode()
        answer = self._rest(Request(method, path, "", sent, content, PEER))
        response = answer if isinstance(answer, Response) else await answer
        for name, value in response.headers:
            if name == "Set-Cookie":
                self.cookie, *attributes = value.split("; ")
                self.attributes = set(attributes)
        return response

    async def log_in(self, credentials: Mapping[str, str] = BOB, **headers: str) -> dict[str, Any]:
        answer = await self.ask("POST", "/session", credentials, **headers)
        assert answer.status == 200, answer
        found: dict[str, Any] = json.loads(answer.body)
        self.token = found["csrf_token"]
        return found

    async def status(self, method: str = "GET", path: str = "/topics", body: Any = None) -> int:
        """Return the status of a request with the token."""
        return (await self.ask(method, path, body, x_csrf_token=self.token)).status


class Site:
    def __init__(self, broker: Broker, clock: SettableClock) -> None:
        self.broker = broker
        self.clock = clock
        self.rest = RestApi(broker, {})

    def browser(self, **headers: str) -> Browser:
        return Browser(self.rest, **headers)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    settings = BrokerSettings(
        node_id=BrokerId(1),
        data_directory=tmp_path,
        security=SecuritySettings(
            authentication=True, console_idle_ms=IDLE_MS, console_lifetime_ms=LIFETIME_MS
        ),
    )
    async with running_site(settings) as site:
        await site.broker.access.set_password("bob", "secret", tuple(Mechanism), DEFAULT_ITERATIONS)
        yield site


@asynccontextmanager
async def running_site(settings: BrokerSettings) -> AsyncIterator[Site]:
    clock = SettableClock()
    broker = Broker(settings, clock=clock)
    broker.open()
    running = asyncio.create_task(broker.run())
    try:
        yield Site(broker, clock)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await broker.close()


async def test_a_cookie_opens_what_its_user_may_use(site: Site) -> None:
    browser = site.browser()
    assert await browser.status() == 401
    found = await browser.log_in()
    assert (found["user"], found["key_id"]) == ("bob", None)
    assert browser.attributes == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert await browser.status() == 200
    assert await browser.status("POST", "/topics", {"name": "made"}) == 201


async def test_a_disabled_tenant_ends_sessions_and_refuses_certificates(site: Site) -> None:
    browser, access = site.browser(), site.broker.access
    await browser.log_in()
    await access.create_tenant("acme", description="", limits=TenantLimits())
    await access.add_member("acme", "User:bob", is_admin=True)
    assert await browser.status() == 200
    certified = Request("GET", "/topics", "", {}, b"", PEER)
    certified.principal = user("bob")
    assert (await answer_of(site.rest(certified))).status == 200
    change = AlterTenant(id="acme", status=TenantStatus.DISABLED, reason="ended")
    await access.alter_tenant(change)
    assert await browser.status() == 401
    refused = await answer_of(site.rest(certified))
    assert (refused.status, json.loads(refused.body)["detail"]) == (401, "the tenant is disabled: ended")
    # Its user may log in as another one.
    await access.set_password("eve", "secret", tuple(Mechanism), DEFAULT_ITERATIONS)
    assert (await browser.log_in({"user": "eve", "password": "secret"}))["user"] == "eve"


async def answer_of(answer: Response | Awaitable[Response]) -> Response:
    return answer if isinstance(answer, Response) else await answer


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/topics", {"name": "forged"}),
        ("DELETE", "/topics/orders", None),
        ("PATCH", "/topics/orders/settings", {"settings": {}}),
        ("GET", "/groups/g/poll", None),  # takes messages
        ("DELETE", "/session", None),
    ],
)
@pytest.mark.parametrize("token", ["", "0" * 64, "ä"])
async def test_a_request_that_changes_something_needs_the_token(
    site: Site, method: str, path: str, body: Any, token: str
) -> None:
    browser = site.browser()
    await browser.log_in()
    answer = await browser.ask(method, path, body, x_csrf_token=token)
    assert (answer.status, json.loads(answer.body)["type"]) == (
        403,
        "urn:alpacamq:problem:csrf-token-missing",
    )
    assert await browser.status() == 200


async def test_a_token_belongs_to_one_session(site: Site) -> None:
    first, second = site.browser(), site.browser()
    await first.log_in()
    await second.log_in()
    second.token = first.token
    assert await second.status("POST", "/topics", {"name": "forged"}) == 403


async def test_the_page_finds_its_token_again_after_a_reload(site: Site) -> None:
    browser = site.browser()
    found = await browser.log_in()
    again = json.loads((await browser.ask("GET", "/session")).body)
    assert again == found


async def test_a_session_that_is_not_used_ends(site: Site) -> None:
    browser = site.browser()
    await browser.log_in()
    for _ in range(3):  # use prolongs it
        site.clock.ahead_ms += IDLE_MS - 1000
        assert await browser.status() == 200
    site.clock.ahead_ms += IDLE_MS
    assert await browser.status() == 401


async def test_a_session_ends_at_its_greatest_age(site: Site) -> None:
    browser = site.browser()
    await browser.log_in()
    for _ in range(LIFETIME_MS // 30_000 - 1):
        site.clock.ahead_ms += 30_000
        assert await browser.status() == 200
    site.clock.ahead_ms += 30_000
    assert await browser.status() == 401


async def test_a_new_password_ends_the_sessions_of_the_user(site: Site) -> None:
    browser = site.browser()
    await browser.log_in()
    await site.broker.access.set_password("bob", "other", tuple(Mechanism), DEFAULT_ITERATIONS)
    assert await browser.status() == 401


async def test_deleting_a_user_ends_its_sessions(site: Site) -> None:
    browser = site.browser()
    await browser.log_in()
    await site.broker.access.alter_users([UserEdit("bob", None, None)])
    assert await browser.status() == 401


async def test_logging_out_ends_the_session_also_for_a_copy_of_the_cookie(site: Site) -> None:
    browser, thief = site.browser(), site.browser()
    await browser.log_in()
    thief.cookie = browser.cookie
    assert await thief.status() == 200
    assert await browser.status("DELETE", "/session") == 204
    assert browser.cookie.endswith("=")
    assert "Max-Age=0" in browser.attributes
    assert await browser.status() == 401
    assert await thief.status() == 401


async def test_a_session_survives_a_restart(tmp_path: Path) -> None:
    settings = BrokerSettings(
        node_id=BrokerId(1), data_directory=tmp_path, security=SecuritySettings(authentication=True)
    )
    cookie = ""
    for _ in range(2):
        async with running_site(settings) as site:
            browser = site.browser()
            if not cookie:
                await site.broker.access.set_password("bob", "secret", tuple(Mechanism), DEFAULT_ITERATIONS)
                await browser.log_in()
            browser.cookie = cookie = cookie or browser.cookie
            assert await browser.status() == 200


async def test_before_the_level_of_sessions_a_node_keeps_them_itself(site: Site) -> None:
    image = site.broker.metadata.image
    image._features[VERSION_FEATURE] = SESSION_LEVEL - 1
    browser, thief = site.browser(), site.browser()
    await browser.log_in()
    thief.cookie = browser.cookie
    assert await thief.status() == 200
    assert await browser.status("DELETE", "/session") == 204
    assert await thief.status() == 401
    assert (image.session_secret, image.ended_sessions) == (b"", {})


async def test_what_is_stored_does_not_sign_sessions_if_the_cluster_has_a_secret(site: Site) -> None:
    access, metadata = site.broker.access, site.broker.metadata
    await site.browser().log_in()  # stores the secret
    one, other, without = (
        Sessions(access, metadata, site.clock, cluster_secret=secret) for secret in (b"one", b"other", b"")
    )
    began = await one.begin(Caller(user("bob"), "127.0.0.1"), is_secure=False)
    assert began.session is not None
    token = one.token(began.session)
    assert one.find(token, "127.0.0.1") is not None
    assert other.find(token, "127.0.0.1") is None
    assert without.find(token, "127.0.0.1") is None


async def test_an_api_key_logs_in_and_its_deletion_ends_the_session(site: Site) -> None:
    key, text = await site.broker.access.create_api_key("bob", expires_ms=None, scopes=(), description="")
    browser = site.browser()
    found = await browser.log_in({"key": text})
    assert (found["user"], found["key_id"]) == ("bob", key.id)
    assert await browser.status() == 200
    await site.broker.access.delete_api_key(key.id)
    assert await browser.status() == 401


async def test_a_changed_cookie_is_not_accepted(site: Site) -> None:
    browser = site.browser()
    await browser.log_in()
    name, _, token = browser.cookie.partition("=")
    body, _, signature = token.partition(".")
    session = session_of(b"other", token_of(b"other", Session("1", "bob", "", "", False, 0, 2**52)))
    assert session is not None
    for changed in (
        token_of(b"other", session),
        body,
        f"{body}.",
        f".{signature}",
        f"{body[:-2]}AA.{signature}",
        token + "A",
        "x" * 10_000,
    ):
        browser.cookie = f"{name}={changed}"
        assert await browser.status() == 401, changed


@pytest.mark.parametrize(
    "body", [{}, {"user": "bob"}, {"password": "x"}, {"user": "bob", "password": "secret", "key": "k"}]
)
async def test_incomplete_credentials_are_named(site: Site, body: Any) -> None:
    answer = await site.browser().ask("POST", "/session", body)
    assert answer.status == 422
    assert "either user and password, or key" in json.loads(answer.body)["detail"]


async def test_wrong_passwords_are_limited_as_everywhere(site: Site) -> None:
    browser = site.browser()
    wrong = {"user": "bob", "password": "wrong"}
    statuses = [(await browser.ask("POST", "/session", wrong)).status for _ in range(25)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert (await browser.ask("POST", "/session", {"user": "bob", "password": "secret"})).status == 429
    assert not browser.cookie


async def test_a_page_of_another_site_cannot_log_a_browser_in(site: Site) -> None:
    answer = await site.browser().ask(
        "POST", "/session", BOB, origin="https://evil.example", host="broker:8080"
    )
    assert answer.status == 403


async def test_scripts_are_not_asked_for_a_password_by_the_browser(site: Site) -> None:
    program = dict((await site.browser().ask("GET", "/topics")).headers)
    assert program["WWW-Authenticate"].startswith("Basic ")
    script = dict((await site.browser().ask("GET", "/topics", x_requested_with="console")).headers)
    assert script["WWW-Authenticate"].startswith("Bearer ")


async def test_a_cookie_that_was_set_over_tls_is_only_sent_over_tls(site: Site) -> None:
    behind_proxy = site.browser(host="broker.example", origin="https://broker.example")
    await behind_proxy.log_in()
    assert "Secure" in behind_proxy.attributes
    request = Request("POST", "/session", "", {}, json.dumps(BOB).encode(), PEER)
    request.has_tls = True
    answer = site.rest(request)
    response = answer if isinstance(answer, Response) else await answer
    assert dict(response.headers)["Set-Cookie"].endswith("; Secure")


async def test_no_login_is_offered_where_none_is_needed(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(node_id=BrokerId(1), data_directory=tmp_path))
    broker.open()
    try:
        browser = Browser(RestApi(broker, {}))
        found = json.loads((await browser.ask("GET", "/session")).body)
        assert (found["user"], found["is_required"], found["is_available"]) == (None, False, False)
        assert (await browser.ask("POST", "/session", BOB)).status == 409
        assert await browser.status() == 200
    finally:
        await broker.close()


def test_tokens_of_sessions_differ_and_do_not_tell_the_key() -> None:
    assert csrf_token(b"k", "1") != csrf_token(b"k", "2") != csrf_token(b"j", "2")
    assert session_of(b"k", token_of(b"j", Session("1", "bob", "", "", False, 0, 0))) is None
