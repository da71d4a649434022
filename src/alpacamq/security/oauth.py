"""Bearer tokens of an OAuth provider: JWTs (RFC 7519), its keys (RFC 7517), OAUTHBEARER messages (RFC 7628).

A token is accepted if a known key of the provider signed it with an asymmetric algorithm, and if it is for
this audience, from this issuer and valid now. A header of a token selects a known key and nothing else: URLs
and keys in it are ignored. PyJWT and cryptography are imported with the first key set: that takes 200 ms.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from alpacamq.model.errors import AuthenticationFailed, InvalidPrincipal

from .principals import check_user_name
from .scram import unescaped

MECHANISM = "OAUTHBEARER"
MAX_TOKEN_BYTES = 16 << 10
MAX_KEYS = 100
# By how much the clocks of the provider and the broker may differ.
SKEW_S = 30
# Smaller RSA keys are too weak, larger ones slow.
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
# What a client sends after the error of a server, which then refuses it.
ABORT = b"\x01"

_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# The algorithms of each kind of key; for curves by their names.
_CURVE_ALGORITHMS = {"P-256": ("ES256",), "P-384": ("ES384",), "Ed25519": ("EdDSA",)}
# Neither `none` nor those with a shared secret, which a public key could be taken for.
ALGORITHMS = frozenset({*_RSA_ALGORITHMS, "ES256", "ES384", "EdDSA"})
# The parameters of public keys; others, such as those of private keys, are not read.
_PUBLIC = ("kty", "crv", "n", "e", "x", "y")
# Later times than any clock shows.
_LATEST_S = 1 << 40
_MALFORMED = "malformed bearer token"
_MALFORMED_MESSAGE = "malformed OAUTHBEARER message"


class InvalidKeySet(ValueError):
    """A document is not a JWK set, or has no usable key."""


class UnknownKey(Exception):
    """No key of the set has the id that a token names."""


class WrongSignature(Exception):
    """The key that a token names has not signed it: it is a forgery, not a token that is out of date."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a token has to say, and the claim that names the user."""

    issuer: str
    audience: str
    principal_claim: str = "sub"


class BearerToken(NamedTuple):
    """The user of a token that was verified, and its end."""

    user: str
    expires_ms: int


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    # Extensions that a recipient has to know; this one knows none.
    crit: Any = None


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Key(NamedTuple):
    """A public key, and how to verify with it by the names of algorithms."""

    public: Any
    algorithms: Mapping[str, Any]


