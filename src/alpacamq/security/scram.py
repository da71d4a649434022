"""SCRAM (RFC 5802) with SHA-256 and SHA-512: credentials, and both sides of the exchange.

A server stores neither passwords nor anything that lets its reader log in. Nonces and salts are passed in.
Channel binding is not offered.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from alpacamq.model.errors import AuthenticationFailed, InvalidCredential

# As in Kafka: fewer iterations are too weak, more would let a client keep a server's CPU busy.
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16_384
DEFAULT_ITERATIONS = 4096
MIN_SALT_BYTES = 8
MAX_SALT_BYTES = 256
SALT_BYTES = 24
NONCE_BYTES = 24
# What a client accepts from a server: other servers use more than MAX_ITERATIONS.
MAX_SERVER_ITERATIONS = 1_000_000
MAX_PASSWORD_BYTES = 1024

# Kafka's extension for delegation tokens (KIP-48).
TOKEN_EXTENSION = "tokenauth"  # noqa: S105 - a name

# Base64 of "n,,": no channel binding.
_NO_BINDING = "n,,"


class Mechanism(StrEnum):
    """The mechanisms, by their SASL names."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def digest(self) -> str:
        """The name of the hash function in hashlib."""
        return "sha256" if self is Mechanism.SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        return 32 if self is Mechanism.SHA_256 else 64


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What a server stores of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def credential_of(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password. Raises InvalidCredential for values out of range."""
    check_parameters(salt, iterations)
    if len(salted) != mechanism.digest_bytes:
        raise InvalidCredential(
            f"a salted password of {mechanism} has {mechanism.digest_bytes} bytes, not {len(salted)}"
        )
    client_key = _hmac(mechanism, salted, b"Client Key")
    return Credential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=_hmac(mechanism, salted, b"Server Key"),
    )


def check_parameters(salt: bytes, iterations: int) -> None:
    """Raise InvalidCredential unless a server may store these."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise InvalidCredential(
            f"iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}, not {iterations}"
        )
    if not MIN_SALT_BYTES <= len(salt) <= MAX_SALT_BYTES:
        raise InvalidCredential(f"a salt has {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes, not {len(salt)}")


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the password hashed with PBKDF2. Takes milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.digest, normalized(password).encode(), salt, iterations)


def normalized(password: str) -> str:
    """Return a password as clients hash it: the mappings of SASLprep, without its prohibitions.

    Clients differ in what they prohibit; for ASCII none changes anything.
    """
    if password.isascii():
        return password
    # Imported here: passwords beyond ASCII are rare, and the tables take time to load.
    from stringprep import in_table_b1, in_table_c12
    from unicodedata import normalize

    mapped = "".join(" " if in_table_c12(each) else each for each in password if not in_table_b1(each))
    return normalize("NFKC", mapped)


def has_password(mechanism: Mechanism, credential: Credential, password: str) -> bool:
    """Return whether a credential was made from this password. Takes milliseconds."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    client_key = _hmac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return hmac.compare_digest(stored_key, credential.stored_key)


class ServerExchange:
    """The server's side: `begin`, `challenge`, `finish`. Each raises AuthenticationFailed."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._binding = ""
        self._client_nonce = ""
        self._nonce = ""
        self._bare = ""
        self._server_first = ""
        self._credential: Credential | None = None
        self.extensions: Mapping[str, str] = {}

    def begin(self, client_first: bytes) -> str:
        """Read the client's first message; return the user name."""
        text = _text(client_first)
        flag, _, rest = text.partition(",")
        authzid, separator, bare = rest.partition(",")
        if flag.startswith("p="):
            raise AuthenticationFailed("channel binding is not supported")
        if flag not in {"n", "y"} or not separator or (authzid and not authzid.startswith("a=")):
            raise AuthenticationFailed("malformed SCRAM message")
        self._binding = f"{flag},{authzid},"
        self._bare = bare
        first, *others = _attributes(bare)
        if first[0] == "m":
            raise AuthenticationFailed("mandatory SCRAM extensions are not supported")
        if first[0] != "n" or not others or others[0][0] != "r" or not others[0][1]:
            raise AuthenticationFailed("malformed SCRAM message")
        name = unescaped(first[1])
        if authzid and unescaped(authzid[2:]) != name:
            raise AuthenticationFailed("acting for another user is not supported")
        self._client_nonce = others[0][1]
        self.extensions = dict(others[1:])
        return name

    @property
    def is_token(self) -> bool:
        """Whether the name is the id of a delegation token."""
        return self.extensions.get(TOKEN_EXTENSION, "").lower() == "true"

    def challenge(self, credential: Credential, server_nonce: bytes) -> bytes:
        """Return the server's first message for the credential of the user."""
        self._credential = credential
        self._nonce = self._client_nonce + _base64(server_nonce)
        self._server_first = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        return self._server_first.encode()

    def finish(self, client_final: bytes) -> bytes:
        """Check the client's proof; return the server's last message."""
        credential, mechanism = self._credential, self._mechanism
        assert credential is not None
        text = _text(client_final)
        unproved, separator, proof = text.rpartition(",p=")
        if not separator:
            raise AuthenticationFailed("malformed SCRAM message")
        binding, *others = _attributes(unproved)
        if binding[0] != "c" or _decoded(binding[1]) != self._binding.encode():
            raise AuthenticationFailed("the SCRAM channel binding changed during the exchange")
        if not others or others[0] != ("r", self._nonce):
            raise AuthenticationFailed("the SCRAM nonce changed during the exchange")
        exchange = f"{self._bare},{self._server_first},{unproved}".encode()
        signature = _hmac(mechanism, credential.stored_key, exchange)
        client_key = _xor(_decoded(proof), signature)
        stored_key = hashlib.new(mechanism.digest, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise AuthenticationFailed("wrong user name or password")
        return b"v=" + b64encode(_hmac(mechanism, credential.server_key, exchange))


class ClientExchange:
    """The client's side: send `first`, answer the server with `final`, and `verify` its last message."""

    def __init__(
        self, mechanism: Mechanism, name: str, password: str, nonce: bytes, *, is_token: bool = False
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = _base64(nonce)
        self._bare = f"n={_escaped(name)},r={self._nonce}"
        if is_token:  # the name is the id of a delegation token
            self._bare += f",{TOKEN_EXTENSION}=true"
        self._signature = b""

    @property
    def first(self) -> bytes:
        return f"{_NO_BINDING}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof for the server's challenge. Takes milliseconds."""
        text = _text(server_first)
        values = dict(_attributes(text))
        nonce, iterations = values.get("r", ""), values.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the server changed the SCRAM nonce")
        if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations) <= MAX_SERVER_ITERATIONS:
            raise AuthenticationFailed(f"the server asks for {iterations or 'no'} SCRAM iterations")
        salted = salted_password(
            self._mechanism, self._password, _decoded(values.get("s", "")), int(iterations)
        )
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(self._mechanism.digest, client_key).digest()
        unproved = f"c={_base64(_NO_BINDING.encode())},r={nonce}"
        exchange = f"{self._bare},{text},{unproved}".encode()
        self._signature = _hmac(self._mechanism, _hmac(self._mechanism, salted, b"Server Key"), exchange)
        proof = _xor(client_key, _hmac(self._mechanism, stored_key, exchange))
        return f"{unproved},p={_base64(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise AuthenticationFailed unless the server knows the password as well."""
        values = dict(_attributes(_text(server_final)))
        if "e" in values:
            raise AuthenticationFailed(f"the server refused the password: {values['e']}")
        if not hmac.compare_digest(_decoded(values.get("v", "")), self._signature):
            raise AuthenticationFailed("the server does not know the password")


def _hmac(mechanism: Mechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.digest)


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise AuthenticationFailed("malformed SCRAM message")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("malformed SCRAM message") from None


def _attributes(text: str) -> list[tuple[str, str]]:
    """Return names and values of `n=value,r=value`."""
    found = []
    for attribute in text.split(","):
        name, separator, value = attribute.partition("=")
        if not (name and separator):
            raise AuthenticationFailed("malformed SCRAM message")
        found.append((name, value))
    return found


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        raise AuthenticationFailed("malformed SCRAM message") from None


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(text: str) -> str:
    name = text.replace("=2C", ",").replace("=2c", ",").replace("=3D", "=").replace("=3d", "=")
    if not name or text.count("=") != sum(text.count(each) for each in ("=2C", "=2c", "=3D", "=3d")):
        raise AuthenticationFailed("malformed SCRAM user name")
    return name
