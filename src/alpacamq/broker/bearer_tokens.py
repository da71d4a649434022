"""Bearer tokens of an OAuth provider: its keys, from a file or a URL, and the tokens that they have verified.

The keys are loaded again when the file changes, or at an interval from the URL, and when a token names one
that is not known: at most once a minute. If that fails, the keys that are known stay in force.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Timer
from time import monotonic
from urllib.parse import urlsplit

import msgspec

from alpacamq.security.oauth import (
    MAX_TOKEN_BYTES,
    BearerToken,
    InvalidKeySet,
    KeySet,
    TokenRules,
    UnknownKey,
    verify,
)
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

MAX_KEY_SET_BYTES = 256 << 10
# From the connection to the last byte.
FETCH_S = 5.0
FILE_CHECK_S = 5.0
# After a failure.
RETRY_S = 10.0
# Tokens with unknown keys make the keys be loaded again at most this often.
MIN_REFRESH_S = 60.0
MAX_KNOWN_TOKENS = 10_000


class KeySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the keys of the provider are: in a file, or at a URL that is read at an interval."""

    file: Path | None = None
    url: str = ""
    refresh_ms: int = 3_600_000

    def __str__(self) -> str:
        return self.url or str(self.file)


class TokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The provider of tokens."""

    rules: TokenRules
    keys: KeySource


class BearerTokens:
    """Verifies tokens. `keys.run` loads the keys."""

    def __init__(self, settings: TokenSettings, now_ms: Callable[[], int]) -> None:
        self._rules = settings.rules
        self._now_ms = now_ms
        self._known: OrderedDict[bytes, BearerToken] = OrderedDict()
        self.keys = SigningKeys(settings.keys, on_change=self._known.clear)

    def known(self, text: str) -> BearerToken | None:
        """Return a token that was verified before and has not expired; None if it has to be verified."""
        if len(text) > MAX_TOKEN_BYTES:
            return None
        digest = _digest(text)
        token = self._known.get(digest)
        if token is not None and self._now_ms() >= token.expires_ms:
            del self._known[digest]
            return None
        if token is not None:
            self._known.move_to_end(digest)
        return token

    async def verify(self, text: str) -> BearerToken:
        """Verify a token. Raises AuthenticationFailed, UnknownKey, WrongSignature.

        Waits until the keys are loaded again if the token names one that is not known.
        """
        try:
            token = self._verified(text)
        except UnknownKey:
            await self.keys.refresh()
            token = self._verified(text)
        self._known[_digest(text)] = token
        if len(self._known) > MAX_KNOWN_TOKENS:
            self._known.popitem(last=False)
        return token

    def _verified(self, text: str) -> BearerToken:
        return verify(text, self.keys.current, self._rules, self._now_ms() / 1000)


def _digest(text: str) -> bytes:
    # A text with halves of surrogate pairs is no token, and has a digest like any other.
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class SigningKeys:
    """The keys of the provider as they were last loaded."""

    def __init__(self, source: KeySource, on_change: Callable[[], None]) -> None:
        self._source = source
        self._on_change = on_change
        self.current = KeySet({})
        self._loaded: bytes | None = None
        # Size and times of the file that was loaded.
        self._version: tuple[int, ...] | None = None
        self._begun_at: float | None = None
        self._is_wanted = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._fetch: KeyFetch | None = None
        # Why the keys could not be loaded, the last time; a reason is logged once.
        self._problem = ""
        # For metrics.
        self.failures = 0

    async def run(self) -> None:
        """Load the keys now and whenever it is due, until cancelled."""
        # Its own thread: a provider that does not answer must not keep others from their threads.
        threads = ThreadPoolExecutor(1, thread_name_prefix="keys")
        try:
            while True:
                self._is_wanted.clear()
                self._is_idle.clear()
                self._begun_at = monotonic()
                is_loaded = await self._load(threads)
                self._is_idle.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s(is_loaded=is_loaded)):
                        await self._is_wanted.wait()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            if self._fetch is not None:
                self._fetch.abort()

    def _interval_s(self, *, is_loaded: bool) -> float:
        if self._source.file is not None:
            return FILE_CHECK_S
        interval_s = self._source.refresh_ms / 1000
        return interval_s if is_loaded else min(interval_s, RETRY_S)

    async def refresh(self) -> None:
        """Wait until the keys are loaded again; return at once if that was done within the last minute."""
        if self._is_idle.is_set():
            if self._begun_at is not None and monotonic() - self._begun_at < MIN_REFRESH_S:
                return
            self._is_idle.clear()
            self._is_wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * FETCH_S):
                await self._is_idle.wait()

    async def _load(self, threads: ThreadPoolExecutor) -> bool:
        """Load the keys; return whether that succeeded."""
        from http.client import HTTPException

        try:
            loaded = await asyncio.get_running_loop().run_in_executor(threads, self._read)
        except (OSError, ValueError, HTTPException, InvalidKeySet) as error:
            self.failures += 1
            former, self._problem = self._problem, str(error) or repr(error)
            if self._problem != former:
                log.warning("signing_keys_not_loaded", source=str(self._source), reason=self._problem)
            return False
        self._problem = ""
        if loaded is not None:
            self.current = loaded
            self._on_change()
            log.info("signing_keys_loaded", source=str(self._source), keys=len(loaded))
        return True

    def _read(self) -> KeySet | None:
        """Read the keys; None if they have not changed. Blocking."""
        version = None
        if self._source.file is not None:
            found = self._source.file.stat()
            version = (found.st_size, found.st_mtime_ns, found.st_ino)
            if version == self._version:
                return None
            data = read_key_set(self._source.file)
        else:
            self._fetch = KeyFetch(self._source.url, FETCH_S)
            data = self._fetch.read()
        # Also if it is invalid: the same bytes stay invalid, and are complained about once.
        self._version = version
        if data == self._loaded:
            return None
        keys = KeySet.parse(data)
        self._loaded = data
        return keys


def read_key_set(path: Path) -> bytes:
    """Read a file of keys. Blocking. Raises OSError, InvalidKeySet."""
    with path.open("rb") as file:
        return _limited(file.read(MAX_KEY_SET_BYTES + 1))


class KeyFetch:
    """One GET of a key set: limited in time and size, without redirects."""

    def __init__(self, url: str, within_s: float) -> None:
        # Imported here: most brokers have no provider of tokens.
        import ssl
        from http.client import HTTPConnection, HTTPSConnection

        self._parts = parts = urlsplit(url)
        assert parts.hostname is not None
        self._within_s = within_s
        self._socket: socket | None = None
        self._connection: HTTPConnection
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            self._connection = HTTPSConnection(parts.hostname, parts.port, timeout=within_s, context=secure)
        else:
            self._connection = HTTPConnection(parts.hostname, parts.port, timeout=within_s)

    def read(self) -> bytes:
        """Return the body of the answer. Blocking. Raises OSError, InvalidKeySet."""
        from http.client import HTTPException

        deadline = monotonic() + self._within_s
        # The timeout of a socket begins again with every byte: an answer could go on forever.
        watch = Timer(self._within_s, self.abort)
        watch.daemon = True
        watch.start()
        try:
            data = self._get()
        except (HTTPException, OSError) as error:
            if monotonic() >= deadline:
                raise TimeoutError(f"no complete answer within {self._within_s:g} s") from None
            if isinstance(error, OSError):
                raise
            raise InvalidKeySet(f"not an answer of an HTTP server: {type(error).__name__}") from None
        finally:
            watch.cancel()
            self._connection.close()
        if monotonic() >= deadline:
            raise TimeoutError(f"no complete answer within {self._within_s:g} s")
        return _limited(data)

    def _get(self) -> bytes:
        parts = self._parts
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        accept = "application/jwk-set+json, application/json"
        self._connection.connect()
        # The connection gives it away to a response that ends with the connection.
        self._socket = self._connection.sock
        self._connection.request("GET", target, headers={"Accept": accept})
        response = self._connection.getresponse()
        if response.status != 200:
            raise InvalidKeySet(f"the server answered {response.status} {response.reason[:100]}")
        return response.read(MAX_KEY_SET_BYTES + 1)

    def abort(self) -> None:
        """End the transfer, from any thread."""
        if self._socket is not None:
            with suppress(OSError):
                socket.shutdown(self._socket, SHUT_RDWR)  # also below TLS, which could wait for the server


def _limited(data: bytes) -> bytes:
    if len(data) > MAX_KEY_SET_BYTES:
        raise InvalidKeySet(f"larger than {MAX_KEY_SET_BYTES} bytes")
    return data


def check_key_url(url: str) -> None:
    """Raise ValueError unless keys may be read from a URL: https, or http on this machine."""
    if any(each <= " " or each == "\x7f" for each in url):
        raise ValueError("must not contain spaces or control characters")
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username is not None:
        raise ValueError("must be https://HOST/PATH")
    if not 0 < (parts.port or 443) < 1 << 16:  # `port` raises ValueError if it is not a number
        raise ValueError("must have a valid port")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError(f"must have a valid host name, not {parts.hostname!r}") from None
    if not (parts.path + parts.query).isascii():
        raise ValueError("must have a path of ASCII characters; encode others as %XX")
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(
            "must be https: an attacker who changes an answer over http could log in as any user"
        )
