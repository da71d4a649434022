"""API keys: their text, and what is stored of them."""

import pytest

from alpacamq.security.acls import Operation
from alpacamq.security.api_keys import (
    ApiKey,
    Presented,
    aws_secret_of,
    masked,
    new_id,
    new_secret,
    parse,
    text_of,
)

SECRET = new_secret(bytes(range(200, 232)))


def key_of(expires_ms: int | None = None, scopes: tuple[Operation, ...] = ()) -> ApiKey:
    return ApiKey(
        id="k1",
        owner="alice",
        aws_secret=aws_secret_of(SECRET),
        created_ms=0,
        expires_ms=expires_ms,
        scopes=scopes,
    )


def test_a_key_is_read_as_it_was_shown() -> None:
    key_id = new_id(bytes(10))
    assert parse(text_of(key_id, SECRET)) == Presented(key_id, SECRET)


@pytest.mark.parametrize("text", ["", "amq_", "amq_k1", "amq_k1_", "amq__s", "xyz_k1_s", "AMQ_k1_s"])
def test_other_texts_are_not_keys(text: str) -> None:
    assert parse(text) is None


def test_only_the_secret_matches_and_it_is_not_stored() -> None:
    key = key_of()
    assert key.has_secret(SECRET)
    assert not key.has_secret(SECRET[:-1])
    assert not key.has_secret(key.aws_secret)
    assert SECRET not in repr(key)


def test_a_key_expires() -> None:
    assert not key_of().is_expired(10**15)
    assert not key_of(expires_ms=1000).is_expired(999)
    assert key_of(expires_ms=1000).is_expired(1000)


def test_scopes_limit_a_key() -> None:
    assert key_of().allows(Operation.DELETE)
    limited = key_of(scopes=(Operation.READ,))
    assert [limited.allows(each) for each in (Operation.READ, Operation.DESCRIBE, Operation.WRITE)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("alice", "alice"),
        ("amq_abc234_s3-cr_et", "amq_abc234_***"),
        ("Bearer amq_abc234_secret amq_def567_other", "Bearer amq_abc234_*** amq_def567_***"),
    ],
)
def test_a_key_in_the_name_of_a_user_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown
