"""Bearer tokens: which are accepted, and every way in which one is refused."""

import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from alpacamq.model.errors import AuthenticationFailed
from alpacamq.security import oauth
from alpacamq.security.oauth import (
    MAX_KEYS,
    MAX_TOKEN_BYTES,
    SKEW_S,
    InvalidKeySet,
    KeySet,
    TokenRules,
    UnknownKey,
    WrongSignature,
    parse_client_first,
)
from tests import tokens

RULES = TokenRules(issuer=tokens.ISSUER, audience=tokens.AUDIENCE)


@pytest.fixture(scope="module")
def keys() -> KeySet:
    return KeySet.parse(tokens.jwks())


def verify(token: str, keys: KeySet, rules: TokenRules = RULES, now_s: float | None = None) -> str:
    return oauth.verify(token, keys, rules, time.time() if now_s is None else now_s).user


def encoded(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return urlsafe_b64encode(data).decode().rstrip("=")


def unsigned(header: dict[str, Any], **changes: Any) -> str:
    return f"{encoded(header)}.{encoded(tokens.claims(**changes))}"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *(("rsa", name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("ec-256", "ES256"),
        ("ec-384", "ES384"),
        ("ed", "EdDSA"),
    ],
)
def test_a_signed_token_names_its_user(keys: KeySet, key: str, algorithm: str) -> None:
    assert verify(tokens.token("bob", key=key, algorithm=algorithm), keys) == "bob"


def test_another_claim_can_name_the_user(keys: KeySet) -> None:
    rules = TokenRules(issuer=tokens.ISSUER, audience=tokens.AUDIENCE, principal_claim="email")
    assert verify(tokens.token(email="a@example.com"), keys, rules) == "a@example.com"
    with pytest.raises(AuthenticationFailed, match="no claim 'email'"):
        verify(tokens.token(), keys, rules)


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "HS384", "HS512", "ES512", "rs256"]
)
def test_other_algorithms_are_refused_whatever_the_signature_is(keys: KeySet, algorithm: str) -> None:
    text = unsigned({"alg": algorithm, "kid": "rsa", "typ": "JWT"})
    signature = hmac.digest(tokens.pem("rsa"), text.encode(), "sha256")
    for each in ("", encoded(signature)):
        with pytest.raises(AuthenticationFailed, match="is not accepted"):
            verify(f"{text}.{each}", keys)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": ["another", "third"]}, "another audience"),
        ({"aud": "alpacamq-test"}, "another audience"),
        ({"iss": "https://evil.example.com"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"exp": None}, "no valid time 'exp'"),
        ({"exp": "tomorrow"}, "no valid time 'exp'"),
        ({"exp": True}, "no valid time 'exp'"),
        ({"nbf": [1]}, "no valid time 'nbf'"),
        ({"sub": None}, "no claim 'sub'"),
        ({"sub": 7}, "no claim 'sub'"),
        ({"sub": ""}, "must not be empty"),
        ({"sub": "ANONYMOUS"}, "reserved"),
        ({"sub": "*"}, "reserved"),
        ({"sub": "a\nb"}, "control characters"),
        ({"sub": "a" * 256}, "at most 255"),
    ],
)
def test_claims_that_do_not_fit_are_refused(keys: KeySet, changes: dict[str, Any], fault: str) -> None:
    header = {"alg": "ES256", "kid": "ec-256"}
    with pytest.raises(AuthenticationFailed, match=fault):
        verify(f"{unsigned(header, **changes)}.{encoded(b'x' * 64)}", keys)


def test_a_token_may_be_for_several_audiences(keys: KeySet) -> None:
    assert verify(tokens.token(aud=["other", tokens.AUDIENCE]), keys) == "alice"


def test_a_token_is_valid_from_its_start_to_its_end_as_far_as_clocks_agree(keys: KeySet) -> None:
    token = tokens.token(nbf=1000, exp=2000)
    assert verify(token, keys, now_s=1000 - SKEW_S) == verify(token, keys, now_s=2000 + SKEW_S - 1)
    with pytest.raises(AuthenticationFailed, match="not valid yet"):
        verify(token, keys, now_s=1000 - SKEW_S - 1)
    with pytest.raises(AuthenticationFailed, match="has expired"):
        verify(token, keys, now_s=2000 + SKEW_S)


@pytest.mark.parametrize("exp", [1e300, 10**400])
def test_a_token_without_a_sensible_end_has_one(keys: KeySet, exp: float) -> None:
    found = oauth.verify(tokens.token(exp=exp), keys, RULES, time.time())
    assert found.expires_ms < 2**63


@pytest.mark.parametrize("key", list(tokens.KEYS))
def test_a_changed_token_is_refused(keys: KeySet, key: str) -> None:
    header, claims, signature = tokens.token(key=key).split(".")
    forged = encoded(tokens.claims("admin"))
    for text in (f"{header}.{forged}.{signature}", f"{header}.{claims}.", f"{header}.{claims}.AAAA"):
        with pytest.raises(WrongSignature):
            verify(text, keys)


def test_a_key_of_the_attacker_under_a_known_id_is_refused(keys: KeySet) -> None:
    with pytest.raises(WrongSignature):
        verify(tokens.token(key="evil", headers={"kid": "rsa"}), keys)


def test_keys_and_urls_in_a_token_are_ignored(keys: KeySet) -> None:
    headers = {
        "kid": "rsa",
        "jwk": tokens.jwk("evil"),
        "jku": "https://evil.example.com/keys",
        "x5u": "https://evil.example.com/cert",
    }
    with pytest.raises(WrongSignature):
        verify(tokens.token(key="evil", headers=headers), keys)
    assert verify(tokens.token(key="rsa", headers=headers), keys) == "alice"


@pytest.mark.parametrize(
    "key_id",
    [
        "../../etc/passwd",
        "/dev/zero",
        "https://evil.example.com/keys",
        "file:///etc/passwd",
        "",
        "ec-256\0",
        "'",
    ],
)
def test_a_key_id_is_only_looked_up(keys: KeySet, key_id: str) -> None:
    with pytest.raises(UnknownKey):
        verify(tokens.token(headers={"kid": key_id}), keys)


def test_a_key_id_of_another_type_is_malformed(keys: KeySet) -> None:
    for key_id in (7, ["rsa"], {"a": 1}):
        text = unsigned({"alg": "RS256", "kid": key_id})
        with pytest.raises(AuthenticationFailed, match="malformed"):
            verify(f"{text}.AAAA", keys)


def test_an_algorithm_of_another_kind_of_key_is_refused(keys: KeySet) -> None:
    with pytest.raises(WrongSignature):
        verify(tokens.token(key="rsa", headers={"kid": "ec-256"}), keys)


def test_a_token_without_a_key_id_is_verified_by_the_only_key(keys: KeySet) -> None:
    token = tokens.token(headers={"kid": None})
    only = KeySet.parse(tokens.jwks("ec-256"))
    assert verify(token, only) == "alice"
    with pytest.raises(UnknownKey):
        verify(token, keys)


def test_critical_extensions_are_refused(keys: KeySet) -> None:
    text = unsigned({"alg": "ES256", "kid": "ec-256", "crit": ["b64"], "b64": False})
    with pytest.raises(AuthenticationFailed, match="critical"):
        verify(f"{text}.AAAA", keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "amq_id_secret",
        f"{encoded([])}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'RS256'})}.{encoded([1])}.AAAA",
        f"{encoded({'alg': 7})}.{encoded({})}.AAAA",
        f"{encoded(b'[' * 9000)}.{encoded({})}.AAAA",
        f"{encoded({'alg': 'RS256'})}.{encoded(b'[' * 9000)}.AAAA",
        f"{encoded({'alg': 'RS256', 'kid': 'rsa'})}.CLAIMS.A",
        f"{encoded({'alg': 'RS256', 'kid': 'rsa'})}.CLAIMS.A!A=",
        encoded(b'{"alg": "\xff"}') + "." + encoded({}) + ".AAAA",
        "é.é.é",
    ],
)
def test_a_malformed_token_is_refused(keys: KeySet, text: str) -> None:
    with pytest.raises(AuthenticationFailed, match="malformed"):
        verify(text.replace("CLAIMS", encoded(tokens.claims())), keys)


