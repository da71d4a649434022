"""Checks 17 to 20: bearer tokens (JWT) that the provider has not issued, over SASL OAUTHBEARER and HTTP."""

import hmac
import json
import socket
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alpacamq.protocol.error_codes import ErrorCode
from tests import tokens
from tests.api.kafka.logins import OAUTHBEARER, handshake, is_served, send_token
from tests.api.kafka.wire import Wire
from tests.hostile.target import ADMIN, Target

from . import Check
from .login import next_host, stranger

# Of the attacker: not in the key set.
EVIL = "evil"


def _first_message(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def _log_in(wire: Wire, token: str) -> tuple[str, str]:
    """Authenticate with a token; return the outcome, and the reason of a refusal."""
    assert handshake(wire, OAUTHBEARER) == ErrorCode.NONE
    challenge = send_token(wire, _first_message(token))
    if challenge.error_code == ErrorCode.NONE and not challenge.auth_bytes:
        return "served" if is_served(wire) else "not served", ""
    assert json.loads(challenge.auth_bytes)["status"] == "invalid_token"
    final = send_token(wire, b"\x01")
    end = ", closed" if wire.is_closed else ""
    return f"{ErrorCode(final.error_code).name}{end}", final.error_message


def _answers(target: Target, token: str) -> str:
    """Send a token to both APIs, from an address without failed logins; return the answers."""
    host = next_host()
    with stranger(target, host) as wire:
        kafka, reason = _log_in(wire, token)
    headers = {"Authorization": f"Bearer {token}"}
    answer = target.ask_http("GET", "/topics", headers=headers, host=host)
    assert answer.json.get("detail", "") == reason, answer
    return f"{kafka}; HTTP {answer.status}" + (f": {reason}" if reason else "")


def _hostile(*forged: Callable[[], str]) -> Callable[[Target], str]:
    """Send forged tokens of the administrator; the provider's token, of the same claims, is accepted."""

    def attack(target: Target) -> str:
        assert _answers(target, tokens.token(ADMIN)) == "served; HTTP 200"
        found = {_answers(target, make()) for make in forged}
        return " and ".join(sorted(found))

    return attack


def _encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return urlsafe_b64encode(data).decode().rstrip("=")


def _unsigned(algorithm: str, key_id: str = "rsa") -> str:
    header = {"alg": algorithm, "kid": key_id, "typ": "JWT"}
    return f"{_encoded(header)}.{_encoded(tokens.claims(ADMIN))}"


def _without_signature(algorithm: str, signature: str) -> Callable[[], str]:
    return lambda: f"{_unsigned(algorithm)}.{signature}"


def _signed_with_public_key(digest: str, algorithm: str) -> Callable[[], str]:
    """Use a public key, which everybody knows, as the secret of an HMAC."""

    def forged() -> str:
        text = _unsigned(algorithm)
        return f"{text}.{_encoded(hmac.digest(tokens.pem('rsa'), text.encode(), digest))}"

    return forged


def _claims(**changes: Any) -> Callable[[], str]:
    return lambda: tokens.token(ADMIN, **changes)


def _expired() -> str:
    now_s = int(time.time())
    return tokens.token(ADMIN, iat=now_s - 7200, exp=now_s - 3600)


def _not_yet_valid() -> str:
    return tokens.token(ADMIN, nbf=int(time.time()) + 3600)


def _changed_claims() -> str:
    """Sign the claims of another user, and change them afterwards."""
    header, _, signature = tokens.token("mallory").split(".")
    return f"{header}.{_encoded(tokens.claims(ADMIN))}.{signature}"


def _key_id_as_path(target: Target) -> str:
    """Name a file with the attacker's key as the id of the key."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "keys.json"
        file.write_bytes(tokens.jwks(EVIL))
        ids = [str(file), f"../../../../../..{file}", file.as_uri(), "/dev/zero", "rsa\0", "'; DROP TABLE"]
        return _hostile(*(_under(each) for each in ids))(target)


def _under(key_id: str) -> Callable[[], str]:
    return lambda: tokens.token(ADMIN, key=EVIL, headers={"kid": key_id})


def _key_id_as_url(target: Target) -> str:
    """Name a server with the attacker's key as the id of the key, and in other headers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/keys.json"
        others = {"kid": EVIL, "jku": url, "x5u": url, "jwk": tokens.jwk(EVIL)}
        answer = _hostile(_under(url), lambda: tokens.token(ADMIN, key=EVIL, headers=others))(target)
        # The broker has answered: a connection would be in the queue of the socket.
        server.setblocking(False)
        try:
            server.accept()
        except BlockingIOError:
            return f"{answer}; not fetched"
        return f"{answer}; fetched"


def _refused(reason: str) -> str:
    return f"SASL_AUTHENTICATION_FAILED, closed; HTTP 401: {reason}"


_ALGORITHM = _refused("the algorithm * of the bearer token is not accepted; *")
_SIGNATURE = _refused("the signature of the bearer token is wrong")
_AUDIENCE = _refused("the bearer token is for another audience (security.jwt_audience)")
_KEY = _refused("the bearer token names a key that is not known (security.jwks_url, jwks_file)")

CHECKS = [
    *(
        Check(
            17,
            f"JWT with alg '{each}', with and without a signature",
            _ALGORITHM,
            _hostile(_without_signature(each, ""), _without_signature(each, "AAAA")),
        )
        for each in ("none", "None", "")
    ),
    Check(
        18,
        "JWT with HS256 and the public key as its secret",
        _ALGORITHM,
        _hostile(_signed_with_public_key("sha256", "HS256")),
    ),
    Check(
        18,
        "JWT with HS512 and the public key as its secret",
        _ALGORITHM,
        _hostile(_signed_with_public_key("sha512", "HS512")),
    ),
    Check(
        18,
        "JWT with RS256 and an HMAC of the public key",
        _SIGNATURE,
        _hostile(_signed_with_public_key("sha256", "RS256")),
    ),
    Check(
        19,
        "JWT for another audience, for none and for a similar one",
        _AUDIENCE,
        _hostile(_claims(aud="another"), _claims(aud=None), _claims(aud=f"{tokens.AUDIENCE}-test")),
    ),
    Check(
        19,
        "JWT of another issuer",
        _refused("the bearer token is from another issuer (security.jwt_issuer)"),
        _hostile(_claims(iss="https://evil.example.com")),
    ),
    Check(19, "JWT that has expired", _refused("the bearer token has expired"), _hostile(_expired)),
    Check(
        19,
        "JWT that is not valid yet",
        _refused("the bearer token is not valid yet"),
        _hostile(_not_yet_valid),
    ),
    Check(
        19,
        "JWT without an expiry",
        _refused("the bearer token has no valid time 'exp'"),
        _hostile(_claims(exp=None)),
    ),
    Check(19, "JWT whose claims were changed", _SIGNATURE, _hostile(_changed_claims)),
    Check(20, "JWT whose kid is a path", _KEY, _key_id_as_path),
    Check(20, "JWT whose kid, jku or x5u is a URL", f"{_KEY}; not fetched", _key_id_as_url),
    Check(20, "JWT of another key under a known kid", _SIGNATURE, _hostile(_under("rsa"))),
]
