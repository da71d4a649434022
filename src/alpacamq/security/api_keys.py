"""API keys: `amq_<id>_<secret>`, of which the cluster stores a hash.

The AWS secret access key of an API key is derived from its secret in one direction: signatures of version 4
need a secret that both sides know, and this one opens the SQS API only.
"""

import hashlib
import hmac
import re
from base64 import b32encode, urlsafe_b64encode
from typing import NamedTuple

import msgspec

from alpacamq.model.errors import InvalidRequest

from .acls import Operation

PREFIX = "amq_"
ID_BYTES = 10
SECRET_BYTES = 32
MAX_DESCRIPTION_LENGTH = 200
_KEY = re.compile(rf"{PREFIX}([A-Za-z0-9]*)_[A-Za-z0-9_=-]+")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored. It acts for `owner`, within `scopes` if there are any."""

    id: str
    owner: str
    aws_secret: str
    created_ms: int
    expires_ms: int | None = None
    scopes: tuple[Operation, ...] = ()
    description: str = ""

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms

    def allows(self, operation: Operation) -> bool:
        """Return whether the scopes include an operation; describing is included in any."""
        return not self.scopes or operation in self.scopes or operation is Operation.DESCRIBE

    def has_secret(self, secret: str) -> bool:
        return hmac.compare_digest(aws_secret_of(secret), self.aws_secret)


class Presented(NamedTuple):
    """The parts of a key that a client sent."""

    id: str
    secret: str


def new_id(random: bytes) -> str:
    """Return the id that ID_BYTES random bytes make."""
    assert len(random) == ID_BYTES
    return b32encode(random).decode().lower()


def new_secret(random: bytes) -> str:
    """Return the secret that SECRET_BYTES random bytes make."""
    assert len(random) == SECRET_BYTES
    return urlsafe_b64encode(random).decode().rstrip("=")


def text_of(key_id: str, secret: str) -> str:
    return f"{PREFIX}{key_id}_{secret}"


def parse(text: str) -> Presented | None:
    """Return the parts of a key; None if it is not one."""
    if not text.startswith(PREFIX):
        return None
    key_id, separator, secret = text.removeprefix(PREFIX).partition("_")
    return Presented(key_id, secret) if key_id and separator and secret else None


def masked(text: str) -> str:
    """Return a text of a client without the secrets of keys in it, fit for the log."""
    return _KEY.sub(rf"{PREFIX}\1_***", text)


def aws_secret_of(secret: str) -> str:
    """Return the AWS secret access key that belongs to the secret of a key."""
    return hashlib.sha256(b"alpacamq-aws-secret/" + secret.encode()).hexdigest()


def check_description(text: str) -> None:
    """Raise InvalidRequest for a description that cannot be shown."""
    if len(text) > MAX_DESCRIPTION_LENGTH or not text.isprintable():
        raise InvalidRequest(
            f"a description has at most {MAX_DESCRIPTION_LENGTH} characters and no control characters"
        )