def test_a_large_token_is_refused_without_looking_at_it(keys: KeySet) -> None:
    with pytest.raises(AuthenticationFailed, match=f"at most {MAX_TOKEN_BYTES}"):
        verify("x" * (1 << 20), keys)
    assert verify(tokens.token(groups=["g" * 100] * 80), keys) == "alice"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        pytest.param("rsa", {"kty": "oct", "k": encoded(b"secret" * 8)}, id="shared secret"),
        pytest.param("rsa", {"use": "enc"}, id="for encryption"),
        pytest.param("rsa", {"key_ops": ["encrypt"]}, id="for other operations"),
        pytest.param("rsa", {"alg": "RS1"}, id="weak algorithm"),
        pytest.param("ec-256", {"crv": "secp256k1"}, id="unknown curve"),
        pytest.param("ec-256", {"x": "AAAA"}, id="not on the curve"),
        pytest.param("small", {}, id="1024 bits"),
        pytest.param("rsa", {"n": 7}, id="not text"),
        pytest.param("rsa", {"kty": None}, id="no type"),
        pytest.param("rsa", {"kid": 7}, id="id is a number"),
    ],
)
def test_keys_that_cannot_verify_tokens_are_left_out(key: str, changes: dict[str, Any]) -> None:
    unusable = tokens.jwk(key, **changes)
    kept = KeySet.parse(json.dumps({"keys": [unusable, tokens.jwk("ed")]}).encode())
    assert len(kept) == 1
    with pytest.raises(InvalidKeySet, match="no key"):
        KeySet.parse(json.dumps({"keys": [unusable]}).encode())


def test_a_key_may_be_for_one_algorithm() -> None:
    keys = KeySet.parse(json.dumps({"keys": [tokens.jwk("rsa", alg="PS256")]}).encode())
    assert verify(tokens.token(key="rsa", algorithm="PS256"), keys) == "alice"
    with pytest.raises(WrongSignature):
        verify(tokens.token(key="rsa", algorithm="RS256"), keys)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": [1]}',
        b"<html>",
        b'{"keys":' + b"[" * 100_000,
        b'{"keys": ["\xff"]}',
    ],
)
def test_a_document_that_is_no_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidKeySet, match="not a JWK set"):
        KeySet.parse(data)


def test_a_key_set_has_a_limited_number_of_keys() -> None:
    with pytest.raises(InvalidKeySet, match="more than"):
        KeySet.parse(json.dumps({"keys": [{}] * (MAX_KEYS + 1)}).encode())


@pytest.mark.parametrize(
    ("message", "acts_for"),
    [
        (b"n,,\x01auth=Bearer t.o.k\x01\x01", ""),
        (b"y,,\x01auth=bearer t.o.k\x01\x01", ""),
        (b"n,a=al=2Cice,\x01host=h\x01auth=Bearer t.o.k\x01port=1\x01\x01", "al,ice"),
    ],
)
def test_the_first_message_has_a_token(message: bytes, acts_for: str) -> None:
    assert parse_client_first(message) == (acts_for, "t.o.k")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer t",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer  \x01\x01",
        b"n,,\x01host=h\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
        b"n,b=x,\x01auth=Bearer t\x01\x01",
        b"n,a=,\x01auth=Bearer t\x01\x01",
        b"n,a=a=b,\x01auth=Bearer t\x01\x01",
        b"n,,x\x01auth=Bearer t\x01\x01",
        b"n\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"\0alice\0secret",
    ],
)
def test_a_malformed_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_client_first(message)
