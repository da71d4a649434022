"""An OAuth provider of tests: its keys, their JWK set, and the tokens that it signs."""

import json
import time
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

ISSUER = "https://login.example.com"
AUDIENCE = "alpacamq"
HOUR_S = 3600

# The algorithm that each key of the provider is for, by its id.
KEYS = {"rsa": "RS256", "ec-256": "ES256", "ec-384": "ES384", "ed": "EdDSA"}


@cache
def private_key(key_id: str) -> Any:
    match key_id:
        case "ec-256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ec-384":
            return ec.generate_private_key(ec.SECP384R1())
        case "ed":
            return ed25519.Ed25519PrivateKey.generate()
        case "small":
            return rsa.generate_private_key(65537, 1024)  # noqa: S505 - to be refused
        case _:
            return rsa.generate_private_key(65537, 2048)


def jwk(key_id: str, **changes: Any) -> dict[str, Any]:
    """Return the public key of this id as a JWK."""
    algorithm: Any = get_default_algorithms()[KEYS.get(key_id, "RS256")]
    found = algorithm.to_jwk(private_key(key_id).public_key(), as_dict=True)
    return {**found, "kid": key_id, "use": "sig", **changes}


def jwks(*key_ids: str) -> bytes:
    return json.dumps({"keys": [jwk(each) for each in key_ids or KEYS]}).encode()


def pem(key_id: str) -> bytes:
    """Return the public key of this id as text, which an attacker may take for a shared secret."""
    public: bytes = (
        private_key(key_id)
        .public_key()
        .public_bytes(encoding=Encoding.PEM, format=PublicFormat.SubjectPublicKeyInfo)
    )
    return public


def claims(user: str = "alice", **changes: Any) -> dict[str, Any]:
    """Return claims that are valid for an hour; those that are changed to None are left out."""
    now = int(time.time())
    all_of = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": now + HOUR_S, **changes}
    return {name: value for name, value in all_of.items() if value is not None}


def token(
    user: str = "alice",
    *,
    key: str = "ec-256",
    algorithm: str = "",
    headers: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Return a signed token of a user, with changed claims."""
    algorithm = algorithm or KEYS.get(key, "RS256")
    named = {name: value for name, value in {"kid": key, **(headers or {})}.items() if value is not None}
    return jwt.encode(claims(user, **changes), private_key(key), algorithm, headers=named)
