"""API keys over HTTP."""

from collections.abc import Sequence

from alpacamq.client.errors import NotFound
from alpacamq.wire.keys import CreatedKey, KeyDescription, KeyList

from .connection import HttpApi, Problem

_COMMAND_MS = 30_000


def list_keys(api: HttpApi) -> Sequence[KeyDescription]:
    """Return the keys that the client may see."""
    return api.get(("keys",), KeyList).keys


def create_key(
    api: HttpApi,
    *,
    owner: str | None = None,
    expires_in_ms: int | None = None,
    scopes: Sequence[str] = (),
    description: str = "",
) -> CreatedKey:
    """Create a key; its secret is returned this once."""
    body: dict[str, object] = {"scopes": list(scopes), "description": description}
    if owner is not None:
        body["owner"] = owner
    if expires_in_ms is not None:
        body["expires_in_ms"] = expires_in_ms
    return api.send("POST", ("keys",), CreatedKey, body, wait_ms=_COMMAND_MS)


def rotate_key(api: HttpApi, key_id: str, *, overlap_ms: int) -> CreatedKey:
    """Replace a key, which ends after `overlap_ms`; return the new one, with its secret. Raises NotFound."""
    try:
        body = {"overlap_ms": overlap_ms}
        return api.send("POST", ("keys", key_id, "rotate"), CreatedKey, body, wait_ms=_COMMAND_MS)
    except Problem as problem:
        raise _not_found(api, problem, key_id) from None


def delete_key(api: HttpApi, key_id: str) -> None:
    """Delete a key. Raises NotFound."""
    try:
        api.send("DELETE", ("keys", key_id), type(None), wait_ms=_COMMAND_MS)
    except Problem as problem:
        raise _not_found(api, problem, key_id) from None


def _not_found(api: HttpApi, problem: Problem, key_id: str) -> Exception:
    """Return NotFound with the keys that there are, if that is the problem."""
    if problem.kind != "unknown-api-key":
        return problem
    return NotFound("API key", key_id, [each.id for each in list_keys(api)])
