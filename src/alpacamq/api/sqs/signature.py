"""Verifies Signature Version 4.

A signature covers method, path, query, the headers it names and the hash of the body, with a key derived for
one day. It is valid for 15 minutes.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote

import msgspec

from alpacamq.api.http.login import host_of, without_credentials
from alpacamq.api.http.messages import Request
from alpacamq.broker.access import Access, Caller
from alpacamq.model.errors import AuthenticationFailed
from alpacamq.model.ports import Clock
from alpacamq.security.principals import user
from alpacamq.telemetry.logs import get_logger

from .directory import SqsSettings
from .errors import INCOMPLETE_SIGNATURE, MISSING_TOKEN, UNKNOWN_KEY, WRONG_SIGNATURE, Fault

log = get_logger(__name__)

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
MAX_SKEW_S = 15 * 60
MAX_QUERY_FIELDS = 1000
MAX_SIGNING_KEYS = 1000

_SPACES = re.compile(r" +")
_STAMP = "%Y%m%dT%H%M%SZ"


class Claim(msgspec.Struct, frozen=True):
    """The fields of the Authorization header."""

    access_key_id: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


class Signatures:
    """Checks requests against the configured access key and the API keys.

    If there is no configured key and authentication is not required, clients with other keys, or none, pass
    as anonymous.
    """

    def __init__(self, settings: SqsSettings, clock: Clock, access: Access) -> None:
        self._access_key_id = settings.access_key_id
        self._secret = settings.secret_access_key
        self._region = settings.region
        self._clock = clock
        self._access = access
        # By secret and scope: clients use one scope a day.
        self._signing_keys: dict[tuple[str, str], bytes] = {}

    def check(self, request: Request) -> Caller:
        """Return the client.

        Raises Fault if the signature of a request is missing or invalid, and AuthenticationFailed if the key
        has expired or the tenant of the client is disabled.
        """
        is_required = bool(self._access_key_id) or self._access.requires_login(request.authentication)
        host = host_of(request)
        if not (header := request.headers.get("authorization", "")):
            if is_required and request.principal is None:
                raise Fault(MISSING_TOKEN, "Request is missing Authentication Token")
            return self._unsigned(request)
        if not is_required and not self._access.api_keys():
            return self._unsigned(request)
        claim = _claim(header)
        if self._access_key_id and hmac.compare_digest(
            claim.access_key_id.encode(), self._access_key_id.encode()
        ):
            self._verify(request, claim, self._secret, host)
            return self._admitted(Caller(user(self._access_key_id), host), "signature")
        if (key := self._access.api_keys().get(claim.access_key_id)) is not None:
            self._verify(request, claim, key.aws_secret, host)
            with self._recording(key.owner, host, "signature", key.id):
                caller = self._access.used_key(key, host)
            return self._admitted(caller, "signature")
        if is_required:
            self._failed(host)
            raise Fault(UNKNOWN_KEY, "The security token included in the request is invalid.")
        return self._unsigned(request)

    def _unsigned(self, request: Request) -> Caller:
        """Return the client of a request without a signature that counts."""
        return self._admitted(
            without_credentials(request), "" if request.principal is None else "certificate"
        )

    def _admitted(self, caller: Caller, how: str) -> Caller:
        """Return a client that may log in, and record that it has. Raises AuthenticationFailed."""
        try:
            self._access.check_admitted(caller)
        except AuthenticationFailed as error:
            self._refused(caller.principal.name, caller.host, how, caller.key_id, error)
            raise
        if how:
            self._access.audit_login(caller.principal.name, caller.host, how, key=caller.key_id)
        return caller

    @contextmanager
    def _recording(self, name: str, host: str, how: str, key_id: str) -> Iterator[None]:
        """Log and audit why the block refuses a client whose signature, or certificate, is right."""
        try:
            yield
        except AuthenticationFailed as error:
            self._refused(name, host, how, key_id, error)
            raise

    def _refused(self, name: str, host: str, how: str, key_id: str, error: AuthenticationFailed) -> None:
        log.info("authentication_failed", peer=host, api="sqs", user=name, reason=str(error))
        self._access.audit_login(name, host, how or "no credentials", str(error), key=key_id)

    def _failed(self, host: str) -> None:
        """Count a wrong key or signature. Raises RateLimited if an address has sent too many."""
        self._access.check_failures(host)
        self._access.failed(host)
        log.info("authentication_failed", peer=host, api="sqs", reason="unknown key or wrong signature")

    def _verify(self, request: Request, claim: Claim, secret: str, host: str) -> None:
        if claim.service != SERVICE:
            raise _wrong(f"Credential should be scoped to correct service: '{SERVICE}'.")
        if claim.region != self._region:
            raise _wrong(
                f"Credential should be scoped to a valid region, '{self._region}' (sqs.region), "
                f"not '{claim.region[:100]}'."
            )
        for name in request.headers:
            # The action is in one of these, and must be protected by the signature.
            if name.startswith("x-amz-") and name not in claim.signed_headers:
                raise _incomplete(f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")
        stamp = self._timely_stamp(request, claim)
        text = "\n".join((ALGORITHM, stamp, claim.scope, _sha256(_canonical(request, claim).encode())))
        expected = hmac.new(self._key_for(claim, secret), text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
            self._failed(host)
            raise _wrong(
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method."
            )

    def _timely_stamp(self, request: Request, claim: Claim) -> str:
        stamp = request.headers.get("x-amz-date", "")
        try:
            signed_at = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC)
        except ValueError:
            raise _incomplete("Date must be in ISO-8601 'basic format'.") from None
        if stamp[:8] != claim.day:
            raise _wrong("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date.")
        skew_s = signed_at.timestamp() - self._clock.now_ms() / 1000
        if abs(skew_s) > MAX_SKEW_S:
            side = "expired" if skew_s < 0 else "not yet current"
            raise _wrong(f"Signature {side}: {stamp} is more than {MAX_SKEW_S // 60} minutes off.")
        return stamp

    def _key_for(self, claim: Claim, secret: str) -> bytes:
        if (key := self._signing_keys.get((secret, claim.scope))) is None:
            key = f"AWS4{secret}".encode()
            for part in claim.scope.split("/"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            if len(self._signing_keys) >= MAX_SIGNING_KEYS:
                self._signing_keys.clear()
            self._signing_keys[secret, claim.scope] = key
        return key


def _claim(header: str) -> Claim:
    algorithm, _, rest = header.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"Authorization must begin with {ALGORITHM}.")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not parts.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    credential = parts["Credential"].rsplit("/", 4)
    if len(credential) != 5 or credential[4] != "aws4_request":
        raise _incomplete("Credential must have exactly 5 slash-delimited elements.")
    access_key_id, day, region, service, _ = credential
    signed_headers = tuple(parts["SignedHeaders"].split(";"))
    if "host" not in signed_headers:
        raise _incomplete("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    return Claim(access_key_id, day, region, service, signed_headers, parts["Signature"])


def _canonical(request: Request, claim: Claim) -> str:
    """Return the canonical form of a request."""
    try:
        pairs = parse_qsl(request.query_string, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise _incomplete("The query has too many fields.") from None
    # By name, then by value: a name sorts before names that begin with it.
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs)
    query = "&".join(f"{name}={value}" for name, value in encoded)
    headers = "".join(f"{name}:{_trimmed(request.headers, name)}\n" for name in claim.signed_headers)
    return "\n".join(
        (
            request.method,
            quote(_shortest(request.path), safe="/-_.~"),
            query,
            headers,
            ";".join(claim.signed_headers),
            _sha256(request.body),
        )
    )


def _shortest(path: str) -> str:
    """Return the normalized path, without empty and relative parts."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    end = "/" if parts and path.endswith("/") else ""
    return "/" + "/".join(parts) + end


def _trimmed(headers: Mapping[str, str], name: str) -> str:
    return _SPACES.sub(" ", headers.get(name, "").strip())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _wrong(message: str) -> Fault:
    return Fault(WRONG_SIGNATURE, message)


def _incomplete(message: str) -> Fault:
    return Fault(INCOMPLETE_SIGNATURE, message)
