"""Topics to use as queues, filled without the command that is under test."""

from collections import Counter
from typing import Any

import httpx

from tests.brokers import Broker


def sent(broker: Broker, topic: str, *values: str, **fields: Any) -> None:
    """Publish these values to the first partition of the topic, which is made if it is not there."""
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        if http.get(f"/topics/{topic}").status_code == 404:
            http.post("/topics", json={"name": topic, "partitions": 1}).raise_for_status()
        messages = [{"value": value, "partition": 0, **fields} for value in values]
        http.post(f"/topics/{topic}/messages", json={"messages": messages}).raise_for_status()


def leased(broker: Broker, topic: str, **query: Any) -> list[dict[str, Any]]:
    """Messages as the built-in group receives them."""
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        answer = http.get("/groups/queue/poll", params={"topic": topic, "wait_ms": 0, "max": 100, **query})
        answer.raise_for_status()
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages


def receipts(broker: Broker, topic: str, **query: Any) -> list[str]:
    """Those of messages that are there: the first look at a queue may be too early."""
    return [each["receipt"] for each in leased(broker, topic, **{"wait_ms": 10_000, **query})]


def settled(broker: Broker, how: str, *handles: str, **fields: Any) -> None:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        http.post(f"/messages/{how}", json={"receipts": handles, **fields}).raise_for_status()


def stats(broker: Broker, topic: str, group: str = "queue") -> Counter[str]:
    """What the queue holds and has done; nothing where there is none yet."""
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as http:
        answer = http.get(f"/groups/{group}/queues/{topic}")
        return Counter(answer.json()["totals"] if answer.is_success else {})
