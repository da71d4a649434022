"""Requests to a schema registry, and schemas to send."""

import json
from typing import Any
from urllib.parse import quote

import httpx

INT = '"int"'


def record(*fields: str, name: str = "Order") -> str:
    """Return an Avro record with integer fields; a field with `?` has a default."""
    described = [
        {"name": field.rstrip("?"), "type": "int", **({"default": 0} if field.endswith("?") else {})}
        for field in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": described})


class Registry:
    """A registry, and a subject."""

    def __init__(self, client: httpx.Client, subject: str, prefix: str = "") -> None:
        self.client = client
        self.subject = subject
        self.prefix = prefix

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Return the body of a response that is a success."""
        answer = self.send(method, path, body, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        path = path.replace("{subject}", quote(self.subject, safe=""))
        return self.client.request(
            method, self.prefix + path, params=query or None, **({} if body is None else {"json": body})
        )

    def refused(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, int]:
        """Return the status and the code of an error."""
        answer = self.send(method, path, body, **query)
        found = answer.json()
        assert set(found) == {"error_code", "message"}, found
        return answer.status_code, found["error_code"]

    def register(self, schema: str, **fields: Any) -> Any:
        """Register a schema under the subject."""
        return self.ask("POST", "/subjects/{subject}/versions", {"schema": schema, **fields})