class KeySet:
    """The public keys of a provider, by their ids."""

    def __init__(self, keys: Mapping[str | None, Sequence[_Key]]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    @staticmethod
    def parse(data: bytes) -> "KeySet":
        """Parse a JWK set. Keys that cannot verify a token are left out. Raises InvalidKeySet."""
        try:
            document = msgspec.json.decode(data, type=_Document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidKeySet('not a JWK set, {"keys": [...]}') from None
        if len(document.keys) > MAX_KEYS:
            raise InvalidKeySet(f"more than {MAX_KEYS} keys")
        keys: dict[str | None, list[_Key]] = {}
        for jwk in document.keys:
            key_id = jwk.get("kid")
            if (key := _public_key(jwk)) is not None and isinstance(key_id, str | None):
                keys.setdefault(key_id, []).append(key)
        if not keys:
            raise InvalidKeySet(
                f"no key to verify signatures with: RSA of {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, "
                "EC on P-256 or P-384, or Ed25519"
            )
        return KeySet(keys)

    def verifies(self, header: _Header, signed: bytes, signature: bytes) -> bool:
        """Return whether a key signed these bytes. Raises UnknownKey.

        A token that names no key is compared with the only key, if there is one.
        """
        keys = self._keys.get(header.kid, ())
        if header.kid is None and len(self) == 1:
            (keys,) = self._keys.values()
        if not keys:
            raise UnknownKey("the bearer token names a key that is not known (security.jwks_url, jwks_file)")
        return any(
            key.algorithms[header.alg].verify(signed, key.public, signature)
            for key in keys
            if header.alg in key.algorithms
        )


def _public_key(jwk: Mapping[str, Any]) -> _Key | None:
    """Return the key of a JWK; None if it is not for signatures, not supported or invalid."""
    from jwt.algorithms import get_default_algorithms
    from jwt.exceptions import InvalidKeyError

    kind, curve = jwk.get("kty"), jwk.get("crv")
    if kind == "RSA":
        names: Sequence[str] = _RSA_ALGORITHMS
    elif kind in ("EC", "OKP") and isinstance(curve, str):
        names = _CURVE_ALGORITHMS.get(curve, ())
    else:
        return None
    if "alg" in jwk:
        names = [name for name in names if name == jwk["alg"]]
    operations = jwk.get("key_ops", ["verify"])
    is_for_signatures = jwk.get("use", "sig") == "sig" and (
        isinstance(operations, list) and "verify" in operations
    )
    if not names or not is_for_signatures:
        return None
    known = get_default_algorithms()
    algorithms = {name: known[name] for name in names}
    public: Any
    try:
        public = algorithms[names[0]].from_jwk({name: jwk[name] for name in _PUBLIC if name in jwk})
    except (InvalidKeyError, ValueError, TypeError, AttributeError):
        return None
    if kind == "RSA" and not MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
        return None
    return _Key(public, algorithms)


def verify(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> BearerToken:
    """Return the user of a token.

    Raises AuthenticationFailed, UnknownKey and WrongSignature. Claims come first: comparing them costs less
    than a signature.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationFailed(f"a bearer token has at most {MAX_TOKEN_BYTES} bytes")
    signed, separator, signature = token.rpartition(".")
    header_part, inner_separator, claims_part = signed.partition(".")
    if not separator or not inner_separator or not token.isascii():
        raise AuthenticationFailed(_MALFORMED)
    try:
        header = msgspec.json.decode(_decoded(header_part), type=_Header)
        claims = msgspec.json.decode(_decoded(claims_part), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise AuthenticationFailed(_MALFORMED) from None
    if header.alg not in ALGORITHMS:
        raise AuthenticationFailed(
            f"the algorithm {header.alg[:20]!r} of the bearer token is not accepted; use one of "
            + ", ".join(sorted(ALGORITHMS))
        )
    if header.crit is not None:
        raise AuthenticationFailed("the bearer token has critical extensions, which are not supported")
    found = check_claims(claims, rules, now_s)
    if not keys.verifies(header, signed.encode(), _decoded(signature)):
        raise WrongSignature("the signature of the bearer token is wrong")
    return found


def check_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> BearerToken:
    """Return the user that claims name. Raises AuthenticationFailed."""
    if claims.get("iss") != rules.issuer:
        raise AuthenticationFailed("the bearer token is from another issuer (security.jwt_issuer)")
    audience = claims.get("aud")
    if rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise AuthenticationFailed("the bearer token is for another audience (security.jwt_audience)")
    expires_s, not_before_s = _time(claims, "exp"), _time(claims, "nbf", 0)
    if now_s >= expires_s + SKEW_S:
        raise AuthenticationFailed("the bearer token has expired")
    if now_s < not_before_s - SKEW_S:
        raise AuthenticationFailed("the bearer token is not valid yet")
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str):
        raise AuthenticationFailed(
            f"the bearer token has no claim {rules.principal_claim!r} that names a user"
        )
    try:
        check_user_name(name)
    except InvalidPrincipal as error:
        raise AuthenticationFailed(f"claim {rules.principal_claim!r} of the bearer token: {error}") from None
    return BearerToken(name, int(min(expires_s, _LATEST_S) * 1000))


def _time(claims: Mapping[str, Any], name: str, default: int | None = None) -> int | float:
    value = claims.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise AuthenticationFailed(f"the bearer token has no valid time {name!r}")
    return value


def _decoded(part: str) -> bytes:
    try:
        return b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (Base64Error, ValueError):
        raise AuthenticationFailed(_MALFORMED) from None


class ClientFirst(NamedTuple):
    """The first message of a client: the user it acts for, empty if it does not say, and its token."""

    acts_for: str
    token: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Parse `n,a=user,^Aauth=Bearer token^A^A`; other pairs are ignored. Raises AuthenticationFailed."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed(_MALFORMED_MESSAGE) from None
    header, *pairs = text.split("\x01")
    flag, separator, rest = header.partition(",")
    authzid, end, after = rest.partition(",")
    if flag.startswith("p="):
        raise AuthenticationFailed("channel binding is not supported")
    if flag not in {"n", "y"} or not (separator and end) or after:
        raise AuthenticationFailed(_MALFORMED_MESSAGE)
    if (authzid and not authzid.startswith("a=")) or len(pairs) < 2 or pairs[-2:] != ["", ""]:
        raise AuthenticationFailed(_MALFORMED_MESSAGE)
    values = [value for name, _, value in (each.partition("=") for each in pairs[:-2]) if name == "auth"]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationFailed("the OAUTHBEARER message has no auth=Bearer TOKEN")
    return ClientFirst(unescaped(authzid[2:]) if authzid else "", token.strip())


def error_challenge(reason: str) -> bytes:
    """Return the answer of a server to a token that it does not accept."""
    return msgspec.json.encode({"status": "invalid_token", "error_description": reason})
