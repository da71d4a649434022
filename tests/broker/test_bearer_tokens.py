"""The keys of an OAuth provider, from a file and over HTTP, and the tokens that were verified."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from alpacamq.broker import bearer_tokens
from alpacamq.broker.bearer_tokens import (
    MAX_KEY_SET_BYTES,
    BearerTokens,
    KeyFetch,
    KeySource,
    SigningKeys,
    TokenSettings,
    check_key_url,
)
from alpacamq.model.errors import AuthenticationFailed
from alpacamq.security.oauth import InvalidKeySet, TokenRules, UnknownKey
from tests import tokens

RULES = TokenRules(issuer=tokens.ISSUER, audience=tokens.AUDIENCE)
DEADLINE_S = 20.0
SHORT_S = 0.3


class Provider:
    """Serves a key set over HTTP, and counts requests."""

    def __init__(self) -> None:
        self.requests = 0
        self.answer: Callable[[BaseHTTPRequestHandler], None] = self.keys
        self.key_ids: tuple[str, ...] = ("ec-256",)
        # Ends answers that would go on forever.
        self.is_over = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                with suppress(OSError):  # the client has gone
                    provider.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def stop(self) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()

    def keys(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(tokens.jwks(*self.key_ids))

    def hang(self, _: BaseHTTPRequestHandler) -> None:
        self.is_over.wait(DEADLINE_S)

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """Send a byte now and then, for ever."""
        while not self.is_over.wait(0.02):
            handler.wfile.write(b"H" if handler.close_connection else b"x")
            handler.wfile.flush()

    def drip_body(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        self.drip(handler)

    def flood(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1600):
            handler.wfile.write(bytes(1 << 16))

    def fail(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_error(500)

    def redirect(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "file:///etc/passwd")
        handler.end_headers()

    def nonsense(self, handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\0\1\2\r\n\r\n")


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    try:
        yield provider
    finally:
        provider.stop()


@asynccontextmanager
async def running(source: KeySource) -> AsyncIterator[BearerTokens]:
    bearer = BearerTokens(TokenSettings(rules=RULES, keys=source), lambda: int(time.time() * 1000))
    task = asyncio.create_task(bearer.keys.run())
    try:
        yield bearer
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def test_a_token_is_verified_once_and_known_then(provider: Provider) -> None:
    async with running(KeySource(url=provider.url)) as bearer:
        token = tokens.token()
        assert bearer.known(token) is None
        verified = await bearer.verify(token)  # waits for the first keys
        assert (verified.user, bearer.known(token)) == ("alice", verified)
        assert bearer.known(token + "x") is None
        assert provider.requests == 1


async def test_an_expired_token_is_not_known_any_more(provider: Provider) -> None:
    async with running(KeySource(url=provider.url)) as bearer:
        token = tokens.token(exp=int(time.time()) - 1)  # as far as clocks may differ
        await bearer.verify(token)
        assert bearer.known(token) is None


async def test_few_tokens_are_remembered(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer_tokens, "MAX_KNOWN_TOKENS", 3)
    async with running(KeySource(url=provider.url)) as bearer:
        several = [tokens.token(f"user-{number}") for number in range(5)]
        for token in several:
            await bearer.verify(token)
        assert [bearer.known(token) is not None for token in several] == [False, False, True, True, True]


async def test_a_new_key_is_loaded_when_a_token_names_it_and_the_old_one_ends(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "MIN_REFRESH_S", 0.0)
    async with running(KeySource(url=provider.url)) as bearer:
        old, new = tokens.token(), tokens.token(key="ed")
        await bearer.verify(old)
        provider.key_ids = ("ed",)
        await bearer.verify(new)
        assert provider.requests == 2
        assert bearer.known(old) is None
        with pytest.raises(UnknownKey):
            await bearer.verify(old)


async def test_thousands_of_unknown_keys_load_the_keys_at_most_once_a_minute(provider: Provider) -> None:
    async with running(KeySource(url=provider.url)) as bearer:
        await bearer.verify(tokens.token())
        began_at = bearer.keys._begun_at
        assert began_at is not None
        attempts = [bearer.verify(tokens.token(headers={"kid": f"no-{each}"})) for each in range(2000)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert {type(each) for each in results} == {UnknownKey}
        assert provider.requests == 1
        bearer.keys._begun_at = began_at - bearer_tokens.MIN_REFRESH_S
        attempts = [bearer.verify(tokens.token(headers={"kid": f"no-{each}"})) for each in range(200)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert {type(each) for each in results} == {UnknownKey}
        assert provider.requests == 2


async def test_a_provider_that_fails_changes_nothing_for_known_keys(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "MIN_REFRESH_S", 0.0)
    async with running(KeySource(url=provider.url)) as bearer:
        await bearer.verify(tokens.token())
        for answer in (provider.fail, provider.redirect, provider.nonsense, provider.flood):
            provider.answer = answer
            failures = bearer.keys.failures
            with pytest.raises(UnknownKey):
                await bearer.verify(tokens.token(key="ed"))
            assert bearer.keys.failures == failures + 1
            assert (await bearer.verify(tokens.token("bob"))).user == "bob"


async def test_a_provider_that_hangs_keeps_nobody_else_waiting(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "MIN_REFRESH_S", 0.0)
    monkeypatch.setattr(bearer_tokens, "FETCH_S", SHORT_S)
    async with running(KeySource(url=provider.url)) as bearer:
        await bearer.verify(tokens.token())
        provider.answer = provider.hang
        unknown = asyncio.create_task(bearer.verify(tokens.token(key="ed")))
        await until(lambda: provider.requests == 2)
        assert (await bearer.verify(tokens.token("bob"))).user == "bob"
        assert not unknown.done()
        with pytest.raises(UnknownKey):
            await unknown


@pytest.mark.parametrize("answer", ["hang", "drip", "drip_body"])
def test_a_fetch_ends_in_time(provider: Provider, answer: str) -> None:
    provider.answer = getattr(provider, answer)
    with pytest.raises(OSError, match=r"no complete answer|timed out"):
        KeyFetch(provider.url, SHORT_S).read()


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("flood", f"larger than {MAX_KEY_SET_BYTES}"),
        ("fail", "answered 500"),
        ("redirect", "answered 302"),
        ("nonsense", "not an answer of an HTTP server"),
    ],
)
def test_an_answer_that_is_no_key_set_is_refused(provider: Provider, answer: str, fault: str) -> None:
    provider.answer = getattr(provider, answer)
    with pytest.raises(InvalidKeySet, match=fault):
        KeyFetch(provider.url, DEADLINE_S).read()


def test_a_certificate_that_is_not_trusted_is_refused(provider: Provider) -> None:
    with pytest.raises(OSError, match=r"SSL|ssl"):  # it does not even speak TLS
        KeyFetch(provider.url.replace("http:", "https:"), DEADLINE_S).read()


@pytest.mark.parametrize("url", ["https://login..example.com/keys", "http://a b/keys"])
async def test_a_url_that_cannot_be_used_is_reported_and_tried_again(url: str) -> None:
    loading = SigningKeys(KeySource(url=url), on_change=lambda: None)
    running = asyncio.create_task(loading.run())
    await asyncio.wait_for(loading.refresh(), DEADLINE_S)
    assert (loading.failures, running.done()) == (1, False)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_file_is_loaded_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "FILE_CHECK_S", 0.01)
    file = tmp_path / "keys.json"
    file.write_bytes(tokens.jwks("ec-256"))
    async with running(KeySource(file=file)) as bearer:
        old, new = tokens.token(), tokens.token(key="ed")
        await bearer.verify(old)
        written = tmp_path / "new.json"
        written.write_bytes(tokens.jwks("ed"))
        written.replace(file)
        await until(lambda: bearer.known(old) is None)
        assert (await bearer.verify(new)).user == "alice"
        for spoil in (lambda: file.write_bytes(b"{"), file.unlink):
            failures = bearer.keys.failures
            spoil()
            await until(lambda: bearer.keys.failures > failures)  # noqa: B023 - called at once
            assert bearer.known(new) is not None


async def test_without_keys_every_token_is_refused(
    tmp_path: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "FETCH_S", SHORT_S)
    provider.answer = provider.fail
    async with running(KeySource(url=provider.url)) as bearer:
        with pytest.raises(UnknownKey):
            await bearer.verify(tokens.token())
    async with running(KeySource(file=tmp_path / "missing")) as bearer:
        with pytest.raises(UnknownKey):
            await bearer.verify(tokens.token())


async def test_a_megabyte_is_no_token(provider: Provider) -> None:
    async with running(KeySource(url=provider.url)) as bearer:
        text = "x." * (1 << 19)
        assert bearer.known(text) is None
        with pytest.raises(AuthenticationFailed, match="at most"):
            await bearer.verify(text)


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example.com/keys",
        "https://login.example.com:8443/keys?a=b",
        "http://localhost:9000/keys",
        "http://127.0.0.1/keys",
        "http://[::1]:9000/keys",
    ],
)
def test_keys_are_read_over_https_or_from_this_machine(url: str) -> None:
    check_key_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com/keys",
        "http://127.0.0.1.example.com/keys",
        "file:///etc/passwd",
        "ftp://login.example.com/keys",
        "https://",
        "https:///keys",
        "https://user:secret@login.example.com/keys",
        "https://login.example.com:99999/keys",
        "https://login.example.com:x/keys",
        "login.example.com/keys",
        "https://login..example.com/keys",
        f"https://{'l' * 64}.example.com/keys",
        "https://login.example.com/the keys",
        "https://login.example.com/keys\x7f",
        "https://login.example.com/schlüssel",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|ort"):
        check_key_url(url)
