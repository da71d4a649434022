"""Answers that are problems."""

from typing import Any

import httpx


def refused(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem of an answer, which must be this one."""
    problem: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert (response.status_code, problem["type"]) == (status, f"urn:alpacamq:problem:{kind}"), response.text
    assert problem["status"] == status
    assert problem["title"]
    return problem


def wrong_field(response: httpx.Response) -> str:
    """The field, if any, that is said to be wrong, by itself or beside others."""
    problem: dict[str, Any] = response.json()
    kind = problem["type"].rpartition(":")[2]
    assert (response.status_code, kind) in ((400, "invalid-input"), (422, "conflicting-input")), response.text
    assert response.headers["content-type"] == "application/problem+json"
    return str(problem.get("field", ""))
