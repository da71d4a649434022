"""API keys as the HTTP API sends them."""

import msgspec


class KeyDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A key; `last_used` is when this broker last saw it."""

    id: str
    owner: str
    created: int
    expires: int | None
    scopes: list[str]
    description: str
    last_used: int | None


class CreatedKey(KeyDescription, frozen=True, kw_only=True):
    """A new key. `key` and `aws_secret_access_key` are shown once; `id` is the AWS access key id."""

    key: str
    aws_secret_access_key: str


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, the oldest first."""

    keys: list[KeyDescription]
